package catalog

import (
	"encoding/json"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// Names of reserved steps, which are Ironic's: they can be asked for by name alone, whatever the interface, in
// cleaning, deployment and service.
const (
	StepHold     = "hold"
	StepWait     = "wait"
	StepPowerOn  = "power_on"
	StepPowerOff = "power_off"
	StepReboot   = "reboot"
)

// Reserved tells whether a name is that of a reserved step, and the one argument that it takes; "" is none.
func Reserved(name string) (arg string, ok bool) {
	switch name {
	case StepWait:
		return "seconds", true
	case StepHold, StepPowerOn, StepPowerOff, StepReboot:
		return "", true
	}
	return "", false
}

// maxWait is a day: whoever needs longer uses hold.
const maxWait = 24 * time.Hour

// AskReserved checks a reserved step that a client asks for. A machine whose power staysOn can't be turned off.
func AskReserved(n *node.Node, a node.JobStep, staysOn bool) (node.JobStep, error) {
	arg, _ := Reserved(a.Name)
	given := map[string]any{}
	if len(a.Args) > 0 {
		if err := json.Unmarshal(a.Args, &given); err != nil {
			return a, invalidf("arguments of step %s are not a JSON object: %v", a.Name, err)
		}
	}
	for name := range given {
		if name != arg {
			return a, invalidf("step %s has no argument %s", a.Name, name)
		}
	}
	if a.Name == StepWait {
		if _, err := WaitFor(a.Args); err != nil {
			return a, err
		}
	}
	if a.Name == StepPowerOff && staysOn {
		return a, invalidf(
			"step power_off is not possible: the power of node %s is never turned off (disable_power_off, or no controller)", n.UUID)
	}
	return node.JobStep{Interface: a.Interface, Name: a.Name, Args: a.Args, Priority: a.Priority, Abortable: true}, nil
}

// WaitFor reads the argument of a step wait; zero is none.
func WaitFor(args json.RawMessage) (time.Duration, error) {
	if len(args) == 0 {
		return 0, nil
	}
	var given struct {
		Seconds json.Number `json:"seconds"`
	}
	if err := json.Unmarshal(args, &given); err != nil {
		return 0, invalidf("argument seconds of step wait is not a number")
	}
	if given.Seconds == "" {
		return 0, nil
	}
	s, err := given.Seconds.Int64()
	if err != nil || s < 0 || s > int64(maxWait/time.Second) {
		return 0, invalidf(
			"argument seconds of step wait is %s: give a whole number from 0 to %d, or use the step hold",
			given.Seconds, int64(maxWait/time.Second))
	}
	return time.Duration(s) * time.Second, nil
}
