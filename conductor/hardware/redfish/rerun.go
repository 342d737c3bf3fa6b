package redfish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
)

// rerun is a step that is called again and again until it is done, with a memory of type M, which its first call finds
// zero.
type rerun[M any] struct {
	m  *Management
	op string
	// poll is how long to wait for a controller that does not answer; limit bounds the step in all, call a call.
	poll, limit, call time.Duration
	now               func() time.Time
	// waits reports whether the controller has been asked for something: then a call that fails since it does not
	// answer, is busy or does not show what it had before is followed by another one. nil: never.
	waits func(mem *M) bool
	// passing are more kinds of errors after which that is so.
	passing []power.Kind
	// act looks at the machine and does what is next, if it is time for it. It changes the memory, which is stored with
	// the outcome unless the step is done. An error that is a *failure is final.
	act func(ctx context.Context, d *Driver, s *controller.System, c hardware.Call, mem *M) (hardware.Outcome, error)
}

// failure is why a step ends, in words that are for an operator as they are.
type failure struct{ reason string }

func (f *failure) Error() string { return f.reason }

func failf(format string, args ...any) error { return &failure{fmt.Sprintf(format, args...)} }

// run is a step's Run.
func (r rerun[M]) run(ctx context.Context, c hardware.Call) (out hardware.Outcome, err error) {
	var mem M
	if len(c.Memory) > 0 {
		if err := json.Unmarshal(c.Memory, &mem); err != nil {
			return out, fmt.Errorf("read what the step remembered: %w", err)
		}
	}
	var final error
	err = r.m.within(ctx, r.call, c.Node, func(ctx context.Context, d *Driver) error {
		return d.on(ctx, r.op, func(s *controller.System) (err error) {
			out, err = r.act(ctx, d, s, c, &mem)
			if f := (*failure)(nil); errors.As(err, &f) {
				final, err = f, nil
			}
			return err
		})
	})
	// It restarts, is busy, or does not show everything yet.
	passes := slices.Contains(append(r.passing, power.Unreachable, power.Busy, power.Unsupported), power.KindOf(err))
	switch late := r.now().Sub(c.Begun) > r.limit; {
	case final != nil:
		return hardware.Outcome{}, final
	case passes && r.waits != nil && r.waits(&mem) && !late && ctx.Err() == nil:
		out = hardware.Outcome{After: r.poll, Detail: "waiting for the controller: " + err.Error()}
	case err != nil:
		return hardware.Outcome{}, err
	case out.After == 0 && !out.Restart:
		return out, nil
	case late:
		return hardware.Outcome{}, fmt.Errorf("not done after %s: %s", r.limit, out.Detail)
	}
	out.Memory, err = json.Marshal(mem)
	return out, err
}
