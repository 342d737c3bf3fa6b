package arch

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/agent"
	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/proto/steparg"
)

var update = flag.Bool("update", false, "write the files that are made from the agent's table of steps")

// TestStepsOfTheConductor binds the conductor's idea of the agent's steps, which it uses where no ramdisk's manifest is
// at hand, to the agent's own table: names, arguments, priorities, and what may be stopped when.
func TestStepsOfTheConductor(t *testing.T) {
	m := agentTable(t)
	b, err := json.MarshalIndent(m.Steps, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, filepath.Join("..", "..", "conductor", "engine", "catalog", "agentsteps.json"), append(b, '\n'))
}

func agentTable(t *testing.T) step.Manifest {
	t.Helper()
	m, err := step.Describe(agent.Steps(linux.Machine{}, nil))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// golden holds a file to what the code makes, or makes it so.
func golden(t *testing.T, file string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(file)
	if err == nil && bytes.Equal(got, want) {
		return
	}
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s is not what the code makes: run go test ./test/arch -run \"Steps|Formats\" -update and read the difference (-file +code)\n%s", filepath.Base(file), cmp.Diff(string(got), string(want)))
}

// TestStepsOfTheDocumentation makes the list in docs/reference/steps.md, or holds it to the table.
func TestStepsOfTheDocumentation(t *testing.T) {
	const begin, end = "<!-- steps of the agent: made from agent/steps.go by go test ./test/arch -run Steps -update -->\n", "<!-- end of steps of the agent -->\n"
	file := filepath.Join("..", "..", "docs", "reference", "steps.md")
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(old), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("docs/reference/steps.md lacks the marks %q and %q", begin, end)
	}
	var b strings.Builder
	b.WriteString(before + begin +
		"| step | priorities | its place in a deployment | is stopped | fails without progress for |\n|---|---|---|---|---|\n")
	m := agentTable(t)
	for _, s := range m.Steps {
		var when []string
		asked := true // only
		for _, phase := range []step.Phase{step.Deploy, step.Clean, step.Service, step.Inspect, step.Rescue} {
			switch p := s.Priority[phase]; {
			case p > 0 && s.When != "" && s.When != steparg.WhenDisk:
				when = append(when, fmt.Sprintf("%s %d with %s", phase, p, s.When))
			case p > 0:
				when = append(when, fmt.Sprintf("%s %d", phase, p))
			case p < 0:
				when = append(when, fmt.Sprintf("(%s)", phase))
			}
			asked = asked && s.Priority[phase] <= 0
		}
		if asked {
			when = append([]string{"(clean, deploy)"}, when...) // where every step may be requested
		}
		stops := "at its end"
		if s.Abortable {
			stops = "at once"
		}
		name := "`" + s.Title() + "`"
		if s.Description != "" {
			name += "<br>" + s.Description
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", name, strings.Join(when, ", "), place(s), stops,
			plainDuration(s.Stall))
	}
	for _, s := range m.Steps {
		if len(s.Args) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\nArguments of `%s.%s`:\n\n", s.Interface, s.Name)
		for _, a := range s.Args {
			needed := ""
			if a.Required {
				needed = ", required"
			}
			if a.Owner != "" {
				needed += ", set in " + a.Owner + " only"
			}
			if a.Secret {
				needed += ", secret"
			}
			fmt.Fprintf(&b, "- `%s` (%s%s%s): %s\n", a.Name, a.Type, needed, bounds(a), a.Description)
		}
	}
	b.WriteString(end + after)
	golden(t, file, []byte(b.String()))
}

// place says where a step may stand among others.
func place(s step.Step) string {
	var out []string
	for _, p := range []struct {
		word  string
		names []string
	}{{"needs the", s.From}, {"provides the", s.Provides}, {"after", s.After}, {"before", s.Before}} {
		if len(p.names) > 0 {
			out = append(out, p.word+" "+strings.Join(p.names, ", "))
		}
	}
	if !s.Repeatable {
		out = append(out, "once")
	}
	return strings.Join(out, "; ")
}

func bounds(a step.Arg) string {
	var out []string
	if a.Enum != nil {
		out = append(out, strings.Join(a.Enum, " or "))
	}
	if a.Min != nil {
		out = append(out, fmt.Sprintf("from %v", *a.Min))
	}
	if a.Max != nil {
		out = append(out, fmt.Sprintf("to %v", *a.Max))
	}
	if len(out) == 0 {
		return ""
	}
	return ", " + strings.Join(out, " ")
}

func plainDuration(d time.Duration) string {
	if d == 0 {
		return "any time"
	}
	return strings.TrimSuffix(d.String(), "m0s") + map[bool]string{true: "m"}[strings.HasSuffix(d.String(), "m0s")]
}
