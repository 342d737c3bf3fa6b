package own

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/observe/events"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// when reads a time of a query: RFC 3339, a date, or a duration before now ("24h").
func when(name, v string) (time.Time, *rest.Error) {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", time.DateOnly} {
		if t, err := time.Parse(layout, v); err == nil {
			return t, nil
		}
	}
	if d, err := time.ParseDuration(v); err == nil && d >= 0 {
		return time.Now().Add(-d), nil
	}
	return time.Time{},
		rest.BadRequest("Expected a time (2026-01-31T12:00:00Z) or how long ago it was (24h) for %s: %s", name, v)
}

const defaultLog = 100

// searchLog answers with lines of the log over all nodes, newest first, those of deleted nodes included.
func (s *Handlers) searchLog(ctx context.Context, c *call.Call) (*call.Reply, error) {
	p, err := c.Page(rest.Fields[struct{}](nil), call.Marker{})
	if err != nil {
		return nil, err
	}
	if c.Text("limit") == nil {
		p.Limit = defaultLog
	}
	q := node.LogQuery{
		User: c.Query.Get("user"), Project: c.Query.Get("project"), Type: c.Query.Get("type"),
		Severity: c.Query.Get("severity"), Text: c.Query.Get("text"), Marker: p.Marker, Limit: p.Limit + 1,
		Oldest: c.Query.Get("sort_dir") == "asc",
	}
	if q.Severity != "" && !slices.Contains([]string{"INFO", "WARNING", "ERROR"}, strings.ToUpper(q.Severity)) {
		return nil, rest.BadRequest("Expected INFO, WARNING or ERROR for severity: %s", q.Severity)
	}
	for name, at := range map[string]*time.Time{"since": &q.Since, "until": &q.Until} {
		if v := c.Query.Get(name); v != "" {
			var err *rest.Error
			if *at, err = when(name, v); err != nil {
				return nil, err
			}
		}
	}
	if ident := c.Query.Get("node"); document.IsUUID(ident) {
		q.NodeUUID = ident
	} else {
		q.NodeName = ident
	}
	project, all := c.Actor.Scope()
	if !all {
		if project == "" {
			return &call.Reply{Status: http.StatusOK, Body: rest.Log{Log: []rest.LogEntry{}}}, nil
		}
		q.Visible = project
	}
	lines, lerr := s.store.Log(ctx, q)
	if errors.Is(lerr, store.ErrNotFound) {
		return nil, rest.NotFound("Log line %s could not be found.", q.Marker)
	}
	if lerr != nil {
		return nil, lerr
	}
	out := rest.Log{Log: make([]rest.LogEntry, 0, min(len(lines), p.Limit))}
	for i, l := range lines {
		if i == p.Limit {
			next := c.Query
			next.Set("marker", lines[i-1].UUID)
			next.Set("limit", strconv.Itoa(p.Limit))
			out.Next = c.Base + "/ingot/v1/log?" + next.Encode()
			break
		}
		if l.Severity == "ERROR" && !c.SeesInsides(access.Object{Owner: l.Owner, Lessee: l.Lessee}) {
			l.Event = call.RedactedError
		}
		out.Log = append(out.Log, rest.LogEntry{
			UUID: l.UUID, CreatedAt: rest.NullTime{Time: l.At}, NodeUUID: l.NodeUUID, NodeName: rest.Null(l.NodeName),
			Deleted: l.Gone, EventType: l.Type, Severity: l.Severity, Event: l.Event, User: rest.Null(l.User),
			Project: rest.Null(l.Project), Conductor: rest.Null(l.Conductor),
		})
	}
	return &call.Reply{Status: http.StatusOK, Body: out}, nil
}

// Timing of a stream.
const (
	heartbeat    = 15 * time.Second
	progressTick = time.Second
	writeLimit   = 30 * time.Second // for one write to a reader that doesn't read
)

// Types of event that are not kept.
const (
	TypeReady    = "ingot.ready"
	TypeGap      = "ingot.gap"
	TypeProgress = "ingot.node.progress"
)

// eventFilter says which events a reader wants.
type eventFilter struct{ nodes, types []string }

func words(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// typeWanted takes a type by its name or by the beginning of it, up to a dot; "baremetal." may be left out.
func (f eventFilter) typeWanted(typ string) bool {
	return len(f.types) == 0 || slices.ContainsFunc(f.types, func(t string) bool {
		return typ == t || strings.HasPrefix(typ, t+".")
	})
}

func (f eventFilter) nodeWanted(uuid, name string) bool {
	return len(f.nodes) == 0 || slices.Contains(f.nodes, uuid) || name != "" && slices.Contains(f.nodes, name)
}

// followEvents streams the stored events, as server-sent events.
func (s *Handlers) followEvents(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if s.cfg.Events == nil {
		return nil, rest.Fault(http.StatusServiceUnavailable, "This conductor does not announce events.")
	}
	after := int64(-1)
	from := c.Request.Header.Get("Last-Event-ID")
	if from == "" {
		from = c.Query.Get("since")
	}
	if from != "" {
		id, err := strconv.ParseInt(from, 10, 64)
		if err != nil || id < 0 {
			return nil, rest.BadRequest("Expected the ID of an event for Last-Event-ID or since: %s", from)
		}
		after = id
	}
	f := eventFilter{nodes: words(c.Query.Get("node")), types: words(strings.ReplaceAll(c.Query.Get("type"), "*", ""))}
	for i, t := range f.types {
		t = strings.TrimSuffix(t, ".")
		if t != "baremetal" && t != "ingot" && !strings.HasPrefix(t, "baremetal.") && !strings.HasPrefix(t, "ingot.") {
			t = "baremetal." + t
		}
		f.types[i] = t
	}
	for i, ident := range f.nodes {
		if document.IsUUID(strings.ToLower(ident)) {
			f.nodes[i] = strings.ToLower(ident)
		}
	}
	user := c.User
	if host, _, err := net.SplitHostPort(c.Request.RemoteAddr); user == "" && err == nil {
		user = host
	}
	r, err := s.cfg.Events.Follow(user, after)
	var many *events.TooManyError
	switch {
	case errors.As(err, &many):
		return nil, rest.Fault(http.StatusTooManyRequests, "%v.", many)
	case err != nil:
		return nil, rest.Fault(http.StatusServiceUnavailable, "%v.", err)
	}
	return &call.Reply{Status: http.StatusOK, Stream: func(w http.ResponseWriter) {
		defer r.Close()
		st := &stream{s: s, c: c, f: f, r: r, w: w, ctl: http.NewResponseController(w),
			sent: map[string]node.Progress{}}
		if err := st.run(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, events.ErrClosed) {
			s.log.Debug("a stream of events ended", "user", c.User, "err", err)
		}
	}}, nil
}

// stream is one reader's connection.
type stream struct {
	s    *Handlers
	c    *call.Call
	f    eventFilter
	r    *events.Reader
	w    http.ResponseWriter
	ctl  *http.ResponseController
	sent map[string]node.Progress // the last sent progress of running work
	buf  []byte
}

// run sends until the reader goes away, the conductor stops, or the time of the stream is over.
func (st *stream) run(ctx context.Context) error {
	h := st.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // for proxies that would hold the events back
	st.w.WriteHeader(http.StatusOK)
	st.buf = append(st.buf, "retry: 2000\n\n"...)
	st.add(st.r.After(), rest.Event{Type: TypeReady, Time: call.Stamp(time.Now()), To: st.r.After()})
	if err := st.flush(); err != nil {
		return err
	}
	beat, tick, end := time.NewTicker(heartbeat), time.NewTicker(progressTick), time.NewTimer(limit.StreamTime)
	defer beat.Stop()
	defer tick.Stop()
	defer end.Stop()
	for {
		if err := st.drain(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end.C:
			return nil
		case <-st.r.Wake():
		case <-beat.C:
			if !st.still() {
				return nil
			}
			// The ID goes along, so that a reader that is shown little does not come back with an old one.
			st.buf = append(fmt.Appendf(st.buf, "id: %d\n", st.r.After()), ": still here\n\n"...)
			if err := st.flush(); err != nil {
				return err
			}
		case <-tick.C:
			st.progress(ctx)
			if err := st.flush(); err != nil {
				return err
			}
		}
	}
}

// still asks again who reads: a login that has ended ends the stream, and a role that was taken away meanwhile counts
// no more.
func (st *stream) still() bool {
	a, refused, err := st.s.cfg.Authenticate(st.c.Request)
	if err != nil {
		return err.Status == http.StatusServiceUnavailable // the service is down, not the reader's fault
	}
	if refused != nil || !a.May(access.IngotEvents, access.Object{}) {
		return false
	}
	st.c.Actor = a
	return true
}

// drain sends all there is.
func (st *stream) drain(ctx context.Context) error {
	for {
		list, gap, err := st.r.Next(ctx)
		if err != nil {
			return err
		}
		if gap != nil {
			st.add(gap.To, rest.Event{Type: TypeGap, Time: call.Stamp(time.Now()), From: gap.From, To: gap.To,
				Message: fmt.Sprintf("events %d to %d are not kept any more: read what you need to know anew", gap.From,
					gap.To)})
		}
		for i := range list {
			if e, ok := st.show(&list[i]); ok {
				st.add(e.ID, e)
			}
		}
		if err := st.flush(); err != nil || len(list) == 0 && gap == nil {
			return err
		}
	}
}

// show makes the reader's view of an event; ok is false when it is not for the reader.
func (st *stream) show(e *node.Event) (out rest.Event, ok bool) {
	if !st.f.typeWanted(e.Type) || !st.f.nodeWanted(e.NodeUUID, e.NodeName) {
		return out, false
	}
	whose := access.Object{Owner: e.Owner, Lessee: e.Lessee}
	if !st.c.Actor.May(access.NodeGet, whose) {
		return out, false
	}
	out = rest.Event{ID: e.ID, Type: e.Type, Time: call.Stamp(e.At), Kind: e.Kind, UUID: e.UUID, Name: e.Name,
		NodeUUID: e.NodeUUID, NodeName: e.NodeName, User: e.User, Project: e.Project, Fields: e.Fields}
	if st.c.SeesInsides(whose) {
		out.Error = e.Error
	}
	for k, v := range e.Changed {
		if out.Changed == nil {
			out.Changed = map[string]rest.EventFromTo{}
		}
		out.Changed[k] = rest.EventFromTo(v)
	}
	return out, true
}

// progress sends the progress of running work since the last message: however often it is reported, once a tick.
func (st *stream) progress(ctx context.Context) {
	if st.s.cfg.Progress == nil || !st.f.typeWanted(TypeProgress) {
		return
	}
	running := st.s.cfg.Progress.All()
	for id := range st.sent {
		if _, ok := running[id]; !ok {
			delete(st.sent, id)
		}
	}
	for id, p := range running {
		if st.sent[id] == p {
			continue
		}
		n, err := st.s.store.Node(ctx, id)
		if err != nil || !st.f.nodeWanted(n.UUID, n.Name) || !st.c.Actor.May(access.IngotProgress, access.Of(n)) {
			continue
		}
		st.sent[id] = p
		st.add(0, rest.Event{Type: TypeProgress, Time: call.Stamp(p.At), Kind: "node", UUID: n.UUID, Name: n.Name,
			NodeUUID: n.UUID, NodeName: n.Name,
			Progress: transfer(p)})
	}
}

// add writes an event into the buffer; one without an ID does not move the place that a reader comes back to.
func (st *stream) add(id int64, e rest.Event) {
	b, err := json.Marshal(e)
	if err != nil {
		st.s.log.Error("an event is not JSON", "type", e.Type, "err", err)
		return
	}
	if id > 0 || e.Type == TypeReady {
		st.buf = fmt.Appendf(st.buf, "id: %d\n", id)
	}
	st.buf = fmt.Appendf(st.buf, "event: %s\ndata: %s\n\n", e.Type, b)
}

// flush sends the buffer. A reader that takes nothing for too long is cut off; it comes back when it can.
func (st *stream) flush() error {
	if len(st.buf) == 0 {
		return nil
	}
	if err := st.ctl.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	_, err := st.w.Write(st.buf)
	st.buf = st.buf[:0]
	if err != nil {
		return err
	}
	return st.ctl.Flush()
}
