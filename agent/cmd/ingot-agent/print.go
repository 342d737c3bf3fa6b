package main

import (
	"encoding/json"
	"errors"
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

// drawTrace draws the first trace of a write that it finds in JSON: a result of write_image, or what has one inside.
func drawTrace(stdin io.Reader, stdout, stderr io.Writer) error {
	raw, err := io.ReadAll(stdin)
	if err != nil {
		return err
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
		if r := (&image.Result{}); object["trace"] != nil && json.Unmarshal(raw, r) == nil && r.Trace != nil {
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
