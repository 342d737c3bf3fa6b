package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/own"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/observe/events"
	"github.com/ingot-metal/ingot/conductor/observe/progress"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/storetest"
)

// announcing is a server over real HTTP whose store announces its events.
func announcing(t *testing.T, dir string) (*store.Store, *events.Hub, *watched, *httptest.Server) {
	t.Helper()
	st, err := store.Open(context.Background(), store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	hub := events.New(st)
	hub.Start(st.Announce(hub.Publish))
	srv := newServer(t, st, instant{st}, Config{Hostname: "c1", Events: hub}, nil)
	web := httptest.NewServer(srv)
	stop := func() {
		hub.Close()
		web.Close()
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return st, hub, srv, web
}

// sse is a reader of server-sent events.
type sse struct {
	t      *testing.T
	cancel context.CancelFunc
	lines  *bufio.Scanner
	lastID string
}

func follow(t *testing.T, base, query, lastID string) *sse {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", base+"/ingot/v1/events"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("GET events%s = %d %s", query, res.StatusCode, res.Header.Get("Content-Type"))
	}
	return &sse{t: t, cancel: cancel, lines: bufio.NewScanner(res.Body)}
}

// next returns the next event, heartbeats apart.
func (s *sse) next() rest.Event {
	s.t.Helper()
	var e rest.Event
	var name string
	for s.lines.Scan() {
		line := s.lines.Text()
		switch key, value, _ := strings.Cut(line, ": "); key {
		case "id":
			s.lastID = value
		case "event":
			name = value
		case "data":
			if err := json.Unmarshal([]byte(value), &e); err != nil {
				s.t.Fatalf("data %s: %v", value, err)
			}
		case "":
			if name != "" && line == "" {
				if e.Type != name {
					s.t.Errorf("event %s is of type %s", name, e.Type)
				}
				return e
			}
		}
	}
	s.t.Fatalf("the stream ended: %v", s.lines.Err())
	return e
}

func (s *sse) want(typ, nodeName string) rest.Event {
	s.t.Helper()
	e := s.next()
	if e.Type != typ || e.NodeName != nodeName {
		s.t.Fatalf("event %s of node %q, want %s of %q", e.Type, e.NodeName, typ, nodeName)
	}
	return e
}

func send1(t *testing.T, method, target, body string, want int) {
	t.Helper()
	req, err := http.NewRequest(method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(rest.VersionHeader, "1.82")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != want {
		t.Fatalf("%s %s = %d, want %d", method, target, res.StatusCode, want)
	}
}

func TestEventsOverHTTP(t *testing.T) {
	dir := t.TempDir()
	st, hub, _, web := announcing(t, dir)
	all := follow(t, web.URL, "", "")
	if e := all.next(); e.Type != own.TypeReady {
		t.Errorf("the first event is %+v", e)
	}
	power := follow(t, web.URL, "?type=node.power_set,baremetal.node.provision_set&node=two", "")
	power.next()

	send1(t, "POST", web.URL+"/v1/nodes", `{"driver":"fake-hardware","name":"one"}`, 201)
	send1(t, "POST", web.URL+"/v1/nodes", `{"driver":"fake-hardware","name":"two"}`, 201)
	send1(t, "PUT", web.URL+"/v1/nodes/two/states/provision", `{"target":"manage"}`, 202)
	send1(t, "PATCH", web.URL+"/v1/nodes/one", `[{"op":"add","path":"/extra/a","value":"b"}]`, 200)
	send1(t, "PUT", web.URL+"/v1/nodes/one/maintenance", `{"reason":"x"}`, 202)
	all.want("baremetal.node.create.end", "one")
	all.want("baremetal.node.create.end", "two")
	if e := all.want("baremetal.node.provision_set.success", "two"); e.Changed["provision_state"] != (rest.EventFromTo{From: "enroll", To: "manageable"}) {
		t.Errorf("changed = %v", e.Changed)
	}
	if e := all.want("baremetal.node.update.end", "one"); len(e.Fields) != 1 || e.Fields[0] != "extra" {
		t.Errorf("fields = %v", e.Fields)
	}
	all.want("baremetal.node.maintenance_set.end", "one")
	power.want("baremetal.node.provision_set.success", "two")

	// The reader goes away, and so does the conductor: what happens meanwhile is told to who comes back.
	all.next() // the reason of the maintenance
	lastID := all.lastID
	all.cancel()
	send1(t, "DELETE", web.URL+"/v1/nodes/one/maintenance", "", 202)
	hub.Close()
	web.CloseClientConnections()
	web.Close()
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	_, _, _, web = announcing(t, dir)
	send1(t, "DELETE", web.URL+"/v1/nodes/two", "", 204)
	again := follow(t, web.URL, "", lastID)
	if e := again.next(); e.Type != own.TypeReady || again.lastID != lastID {
		t.Errorf("ready has ID %s, want %s", again.lastID, lastID)
	}
	again.want("baremetal.node.maintenance_set.end", "one")
	again.want("baremetal.node.update.end", "one")
	again.want("baremetal.node.delete.end", "two")

	// One that comes from a database that is no more is told so, and follows on.
	strange := follow(t, web.URL, "?since=100000", "")
	strange.next()
	if e := strange.next(); e.Type != own.TypeGap || e.To != 100000 || e.Message == "" {
		t.Errorf("gap = %+v", e)
	}
	send1(t, "POST", web.URL+"/v1/nodes", `{"driver":"fake-hardware","name":"three"}`, 201)
	strange.want("baremetal.node.create.end", "three")
}

func TestEventsRefuse(t *testing.T) {
	_, hub, _, web := announcing(t, storetest.Fresh(t))
	for _, q := range []string{"?since=x", "?since=-1", "?foo=bar"} {
		send1(t, "GET", web.URL+"/ingot/v1/events"+q, "", 400)
	}
	hub.Close()
	send1(t, "GET", web.URL+"/ingot/v1/events", "", 503)
	f := newFixture(t, Config{})
	f.want(503, "GET", "/ingot/v1/events", "")
}

// Everybody sees only what happens to nodes that they may see.
func TestEventsAreForWhoMaySee(t *testing.T) {
	st, _, srv, web := announcing(t, storetest.Fresh(t))
	who := access.Actor{ProjectID: "lessee", UserName: "lee", Role: access.Reader}
	srv.cfg.Authenticate = func(*http.Request) (*access.Actor, error) { return &who, nil }
	s := follow(t, web.URL, "", "")
	s.next()
	ctx := node.WithRequester(t.Context(), node.Requester{User: "admin", Project: "ops"})
	for _, n := range []node.Node{{Name: "foreign", Driver: "fake-hardware", Owner: "somebody"},
		{Name: "nobodys", Driver: "fake-hardware"}, {Name: "mine", Driver: "fake-hardware", Lessee: "lessee"}} {
		if err := st.CreateNode(ctx, &n); err != nil {
			t.Fatal(err)
		}
		if _, err := st.UpdateNode(ctx, n.UUID, func(n *node.Node) error {
			n.Provision, n.LastError = node.DeployFailed, "BMC 10.0.0.1 says no"
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if e := s.want("baremetal.node.create.end", "mine"); e.User != "admin" || e.Project != "ops" {
		t.Errorf("requester = %s of %s", e.User, e.Project)
	}
	if e := s.want("baremetal.node.provision_set.error", "mine"); e.Error != "" {
		t.Errorf("a lessee is shown the error %q", e.Error)
	}
}

// oneConn is a listener that accepts one connection.
type oneConn chan net.Conn

func (l oneConn) Accept() (net.Conn, error) {
	if c, ok := <-l; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (l oneConn) Close() error { return nil }

func (l oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// A reader that does not read delays no other, and gets everything once it reads again.
func TestSlowReader(t *testing.T) {
	st, _, srv, _ := announcing(t, storetest.Fresh(t))
	// A pipe has no buffer: the server waits at its first write.
	conn, far := net.Pipe()
	defer conn.Close()
	web := &http.Server{Handler: srv, ReadHeaderTimeout: time.Minute}
	defer web.Close()
	accept := make(oneConn, 1)
	accept <- far
	defer close(accept)
	go web.Serve(accept)
	// From the first event on: what is changed before the request has been looked at is told, too.
	if _, err := fmt.Fprintf(conn, "GET /ingot/v1/events HTTP/1.0\r\nHost: x\r\nLast-Event-ID: 0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	n := &node.Node{Name: "n", Driver: "fake-hardware"}
	if err := st.CreateNode(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	const changes = 600
	var at atomic.Int64
	began := time.Now()
	done := make(chan error, 8)
	for range 8 {
		go func() {
			for at.Add(1) <= changes {
				if _, err := st.UpdateNode(context.Background(), n.UUID,
					func(n *node.Node) error { n.Maintenance = !n.Maintenance; return nil }); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d changes in %s", changes, time.Since(began))
	if err := conn.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	var last, count int64
	lines := bufio.NewScanner(conn)
	for count < changes && lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var e rest.Event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatal(err)
		}
		if e.ID == 0 {
			if e.Type == own.TypeGap {
				t.Fatalf("a gap although all is kept: %+v", e)
			}
			continue
		}
		if last > 0 && e.ID != last+1 {
			t.Fatalf("event %d after %d", e.ID, last)
		}
		last = e.ID
		if e.Type == "baremetal.node.maintenance_set.end" {
			count++
		}
	}
	if count != changes {
		t.Errorf("%d events, want %d: %v", count, changes, lines.Err())
	}
}

func TestProgressIsReported(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n"})
	n, err := f.st.Node(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	hub := events.New(f.st)
	f.srv.cfg.Events = hub
	var bytes atomic.Uint64
	f.srv.cfg.Progress = progress.New(progress.Source{Local: func() map[string]node.Progress {
		return map[string]node.Progress{n.UUID: {Step: "write_image", Bytes: bytes.Add(10), Total: 1000}, "gone": {}}
	}})
	f.reassemble()
	web := httptest.NewServer(f.srv)
	defer web.Close()
	defer hub.Close()
	s := follow(t, web.URL, "?type=ingot.node.progress", "")
	s.next()
	for want := uint64(10); want <= 20; want += 10 {
		if e := s.want(own.TypeProgress, "n"); e.Progress == nil || e.Progress.Bytes != want || e.ID != 0 {
			t.Errorf("progress = %+v, want %d bytes", e, want)
		}
	}
}

// TestRunningWork: the list has the progress of work that runs now, of nodes that the caller may see, of this conductor
// or of all.
func TestRunningWork(t *testing.T) {
	job := func(plan string) *node.Job {
		return &node.Job{ID: "j-" + plan, Phase: node.PhaseDeploy, PlanID: plan,
			StartedAt: time.Now().Add(-time.Minute)}
	}
	f := newFixture(t, Config{Hostname: "c1", Authenticate: by2},
		node.Node{Name: "mine", Conductor: "c1", Job: job("p1"), Owner: "alpha"},
		node.Node{Name: "theirs", Conductor: "c2", Job: job("p2")}, node.Node{Name: "done", Conductor: "c1"})
	id := map[string]string{}
	for _, name := range []string{"mine", "theirs", "done"} {
		n, err := f.st.Node(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		id[name] = n.UUID
	}
	f.srv.cfg.Progress = progress.New(progress.Source{Log: slog.New(slog.DiscardHandler),
		Local: func() map[string]node.Progress {
			return map[string]node.Progress{id["mine"]: {PlanID: "p1", Step: "write_image", Bytes: 5, Total: 10},
				id["done"]: {PlanID: "old"}, "gone": {}}
		},
		Others: func() []string { return []string{"c2"} },
		Ask: func(context.Context, string) (map[string]node.Progress, error) {
			return map[string]node.Progress{id["theirs"]: {PlanID: "p2", Step: "erase_devices"}}, nil
		}})
	f.reassemble()
	for _, tt := range []struct{ who, query, want string }{
		{"admin", "", "mine theirs"}, {"admin", "?conductor=c1", "mine"}, {"admin", "?conductor=c2", "theirs"},
		{"alpha", "", "mine"}, {"beta", "", ""},
	} {
		r := httptest.NewRequest("GET", "/ingot/v1/progress"+tt.query, nil)
		r.Header.Set("X-Role", tt.who)
		w := httptest.NewRecorder()
		f.srv.ServeHTTP(w, r)
		var got rest.Running
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 {
			t.Fatalf("%s%s = %d %s", tt.who, tt.query, w.Code, w.Body)
		}
		var names []string
		for _, p := range got.Progress {
			names = append(names, fmt.Sprint(p.NodeName))
		}
		slices.Sort(names)
		if strings.Join(names, " ") != tt.want {
			t.Errorf("%s%s sees %v, want %s: %s", tt.who, tt.query, names, tt.want, w.Body)
		}
	}
}

// by2 takes the header X-Role for the system's administrator, or else for a project whose reader the caller is.
func by2(r *http.Request) (*access.Actor, error) {
	if who := r.Header.Get("X-Role"); who != "admin" {
		return &access.Actor{UserName: who, ProjectID: who, Role: access.Reader}, nil
	}
	return &access.Actor{UserName: "root", System: true, Role: access.Admin}, nil
}

func TestLogOverHTTP(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "one", Owner: "owner"}, node.Node{Name: "two"})
	for i, name := range []string{"one", "two", "one"} {
		n, err := f.st.Node(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.st.AddHistory(t.Context(),
			node.HistoryEntry{NodeUUID: n.UUID, Type: "power", Event: fmt.Sprintf("power on requested %d", i),
				User: "ann"}); err != nil {
			t.Fatal(err)
		}
	}
	n, err := f.st.Node(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.st.DeleteNode(t.Context(), n.UUID); err != nil {
		t.Fatal(err)
	}
	lines := func(query string) []any {
		t.Helper()
		out, _ := f.want(200, "GET", "/ingot/v1/log"+query, "")["log"].([]any)
		return out
	}
	all := lines("")
	if len(all) != 3 || all[0].(map[string]any)["event"] != "power on requested 2" ||
		all[0].(map[string]any)["node_deleted"] != true {
		t.Errorf("log = %v", all)
	}
	for query, want := range map[string]int{"?node=two": 1, "?node=" + n.UUID: 2, "?user=ann": 3, "?user=bob": 0,
		"?type=power": 3, "?severity=error": 0, "?text=REQUESTED+1": 1, "?since=1h": 3, "?until=1h": 0,
		"?project=owner": 2, "?limit=2": 2, "?since=2020-01-01&until=2020-01-02T00:00:00Z": 0} {
		if got := lines(query); len(got) != want {
			t.Errorf("log%s has %d lines, want %d", query, len(got), want)
		}
	}
	page := f.want(200, "GET", "/ingot/v1/log?limit=2&user=ann", "")
	next, _ := page["next"].(string)
	u, err := url.Parse(next)
	if err != nil || next == "" {
		t.Fatalf("next = %q, %v", next, err)
	}
	if rest := f.want(200, "GET", u.RequestURI(), "")["log"].([]any); len(rest) != 1 ||
		rest[0].(map[string]any)["event"] != "power on requested 0" {
		t.Errorf("second page = %v", rest)
	}
	for _, bad := range []string{"?since=yesterday", "?severity=bad", "?limit=0", "?marker=x", "?foo=1"} {
		f.want(400, "GET", "/ingot/v1/log"+bad, "")
	}
	f.want(404, "GET", "/ingot/v1/log?marker="+otherNode, "")
	f.as(access.Actor{ProjectID: "owner", Role: access.Reader, UserName: "x"})
	if got := lines(""); len(got) != 2 {
		t.Errorf("the owner of a node that is gone sees %d lines, want 2", len(got))
	}
	f.as(access.Actor{ProjectID: "stranger", Role: access.Admin, UserName: "x"})
	if got := lines(""); len(got) != 0 {
		t.Errorf("a stranger sees %v", got)
	}
}
