// Package site runs steps that a site has added to the ramdisk, without building the agent anew.
//
// A step is an executable and, beside it, a manifest: a JSON object with the step's interface, name, arguments,
// priorities and limits. They lie below Folder, each in a folder of its own, where `ingot ramdisk build --step` or an
// overlay puts them. Load makes them entries of the agent's table, so that they stand in the ramdisk's manifest and are
// ordered, timed, stopped and reported like the agent's own.
//
// The program gets one JSON object on its standard input (see input) and writes one JSON object per line to its
// standard output (see line): progress, log, result, error, outcome. What it writes to standard error, and lines of
// standard output that are no JSON objects, go to the step's log. It has ended well when its status is 0 and it
// reported no error; nothing else counts as success. The program must stand being run again after a restart of the
// machine, as every step.
package site

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// Folder is where a ramdisk has its site's steps.
const Folder = "/usr/lib/ingot/steps"

// Manifest is what a site says of a step.
type Manifest struct {
	Interface   string     `json:"interface"` // one of Interfaces
	Step        string     `json:"step"`      // lower case, digits and underscores
	Description string     `json:"description"`
	Run         string     `json:"run"` // the executable, in the manifest's folder or below it
	Args        []step.Arg `json:"args"`
	Priority    step.In    `json:"priority"`
	Abortable   bool       `json:"abortable"`
	Timeout     duration   `json:"timeout"` // the whole run; default an hour
	Stall       duration   `json:"stall"`   // between two lines of progress or log; default five minutes
}

// Interfaces are those that a site's step may belong to: the ones that requests can name.
var Interfaces = []string{"bios", "deploy", "firmware", "management", "raid", "vendor"}

const (
	defaultTimeout = time.Hour
	defaultStall   = 5 * time.Minute
	maxManifest    = 64 << 10
	maxSteps       = 200
)

// duration is written as Go writes it: "90s", "1h30m".
type duration time.Duration

// UnmarshalJSON reads text.
func (d *duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("%s is not a duration such as \"5m\"", b)
	}
	v, err := time.ParseDuration(s)
	if err != nil || v <= 0 {
		return fmt.Errorf("%q is not a duration such as \"5m\"", s)
	}
	*d = duration(v)
	return nil
}

// programs is what running a step asks of the machine.
type programs interface {
	RunProgram(ctx context.Context, path string, stdin []byte, env []string,
		stdout, stderr func(line []byte)) (status int, err error)
}

// Facts tells a step about the machine it runs on: what goes into its input beside its arguments. Nil: nothing.
type Facts func(ctx context.Context) (inventory any, err error)

// Load reads the manifests below folder, in the order of their names. A folder that is not there has none. Faults are
// told all at once, with the steps that are without.
func Load(folder string, m programs, facts Facts) ([]step.Step, error) {
	dirs, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the site's steps: %w", err)
	}
	var out []step.Step
	var errs []error
	for _, d := range dirs {
		files, err := filepath.Glob(filepath.Join(folder, d.Name(), "*.json"))
		if err != nil || len(files) == 0 {
			errs = append(errs,
				fmt.Errorf("read the site's steps: %s has no manifest (*.json)", filepath.Join(folder, d.Name())))
		}
		slices.Sort(files)
		for _, f := range files {
			s, err := load(f, m, facts)
			if err != nil {
				errs = append(errs, fmt.Errorf("read the site's step %s: %w", f, err))
				continue
			}
			out = append(out, s)
		}
	}
	if len(out) > maxSteps {
		return nil, fmt.Errorf("read the site's steps: %s has more than %d", folder, maxSteps)
	}
	if err := step.Check(out); err != nil {
		errs = append(errs, err)
	}
	return out, errors.Join(errs...)
}

func load(file string, m programs, facts Facts) (step.Step, error) {
	data, err := readSmall(file)
	if err != nil {
		return step.Step{}, err
	}
	var man Manifest
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&man); err != nil {
		return step.Step{}, fmt.Errorf("it is not a manifest: %w", err)
	}
	if err := man.check(); err != nil {
		return step.Step{}, err
	}
	// Resolved, so that a link does not lead out of the folder.
	dir, err := filepath.EvalSymlinks(filepath.Dir(file))
	if err != nil {
		return step.Step{}, err
	}
	path, err := filepath.EvalSymlinks(filepath.Join(dir, man.Run))
	if err != nil {
		return step.Step{}, fmt.Errorf("find its program: %w", err)
	}
	if rel, err := filepath.Rel(dir, path); err != nil || !filepath.IsLocal(rel) {
		return step.Step{}, fmt.Errorf("its program %s lies outside of the step's folder", path)
	}
	if fi, err := os.Stat(path); err != nil || !fi.Mode().IsRegular() || fi.Mode().Perm()&0o111 == 0 {
		return step.Step{}, fmt.Errorf("its program %s is not an executable file", path)
	}
	r := &runner{path: path, man: man, m: m, facts: facts}
	return step.Step{Run: r.run, Row: step.Row{Interface: man.Interface, Name: man.Step,
		Description: man.Description, Args: man.Args, Priority: man.Priority, Repeatable: true,
		Abortable: man.Abortable, Stall: time.Duration(man.Stall), Timeout: time.Duration(man.Timeout)}}, nil
}

func readSmall(file string) ([]byte, error) {
	fi, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() || fi.Size() > maxManifest {
		return nil, fmt.Errorf("it is not a file of at most %d bytes", maxManifest)
	}
	return os.ReadFile(file)
}

// check finds all faults, and fills in what was not said.
func (m *Manifest) check() error {
	var errs []error
	if !slices.Contains(Interfaces, m.Interface) {
		errs = append(errs, fmt.Errorf("interface %q is none of %s", m.Interface, strings.Join(Interfaces, ", ")))
	}
	if m.Step == "" || strings.Trim(m.Step, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		errs = append(errs, fmt.Errorf("step %q is not made of lower-case letters, digits and underscores", m.Step))
	}
	if m.Run == "" || !filepath.IsLocal(m.Run) {
		errs = append(errs, fmt.Errorf("run %q is not the name of a file in the step's folder", m.Run))
	}
	for phase, p := range m.Priority {
		switch phase {
		case step.Deploy, step.Clean, step.Inspect, step.Service, step.Rescue:
		default:
			errs = append(errs, fmt.Errorf("it has a priority in phase %q, which is unknown", phase))
		}
		if p < step.OnRequest || p > 999 {
			errs = append(errs,
				fmt.Errorf("its priority in phase %s is %d, which is not from %d to 999", phase, p, step.OnRequest))
		}
	}
	if m.Timeout == 0 {
		m.Timeout = duration(defaultTimeout)
	}
	if m.Stall == 0 {
		m.Stall = duration(defaultStall)
	}
	return errors.Join(errs...)
}
