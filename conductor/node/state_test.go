package node

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// all are the states that the table names, in its order.
func all() []State {
	var out []State
	for _, t := range transitions {
		for _, s := range []State{t.From, t.To} {
			if !slices.Contains(out, s) {
				out = append(out, s)
			}
		}
	}
	return out
}

func TestNoDuplicates(t *testing.T) {
	type key struct {
		s State
		v Verb
	}
	seen := map[key]State{}
	for _, tr := range transitions {
		k := key{tr.From, tr.Verb}
		if to, ok := seen[k]; ok {
			t.Errorf("two rows for %s in state %q: to %q and to %q", tr.Verb, tr.From, to, tr.To)
		}
		seen[k] = tr.To
	}
}

func TestEveryStateIsReachable(t *testing.T) {
	reached := map[State]bool{Enroll: true}
	for grown := true; grown; {
		grown = false
		for _, tr := range transitions {
			if reached[tr.From] && !reached[tr.To] {
				reached[tr.To], grown = true, true
			}
		}
	}
	for _, s := range all() {
		if !reached[s] {
			t.Errorf("state %q can't be reached from enroll", s)
		}
	}
}

// TestNoDeadEnd: a client can get a node out of wherever it may stay.
func TestNoDeadEnd(t *testing.T) {
	for _, s := range all() {
		if !slices.ContainsFunc(transitions, func(tr Transition) bool { return tr.From == s }) {
			t.Errorf("nothing leads out of state %q", s)
		}
	}
}

// TestEveryWorkingStateCanFail: work that can't fail would have to lie.
func TestEveryWorkingStateCanFail(t *testing.T) {
	for _, s := range all() {
		if s.IsStable() {
			continue
		}
		to, _, err := Next(s, Active, Fail)
		if err != nil {
			t.Errorf("work in state %q can't fail: %v", s, err)
		} else if !to.IsFailure() && to != Enroll {
			t.Errorf("Next(%s, fail) = %s, which is no failure state", s, to)
		}
	}
}

// TestKinds: every state is of exactly one kind, and the kinds fit the table.
func TestKinds(t *testing.T) {
	engine := []Verb{Wait, Resume, Hold, Done, Fail, ToMgmt}
	for _, s := range all() {
		kinds := 0
		for _, is := range []bool{s.IsStable(), s.IsWaiting(), s.IsHeld(), s.IsWorking()} {
			if is {
				kinds++
			}
		}
		if kinds != 1 {
			t.Errorf("state %q is of %d kinds, want 1", s, kinds)
		}
		if s.IsWaiting() {
			if to, _, err := Next(s, Active, Resume); err != nil || !to.IsWorking() {
				t.Errorf("Next(%s, resume) = %s, %v, want a working state", s, to, err)
			}
		}
		if s.IsHeld() {
			if to, _, err := Next(s, Active, Unhold); err != nil || !to.IsWaiting() {
				t.Errorf("Next(%s, unhold) = %s, %v, want a waiting state", s, to, err)
			}
		}
	}
	for _, tr := range transitions {
		byEngine := slices.Contains(engine, tr.Verb)
		if tr.From.IsStable() && byEngine {
			t.Errorf("%q is a state to stay in, but the engine's %q leads out of it", tr.From, tr.Verb)
		}
		if tr.To.IsStable() && !tr.To.IsFailure() && tr.Target != None {
			t.Errorf("%q is a state to stay in, but the node is shown heading for %q", tr.To, tr.Target)
		}
		if tr.To.IsWorking() && tr.Target == None {
			t.Errorf("in the working state %q the node heads for nothing", tr.To)
		}
	}
}

func TestNext(t *testing.T) {
	for _, c := range []struct {
		from, target State
		verb         Verb
		to, toTarget State
	}{
		{Enroll, None, Manage, Verifying, Manageable},
		{Verifying, Manageable, Fail, Enroll, None},
		{Manageable, None, Provide, Cleaning, Available},
		{Cleaning, Available, Wait, CleanWait, Available},
		{CleanWait, Manageable, Resume, Cleaning, Manageable},
		{Cleaning, Manageable, ToMgmt, Manageable, None},
		{CleanWait, Available, Abort, CleanFailed, Available},
		{Available, None, Deploy, Deploying, Active},
		{DeployWait, Active, Delete, Deleting, Available},
		{Deploying, Active, Done, Active, None},
		{Deleting, Available, Clean, Cleaning, Available},
	} {
		to, target, err := Next(c.from, c.target, c.verb)
		if to != c.to || target != c.toTarget || err != nil {
			t.Errorf("Next(%s, %s) = %s heading for %q, %v, want %s heading for %q", c.from, c.verb, to, target, err,
				c.to, c.toTarget)
		}
	}
	_, _, err := Next(Enroll, None, Deploy)
	var te *TransitionError
	if !errors.As(err, &te) || te.State != Enroll || te.Verb != Deploy {
		t.Errorf("Next(enroll, active) = %v, want a TransitionError", err)
	}
}

// TestDiagram keeps docs/reference/states.md true to the table.
func TestDiagram(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("# Provision states\n\nMade from the one table in `conductor/node/state.go` (`go test ./conductor/node -update`). " +
		"Verbs in capitals are the engine's: what happened to the work in progress. All others are what a client asks for.\n")
	for _, part := range []struct {
		title  string
		states []State
	}{
		{"Enrolment and inspection", []State{Enroll, Verifying, Inspecting, InspectWait, InspectFailed}},
		{"Cleaning", []State{Cleaning, CleanWait, CleanHold, CleanFailed}},
		{"Deployment", []State{Deploying, DeployWait, DeployHold, DeployFailed}},
		{"Tear-down and adoption", []State{Deleting, Error, Adopting, AdoptFailed}},
		{"Rescue", []State{Rescuing, RescueWait, RescueFailed, Rescue, Unrescuing, UnrescueFailed}},
		{"Service", []State{Servicing, ServiceWait, ServiceHold, ServiceFailed}},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n```mermaid\nstateDiagram-v2\n", part.title)
		named := map[State]bool{}
		for _, tr := range transitions {
			for _, s := range []State{tr.From, tr.To} {
				if (slices.Contains(part.states, tr.From) || slices.Contains(part.states, tr.To)) && !named[s] &&
					strings.Contains(string(s), " ") {
					named[s] = true
					fmt.Fprintf(&b, "    state \"%s\" as %s\n", s, id(s))
				}
			}
		}
		for _, tr := range transitions {
			from, to := slices.Contains(part.states, tr.From), slices.Contains(part.states, tr.To)
			if from || to {
				fmt.Fprintf(&b, "    %s --> %s: %s\n", id(tr.From), id(tr.To), verb(tr.Verb))
			}
		}
		b.WriteString("```\n")
	}
	b.WriteString("\n## Table\n\n| state | verb | leads to | heading for |\n|---|---|---|---|\n")
	for _, tr := range transitions {
		target := string(tr.Target)
		switch tr.Target {
		case None:
			target = "–"
		case keep:
			target = "as before"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", tr.From, verb(tr.Verb), tr.To, target)
	}

	path := filepath.Join("..", "..", "docs", "reference/states.md")
	golden, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// Behind the table come rules that no table holds, which people write.
	_, rules, ok := bytes.Cut(golden, []byte("\n## Rules beside the table\n"))
	if !ok {
		t.Fatal("docs/reference/states.md has no rules beside the table")
	}
	b.WriteString("\n## Rules beside the table\n")
	b.Write(rules)
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		golden = b.Bytes()
	}
	if !bytes.Equal(golden, b.Bytes()) {
		t.Errorf("docs/reference/states.md differs from the table: run go test ./conductor/node -update and read the difference")
	}
}

func id(s State) string { return strings.NewReplacer(" ", "_", "-", "_").Replace(string(s)) }

func verb(v Verb) string {
	switch v {
	case Wait, Resume, Hold, Done, Fail, ToMgmt:
		return strings.ToUpper(string(v))
	}
	return string(v)
}
