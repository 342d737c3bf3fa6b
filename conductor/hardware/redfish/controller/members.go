package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// errBudget means that a reading of many resources ends early.
var errBudget = fmt.Errorf("the service wants more than %d requests for this", limit.RedfishReading)

// budget is the key of the number of requests that a context may still make.
type budget struct{}

// Bounded bounds the requests that are made with the context: links of a service may lead anywhere, and on.
func Bounded(ctx context.Context) context.Context {
	left := new(atomic.Int32)
	left.Store(limit.RedfishReading)
	return context.WithValue(ctx, budget{}, left)
}

func spend(ctx context.Context) error {
	if left, ok := ctx.Value(budget{}).(*atomic.Int32); ok && left.Add(-1) < 0 {
		return errBudget
	}
	return nil
}

// Member is one of a collection: its path, and the whole resource where the service expanded it.
type Member struct {
	Path string
	Raw  json.RawMessage
}

// mostPages bounds the pages of a collection.
const mostPages = 20

// Members are the members of a collection, at most limit.RedfishMembers of them and each once, in the order of the
// service. A path of "" has none.
func (c *Controller) Members(ctx context.Context, path string) ([]Member, error) {
	var out []Member
	seen := map[string]bool{}
	pages := map[string]bool{}
	for path != "" && !pages[path] && len(pages) < mostPages {
		pages[path] = true
		var page struct {
			Members []json.RawMessage
			Next    string `json:"Members@odata.nextLink"`
		}
		if _, err := c.Read(ctx, path, &page); err != nil {
			return nil, err
		}
		for _, raw := range page.Members {
			if len(out) >= limit.RedfishMembers {
				return out, nil
			}
			var m struct {
				ID string `json:"@odata.id"`
			}
			if json.Unmarshal(raw, &m) != nil || seen[m.ID] || !strings.HasPrefix(m.ID, "/") || m.ID == path {
				continue
			}
			seen[m.ID] = true
			if !bytes.Contains(raw, []byte(`"Id"`)) {
				raw = nil
			}
			out = append(out, Member{m.ID, raw})
		}
		path = page.Next
	}
	return out, nil
}

// Each reads the members of a collection, one after the other. A member that the service declines is left out; any
// other error ends the reading.
func Each[T any](ctx context.Context, c *Controller, path string, f func(path string, v *T)) error {
	all, err := c.Members(ctx, path)
	if Declined(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, m := range all {
		v := new(T)
		if m.Raw != nil && json.Unmarshal(m.Raw, v) == nil {
			f(m.Path, v)
			continue
		}
		if ok, err := c.Try(ctx, m.Path, v); err != nil {
			return err
		} else if ok {
			f(m.Path, v)
		}
	}
	return nil
}

// Try reads a resource that a service need not have; ok is false when it declines, or has something else there. A path
// of "" has none.
func (c *Controller) Try(ctx context.Context, path string, into any) (ok bool, err error) {
	if path == "" {
		return false, nil
	}
	_, err = c.Read(ctx, path, into)
	if Declined(err) {
		return false, nil
	}
	return err == nil, err
}

// Declined reports whether a service has no such resource, or does not show it. It is not that for wrong credentials.
func Declined(err error) bool {
	var typ *json.UnmarshalTypeError
	status := Status(err)
	return status >= 400 && status < 500 && status != 401 || errors.As(err, &typ)
}

// Clean is a text of the service for people: bounded, without what a terminal would obey, and without the password.
func (c *Controller) Clean(s string) string { return c.cleaned(s) }
