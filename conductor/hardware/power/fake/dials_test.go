package fake

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
)

func TestDelays(t *testing.T) {
	for v, want := range map[any]Range{
		nil: {}, 2.0: {2 * time.Second, 2 * time.Second}, "2": {2 * time.Second, 2 * time.Second},
		"1,5": {time.Second, 5 * time.Second}, "100ms, 2s": {100 * time.Millisecond, 2 * time.Second}, "": {},
		"0.5": {500 * time.Millisecond, 500 * time.Millisecond},
	} {
		got, err := Delay(map[string]any{"fake_delay": v}, "power")
		if err != nil || got != want {
			t.Errorf("Delay(%v) = %v, %v, want %v", v, got, err, want)
		}
	}
	for _, v := range []any{"x", "5,1", -1.0, "-1s", true, "1000h", "1,x", "1e300"} {
		if got, err := Delay(map[string]any{"fake_delay": v}, "power"); err == nil {
			t.Errorf("Delay(%v) = %v, want an error", v, got)
		}
	}
	got, err := Delay(map[string]any{"fake_delay": "9", "fake_deploy_delay": "1"}, "deploy")
	if err != nil || got.Max != time.Second {
		t.Errorf("Delay of deploy = %v, %v, want its own before that of all", got, err)
	}
	r := Range{time.Second, 5 * time.Second}
	if r.At(0) != r.Min || r.At(0.999999) > r.Max || r.At(0.5) > 3*time.Second {
		t.Errorf("At = %v ... %v ... %v", r.At(0), r.At(0.5), r.At(0.999999))
	}
}

func TestDialledFailures(t *testing.T) {
	ms := new(Machines)
	open := func(fail map[string]any) power.Driver {
		t.Helper()
		d, err := ms.Open(power.Info{"fake_id": "one", "fake_fail": fail}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	ctx := context.Background()
	twice := map[string]any{"power.on": 2.0}
	for i := range 2 {
		err := open(twice).SetPower(ctx, power.TurnOn)
		if !power.Retryable(err) {
			t.Errorf("try %d: %v, want an error that may pass", i+1, err)
		}
	}
	if err := open(twice).SetPower(ctx, power.TurnOn); err != nil {
		t.Errorf("the third try: %v, want success", err)
	}
	err := open(map[string]any{"power.off": "the relay is stuck"}).SetPower(ctx, power.TurnOff)
	if power.KindOf(err) != power.Refused || !strings.Contains(err.Error(), "the relay is stuck") {
		t.Errorf("power off: %v, want the refusal with its message", err)
	}
	if st, err := open(nil).Power(ctx); err != nil || st != power.On {
		t.Errorf("the machine is %v, %v, want on", st, err)
	}
	if _, err := open(map[string]any{"power.read": map[string]any{"times": 1.0, "message": "no answer"}}).Power(
		ctx); err == nil {
		t.Error("reading the power worked, want a failure")
	}
	for _, bad := range []any{"x", map[string]any{"power": "m"}, map[string]any{"power.on": -1.0},
		map[string]any{"power.on": map[string]any{"foo": 1.0}}, map[string]any{"a.b": []any{}}} {
		if _, err := ms.Open(power.Info{"fake_id": "one", "fake_fail": bad}, nil); power.KindOf(err) != power.Config {
			t.Errorf("Open with fake_fail %v: %v, want a fault of the configuration", bad, err)
		}
	}
}
