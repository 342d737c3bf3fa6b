// Package site runs steps that a site has added to the ramdisk, without a rebuild of the agent.
//
// A step is an executable and a manifest beside it: a JSON object with the step's interface, name, arguments,
// priorities and limits. Each step has a directory of its own below Folder, where `ingot ramdisk build --step` or an
// overlay puts it. Load turns them into entries of the agent's table, so that they are part of the ramdisk's manifest
// and are ordered, timed, stopped and reported like the agent's own.
//
// The program receives one JSON object on its standard input (see input) and writes one JSON object per line to its
// standard output (see line): progress, log, result, error, outcome. Standard error, and lines of standard output that
// are not JSON objects, go to the step's log. The step succeeds only if the exit status is 0 and no error was reported.
// Like every step, the program must tolerate being run again after a restart of the machine.
package site

import (
	"bytes"
	"cmp"
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

// Folder holds the site's steps in a ramdisk.
const Folder = "/usr/lib/ingot/steps"

// Manifest describes a site's step.
type Manifest struct {
	Interface   string     `json:"interface"` // one of Interfaces
	Step        string     `json:"step"`      // lower case, digits and underscores
	Description string     `json:"description"`
	Run         string     `json:"run"` // the executable, in the manifest's directory or below it
	Args        []step.Arg `json:"args"`
	Priority    step.In    `json:"priority"`
	Abortable   bool       `json:"abortable"`
	Timeout     duration   `json:"timeout"` // the whole run; default an hour
	Stall       duration   `json:"stall"`   // longest gap between lines of progress or log; default five minutes
}

// Interfaces that a site's step may belong to: those that requests can name.
var Interfaces = []string{"bios", "deploy", "firmware", "management", "raid", "vendor"}

const (
	defaultTimeout = time.Hour
	defaultStall   = 5 * time.Minute
	maxManifest    = 64 << 10
	maxSteps       = 200
)

// duration is in Go's syntax: "90s", "1h30m".
type duration time.Duration

// UnmarshalJSON reads a JSON string.
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

// programs is the part of the machine that running a step uses.
type programs interface {
	RunProgram(ctx context.Context, path string, stdin []byte, env []string,
		stdout, stderr func(line []byte)) (status int, err error)
}

// Facts returns data about the machine for the step's input, in addition to its arguments. Nil: none.
type Facts func(ctx context.Context) (inventory any, err error)

// Load reads the manifests below folder, sorted by name. A missing folder has none. All faults are returned together,
// with the steps that are valid.
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
	// Resolved, so that a link can't lead out of the directory.
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

// check returns all faults, and fills in defaults.
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
	m.Timeout = cmp.Or(m.Timeout, duration(defaultTimeout))
	m.Stall = cmp.Or(m.Stall, duration(defaultStall))
	return errors.Join(errs...)
}
