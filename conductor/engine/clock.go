package engine

import (
	"context"
	"reflect"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// clockSlack is how far the clocks of conductors may be apart.
const clockSlack = 5 * time.Minute

// afterClockSetBack moves the times of a node's work and boot back when it was stored at a time that is to come: the clock has been set back
// since. Limits and pauses are counted from these times, and would not end before the clock had caught up. What has been waited for until
// then counts. It returns nil when there was nothing to do.
func (e *Engine) afterClockSetBack(ctx context.Context, n *node.Node) (*node.Node, error) {
	if n.Job == nil && n.Boot == nil && n.Reservation == "" || time.Until(n.UpdatedAt) < clockSlack {
		return nil, nil
	}
	return e.change(ctx, n.UUID, func(n *node.Node, _ *node.Also) error {
		back := time.Until(n.UpdatedAt)
		if back < clockSlack {
			return nil
		}
		e.log.Warn("the clock was set back while a node had work under way: the work's times are set back too", "node", n.UUID, "back", back.Round(time.Second))
		for _, v := range []any{&n.ReservedAt, n.Job, n.Boot} {
			setBack(reflect.ValueOf(v), back)
		}
		return nil
	})
}

// setBack changes all times below v.
func setBack(v reflect.Value, by time.Duration) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			setBack(v.Elem(), by)
		}
	case reflect.Slice:
		for i := range v.Len() {
			setBack(v.Index(i), by)
		}
	case reflect.Struct:
		if t, ok := v.Addr().Interface().(*time.Time); ok {
			if !t.IsZero() {
				*t = t.Add(-by)
			}
			return
		}
		for i := range v.NumField() {
			setBack(v.Field(i), by)
		}
	}
}
