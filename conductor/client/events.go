package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// EventQuery says which events to follow.
type EventQuery struct {
	Nodes []string // UUIDs or names; none: all
	Types []string // types or beginnings of types; none: all
	After int64    // ID of the event after which to begin, kept ones included; negative: from now on
}

// Events calls f for each event until the context ends or f returns an error, which comes back. A connection that
// breaks, such as when the conductor is restarted, is made anew and goes on where it was; only a refusal of the server,
// or that it can't be reached the first time, ends it. What was missed nevertheless comes as an event of type
// "ingot.gap".
func (c *Client) Events(ctx context.Context, q EventQuery, f func(rest.Event) error) error {
	v := url.Values{}
	if len(q.Nodes) > 0 {
		v.Set("node", strings.Join(q.Nodes, ","))
	}
	if len(q.Types) > 0 {
		v.Set("type", strings.Join(q.Types, ","))
	}
	s := &eventStream{c: c, path: "/ingot/v1/events?" + v.Encode(), f: f}
	if q.After >= 0 {
		s.lastID = strconv.FormatInt(q.After, 10)
	}
	for try := 0; ; try++ {
		began := time.Now()
		err := s.once(ctx, false)
		var answer *rest.Error
		if errors.As(err, &answer) && answer.Status == http.StatusUnauthorized && c.Login != nil {
			err = s.once(ctx, true)
		}
		var stop *stopError
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &stop):
			return stop.err
		case errors.As(err, &answer) && answer.Status != http.StatusServiceUnavailable &&
			answer.Status != http.StatusTooManyRequests && answer.Status < 500:
			return err
		case err != nil && !s.connected && try >= c.Retries:
			return err
		}
		if time.Since(began) > time.Minute {
			try = 0
		}
		pause := min(c.Pause*time.Duration(1+try), 10*time.Second)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stopError is the error that the caller's function returned.
type stopError struct{ err error }

func (e *stopError) Error() string { return e.err.Error() }

type eventStream struct {
	c         *Client
	path      string
	f         func(rest.Event) error
	lastID    string
	connected bool // at any time
}

// silence is how long a stream may send nothing: three of its heartbeats.
const silence = 45 * time.Second

// once follows one connection to its end; nil means that it broke or was ended by the server.
func (s *eventStream) once(ctx context.Context, again bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	base := *s.c.endpoint
	base.User = nil
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.String()+s.path, nil)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	if s.c.Login != nil {
		if err := s.c.Login.Add(ctx, req.Header, again); err != nil {
			return err
		}
	}
	req.Header.Set("Accept", "text/event-stream")
	if s.lastID != "" {
		req.Header.Set("Last-Event-ID", s.lastID)
	}
	hc := *s.c.http
	hc.Timeout = 0
	resp, err := hc.Do(req)
	if err != nil {
		return &ConnectError{Endpoint: base.String(), Err: err}
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b := make([]byte, 64<<10)
		n, _ := resp.Body.Read(b) // what there is of it
		return rest.DecodeError(resp.StatusCode, b[:n])
	}
	s.connected = true
	quiet := time.AfterFunc(silence, cancel)
	defer quiet.Stop()
	var data []byte
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		quiet.Reset(silence)
		line := lines.Text()
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "" && len(data) > 0:
			var e rest.Event
			if err := json.Unmarshal(data, &e); err != nil {
				return fmt.Errorf("read event: %w", err)
			}
			data = nil
			if e.Type == "ingot.ready" {
				continue
			}
			if err := s.f(e); err != nil {
				return &stopError{err}
			}
		case key == "id":
			s.lastID = value
		case key == "data":
			data = append(data, value...)
		}
	}
	return nil
}

// LogQuery selects lines of the log; empty fields do not restrict.
type LogQuery struct {
	Node, User, Project, Type, Severity, Text string
	Since, Until                              string // a time (RFC 3339), or how long ago ("24h")
	Limit                                     int    // zero: 100
}

// Log returns lines of the log over all nodes, newest first, those of deleted nodes included.
func (c *Client) Log(ctx context.Context, q LogQuery) ([]rest.LogEntry, error) {
	v := url.Values{}
	for name, value := range map[string]string{"node": q.Node, "user": q.User, "project": q.Project, "type": q.Type,
		"severity": q.Severity, "text": q.Text, "since": q.Since, "until": q.Until} {
		if value != "" {
			v.Set(name, value)
		}
	}
	limit := q.Limit
	if limit <= 0 {
		limit = 100
	}
	var out []rest.LogEntry
	for len(out) < limit {
		v.Set("limit", strconv.Itoa(min(limit-len(out), 1000)))
		var page rest.Log
		if err := c.do(ctx, http.MethodGet, "/ingot/v1/log?"+v.Encode(), nil, &page); err != nil {
			return nil, err
		}
		out = append(out, page.Log...)
		if page.Next == "" || len(page.Log) == 0 {
			break
		}
		v.Set("marker", page.Log[len(page.Log)-1].UUID)
	}
	return out, nil
}

// Running returns how far the running work of all nodes is.
func (c *Client) Running(ctx context.Context) ([]rest.NodeTransfer, error) {
	out, err := ask[rest.Running](ctx, c, http.MethodGet, "/ingot/v1/progress", nil)
	if err != nil {
		return nil, err
	}
	return out.Progress, nil
}

// Capabilities returns what each hardware type and interface of the conductor really does.
func (c *Client) Capabilities(ctx context.Context) (*rest.Capabilities, error) {
	return ask[rest.Capabilities](ctx, c, http.MethodGet, "/ingot/v1/capabilities", nil)
}
