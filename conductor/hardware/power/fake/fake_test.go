package fake

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/power/powertest"
)

func TestSuite(t *testing.T) {
	for name, delay := range map[string]any{"at once": nil, "after a while": "30ms", "number": 0.02} {
		t.Run(name, func(t *testing.T) {
			powertest.Run(t, func(t *testing.T) powertest.Subject {
				ms := &Machines{}
				return powertest.Subject{Open: func(t *testing.T) power.Driver {
					d, err := ms.Open(power.Info{"fake_id": "one", "fake_delay": delay}, nil)
					if err != nil {
						t.Fatal(err)
					}
					return d
				}}
			})
		})
	}
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ms := &Machines{}
		d, err := ms.Open(power.Info{"fake_id": "one", "fake_delay": "10s"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		want := func(s power.State) {
			t.Helper()
			if got, _ := d.Power(t.Context()); got != s {
				t.Errorf("Power = %q, want %q", got, s)
			}
		}
		if err := d.SetPower(t.Context(), power.TurnOn); err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Second)
		want(power.Off)
		time.Sleep(time.Second)
		want(power.On)
	})
}

func TestMachinesAreApart(t *testing.T) {
	ms := &Machines{}
	a, _ := ms.Open(power.Info{"fake_id": "a"}, nil)
	b, _ := ms.Open(power.Info{"fake_id": "b"}, nil)
	if err := a.SetPower(t.Context(), power.TurnOn); err != nil {
		t.Fatal(err)
	}
	if got, _ := b.Power(t.Context()); got != power.Off {
		t.Errorf("b is %q after a was turned on", got)
	}
}

func TestBadInfo(t *testing.T) {
	for _, info := range []power.Info{{}, {"fake_id": "a", "fake_delay": "soon"}, {"fake_id": "a", "fake_delay": true},
		{"fake_id": "a", "fake_delay": "-1s"}} {
		if _, err := (&Machines{}).Open(info, nil); power.KindOf(err) != power.Config {
			t.Errorf("Open(%v) = %v, want an error of kind %q", info, err, power.Config)
		}
	}
}
