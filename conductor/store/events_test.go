package store

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
)

func openTemp(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(context.Background(), Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func types(events []node.Event) string {
	var names []string
	for _, e := range events {
		names = append(names, strings.TrimPrefix(e.Type, "baremetal."))
	}
	return strings.Join(names, " ")
}

func TestEvents(t *testing.T) { Engines(t, testEvents) }

func testEvents(t *testing.T, o Options) {
	s := openTest(t, o)
	var mu sync.Mutex
	var heard []node.Event
	if last := s.Announce(func(e []node.Event) { mu.Lock(); heard = append(heard, e...); mu.Unlock() }); last != 0 {
		t.Errorf("an empty store has event %d", last)
	}
	ctx := node.WithRequester(context.Background(), node.Requester{User: "ann", Project: "p1"})
	n := &node.Node{Name: "one", Driver: "fake-hardware", Owner: "p1", Lessee: "p2"}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(s.CreateNode(ctx, n))
	change := func(f func(*node.Node, *node.SideEffects) error) {
		t.Helper()
		_, err := s.Change(ctx, n.UUID, f)
		check(err)
	}
	change(func(n *node.Node, _ *node.SideEffects) error {
		n.Provision, n.TargetProvision = node.Verifying, node.Manageable
		n.Job = &node.Job{ID: "j", Requester: "ann"}
		return nil
	})
	change(func(n *node.Node, _ *node.SideEffects) error { n.Job.Attempt = 3; return nil })
	change(func(n *node.Node, _ *node.SideEffects) error { n.Power = "power off"; return nil })
	change(func(n *node.Node, effects *node.SideEffects) error {
		n.Power = "power on" // and the work is done, in one write
		n.Provision, n.TargetProvision, n.Job = node.Manageable, node.None, nil
		effects.History = append(effects.History,
			node.HistoryEntry{Type: "provisioning", Event: "verify is done", User: "ann"})
		return nil
	})
	change(func(n *node.Node, _ *node.SideEffects) error {
		n.Extra, n.DriverInfo = map[string]any{"a": "b"}, map[string]any{"ipmi_password": "very secret"}
		n.Maintenance = true
		return nil
	})
	change(func(n *node.Node, _ *node.SideEffects) error { n.TargetPower = "power on"; return nil })
	change(func(n *node.Node, _ *node.SideEffects) error {
		n.TargetPower, n.LastError = "", "no power"
		return nil
	})
	change(func(n *node.Node, _ *node.SideEffects) error {
		n.Power, n.Fault = "power off", "power failure"
		return nil
	})
	change(func(n *node.Node, _ *node.SideEffects) error {
		n.Provision, n.TargetProvision = node.CleanFailed, node.Available
		return nil
	})
	if _, err := s.Change(ctx, n.UUID, func(n *node.Node, _ *node.SideEffects) error {
		n.Maintenance = false
		return errors.New("no")
	}); err == nil {
		t.Fatal("a change that refuses was made")
	}
	p := &node.Port{NodeUUID: n.UUID, Address: "52:54:00:00:00:01"}
	check(s.CreatePort(ctx, p))
	_, err := s.UpdatePort(ctx, p.UUID, func(p *node.Port) error { p.PXEEnabled = true; return nil })
	check(err)
	check(s.DeletePort(ctx, p.UUID))
	c := &node.Chassis{Description: "x"}
	check(s.Chassis().Create(ctx, c))
	_, err = s.Chassis().Update(ctx, c.UUID, func(c *node.Chassis) error { c.Description = "y"; return nil })
	check(err)
	check(s.Chassis().Delete(ctx, c.UUID))
	check(s.DeleteNode(ctx, n.UUID))

	want := "node.create.end node.provision_set.start node.power_set.end node.provision_set.end node.power_set.end node.maintenance_set.end node.update.end " +
		"node.power_set.start node.power_set.error node.update.end node.power_state_corrected.success ingot.node.fault_set.end node.provision_set.error " +
		"port.create.end port.update.end port.delete.end chassis.create.end chassis.update.end chassis.delete.end node.delete.end"
	mu.Lock()
	defer mu.Unlock()
	if got := types(heard); got != want {
		t.Fatalf("events are\n%s, want\n%s", got, want)
	}
	stored, err := s.Events(context.Background(), 0, 100)
	check(err)
	if got := types(stored); got != want {
		t.Errorf("stored events are\n%s, want\n%s", got, want)
	}
	for i, e := range stored {
		if e.ID != int64(i+1) || e.At.IsZero() || e.User != "ann" {
			t.Errorf("event %d: %+v", i+1, e)
		}
		if e.NodeUUID != "" && (e.NodeName != "one" || e.Owner != "p1" || e.Lessee != "p2") {
			t.Errorf("event %d lacks whose node it is: %+v", i+1, e)
		}
	}
	if e := stored[1]; e.Changed["provision_state"] != (node.FromTo{From: "enroll", To: "verifying"}) ||
		e.Project != "" && e.Project != "p1" {
		t.Errorf("start of verifying = %+v", e)
	}
	if e := stored[6]; !slices.Equal(e.Fields, []string{"driver_info", "extra"}) {
		t.Errorf("fields of an update = %v", e.Fields)
	}
	if e := stored[14]; !slices.Equal(e.Fields, []string{"pxe_enabled"}) {
		t.Errorf("fields of a port's update = %v", e.Fields)
	}
	var secrets int
	check(s.r.QueryRow(`SELECT COUNT(*) FROM events WHERE doc LIKE '%very secret%'`).Scan(&secrets))
	if secrets > 0 {
		t.Error("an event has a password")
	}

	check(s.Close())
	again := openTest(t, o)
	if last := again.Announce(func([]node.Event) {}); last != int64(len(stored)) {
		t.Errorf("after a restart the last event is %d, want %d", last, len(stored))
	}
	more, err := again.Events(context.Background(), last(stored)-1, 10)
	check(err)
	if len(more) != 1 || more[0].Type != "baremetal.node.delete.end" {
		t.Errorf("events behind the last but one = %s", types(more))
	}
}

func last(e []node.Event) int64 { return e[len(e)-1].ID }

// Many writers at once: events come in the order of their IDs, without holes, those of refused changes left out.
func TestEventsOfManyWriters(t *testing.T) { Engines(t, testEventsOfManyWriters) }

func testEventsOfManyWriters(t *testing.T, o Options) {
	s := openTest(t, o)
	var heard []node.Event // of the one writer
	s.Announce(func(e []node.Event) { heard = append(heard, e...) })
	n := &node.Node{Driver: "fake-hardware"}
	if err := s.CreateNode(context.Background(), n); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for w := range 20 {
		wg.Go(func() {
			for i := range 20 {
				_, err := s.UpdateNode(context.Background(), n.UUID, func(n *node.Node) error {
					n.Maintenance = !n.Maintenance
					if (w+i)%5 == 0 {
						return errors.New("no")
					}
					return nil
				})
				if err != nil && (w+i)%5 != 0 {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if len(heard) != 1+20*16 {
		t.Errorf("%d events, want %d", len(heard), 1+20*16)
	}
	for i, e := range heard {
		if e.ID != int64(i+1) {
			t.Fatalf("event %d has ID %d", i+1, e.ID)
		}
		if i > 1 && e.Changed["maintenance"].From != heard[i-1].Changed["maintenance"].To {
			t.Fatalf("event %d does not follow from the one before: %+v", e.ID, e.Changed)
		}
	}
}

func TestEventsAreTrimmed(t *testing.T) { Engines(t, testEventsAreTrimmed) }

func testEventsAreTrimmed(t *testing.T, o Options) {
	s := openTest(t, o)
	const newest = (limit.KeptEvents/1024+1)*1024 - 1 // the next one has the old ones looked for
	if _, err := s.w.Exec(`INSERT INTO events (id, at, type, doc) VALUES (1, 1, 'old', '{}'), (?, 1, 'new', '{}')`,
		newest); err != nil {
		t.Fatal(err)
	}
	if err := s.CreateNode(context.Background(), &node.Node{Driver: "fake-hardware"}); err != nil {
		t.Fatal(err)
	}
	events, err := s.Events(context.Background(), 0, 10)
	if err != nil || len(events) != 2 || events[0].ID != newest {
		t.Errorf("events = %+v, %v, want the oldest gone", events, err)
	}
}

func TestLog(t *testing.T) { Engines(t, testLog) }

func testLog(t *testing.T, o Options) {
	ctx := context.Background()
	s := openTest(t, o)
	var ids []string
	for i, name := range []string{"one", "two"} {
		n := &node.Node{Name: name, Driver: "fake-hardware", Owner: "owner-" + name, Lessee: []string{"p1", "p2"}[i]}
		if err := s.CreateNode(ctx, n); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, n.UUID)
	}
	as := node.WithRequester(ctx, node.Requester{User: "ann", Project: "p1"})
	for i, h := range []node.HistoryEntry{
		{NodeUUID: ids[0], Type: "power", Event: "power on requested", User: "ann"},
		{NodeUUID: ids[1], Type: "provisioning", Event: "Deploy 100% requested", User: "bob"},
		{NodeUUID: ids[0], Type: "provisioning", Event: "deploy failed", Severity: "ERROR", User: "ann"},
	} {
		c := as
		if i == 1 {
			c = ctx
		}
		if err := s.AddHistory(c, h); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.DeleteNode(ctx, ids[0]); err != nil {
		t.Fatal(err)
	}
	find := func(q node.LogQuery) []node.LogLine {
		t.Helper()
		if q.Limit == 0 {
			q.Limit = 10
		}
		lines, err := s.Log(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		return lines
	}
	for _, c := range []struct {
		name string
		q    node.LogQuery
		want string
	}{
		{"all, newest first", node.LogQuery{}, "deploy failed|Deploy 100% requested|power on requested"},
		{"oldest first", node.LogQuery{Oldest: true, Limit: 1}, "power on requested"},
		{"of a deleted node", node.LogQuery{NodeUUID: ids[0]}, "deploy failed|power on requested"},
		{"by name", node.LogQuery{NodeName: "two"}, "Deploy 100% requested"},
		{"by user", node.LogQuery{User: "ann"}, "deploy failed|power on requested"},
		{"by the requester's project", node.LogQuery{Project: "p1"}, "deploy failed|power on requested"},
		{"by the owner", node.LogQuery{Project: "owner-two"}, "Deploy 100% requested"},
		{"what a project may see", node.LogQuery{Visible: "owner-two"}, "Deploy 100% requested"},
		{"what a lessee asked for", node.LogQuery{Visible: "p1"}, "deploy failed|power on requested"},
		{"what others asked for", node.LogQuery{Visible: "p2"}, ""},
		{"nothing to see", node.LogQuery{Visible: "p3"}, ""},
		{"by type", node.LogQuery{Type: "power"}, "power on requested"},
		{"by severity", node.LogQuery{Severity: "error"}, "deploy failed"},
		{"by text", node.LogQuery{Text: "DEPLOY"}, "deploy failed|Deploy 100% requested"},
		{"percent is a character", node.LogQuery{Text: "0%"}, "Deploy 100% requested"},
		{"from now on", node.LogQuery{Since: s.now().Add(1e9)}, ""},
		{"until now", node.LogQuery{Until: s.now().Add(1e9)}, "deploy failed|Deploy 100% requested|power on requested"},
	} {
		var got []string
		for _, l := range find(c.q) {
			got = append(got, l.Event)
		}
		if strings.Join(got, "|") != c.want {
			t.Errorf("%s: %q, want %q", c.name, strings.Join(got, "|"), c.want)
		}
	}
	all := find(node.LogQuery{})
	if !all[0].Gone || all[1].Gone || all[0].NodeName != "one" || all[0].Owner != "owner-one" ||
		all[0].Project != "p1" || all[1].Project != "" {
		t.Errorf("lines = %+v", all)
	}
	if got := find(node.LogQuery{Marker: all[0].UUID}); len(got) != 2 || got[0].UUID != all[1].UUID {
		t.Errorf("behind the first: %+v", got)
	}
	if _, err := s.Log(ctx, node.LogQuery{Marker: "nothing"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("a marker that is not there: %v", err)
	}
	// The node's own history goes with the node: one that is made anew begins with none.
	if err := s.CreateNode(ctx, &node.Node{UUID: ids[0], Driver: "fake-hardware"}); err != nil {
		t.Fatal(err)
	}
	if h, err := s.History(ctx, ids[0], 0); err != nil || len(h) != 0 {
		t.Errorf("history of a node made anew = %v, %v", h, err)
	}
	if err := s.AddHistory(ctx,
		node.HistoryEntry{NodeUUID: "7cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1c", Event: "x"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("history of a node that is not there: %v", err)
	}
}

// A database of an earlier version keeps its histories.
func TestLogOfAnEarlierVersion(t *testing.T) {
	const id = "7cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1c"
	dir, ctx := t.TempDir(), context.Background()
	earlier(t, dir, 2, earlierNode(id, "old", "NULL"),
		`INSERT INTO history (uuid, node_uuid, at, type, severity, event, conductor, user_name) VALUES ('h1', '`+id+
			`', 5, 'power', 'INFO', 'power on requested', 'c', 'ann')`)
	s := openTemp(t, dir)
	lines, err := s.Log(ctx, node.LogQuery{Limit: 10})
	if err != nil || len(lines) != 1 || lines[0].UUID != "h1" || lines[0].NodeName != "old" || lines[0].Owner != "me" ||
		lines[0].User != "ann" {
		t.Errorf("log = %+v, %v", lines, err)
	}
	if h, err := s.History(ctx, id, 0); err != nil || len(h) != 1 {
		t.Errorf("history = %+v, %v", h, err)
	}
}

func TestSnake(t *testing.T) {
	for in, want := range map[string]string{"NodeUUID": "node_uuid", "PXEEnabled": "pxe_enabled",
		"IsSmartNIC": "is_smart_nic", "Extra": "extra", "driver_info": "driver_info"} {
		if got := snake(in); got != want {
			t.Errorf("snake(%s) = %s, want %s", in, got, want)
		}
	}
}
