package engine

import (
	"testing"

	"github.com/ingot-metal/ingot/conductor/inspect/hook"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"":                        "",
		"it hurts":                "It hurts.",
		"ipmi_address is missing": "ipmi_address is missing.",
		"BMC is gone.":            "BMC is gone.",
		"  192.0.2.1 is silent  ": "192.0.2.1 is silent.",
		"écriture refusée":        "Écriture refusée.",
	} {
		if got := sentence(in); got != want {
			t.Errorf("sentence(%q) = %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"01-52-54-00-AA-bb-cc": "52:54:00:aa:bb:cc", "52:54:00:AA:BB:CC": "52:54:00:aa:bb:cc", "": "",
		"00:00:00:00:00:00": "", "nonsense": "",
	} {
		if got := hook.MAC(in); got != want {
			t.Errorf("hook.MAC(%q) = %q, want %q", in, got, want)
		}
	}
}
