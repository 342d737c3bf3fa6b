package start

import (
	"cmp"
	"encoding/json"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Loaded reports whether the agent of a job holds the kernel of the installed system, and else why not.
func Loaded(j *node.Job) (ok bool, why string) {
	for _, s := range j.Steps {
		if !s.InBand || s.Interface != "deploy" || s.Name != catalog.StepLoadKernel &&
			s.Name != catalog.StepLoadRamdisk {
			continue
		}
		var r struct {
			Loaded bool   `json:"loaded"`
			Reason string `json:"reason"`
		}
		if s.Status != node.StepDone || json.Unmarshal(s.Result, &r) != nil {
			return false, "the agent did not say that it has loaded the system's kernel"
		}
		return r.Loaded, cmp.Or(r.Reason, "the agent could not load the system's kernel")
	}
	return false, "the agent was not asked to load the system's kernel"
}

// Jumped reports whether the step tear_down_agent of a job ended with a kexec.
func Jumped(j *node.Job) bool {
	for _, s := range j.Steps {
		if s.InBand || s.Name != catalog.StepTearDown || s.Status != node.StepDone {
			continue
		}
		var r struct {
			Kexec bool `json:"kexec"`
		}
		return len(s.Result) > 0 && json.Unmarshal(s.Result, &r) == nil && r.Kexec
	}
	return false
}

// Result is the result of boot_instance.
func Result(hot, cold bool, sign *node.SignOfLife) json.RawMessage {
	r := struct {
		Method     string           `json:"method"`
		ColdBooted bool             `json:"cold_booted,omitempty"` // after a kexec that came to nothing
		Sign       *node.SignOfLife `json:"sign_of_life,omitempty"`
	}{Reboot, cold, sign}
	if hot {
		r.Method = Kexec
	}
	b, err := json.Marshal(r)
	if err != nil {
		return nil // of text and a time: never
	}
	return b
}
