package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

// free makes a node that can be allocated, changed by f.
func free(t *testing.T, s *store.Store, name string, f func(*node.Node)) *node.Node {
	n := &node.Node{Name: name, Provision: node.Available, Power: "power off", ResourceClass: "rc"}
	if f != nil {
		f(n)
	}
	return create(t, s, n)
}

func request(t *testing.T, s *store.Store, a node.Allocation) *node.Allocation {
	t.Helper()
	a.State = node.AllocationAllocating
	if a.ResourceClass == "" {
		a.ResourceClass = "rc"
	}
	must(t, s.Allocations().Create(t.Context(), &a))
	return &a
}

func first(a *node.Allocation, from []store.Candidate) (string, string) {
	if len(from) == 0 {
		return "", "nothing for " + a.UUID
	}
	return from[0].UUID, ""
}

func allocate(t *testing.T, ctx context.Context, s *store.Store) {
	fits := free(t, s, "fits", func(n *node.Node) {
		n.Traits, n.Properties, n.Lessee = []string{"CUSTOM_A"}, map[string]any{"cpus": 4.0}, "p1"
		n.InstanceInfo, n.DriverInfo = map[string]any{"image_source": "x", "configdrive": "y"},
			map[string]any{"password": "z"}
	})
	free(t, s, "enroll", func(n *node.Node) { n.Provision = node.Enroll })
	free(t, s, "class", func(n *node.Node) { n.ResourceClass = "other" })
	free(t, s, "taken", func(n *node.Node) { n.InstanceUUID = "8c9a4b5e-0000-4000-8000-000000000001" })
	free(t, s, "power", func(n *node.Node) { n.Power = "" })
	free(t, s, "maintenance", func(n *node.Node) { n.Maintenance = true })
	free(t, s, "retired", func(n *node.Node) { n.Retired = true })
	free(t, s, "fault", func(n *node.Node) { n.Fault = "power failure" })
	locked := free(t, s, "locked", func(n *node.Node) { n.Reservation, n.Owner = "c1", "p1" })

	look := func(a node.Allocation) []store.Candidate {
		t.Helper()
		var seen []store.Candidate
		made := request(t, s, a)
		got, err := s.Allocate(ctx, made.UUID, func(_ *node.Allocation, from []store.Candidate) (string, string) {
			seen = from
			return "", "just looking"
		})
		if err != nil || got.State != node.AllocationError || got.LastError != "just looking" || got.NodeUUID != "" {
			t.Fatalf("an allocation for which nothing was chosen: %+v, %v", got, err)
		}
		return seen
	}
	both := []store.Candidate{{UUID: fits.UUID, Name: "fits"}, {UUID: locked.UUID, Name: "locked", Locked: true}}
	same(t, "candidates", both, look(node.Allocation{}))
	same(t, "candidates of their owner and lessee", both, look(node.Allocation{Head: node.Head{Owner: "p1"}}))
	if got := look(node.Allocation{Head: node.Head{Owner: "p2"}}); len(got) != 0 {
		t.Errorf("candidates of somebody else: %v", got)
	}
	if got := look(node.Allocation{CandidateNodes: []string{fits.UUID}, Traits: []string{"CUSTOM_B"}}); len(got) != 1 ||
		got[0].Traits[0] != "CUSTOM_A" || got[0].Properties["cpus"] != 4.0 {
		t.Errorf("a candidate with traits and properties: %v", got)
	}

	a := request(t, s, node.Allocation{Traits: []string{"CUSTOM_A"}})
	if _, err := s.Allocate(ctx, a.UUID, func(*node.Allocation, []store.Candidate) (string, string) {
		return "no candidate", ""
	}); err == nil {
		t.Error("a node that is no candidate is given")
	}
	got, err := s.Allocate(ctx, a.UUID, first)
	if err != nil || got.State != node.AllocationActive || got.NodeUUID != fits.UUID || got.UpdatedAt.IsZero() {
		t.Fatalf("Allocate = %+v, %v", got, err)
	}
	n, err := s.Node(ctx, fits.UUID)
	if err != nil || n.InstanceUUID != a.UUID || n.AllocationUUID != a.UUID {
		t.Fatalf("the node has instance %q, allocation %q: %v", n.InstanceUUID, n.AllocationUUID, err)
	}
	if d := cmp.Diff(map[string]any{"image_source": "x", "configdrive": "y", "traits": []any{"CUSTOM_A"}},
		n.InstanceInfo); d != "" || n.DriverInfo["password"] != "z" {
		t.Errorf("instance_info (-want +got):\n%s driver_info %v", d, n.DriverInfo)
	}
	again, err := s.Allocate(ctx, a.UUID, func(*node.Allocation, []store.Candidate) (string, string) {
		t.Error("a choice for an allocation that has its node")
		return "", "again"
	})
	if err != nil || again.NodeUUID != fits.UUID || again.State != node.AllocationActive {
		t.Errorf("Allocate again = %+v, %v", again, err)
	}

	// Its UUID is an instance's already: nothing is half done.
	b := request(t, s, node.Allocation{Head: node.Head{UUID: "8c9a4b5e-0000-4000-8000-000000000001"}})
	if got, err := s.Allocate(ctx, b.UUID, first); err != nil || got.State != node.AllocationError ||
		got.NodeUUID != "" || got.LastError == "" {
		t.Errorf("an allocation with the UUID of an instance: %+v, %v", got, err)
	}
	if n, err := s.Node(ctx, locked.UUID); err != nil || n.InstanceUUID != "" || n.AllocationUUID != "" ||
		n.Version != 1 {
		t.Errorf("the node that was chosen for it: %+v, %v", n, err)
	}
	refused(t, "an allocation that is not there", store.ErrNotFound, second(s.Allocate(ctx,
		"00000000-0000-4000-8000-000000000000", first)))
	c := request(t, s, node.Allocation{})
	if ids, err := s.Allocating(ctx); err != nil || len(ids) != 1 || ids[0] != c.UUID {
		t.Errorf("Allocating = %v, %v", ids, err)
	}
}

// allocationEnds: removing a node's instance ends the allocation, and the other way round.
func allocationEnds(t *testing.T, ctx context.Context, s *store.Store) {
	yes := func(*node.Allocation, *node.Node) error { return nil }
	given := func() (*node.Node, *node.Allocation) {
		t.Helper()
		n := free(t, s, "", nil)
		a := request(t, s, node.Allocation{CandidateNodes: []string{n.UUID}, Traits: []string{"CUSTOM_A"}})
		a, err := s.Allocate(ctx, a.UUID, first)
		if err != nil || a.NodeUUID != n.UUID {
			t.Fatalf("Allocate = %+v, %v", a, err)
		}
		return n, a
	}
	ended := func(what string, n *node.Node, a *node.Allocation) {
		t.Helper()
		if _, err := s.Allocations().Get(ctx, a.UUID); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s: the allocation is there: %v", what, err)
		}
		if n == nil {
			return
		}
		if n, err := s.Node(ctx, n.UUID); err != nil || n.InstanceUUID != "" || n.AllocationUUID != "" {
			t.Errorf("%s: the node has instance %q, allocation %q: %v", what, n.InstanceUUID, n.AllocationUUID, err)
		}
	}
	n, a := given()
	refuse := errors.New("no")
	refused(t, "a refused deletion", refuse, s.DeleteAllocation(ctx, a.UUID, "u", func(got *node.Allocation,
		has *node.Node) error {
		if got.UUID != a.UUID || has.UUID != n.UUID {
			t.Errorf("asked about allocation %s and node %s", got.UUID, has.UUID)
		}
		return refuse
	}))
	must(t, second(s.Allocations().Get(ctx, a.UUID)))
	must(t, s.DeleteAllocation(ctx, a.UUID, "u", yes))
	ended("deleted", n, a)
	if n, err := s.Node(ctx, n.UUID); err != nil || n.InstanceInfo["traits"] != nil {
		t.Errorf("traits of the allocation are left in instance_info %v: %v", n.InstanceInfo, err)
	}
	refused(t, "deleted twice", store.ErrNotFound, s.DeleteAllocation(ctx, a.UUID, "u", yes))

	n, a = given()
	must(t, second(s.UpdateNode(ctx, n.UUID, func(n *node.Node) error { n.InstanceUUID = ""; return nil })))
	ended("instance taken away", n, a)

	n, a = given()
	must(t, s.DeleteNode(ctx, n.UUID))
	ended("node deleted", nil, a)

	waiting := request(t, s, node.Allocation{})
	if err := s.DeleteAllocation(ctx, waiting.UUID, "u",
		func(*node.Allocation, *node.Node) error { return refuse }); err != nil {
		t.Errorf("an allocation without a node: %v", err)
	}
}

func backfill(t *testing.T, ctx context.Context, s *store.Store) {
	const instance = "8c9a4b5e-0000-4000-8000-000000000001"
	yes := func(*node.Allocation, *node.Node) error { return nil }
	n := create(t, s,
		&node.Node{Provision: node.Active, InstanceUUID: instance, ResourceClass: "rc",
			InstanceInfo: map[string]any{"traits": []any{"CUSTOM_X"}}})
	refuse := errors.New("no")
	refused(t, "a refused backfill", refuse, s.Backfill(ctx, &node.Allocation{}, n.UUID,
		func(*node.Allocation, *node.Node) error { return refuse }))
	if all, err := s.Allocations().List(ctx, ""); err != nil || len(all) != 0 {
		t.Errorf("a refused backfill left %v, %v", all, err)
	}
	a := &node.Allocation{}
	must(t, s.Backfill(ctx, a, n.UUID, yes))
	if a.UUID != instance || a.State != node.AllocationActive || a.NodeUUID != n.UUID || a.ResourceClass != "rc" ||
		a.UpdatedAt.IsZero() {
		t.Errorf("backfilled: %+v", a)
	}
	if n, err := s.Node(ctx, n.UUID); err != nil || n.AllocationUUID != instance || n.InstanceUUID != instance ||
		len(n.InstanceInfo["traits"].([]any)) != 1 {
		t.Errorf("the node: %+v, %v", n, err)
	}
	var dup *store.DuplicateError
	if err := s.Backfill(ctx, &node.Allocation{}, n.UUID, yes); !errors.As(err, &dup) || dup.Field != "uuid" ||
		dup.Kind != "allocation" {
		t.Errorf("backfilled twice: %v", err)
	}
	refused(t, "a node that is not there", store.ErrNotFound, s.Backfill(ctx, &node.Allocation{},
		"00000000-0000-4000-8000-000000000000", yes))
}
