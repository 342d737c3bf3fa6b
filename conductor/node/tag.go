package node

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"
)

// tag names one state of a stored resource, as a strong entity tag (RFC 9110, section 8.8.3). It says nothing of what
// is stored: a hash of that could be tried out against guessed passwords. The number of the change alone would come
// again for a resource that was deleted and made anew, and after a backup was restored; the times tell those apart.
func tag(created, updated time.Time, revision uint64) string {
	b := make([]byte, 0, 40)
	b = append(b, '"')
	b = strconv.AppendUint(b, revision, 36)
	for _, t := range []time.Time{created, updated} {
		b = append(b, '-')
		if !t.IsZero() {
			b = strconv.AppendInt(b, t.UnixMicro(), 36)
		}
	}
	return string(append(b, '"'))
}

// Tag names the present state of the node: it is another one after every change that is stored.
func (n *Node) Tag() string { return tag(n.CreatedAt, n.UpdatedAt, n.Version) }

// Tag names the present state of the port: it is another one after every change that is stored.
func (p *Port) Tag() string { return tag(p.CreatedAt, p.UpdatedAt, p.Revision) }

// Tag names the present state of the resource: it is another one after every change that is stored.
func (h *Head) Tag() string { return tag(h.CreatedAt, h.UpdatedAt, h.Revision) }

// Expected is the state in which a request wants to find a resource that it changes. The store compares it inside the
// transaction of the change, so no other write can come in between.
type Expected struct {
	Kind, UUID string // "node", "port", or the kind of a table of the store
	Holds      func(tag string) bool

	over atomic.Bool
}

// Over reports whether the comparison is over: later writes of the same request find the resource changed by the
// request itself.
func (e *Expected) Over() bool { return e.over.Load() }

// End ends the comparison.
func (e *Expected) End() { e.over.Store(true) }

type expectedKey struct{}

// WithExpected makes writes with a context fail with a *ChangedError when the resource is not as expected.
func WithExpected(ctx context.Context, e *Expected) context.Context {
	return context.WithValue(ctx, expectedKey{}, e)
}

// ExpectedOf returns the expectation of writes with a context; nil: none, or not any more.
func ExpectedOf(ctx context.Context) *Expected {
	e, _ := ctx.Value(expectedKey{}).(*Expected)
	if e == nil || e.Over() {
		return nil
	}
	return e
}

// ChangedError says that a resource is not in the state in which a request expects it. Nothing was changed.
type ChangedError struct{ Kind, UUID string }

func (e *ChangedError) Error() string {
	return fmt.Sprintf(
		"The %s %s is not as If-Match expects it: it was changed since. Nothing was done. Read it again, and send the change with its new ETag if it is still wanted.", e.Kind, e.UUID)
}
