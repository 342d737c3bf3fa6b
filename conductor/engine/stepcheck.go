package engine

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// checkAsked holds the arguments that come with a step against what the agent's step declares: the agent would refuse them too, but only
// after the machine was booted for it.
func checkAsked(s AgentStep, raw json.RawMessage) error {
	title := s.Interface + "." + s.Name
	given, err := steparg.Parse(title, raw)
	if err != nil {
		return &InvalidError{Reason: err.Error()}
	}
	for name := range given {
		switch {
		case strings.HasPrefix(name, "allow_"):
			return invalidf("argument %s of step %s is the conductor's configuration to give", name, title)
		case nodeOnly[name] != "":
			return invalidf("argument %s of step %s does not come with a step: set it in %s of the node", name, title, nodeOnly[name])
		}
	}
	if err := steparg.CheckValues(title, s.Args, given, func(arg string) bool { return computed(s.Name, arg) }); err != nil {
		return &InvalidError{Reason: err.Error()}
	}
	return nil
}

// checkPlan holds the arguments with which the agent's steps of a job will really run, those that the node gives among them, against what
// the steps declare.
func (e *Engine) checkPlan(n *node.Node, steps []node.JobStep) error {
	for _, s := range steps {
		if !s.InBand {
			continue
		}
		st, ok := e.agentTable(s.Interface, s.Name)
		if !ok {
			return e.unknownStep(s.Interface, s.Name)
		}
		args, err := e.planArgs(n, &node.Job{Steps: steps}, s)
		if err != nil {
			return err
		}
		if err := steparg.Check(s.Interface+"."+s.Name, st.Args, args, nil); err != nil {
			return &InvalidError{Reason: err.Error()}
		}
		if s.Interface == "raid" {
			if err := checkRAID(args); err != nil {
				return err
			}
		}
	}
	return nil
}

// noArgs tells whether a step comes without arguments.
func noArgs(args json.RawMessage) bool {
	return len(args) == 0 || bytes.Equal(bytes.TrimSpace(args), []byte("{}")) || bytes.Equal(args, []byte("null"))
}
