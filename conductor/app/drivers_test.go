package app

import (
	"errors"
	"testing"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/hardware/power/fake"
	"github.com/ingot-metal/ingot/conductor/node"
)

// A node of fake hardware has everything, one whose controller speaks IPMI no console.
func TestWhatIsBehindNodes(t *testing.T) {
	set := plugs(driver.All(), new(fake.Machines), testServices(t), nil)
	faked, real := &node.Node{UUID: "1", Driver: "fake-hardware"}, &node.Node{UUID: "2", Driver: "ipmi"}
	if _, err := set.Console(faked).Info(t.Context(), faked); err != nil {
		t.Errorf("console of a fake: %v", err)
	}
	if err := set.RAID(faked).Check(faked, map[string]any{}); err != nil {
		t.Errorf("RAID of a fake: %v", err)
	}
	var no *hardware.UnsupportedError
	if _, err := set.Console(real).Info(t.Context(), real); !errors.As(err, &no) {
		t.Errorf("console of an IPMI machine: %v", err)
	}
}
