package api

import (
	"context"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/observe/audit"
)

// auditor keeps lines about requests that would change something.
type auditor interface{ Write(e audit.Entry) }

// audited reports whether a request belongs into the audit log: it would change something, and it is known who sent it.
// What machines send without authentication is not a person's request.
func (s *Server) audited(seen *served) bool {
	return s.cfg.Audit != nil && seen.call != nil && seen.route != nil && seen.route.Access != call.Public &&
		seen.route.Method != http.MethodGet && !seen.route.Session
}

// Bounds of what a line has of a request: names of attributes, and bytes of a text.
const (
	auditFields = 32
	auditText   = 128
)

// look notes what a line will have and what may be gone, or changed, when the request was carried out.
func (s *Server) look(ctx context.Context, seen *served) {
	if !s.audited(seen) {
		return
	}
	s.lookUp(ctx, seen)
	switch b := seen.call.Body.(type) {
	case map[string]any:
		seen.fields = slices.Sorted(maps.Keys(b))
		seen.target, _ = b["target"].(string)
	case []any:
		for _, op := range b {
			if m, is := op.(map[string]any); is {
				if at, is := m["path"].(string); is {
					seen.fields = append(seen.fields, at)
				}
			}
		}
	}
}

// lookUp finds the node of the address, if the caller may see it.
func (s *Server) lookUp(ctx context.Context, seen *served) {
	if ident := seen.call.Path["node"]; ident != "" && seen.node == nil {
		if n, err := s.store.Node(ctx, ident); err == nil && seen.call.Actor.MaySee(n) {
			seen.node = n
		}
	}
}

// entry is the line about a request. It has names and no values.
func (s *Server) entry(r *http.Request, seen *served, took time.Duration) audit.Entry {
	c := seen.call
	e := audit.Entry{Time: seen.began.UTC(), Request: seen.id, User: bounded(c.User),
		Method: seen.route.Method, Route: seen.route.Path, Target: bounded(seen.target), Status: seen.status,
		TookMS: float64(took.Microseconds()) / 1000}
	if a := c.Actor; a != nil {
		e.UserID, e.Project = bounded(a.UserID), bounded(a.ProjectID)
	}
	if s.cfg.Tracer != nil {
		e.Trace = s.cfg.Tracer.TraceID(r.Context())
	}
	if s.cfg.From != nil {
		e.From = s.cfg.From(r)
	}
	for name, value := range c.Path {
		if e.Object == nil {
			e.Object = map[string]string{}
		}
		e.Object[name] = bounded(value)
	}
	s.lookUp(r.Context(), seen) // of one that was refused
	if seen.node != nil {
		e.Node, e.NodeName = seen.node.UUID, seen.node.Name
	}
	for _, f := range seen.fields[:min(len(seen.fields), auditFields)] {
		e.Fields = append(e.Fields, bounded(f))
	}
	if seen.status == http.StatusCreated && seen.location != "" {
		e.Made = bounded(path.Base(seen.location))
	}
	return e
}

// bounded cuts a text that a client sent.
func bounded(s string) string {
	if len(s) > auditText {
		s = s[:auditText] + "..."
	}
	return strings.ToValidUTF8(s, "\ufffd")
}
