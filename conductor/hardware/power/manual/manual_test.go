package manual

import (
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/power/powertest"
)

func TestSuite(t *testing.T) {
	powertest.Run(t, func(t *testing.T) powertest.Subject {
		return powertest.Subject{NoPower: true, NoBoot: true, Open: func(t *testing.T) power.Driver {
			d, err := Open(power.Info{"manual_id": "one"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}}
	})
}

func TestSaysWhatToDo(t *testing.T) {
	d, _ := Open(nil, nil)
	err := d.SetPower(t.Context(), power.TurnOn)
	if err == nil || !strings.Contains(err.Error(), "by hand") {
		t.Errorf("SetPower: %v, want what to do by hand", err)
	}
}
