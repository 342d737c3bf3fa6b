package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/ingot-metal/ingot/agent"
	"github.com/ingot-metal/ingot/agent/image"
	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/agent/step"
)

// printSteps prints the agent's table with the site's steps below folder.
func printSteps(w io.Writer, asJSON bool, folder string) error {
	table, err := withSite(agent.Steps(linux.Machine{}, nil), folder, linux.Machine{}, nil)
	if err != nil {
		return err
	}
	if err := step.Check(table); err != nil {
		return err
	}
	m, err := step.Describe(table)
	if err != nil {
		return err
	}
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(m)
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "INTERFACE\tSTEP\tPRIORITIES\tABORTABLE\tARGUMENTS")
	for _, s := range m.Steps {
		var args []string
		for _, a := range s.Args {
			name := a.Name
			if a.Required {
				name += "*"
			}
			args = append(args, name)
		}
		p, err := json.Marshal(s.Priority)
		if err != nil {
			return err
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%v\t%s\n", s.Interface, s.Name, strings.Trim(string(p), "{}"), s.Abortable,
			strings.Join(args, " "))
	}
	return t.Flush()
}

const traceUsage = `usage: ingot node steps NAME -o json | ingot-agent trace > trace.html

Draws the first trace of an image write that is in the JSON on standard input, as a page of HTML, and prints its table
on standard error. A deployment has a trace when its step write_image had the argument trace.
`

// maxTraced is far more than the steps of a deployment take, in bytes.
const maxTraced = 16 << 20

// drawTrace draws the first trace of a write that it finds in JSON: a result of write_image, or what has one inside.
func drawTrace(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("ingot-agent trace", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(stderr, traceUsage) }
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("trace reads standard input and takes no argument, but was given %q", fs.Arg(0))
	}
	raw, err := io.ReadAll(io.LimitReader(stdin, maxTraced+1))
	if err != nil {
		return err
	}
	if len(raw) > maxTraced {
		return fmt.Errorf("standard input has more than %d bytes: give it the steps of one node", maxTraced)
	}
	r := tracedIn(raw)
	if r == nil {
		return errors.New("standard input has no trace in JSON: deploy with the argument trace of write_image, then run " +
			"ingot node steps NAME -o json | ingot-agent trace > trace.html")
	}
	if err := r.Trace.Table(stderr); err != nil {
		return err
	}
	return r.Picture(stdout)
}

func tracedIn(raw json.RawMessage) *image.Result {
	var list []json.RawMessage
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &list) != nil && json.Unmarshal(raw, &object) == nil {
		if r := (&image.Result{}); object["trace"] != nil && json.Unmarshal(raw, r) == nil && r.Trace != nil &&
			len(r.Trace.Stages) > 0 {
			return r
		}
		for _, k := range slices.Sorted(maps.Keys(object)) {
			list = append(list, object[k])
		}
	}
	for _, part := range list {
		if r := tracedIn(part); r != nil {
			return r
		}
	}
	return nil
}
