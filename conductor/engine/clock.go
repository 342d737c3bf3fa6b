package engine

import (
	"context"
	"reflect"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// clockSlack is how far the clocks of conductors may be apart.
const clockSlack = 5 * time.Minute

// afterClockSetBack moves the times of a node's work and boot back when one of them is to come: the clock has been set
// back since. Limits and pauses are counted from these times, and would not end before the clock had caught up. What
// has been waited for until then counts. It returns nil when there was nothing to do.
func (e *Engine) afterClockSetBack(ctx context.Context, n *node.Node) (*node.Node, error) {
	if n.Job == nil && n.Boot == nil && n.Reservation == "" || setBackBy(n) == 0 {
		return nil, nil
	}
	return e.change(ctx, n.UUID, func(n *node.Node, _ *node.SideEffects) error {
		back := setBackBy(n)
		if back == 0 {
			return nil
		}
		e.log.Warn("the clock was set back while a node had work under way: the work's times are set back too", "node",
			n.UUID, "back", back.Round(time.Second))
		for _, v := range []any{&n.ReservedAt, n.Job, n.Boot} {
			setBack(reflect.ValueOf(v), time.Now(), back, 0)
		}
		return nil
	})
}

// setBackBy returns how far the clock is behind the newest recorded time of a node's work; zero: it is not. The time of
// the last change of the node does not suffice: an agent's connection or a request may have been stored since. Times of
// steps don't count: they come from agents.
func setBackBy(n *node.Node) time.Duration {
	done := []time.Time{n.UpdatedAt, n.ReservedAt}
	if j := n.Job; j != nil {
		done = append(done, j.StartedAt, j.BegunAt, j.PlanSent)
	}
	if b := n.Boot; b != nil {
		done = append(done, b.OpenedAt, b.EnrolledAt, b.LostAt)
	}
	if back := time.Until(slices.MaxFunc(done, time.Time.Compare)); back >= clockSlack {
		return back
	}
	return 0
}

// setBack changes the times below v that were made before the clock was set back: those that are to come by more than
// least.
func setBack(v reflect.Value, now time.Time, by, least time.Duration) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			setBack(v.Elem(), now, by, least)
		}
	case reflect.Slice:
		for i := range v.Len() {
			setBack(v.Index(i), now, by, least)
		}
	case reflect.Struct:
		if t, ok := v.Addr().Interface().(*time.Time); ok {
			if t.Sub(now) > least {
				*t = t.Add(-by)
			}
			return
		}
		for i := range v.NumField() {
			switch v.Type().Field(i).Name {
			case "NotBefore", "RunsAgain", "ClosesAt", "TokenExpires": // are to come, also when they were made since
				setBack(v.Field(i), now, by, by/2)
			default:
				setBack(v.Field(i), now, by, 0)
			}
		}
	}
}
