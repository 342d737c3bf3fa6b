package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/ingot-metal/ingot/agent"
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
