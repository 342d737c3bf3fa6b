// Package storetest is the suite that every database under conductor/store passes.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

// Run runs the suite. open returns a new, empty store that lives until the test ends.
func Run(t *testing.T, open func(t *testing.T) *store.Store) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, context.Context, *store.Store)
	}{
		{"NodeRoundTrip", nodeRoundTrip},
		{"NodeUnique", nodeUnique},
		{"UpdateNode", updateNode},
		{"UpdateNodeTogether", updateNodeTogether},
		{"Change", change},
		{"SaveNode", saveNode},
		{"Query", query},
		{"Pages", pages},
		{"ConfigDrive", configDrive},
		{"GUIDs", guids},
		{"Ports", ports},
		{"PortEdits", portEdits},
		{"References", references},
		{"History", history},
		{"Marks", marks},
		{"Inventory", inventory},
		{"Results", results},
		{"Leases", leases},
		{"LeaseOnce", func(t *testing.T, ctx context.Context, s *store.Store) { LeaseOnce(t, ctx, s, s) }},
		{"DeleteNode", deleteNode},
		{"Resources", resources},
		{"Allocate", allocate},
		{"AllocationEnds", allocationEnds},
		{"Backfill", backfill},
		{"Pools", pools},
		{"Duties", duties},
		{"WarmCandidates", warmCandidates},
		{"Promises", promises},
		{"UsedWhilePromised", usedWhilePromised},
		{"PromiseOnce", func(t *testing.T, ctx context.Context, s *store.Store) { PromiseOnce(t, ctx, s, s) }},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, t.Context(), open(t)) })
	}
}

// must ends a test that can't go on.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// given returns the result of a call that must not fail.
func given[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		must(t, err)
		return v
	}
}

// refused checks that a call gave this error.
func refused(t *testing.T, what string, want, err error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// same compares what was read with what was stored.
func same(t *testing.T, what string, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func create(t *testing.T, s *store.Store, n *node.Node) *node.Node {
	t.Helper()
	if n.Driver == "" {
		n.Driver = "fake-hardware"
	}
	must(t, s.CreateNode(t.Context(), n))
	return n
}

func nodeRoundTrip(t *testing.T, ctx context.Context, s *store.Store) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)
	n := &node.Node{Name: "one", Driver: "ipmi",
		DriverInfo:   map[string]any{"ipmi_address": "192.0.2.1", "ipmi_password": "hunter2", "n": 3.0},
		Properties:   map[string]any{"cpus": 4.0, "nested": map[string]any{"a": []any{"b"}}},
		InstanceInfo: map[string]any{"image_source": "http://x/y", "configdrive": "H4sI"},
		InstanceUUID: "8c9a4b5e-0000-4000-8000-000000000001",
		Provision:    node.DeployWait, TargetProvision: node.Active, ProvisionUpdatedAt: at,
		Traits: []string{"CUSTOM_A"}, SystemGUIDs: []string{"aa", "bb"}, AutomatedClean: new(false),
		Job: &node.Job{ID: "j", Phase: node.PhaseDeploy, StartedAt: at,
			Steps: []node.JobStep{
				{Interface: "deploy", Name: "write_image", Args: []byte(`{"a":1}`), Priority: 80, InBand: true,
					Stall: time.Minute}}},
		Boot: &node.Boot{OpenedAt: at, ClosesAt: at.Add(time.Hour), Generation: 7},
	}
	create(t, s, n)
	if n.UUID == "" || n.Version != 1 || n.CreatedAt.IsZero() {
		t.Fatalf("CreateNode left uuid %q, version %d, created %v", n.UUID, n.Version, n.CreatedAt)
	}
	for _, ident := range []string{n.UUID, strings.ToUpper(n.UUID), "one"} {
		got := given(s.Node(ctx, ident))(t)
		if d := cmp.Diff(n, got); d != "" {
			t.Errorf("Node(%s) differs (-stored +read):\n%s", ident, d)
		}
	}
	refused(t, "Node(nobody)", store.ErrNotFound, second(s.Node(ctx, "nobody")))
	empty := create(t, s, &node.Node{})
	if empty.Provision != node.Enroll {
		t.Errorf("a new node is in state %q, want enroll", empty.Provision)
	}
}

func nodeUnique(t *testing.T, ctx context.Context, s *store.Store) {
	a := create(t, s, &node.Node{Name: "a", InstanceUUID: "i"})
	create(t, s, &node.Node{}) // empty names don't collide
	b := create(t, s, &node.Node{})
	for _, c := range []struct {
		field, value string
		err          error
	}{
		{"name", "a", s.CreateNode(ctx, &node.Node{Name: "a", Driver: "x"})},
		{"instance_uuid", "i", s.CreateNode(ctx, &node.Node{InstanceUUID: "i", Driver: "x"})},
		{"uuid", a.UUID, s.CreateNode(ctx, &node.Node{UUID: a.UUID, Driver: "x"})},
		{"name", "a", second(s.UpdateNode(ctx, b.UUID, func(n *node.Node) error { n.Name = "a"; return nil }))},
	} {
		var dup *store.DuplicateError
		if !errors.As(c.err, &dup) || dup.Field != c.field || dup.Value != c.value || dup.NodeUUID != a.UUID {
			t.Errorf("a second %s %q gives %v, want a DuplicateError that names %s", c.field, c.value, c.err, a.UUID)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func updateNode(t *testing.T, ctx context.Context, s *store.Store) {
	n := create(t, s, &node.Node{})
	got, err := s.UpdateNode(ctx, n.UUID, func(n *node.Node) error {
		n.Name, n.Power = "x", "power on"
		n.Version, n.UUID = 99, "forged"
		return nil
	})
	if err != nil || got.Version != 2 || got.Power != "power on" || got.UUID != n.UUID {
		t.Fatalf("UpdateNode = %+v, %v", got, err)
	}
	same, err := s.UpdateNode(ctx, n.UUID, func(*node.Node) error { return nil })
	if err != nil || same.Version != 2 {
		t.Errorf("a change of nothing raised the version to %d (%v)", same.Version, err)
	}
	boom := errors.New("boom")
	_, err = s.UpdateNode(ctx, n.UUID, func(n *node.Node) error { n.Power = "error"; return boom })
	if !errors.Is(err, boom) {
		t.Errorf("UpdateNode with a refusing change = %v, want its error", err)
	}
	if _, err := s.UpdateNode(ctx, n.UUID, func(n *node.Node) error { panic("bug") }); err == nil {
		t.Error("UpdateNode with a panicking change = nil")
	}
	read, err := s.Node(ctx, "x")
	if err != nil || read.Power != "power on" || read.Version != 2 {
		t.Errorf("after a refused change: %+v, %v", read, err)
	}
	refused(t, "UpdateNode of an unknown node", store.ErrNotFound, second(s.UpdateNode(ctx,
		"3f0f2d3c-0000-4000-8000-000000000000",
		func(*node.Node) error { return nil })))
}

// updateNodeTogether: concurrent changes are all applied, each on top of the other, and a failing one has no effect.
func updateNodeTogether(t *testing.T, ctx context.Context, s *store.Store) {
	n := create(t, s, &node.Node{Extra: map[string]any{"n": 0.0}})
	const writers, each = 8, 20
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				_, err := s.UpdateNode(ctx, n.UUID, func(n *node.Node) error {
					n.Extra["n"] = n.Extra["n"].(float64) + 1
					if w == 0 && i%2 == 0 {
						return errors.New("refused")
					}
					return nil
				})
				if err != nil && w != 0 {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got, err := s.Node(ctx, n.UUID)
	if want := float64(writers*each - each/2); err != nil || got.Extra["n"] != want {
		t.Errorf("after concurrent changes n = %v, want %v (%v)", got.Extra["n"], want, err)
	}
}

func change(t *testing.T, ctx context.Context, s *store.Store) {
	other, n := create(t, s, &node.Node{}), create(t, s, &node.Node{})
	must(t, s.CreatePort(ctx, &node.Port{NodeUUID: other.UUID, Address: "52:54:00:00:00:0a"}))
	do := func(fail error) error {
		_, err := s.Change(ctx, n.UUID, func(n *node.Node, effects *node.SideEffects) error {
			n.Power = "power on"
			*effects = node.SideEffects{
				History:   []node.HistoryEntry{{Type: "power", Event: "on"}},
				Marks:     []node.Mark{{JobID: "j", Name: "on"}},
				Ports:     []node.Port{{Address: "52:54:00:00:00:01"}, {Address: "52:54:00:00:00:0a"}},
				Inventory: []byte(`{}`),
			}
			return fail
		})
		return err
	}
	if do(errors.New("no")) == nil {
		t.Fatal("a refused change came through")
	}
	count := func() string {
		h, _ := s.History(ctx, n.UUID, 0)
		m, _ := s.Marks(ctx, n.UUID, "j")
		p, _ := s.Ports(ctx, store.PortQuery{NodeUUID: &n.UUID})
		i, _ := s.Inventory(ctx, n.UUID)
		return fmt.Sprint(len(h), len(m), len(p), len(i))
	}
	if got := count(); got != "0 0 0 0" {
		t.Errorf("a refused change left %s", got)
	}
	must(t, do(nil))
	if got := count(); got != "1 1 1 2" {
		t.Errorf("a change left %s, want 1 1 1 2", got)
	}
}

func saveNode(t *testing.T, ctx context.Context, s *store.Store) {
	n := create(t, s, &node.Node{})
	stale := *n
	n.Power = "power on"
	if err := s.SaveNode(ctx, n); err != nil || n.Version != 2 {
		t.Fatalf("SaveNode = %v, version %d", err, n.Version)
	}
	var conflict *store.ConflictError
	if err := s.SaveNode(ctx, &stale); !errors.As(err, &conflict) || conflict.Have != 2 || conflict.Had != 1 {
		t.Errorf("SaveNode of a stale node = %v, want a ConflictError", err)
	}
}

func query(t *testing.T, ctx context.Context, s *store.Store) {
	create(t, s, &node.Node{Name: "a", Driver: "ipmi", Provision: node.Active, InstanceUUID: "i-a", Owner: "p1",
		Power: "power on"})
	create(t, s, &node.Node{Name: "b", Driver: "ipmi", Provision: node.Available, Maintenance: true, Lessee: "p1",
		Description: "50%_off Rack"})
	create(t, s, &node.Node{Name: "c", Driver: "fake-hardware", Provision: node.Cleaning, ResourceClass: "big",
		Shard: "s1", Job: &node.Job{ID: "j"}})
	ch := &node.Chassis{}
	must(t, s.Chassis().Create(ctx, ch))
	create(t, s, &node.Node{Driver: "fake-hardware", Retired: true, ChassisUUID: ch.UUID, TargetPower: "power on"})
	kept, err := s.Kept(ctx)
	if err != nil || len(kept) != 0 {
		t.Errorf("Kept = %v, %v, want none", kept, err)
	}
	change := func(ident string, f func(*node.Node)) string {
		t.Helper()
		n, err := s.Node(ctx, ident)
		if err == nil {
			n, err = s.UpdateNode(ctx, n.UUID, func(n *node.Node) error { f(n); return nil })
		}
		if err != nil {
			t.Fatal(err)
		}
		return n.UUID
	}
	id := change("b", func(n *node.Node) { n.Boot = &node.Boot{Kept: true} })
	change("c", func(n *node.Node) { n.Boot = &node.Boot{Kept: true} }) // has a job
	if kept, err := s.Kept(ctx); err != nil || !slices.Equal(kept, []string{id}) {
		t.Errorf("Kept = %v, %v, want that of %s", kept, err, id)
	}
	change("b", func(n *node.Node) { n.Boot, n.Conductor = nil, "c1" })
	for by, want := range map[string][]string{"c1": {id}, "c2": nil} {
		if owned, err := s.Owned(ctx, by); err != nil || !slices.Equal(owned, want) {
			t.Errorf("Owned(%s) = %v, %v, want %v", by, owned, err, want)
		}
	}
	change("c", func(n *node.Node) { n.Boot = nil })
	for _, c := range []struct {
		name string
		q    store.Query
		want string
	}{
		{"all", store.Query{}, "a b c -"},
		{"driver", store.Query{Driver: new("ipmi")}, "a b"},
		{"state", store.Query{Provision: new(node.Active)}, "a"},
		{"states", store.Query{ProvisionIn: []node.State{node.Active, node.Cleaning}}, "a c"},
		{"associated", store.Query{Associated: new(true)}, "a"},
		{"not associated", store.Query{Associated: new(false)}, "b c -"},
		{"instance", store.Query{InstanceUUID: new("i-a")}, "a"},
		{"maintenance", store.Query{Maintenance: new(true)}, "b"},
		{"not maintenance", store.Query{Maintenance: new(false)}, "a c -"},
		{"retired", store.Query{Retired: new(true)}, "-"},
		{"class", store.Query{ResourceClass: new("big")}, "c"},
		{"no class", store.Query{ResourceClass: new("")}, "a b -"},
		{"project", store.Query{Project: new("p1")}, "a b"},
		{"owner", store.Query{Owner: new("p1")}, "a"},
		{"description", store.Query{DescriptionContains: new("%_OFF r")}, "b"},
		{"description without wildcards", store.Query{DescriptionContains: new("5_%")}, ""},
		{"shards", store.Query{Shards: []string{"s1", "s2"}}, "c"},
		{"sharded", store.Query{Sharded: new(true)}, "c"},
		{"chassis", store.Query{ChassisUUID: &ch.UUID}, "-"},
		{"busy", store.Query{Busy: new(true)}, "c -"},
		{"both", store.Query{Driver: new("ipmi"), Maintenance: new(false)}, "a"},
		{"name down", store.Query{Sort: "name", Desc: true}, "c b a -"},
		{"power up", store.Query{Sort: "power_state"}, "b c - a"},
		{"limit", store.Query{Limit: 2}, "a b"},
	} {
		if got := names(t, s, c.q); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	for busy, want := range map[bool]int{true: 2, false: 4} {
		if ids, err := s.UUIDs(ctx, busy); err != nil || len(ids) != want {
			t.Errorf("UUIDs(busy %v) = %v, %v, want %d", busy, ids, err, want)
		}
	}
	var bad *store.SortError
	if _, err := s.Nodes(ctx, store.Query{Sort: "driver_info; DROP TABLE nodes"}); !errors.As(err, &bad) {
		t.Errorf("sort by nonsense = %v, want a SortError", err)
	}
	refused(t, "an unknown marker", store.ErrNotFound, second(s.Nodes(ctx, store.Query{Marker: "nobody"})))
}

func names(t *testing.T, s *store.Store, q store.Query) string {
	t.Helper()
	ns := given(s.Nodes(t.Context(), q))(t)
	var out []string
	for _, n := range ns {
		if n.Name == "" {
			n.Name = "-"
		}
		out = append(out, n.Name)
	}
	return strings.Join(out, " ")
}

// pages: in every order, walking page by page returns every node exactly once.
func pages(t *testing.T, ctx context.Context, s *store.Store) {
	for i := range 23 {
		create(t, s, &node.Node{Name: fmt.Sprintf("n%02d", (i*7)%23), ResourceClass: fmt.Sprint(i % 3)})
	}
	for _, key := range append(store.SortKeys(), "") {
		for _, desc := range []bool{false, true} {
			whole := given(s.Nodes(ctx, store.Query{Sort: key, Desc: desc}))(t)
			var paged []*node.Node
			marker := ""
			for {
				page := given(s.Nodes(ctx, store.Query{Sort: key, Desc: desc, Limit: 5, Marker: marker}))(t)
				paged = append(paged, page...)
				if len(page) < 5 {
					break
				}
				marker = page[4].UUID
			}
			if !slices.EqualFunc(whole, paged, func(a, b *node.Node) bool { return a.UUID == b.UUID }) {
				t.Errorf("sorted by %q (desc %v): %d nodes at once, %d in pages, or in another order", key, desc,
					len(whole), len(paged))
			}
		}
	}
}

func configDrive(t *testing.T, ctx context.Context, s *store.Store) {
	drive := map[string]any{"meta_data": map[string]any{"hostname": "h"}}
	n := create(t, s, &node.Node{InstanceInfo: map[string]any{"configdrive": drive, "a": "b"}})
	list, err := s.Nodes(ctx, store.Query{})
	if err != nil || list[0].InstanceInfo["configdrive"] != store.HiddenConfigDrive ||
		list[0].InstanceInfo["a"] != "b" {
		t.Errorf("list shows %v (%v)", list[0].InstanceInfo, err)
	}
	check := func(want any) {
		t.Helper()
		got := given(s.Node(ctx, n.UUID))(t)
		same(t, "config drive", want, got.InstanceInfo["configdrive"])
	}
	check(drive)
	set := func(v any) {
		t.Helper()
		must(t, second(s.UpdateNode(ctx, n.UUID,
			func(n *node.Node) error { n.InstanceInfo["configdrive"] = v; return nil })))
	}
	set("H4sIAAAA")
	check("H4sIAAAA")
	set("")
	check("")
	must(t, second(s.UpdateNode(ctx, n.UUID, func(n *node.Node) error { n.InstanceInfo = nil; return nil })))
	got, err := s.Node(ctx, n.UUID)
	if err != nil || len(got.InstanceInfo) != 0 {
		t.Errorf("after clearing: %v, %v", got.InstanceInfo, err)
	}
}

func guids(t *testing.T, ctx context.Context, s *store.Store) {
	a := create(t, s, &node.Node{SystemGUIDs: []string{"aaaa-1", "aaaa-2"}})
	b := create(t, s, &node.Node{SystemGUIDs: []string{"BBBB"}})
	for guid, want := range map[string]string{"AAAA-2": a.UUID, "aaaa-1": a.UUID, "bbbb": b.UUID} {
		n, err := s.NodeByGUID(ctx, guid)
		if err != nil || n.UUID != want {
			t.Errorf("NodeByGUID(%s) = %v, %v, want %s", guid, n, err, want)
		}
	}
	must(t, second(s.UpdateNode(ctx, b.UUID, func(n *node.Node) error {
		n.SystemGUIDs = []string{"aaaa-1"}
		return nil
	})))
	var amb *store.AmbiguousError
	if _, err := s.NodeByGUID(ctx, "aaaa-1"); !errors.As(err, &amb) || len(amb.Nodes) != 2 {
		t.Errorf("NodeByGUID of a shared GUID = %v, want an AmbiguousError", err)
	}
	refused(t, "NodeByGUID of a GUID given up", store.ErrNotFound, second(s.NodeByGUID(ctx, "bbbb")))
}

func ports(t *testing.T, ctx context.Context, s *store.Store) {
	n, m := create(t, s, &node.Node{}), create(t, s, &node.Node{})
	p := &node.Port{NodeUUID: n.UUID, Address: "52:54:00:AB:CD:EF", PXEEnabled: true, Extra: map[string]any{"x": "y"}}
	must(t, s.CreatePort(ctx, p))
	must(t, s.CreatePort(ctx, &node.Port{NodeUUID: m.UUID, Address: "52:54:00:00:00:02"}))
	byMAC := given(s.PortByMAC(ctx, "52:54:00:ab:cd:EF"))(t)
	same(t, "PortByMAC", p, byMAC)
	for id, want := range map[string]bool{n.UUID: true, strings.ToUpper(m.UUID): true,
		create(t, s, &node.Node{}).UUID: false, "unknown": false} {
		if has, err := s.HasPorts(ctx, id); err != nil || has != want {
			t.Errorf("HasPorts(%s) = %v, %v, want %v", id, has, err, want)
		}
	}
	var dup *store.DuplicateError
	err := s.CreatePort(ctx, &node.Port{NodeUUID: m.UUID, Address: "52:54:00:ab:cd:ef"})
	if !errors.As(err, &dup) || dup.NodeUUID != n.UUID {
		t.Errorf("a second port with the same address = %v, want a DuplicateError that names %s", err, n.UUID)
	}
	refused(t, "a port of an unknown node", store.ErrNotFound, s.CreatePort(ctx, &node.Port{NodeUUID: "unknown",
		Address: "52:54:00:00:00:03"}))
	if all, err := s.Ports(ctx, store.PortQuery{Sort: "address"}); err != nil || len(all) != 2 ||
		all[0].NodeUUID != m.UUID {
		t.Errorf("all ports by address: %v, %v", all, err)
	}
	if mine, err := s.Ports(ctx, store.PortQuery{NodeUUID: &n.UUID, PXEEnabled: new(true)}); err != nil ||
		len(mine) != 1 {
		t.Errorf("ports of n: %v, %v", mine, err)
	}
	must(t, s.CreatePort(ctx, &node.Port{NodeUUID: n.UUID, Address: "52:54:00:00:00:04",
		LocalLinkConnection: map[string]any{"switch_id": "00:1c:73:00:00:01", "port_id": "Ethernet1"}}))
	for id, want := range map[string]int{"00:1c:73:00:00:01": 1, "00:1c:73:00:00:02": 0} {
		if at, err := s.Ports(ctx, store.PortQuery{SwitchID: &id}); err != nil || len(at) != want {
			t.Errorf("ports at switch %s: %v, %v; want %d", id, at, err, want)
		}
	}
	up, err := s.UpdatePort(ctx, p.UUID, func(p *node.Port) error {
		p.PXEEnabled = false
		p.Address = "52:54:00:00:00:09"
		return nil
	})
	if err != nil || up.PXEEnabled {
		t.Errorf("UpdatePort = %v, %v", up, err)
	}
	if got, err := s.Port(ctx, p.UUID); err != nil || got.Address != "52:54:00:00:00:09" {
		t.Errorf("Port = %v, %v", got, err)
	}
	must(t, s.DeletePort(ctx, p.UUID))
	refused(t, "DeletePort twice", store.ErrNotFound, s.DeletePort(ctx, p.UUID))
}

func history(t *testing.T, ctx context.Context, s *store.Store) {
	n := create(t, s, &node.Node{})
	for i := range 5 {
		must(t, s.AddHistory(ctx,
			node.HistoryEntry{NodeUUID: n.UUID, Type: "power", Event: fmt.Sprint(i), User: "u"}))
	}
	h, err := s.History(ctx, n.UUID, 2)
	if err != nil || len(h) != 2 || h[0].Event != "4" || h[1].Event != "3" || h[0].UUID == "" ||
		h[0].Severity != "INFO" || h[0].At.IsZero() {
		t.Errorf("History = %+v, %v", h, err)
	}
	refused(t, "history of an unknown node", store.ErrNotFound,
		s.AddHistory(ctx, node.HistoryEntry{NodeUUID: "unknown"}))
}

func marks(t *testing.T, ctx context.Context, s *store.Store) {
	n := create(t, s, &node.Node{})
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i, m := range []node.Mark{{JobID: "j", Name: "late", At: at.Add(time.Hour)},
		{JobID: "j", Name: "early", At: at}, {JobID: "k", Name: "other"}} {
		m.NodeUUID = n.UUID
		if err := s.AddMark(ctx, m); err != nil {
			t.Fatal(i, err)
		}
	}
	got, err := s.Marks(ctx, n.UUID, "j")
	if err != nil || len(got) != 2 || got[0].Name != "late" || got[1].Name != "early" || !got[1].At.Equal(at) {
		t.Errorf("Marks(j) = %+v, %v, want them as they were recorded, although the clock was set back meanwhile", got,
			err)
	}
	if all, err := s.Marks(ctx, n.UUID, ""); err != nil || len(all) != 3 {
		t.Errorf("Marks() = %+v, %v", all, err)
	}
}

func inventory(t *testing.T, ctx context.Context, s *store.Store) {
	n := create(t, s, &node.Node{})
	refused(t, "Inventory before inspection", store.ErrNotFound, second(s.Inventory(ctx, n.UUID)))
	for _, doc := range []string{`{"a":1}`, `{"b":2}`} {
		must(t, s.SetInventory(ctx, n.UUID, []byte(doc)))
		if got, err := s.Inventory(ctx, n.UUID); err != nil || string(got) != doc {
			t.Errorf("Inventory = %s, %v, want %s", got, err, doc)
		}
	}
}

func results(t *testing.T, ctx context.Context, s *store.Store) {
	n, other := create(t, s, &node.Node{}), create(t, s, &node.Node{})
	for i := range 10 {
		must(t, second(s.Change(ctx, n.UUID, func(_ *node.Node, effects *node.SideEffects) error {
			effects.Results = []node.LargeResult{{Ref: fmt.Sprint("r", i), Doc: fmt.Appendf(nil, `{"i":%d}`, i)}}
			return nil
		})))
	}
	got, err := s.Results(ctx, strings.ToUpper(n.UUID))
	if err != nil || len(got) != 8 || string(got["r9"]) != `{"i":9}` || got["r1"] != nil {
		t.Errorf("Results after 10 = %s, %v, want the newest 8", got, err)
	}
	if got, err := s.Results(ctx, other.UUID); err != nil || len(got) != 0 {
		t.Errorf("Results of another node = %s, %v", got, err)
	}
}

func leases(t *testing.T, ctx context.Context, s *store.Store) {
	soon := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	l := node.Lease{MAC: "52:54:00:00:00:AA", IP: "192.0.2.10", NodeUUID: "n", ExpiresAt: soon}
	must(t, s.PutLease(ctx, l))
	l.MAC = strings.ToLower(l.MAC)
	for _, get := range []func() (node.Lease, error){
		func() (node.Lease, error) { return s.Lease(ctx, "52:54:00:00:00:aA") },
		func() (node.Lease, error) { return s.LeaseByIP(ctx, "192.0.2.10") },
	} {
		if got, err := get(); err != nil || got != l {
			t.Errorf("lease = %+v, %v, want %+v", got, err, l)
		}
	}
	other := node.Lease{MAC: "52:54:00:00:00:bb", IP: l.IP, ExpiresAt: soon}
	var held *store.LeaseHeldError
	if err := s.PutLease(ctx, other); !errors.As(err, &held) || held.MAC != l.MAC {
		t.Errorf("a second lease of the address = %v, want a LeaseHeldError", err)
	}
	l.ExpiresAt = time.Now().Add(-time.Minute)
	must(t, s.PutLease(ctx, l))
	if err := s.PutLease(ctx, other); err != nil {
		t.Errorf("an expired address is not given anew: %v", err)
	}
	refused(t, "the old holder still has a lease", store.ErrNotFound, second(s.Lease(ctx, l.MAC)))
	if all, err := s.Leases(ctx); err != nil || len(all) != 1 {
		t.Errorf("Leases = %v, %v", all, err)
	}
	must(t, s.DeleteLease(ctx, other.MAC))
	refused(t, "a deleted lease is still there", store.ErrNotFound, second(s.LeaseByIP(ctx, l.IP)))
}

// LeaseOnce lets machines ask for the addresses of one range at two writers of a database at once, some of them leased
// before and expired: each address is given to one machine, and each machine that is refused one hears who has it.
func LeaseOnce(t *testing.T, ctx context.Context, a, b *store.Store) {
	const addresses, machines = 12, 40
	address := func(i int) string { return fmt.Sprint("192.0.2.", 1+i%addresses) }
	for i := range addresses / 2 {
		must(t, a.PutLease(ctx,
			node.Lease{MAC: fmt.Sprint("old", i), IP: address(i), ExpiresAt: time.Now().Add(-time.Hour)}))
	}
	var mu sync.Mutex
	has := map[string]string{}
	var wg sync.WaitGroup
	for i := range machines {
		s, mac := []*store.Store{a, b}[i%2], fmt.Sprint("mac", i)
		wg.Go(func() {
			for k := range addresses {
				ip := address(i/2 + k) // the two writers begin with the same ones
				err := s.PutLease(ctx,
					node.Lease{MAC: mac, IP: ip, NodeUUID: "n", ExpiresAt: time.Now().Add(time.Hour)})
				var held *store.LeaseHeldError
				switch {
				case errors.As(err, &held) && held.MAC != mac && held.IP == ip:
					continue
				case err != nil:
					t.Errorf("lease %s to %s: %v", ip, mac, err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if other, twice := has[ip]; twice {
					t.Errorf("%s is leased to %s and to %s", ip, other, mac)
				}
				has[ip] = mac
				return
			}
		})
	}
	wg.Wait()
	all, err := b.Leases(ctx)
	must(t, err)
	for _, l := range all {
		if has[l.IP] != l.MAC {
			t.Errorf("%s is leased to %s, but was given to %s", l.IP, l.MAC, has[l.IP])
		}
	}
	if len(has) != addresses || len(all) != addresses {
		t.Errorf("%d of %d addresses were given, and %d are stored", len(has), addresses, len(all))
	}
}

func deleteNode(t *testing.T, ctx context.Context, s *store.Store) {
	n := create(t, s,
		&node.Node{Name: "gone", SystemGUIDs: []string{"g"}, InstanceInfo: map[string]any{"configdrive": "x"}})
	for _, err := range []error{
		s.CreatePort(ctx, &node.Port{NodeUUID: n.UUID, Address: "52:54:00:00:00:01"}),
		s.AddHistory(ctx, node.HistoryEntry{NodeUUID: n.UUID}),
		s.AddMark(ctx, node.Mark{NodeUUID: n.UUID}),
		s.SetInventory(ctx, n.UUID, []byte(`{}`)),
		s.PutLease(ctx, node.Lease{MAC: "52:54:00:00:00:01", IP: "192.0.2.1", NodeUUID: n.UUID}),
		s.DeleteNode(ctx, n.UUID),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, err := range map[string]error{
		"node":      second(s.Node(ctx, "gone")),
		"guid":      second(s.NodeByGUID(ctx, "g")),
		"port":      second(s.PortByMAC(ctx, "52:54:00:00:00:01")),
		"inventory": second(s.Inventory(ctx, n.UUID)),
		"lease":     second(s.LeaseByIP(ctx, "192.0.2.1")),
		"again":     s.DeleteNode(ctx, n.UUID),
	} {
		if !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s after DeleteNode: %v, want ErrNotFound", name, err)
		}
	}
	if h, err := s.History(ctx, n.UUID, 0); err != nil || len(h) != 0 {
		t.Errorf("history after DeleteNode: %v, %v", h, err)
	}
}

// portEdits: an edit is stored over the present state of the port; impossible edits are left out, and reported.
func portEdits(t *testing.T, ctx context.Context, s *store.Store) {
	n, other := create(t, s, &node.Node{}), create(t, s, &node.Node{})
	port := func(of *node.Node, mac, name string) *node.Port {
		p := &node.Port{NodeUUID: of.UUID, Address: mac, Name: name}
		must(t, s.CreatePort(ctx, p))
		return p
	}
	a, b, foreign, gone := port(n, "52:54:00:00:00:01", "a"), port(n, "52:54:00:00:00:02", "b"),
		port(other, "52:54:00:00:00:03", "c"), port(n, "52:54:00:00:00:04", "")
	edit := func(p *node.Port, f func(*node.Port)) node.PortEdit {
		is := *p
		f(&is)
		return node.PortEdit{Was: *p, Is: is}
	}
	was := *a
	must(t, second(s.UpdatePort(ctx, a.UUID, func(p *node.Port) error {
		p.Description = "meanwhile"
		return nil
	})))
	_, err := s.Change(ctx, n.UUID, func(_ *node.Node, effects *node.SideEffects) error {
		effects.PortEdits = []node.PortEdit{
			edit(&was, func(p *node.Port) { p.PhysicalNetwork, p.Extra = "physnet", map[string]any{"a": "b"} }),
			edit(b, func(p *node.Port) { p.Name = "a" }), // taken
			edit(foreign, func(p *node.Port) { p.Name = "stolen" }),
			edit(&node.Port{UUID: "00000000-0000-4000-8000-000000000000"}, func(p *node.Port) { p.Name = "unknown" }),
		}
		effects.GonePorts = []string{gone.UUID, foreign.UUID}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ports, err := s.PortsOf(ctx, n.UUID)
	if err != nil || len(ports) != 2 {
		t.Fatalf("ports = %v, %v", ports, err)
	}
	if p := ports[0]; p.Description != "meanwhile" || p.PhysicalNetwork != "physnet" || p.Extra["a"] != "b" ||
		p.Name != "a" {
		t.Errorf("edited port is %+v", p)
	}
	if p := ports[1]; p.Name != "b" {
		t.Errorf("port with a name that is taken is %+v", p)
	}
	if p, err := s.Port(ctx, foreign.UUID); err != nil || p.Name != "c" {
		t.Errorf("another node's port is %+v, %v", p, err)
	}
	lines, err := s.History(ctx, n.UUID, 0)
	if err != nil || len(lines) != 1 || lines[0].Severity != "WARNING" ||
		!strings.Contains(lines[0].Event, "52:54:00:00:00:02 is not changed") {
		t.Errorf("history = %v, %v", lines, err)
	}
}
