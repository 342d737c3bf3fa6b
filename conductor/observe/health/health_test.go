package health

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/node"
)

// site is a store in memory and the controllers of its nodes.
type site struct {
	mu       sync.Mutex
	nodes    map[string]*node.Node
	readings map[string]node.Reading
	history  []string
	writes   int // of nodes

	looks map[string]int // into the store, by node
	reads map[string]int // by node
	under map[string]int // by controller
	most  int            // readings at once
	twice bool           // a controller was asked about two nodes at once
	takes time.Duration
	fails bool
	says  node.Reading
}

func newSite(nodes int) *site {
	s := &site{nodes: map[string]*node.Node{}, readings: map[string]node.Reading{}, looks: map[string]int{},
		reads: map[string]int{}, under: map[string]int{}, takes: 10 * time.Second,
		says: node.Reading{Health: node.HealthOK}}
	for i := range nodes {
		id := fmt.Sprint("n", i)
		s.nodes[id] = &node.Node{UUID: id, Driver: "redfish"}
	}
	return s
}

func (s *site) Idle(context.Context) ([]node.Idle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []node.Idle
	for _, id := range slices.Sorted(maps.Keys(s.nodes)) {
		if !working(s.nodes[id]) {
			out = append(out, node.Idle{UUID: id, Conductor: s.nodes[id].Conductor})
		}
	}
	return out, nil
}

func (s *site) Node(_ context.Context, id string) (*node.Node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := *s.nodes[id]
	s.looks[id]++
	return &n, nil
}

func (s *site) Change(_ context.Context, id string, f func(*node.Node, *node.SideEffects) error) (*node.Node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := *s.nodes[id]
	var effects node.SideEffects
	if err := f(&n, &effects); err != nil {
		return nil, err
	}
	s.nodes[id] = &n
	s.writes++
	for _, h := range effects.History {
		s.history = append(s.history, h.Severity+" "+h.Event)
	}
	return &n, nil
}

func (s *site) Reading(_ context.Context, id string) (node.Reading, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readings[id], nil
}

func (s *site) KeepReading(_ context.Context, r node.Reading) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readings[r.NodeUUID] = r
	return nil
}

func (s *site) DropReading(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.readings, id)
	return nil
}

func (s *site) Monitor(n *node.Node) hardware.Monitor {
	if n.Driver != "redfish" {
		return nil
	}
	return s
}

// Controller has two nodes each.
func (s *site) Controller(n *node.Node) string {
	var i int
	fmt.Sscanf(n.UUID, "n%d", &i)
	return fmt.Sprint("bmc", i/2)
}

func (s *site) Health(ctx context.Context, n *node.Node) (*node.Reading, error) {
	key := s.Controller(n)
	s.mu.Lock()
	s.reads[n.UUID]++
	s.under[key]++
	s.twice = s.twice || s.under[key] > 1
	sum := 0
	for _, u := range s.under {
		sum += u
	}
	s.most = max(s.most, sum)
	takes, fails, says := s.takes, s.fails, s.says
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.under[key]--
	}()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if fails {
		return nil, errors.New("no answer")
	}
	return &says, nil
}

// run runs a runner in time that is not real, and does things while it does.
func (s *site) run(t *testing.T, cfg Config, during func()) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan bool)
		go func() {
			defer close(done)
			New(s, s, cfg, nil).Run(ctx)
		}()
		during()
		stop()
		<-done
	})
}

// Every node is read once an interval, so many at once and no more, a controller about one node at a time, and nothing
// of that is a change of a node.
func TestEveryNodeOnceAnInterval(t *testing.T) {
	s := newSite(40)
	s.run(t, Config{Interval: 10 * time.Minute, AtOnce: 4}, func() { time.Sleep(61 * time.Minute) })
	for id := range s.nodes {
		if n := s.reads[id]; n < 5 || n > 7 {
			t.Errorf("%s was read %d times in an hour", id, n)
		}
	}
	if s.most != 4 || s.twice {
		t.Errorf("%d readings at once; a controller asked twice at once: %v", s.most, s.twice)
	}
	if s.writes != 40 || len(s.readings) != 40 { // the first reading of each is news
		t.Errorf("%d writes of nodes, %d readings", s.writes, len(s.readings))
	}
}

// A node of another conductor is neither asked nor read from the store, round after round; one that has moved here is.
func TestNodesOfAnotherConductor(t *testing.T) {
	s := newSite(2)
	s.nodes["n0"].Conductor = "b"
	here := func(n *node.Node) error {
		if n.Conductor == "b" {
			return errors.New("b has it")
		}
		return nil
	}
	s.run(t, Config{Hostname: "a", Here: here, Interval: time.Minute, AtOnce: 4}, func() {
		time.Sleep(10 * time.Minute)
		s.mu.Lock()
		if s.looks["n0"] != 0 || s.reads["n0"] != 0 || s.reads["n1"] == 0 {
			t.Errorf("the other's node was looked at %d times and asked %d times, this one's asked %d times", s.looks["n0"],
				s.reads["n0"], s.reads["n1"])
		}
		s.nodes["n0"].Conductor = "a"
		s.mu.Unlock()
		time.Sleep(10 * time.Minute)
	})
	if s.reads["n0"] == 0 {
		t.Error("the node that moved here was not asked")
	}
}

// A node that is worked on, reserved or in maintenance is not read; work that begins ends a reading that is under way.
func TestNothingWhileTheNodeWorks(t *testing.T) {
	s := newSite(3)
	s.takes = time.Minute
	s.nodes["n0"].Job, s.nodes["n2"].Maintenance = &node.Job{}, true
	s.run(t, Config{Interval: time.Minute, AtOnce: 4}, func() {
		time.Sleep(100 * time.Second) // n1 is being read
		s.mu.Lock()
		n := *s.nodes["n1"]
		n.Job = &node.Job{}
		s.nodes["n1"] = &n
		s.mu.Unlock()
		time.Sleep(3 * time.Second)
		s.mu.Lock()
		if s.under["bmc0"] != 0 {
			t.Error("the reading goes on while the node works")
		}
		s.reads["n1"] = 0
		s.mu.Unlock()
		time.Sleep(time.Hour)
	})
	if s.reads["n0"] != 0 || s.reads["n1"] != 0 || s.reads["n2"] != 0 {
		t.Errorf("readings: %v", s.reads)
	}
}

// A controller that fails is asked more and more rarely; the last reading stays, with the error beside it.
func TestFailuresAreAskedRarely(t *testing.T) {
	s := newSite(1)
	s.run(t, Config{Interval: 10 * time.Minute, AtOnce: 4}, func() {
		time.Sleep(5 * time.Minute)
		s.mu.Lock()
		s.fails = true
		s.mu.Unlock()
		time.Sleep(24 * time.Hour)
	})
	if n := s.reads["n0"]; n < 6 || n > 10 {
		t.Errorf("%d attempts in a day", n)
	}
	if r := s.readings["n0"]; r.Health != node.HealthOK || r.Error != "no answer" || !r.TriedAt.After(r.At) {
		t.Errorf("kept: %+v", r)
	}
	if s.nodes["n0"].Health != node.HealthOK {
		t.Error("the node forgot its health")
	}
}

// A part that is going to fail is a fault if it is set so, until it is well again; another fault is left alone.
func TestFailingPartsAreAFault(t *testing.T) {
	for _, faults := range []bool{false, true} {
		s := newSite(2)
		s.nodes["n1"].Fault = node.FaultClean
		s.says = node.Reading{Health: node.HealthWarning,
			Parts: []node.Part{{Kind: "drive", Name: "Drive 1", Health: "Warning", Predicted: true}}}
		s.run(t, Config{Interval: 10 * time.Minute, AtOnce: 4, Faults: faults}, func() {
			time.Sleep(5 * time.Minute)
			s.mu.Lock()
			n := s.nodes["n0"]
			if n.Health != node.HealthWarning || (n.Fault == node.FaultHardware) != faults ||
				strings.Contains(n.LastError, "drive Drive 1 is going to fail") != faults {
				t.Errorf("faults %v: health %q, fault %q, %q", faults, n.Health, n.Fault, n.LastError)
			}
			if s.nodes["n1"].Fault != node.FaultClean {
				t.Errorf("the other fault is %q", s.nodes["n1"].Fault)
			}
			s.says = node.Reading{Health: node.HealthOK}
			s.mu.Unlock()
			time.Sleep(15 * time.Minute)
			s.mu.Lock()
			if n := s.nodes["n0"]; n.Health != node.HealthOK || n.Fault != "" || n.LastError != "" {
				t.Errorf("afterwards: health %q, fault %q, %q", n.Health, n.Fault, n.LastError)
			}
			n0 := *s.nodes["n0"]
			n0.Driver = "ipmi" // which reads no health
			s.nodes["n0"] = &n0
			s.mu.Unlock()
			time.Sleep(15 * time.Minute)
		})
		want := "WARNING Node health status changed: health='Warning' (previously 'None')"
		if !slices.Contains(s.history, want) {
			t.Errorf("history: %q", s.history)
		}
		if n := s.nodes["n0"]; n.Health != "" || s.readings["n0"].Health != "" {
			t.Errorf("without a monitor: health %q, kept %+v", n.Health, s.readings["n0"])
		}
	}
}
