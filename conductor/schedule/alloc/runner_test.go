package alloc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/storetest"
)

func open(t *testing.T, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// rack makes so many nodes that can be allocated.
func rack(t *testing.T, s *store.Store, count int) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() {
			n := &node.Node{Name: fmt.Sprint("n", i), Driver: "fake-hardware", Provision: node.Available,
				Power: "power off", ResourceClass: "rc"}
			if i%2 == 0 {
				n.Traits = []string{"CUSTOM_EVEN"}
			}
			if err := s.CreateNode(t.Context(), n); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func ask(ctx context.Context, s *store.Store, a *node.Allocation) error {
	a.State, a.ResourceClass = node.AllocationAllocating, "rc"
	return s.Allocations().Create(ctx, a)
}

// start runs a Runner until the test ends.
func start(t *testing.T, s *store.Store) *Runner {
	r := New(s, nil)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return r
}

// settled waits until no allocation waits for a node any more, and gives them by state.
func settled(t *testing.T, s *store.Store) map[string][]*node.Allocation {
	t.Helper()
	for t.Context().Err() == nil {
		ids, err := s.Allocating(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(ids) == 0 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	all, err := s.Allocations().List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	by := map[string][]*node.Allocation{}
	for _, a := range all {
		by[a.State] = append(by[a.State], a)
	}
	return by
}

// consistent checks that nodes and allocations tell the same of each other, and that no node has two.
func consistent(t *testing.T, s *store.Store, active []*node.Allocation) {
	t.Helper()
	nodes, err := s.Nodes(t.Context(), store.Query{})
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]*node.Node{}
	used := 0
	for _, n := range nodes {
		has[n.UUID] = n
		if n.AllocationUUID != n.InstanceUUID {
			t.Errorf("node %s has instance %q, but allocation %q", n.Name, n.InstanceUUID, n.AllocationUUID)
		}
		if n.AllocationUUID != "" {
			used++
		}
	}
	if used != len(active) {
		t.Errorf("%d nodes are given, to %d allocations", used, len(active))
	}
	of := map[string]string{}
	for _, a := range active {
		n := has[a.NodeUUID]
		if n == nil || n.AllocationUUID != a.UUID {
			t.Errorf("allocation %s has node %q, which knows nothing of it: %+v", a.UUID, a.NodeUUID, n)
			continue
		}
		if other := of[a.NodeUUID]; other != "" {
			t.Errorf("node %s was given to allocations %s and %s", n.Name, other, a.UUID)
		}
		of[a.NodeUUID] = a.UUID
		for _, trait := range a.Traits {
			if len(n.Traits) == 0 || n.Traits[0] != trait {
				t.Errorf("allocation %s wants %s and has node %s with %v", a.UUID, trait, n.Name, n.Traits)
			}
		}
	}
}

// TestManyAtOnce: hundreds of allocations at the same time, more than there are nodes. Each node is given once, none is
// left over.
func TestManyAtOnce(t *testing.T) {
	s := open(t, storetest.Fresh(t))
	const nodes, asked = 120, 400
	rack(t, s, nodes)
	a, b := start(t, s), start(t, s) // two conductors
	var wg sync.WaitGroup
	for i := range asked {
		wg.Go(func() {
			al := &node.Allocation{}
			if i%5 == 0 {
				al.Traits = []string{"CUSTOM_EVEN"}
			}
			if err := ask(t.Context(), s, al); err != nil {
				t.Error(err)
				return
			}
			a.Wake(al.UUID)
			b.Wake(al.UUID)
		})
	}
	wg.Wait()
	by := settled(t, s)
	if got := len(by[node.AllocationActive]); got != nodes {
		t.Errorf("%d allocations have a node, want %d", got, nodes)
	}
	if got := len(by[node.AllocationError]); got != asked-nodes {
		t.Errorf("%d allocations failed, want %d", got, asked-nodes)
	}
	for _, a := range by[node.AllocationError] {
		if !strings.Contains(a.LastError, "no available nodes match the resource class rc") &&
			!strings.Contains(a.LastError, "requested traits CUSTOM_EVEN") {
			t.Errorf("a failed allocation says %q", a.LastError)
		}
	}
	consistent(t, s, by[node.AllocationActive])
}

// TestManyWithDeletes: allocations come and go at the same time, by deletion of the allocation, of the node's instance,
// and of nodes.
func TestManyWithDeletes(t *testing.T) {
	s := open(t, storetest.Fresh(t))
	rack(t, s, 20)
	r := start(t, s)
	var wg sync.WaitGroup
	for worker := range 24 {
		wg.Go(func() {
			for round := range 15 {
				a := &node.Allocation{}
				if err := ask(t.Context(), s, a); err != nil {
					t.Error(err)
					return
				}
				r.Wake(a.UUID)
				if round%3 == 0 {
					r.Process(t.Context(), a.UUID) // at the same time as the runner
				}
				if round%2 == 0 && worker%4 == 0 { // a tear-down takes the instance away
					got, err := s.Allocations().Get(t.Context(), a.UUID)
					if err != nil {
						t.Error(err)
						return
					}
					if got.NodeUUID != "" {
						_, err := s.UpdateNode(t.Context(), got.NodeUUID, func(n *node.Node) error {
							if n.InstanceUUID == a.UUID {
								n.InstanceUUID = ""
							}
							return nil
						})
						if err != nil && !errors.Is(err, store.ErrNotFound) {
							t.Error(err)
						}
						continue
					}
				}
				if round == 7 && worker == 0 {
					n, err := s.Node(t.Context(), "n3")
					if err == nil {
						err = s.DeleteNode(t.Context(), n.UUID)
					}
					if err != nil {
						t.Error(err)
					}
				}
				if round == 14 && worker%2 == 0 {
					continue // it stays
				}
				err := s.DeleteAllocation(t.Context(), a.UUID, "",
					func(*node.Allocation, *node.Node) error { return nil })
				if err != nil && !errors.Is(err, store.ErrNotFound) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	by := settled(t, s)
	if len(by[node.AllocationActive]) == 0 {
		t.Error("no allocation is left to look at")
	}
	consistent(t, s, by[node.AllocationActive])
}

// TestKilledRunner is not a test of its own: TestKill runs it in a process that it kills.
func TestKilledRunner(t *testing.T) {
	dir := os.Getenv("INGOT_TEST_KILL_DIR")
	if dir == "" {
		return
	}
	s := open(t, dir)
	r := start(t, s)
	var out sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				a := &node.Allocation{}
				if err := ask(t.Context(), s, a); err != nil {
					return
				}
				out.Lock()
				fmt.Println("asked", a.UUID)
				out.Unlock()
				r.Wake(a.UUID)
			}
		})
	}
	wg.Wait()
}

// TestKill kills a conductor in the middle of its allocations. What had been accepted is there; nothing is half given;
// and the next start goes on with what was left waiting.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	rack(t, s, 150)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var asked []string
	for round := range 2 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledRunner$")
		cmd.Env = append(os.Environ(), "INGOT_TEST_KILL_DIR="+dir)
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		count := 0
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			var id string
			if _, err := fmt.Sscanf(lines.Text(), "asked %s", &id); err == nil && len(id) == 36 {
				asked = append(asked, id)
				count++
			}
			if count == 40+round*17 {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the conductor ended by itself")
		}
	}
	s = open(t, dir)
	for _, id := range asked {
		if _, err := s.Allocations().Get(t.Context(), id); err != nil {
			t.Errorf("allocation %s was accepted and is not there: %v", id, err)
		}
	}
	all, err := s.Allocations().List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	var active []*node.Allocation
	for _, a := range all {
		if a.State == node.AllocationActive {
			active = append(active, a)
		}
	}
	consistent(t, s, active)

	left := &node.Allocation{} // as one that was accepted a moment before the end
	if err := ask(t.Context(), s, left); err != nil {
		t.Fatal(err)
	}
	start(t, s)
	by := settled(t, s)
	if len(by[node.AllocationAllocating]) != 0 || len(by[node.AllocationActive]) < len(active) {
		t.Errorf("after the next start: %d active, %d waiting, before: %d active", len(by[node.AllocationActive]),
			len(by[node.AllocationAllocating]), len(active))
	}
	consistent(t, s, by[node.AllocationActive])
}
