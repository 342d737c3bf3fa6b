package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
)

// flaky is a network whose service is away for some calls, and records the others.
type flaky struct {
	mu   sync.Mutex
	away int // calls
	went []string
}

var errAway = &ServiceError{errors.New("no answer of the network service")}

func (f *flaky) Attach(_ context.Context, n *node.Node, to NetworkName) error {
	if n.Job != nil && n.Job.Phase == node.PhaseInspect { // by which a plug knows the network of inspections
		to = "inspect:" + to
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away > 0 {
		f.away--
		return errAway
	}
	if f.went = append(f.went, string(to)); len(f.went) > 1 && f.went[len(f.went)-2] == string(to) {
		f.went = f.went[1:] // again, when in doubt
	}
	return nil
}

func (f *flaky) gone() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.went = nil }()
	return f.went
}

func (f *flaky) leave(calls int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = calls
}

// TestNetworksOfALife: while a ramdisk runs the machine is in the provisioning network, with an instance in the
// tenant's, else in none; a service that is away for a while delays that only.
func TestNetworksOfALife(t *testing.T) {
	w := newWorld(t)
	eng := w.start(nil).eng
	net := &flaky{}
	eng.network = net
	m := w.add("n1")
	for _, step := range []struct {
		verb  node.Verb
		until node.State
		want  string
		away  int
	}{
		{node.Manage, node.Manageable, "[]", 0},
		{node.Inspect, node.Manageable, "[inspect:provisioning inspect:none]", 3},
		{node.Provide, node.Available, "[provisioning none]", 3},
		{node.Deploy, node.Active, "[provisioning tenant]", 3},
		{node.Delete, node.Available, "[none provisioning none]", 3},
	} {
		net.leave(step.away)
		w.want(m, Request{Verb: step.verb}, step.until)
		if got := fmt.Sprint(net.gone()); got != step.want {
			t.Errorf("%s went to the networks %s, want %s", step.verb, got, step.want)
		}
	}

	if _, err := w.store.UpdateNode(t.Context(), m.id, func(n *node.Node) error {
		n.InstanceInfo = image
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	net.leave(1e6)
	boots := m.boots()
	w.must(m, node.Deploy)
	w.untilState(m, node.DeployFailed)
	n := w.node(m)
	if !strings.Contains(n.LastError, "connect the machine to the provisioning network: no answer of the network service") ||
		!strings.Contains(n.LastError, fmt.Sprintf("tried %d times", serviceTries)) || m.boots() != boots {
		t.Errorf("without the service: %q, booted %d times", n.LastError, m.boots()-boots)
	}
	if got := net.gone(); slices.Contains(got, "tenant") {
		t.Errorf("a failed deployment went to %v", got)
	}
}

// telling is a network that knows an instance's addresses.
type telling struct {
	flaky
	asked int
}

func (tl *telling) NetworkData(context.Context, *node.Node) (map[string]any, error) {
	tl.asked++
	return map[string]any{"links": []any{"of the network"}}, nil
}

// TestNetworkDataOfTheConfigDrive: a config drive that is an object gets the addresses that the network knows, unless
// it brings its own; one that is an image is the client's alone.
func TestNetworkDataOfTheConfigDrive(t *testing.T) {
	own := map[string]any{"network_data": map[string]any{"links": []any{"own"}}}
	for _, test := range []struct {
		drive any
		want  string
		asked int
	}{
		{map[string]any{"user_data": "hello"}, "map[network_data:map[links:[of the network]] user_data:hello]", 1},
		{own, "map[network_data:map[links:[own]]]", 0},
		{"H4sIAAAAAAAA", "H4sIAAAAAAAA", 0},
		{nil, "<nil>", 0},
	} {
		w := newWorld(t)
		eng := w.start(nil).eng
		net := &telling{}
		m := w.add("n1")
		w.walk(m, node.Available)
		eng.network = net
		if err := eng.Provision(t.Context(), m.id, Request{Verb: node.Deploy, ConfigDrive: test.drive}); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(w.node(m).InstanceInfo["configdrive"]); got != test.want || net.asked != test.asked {
			t.Errorf("with %v the config drive is %s, asked %d times; want %s", test.drive, got, net.asked, test.want)
		}
	}
}

// absent is a network service that does not answer when it is asked whether a node has what it needs.
type absent struct{ flaky }

func (*absent) Validate(context.Context, *node.Node) error { return errAway }

// TestNetworkServiceIsAway: a request that needs the service is refused as one that may work later.
func TestNetworkServiceIsAway(t *testing.T) {
	w := newWorld(t)
	eng := w.start(nil).eng
	m := w.add("n1")
	w.walk(m, node.Available)
	eng.network = &absent{}
	var down *ServiceError
	if err := eng.Provision(t.Context(), m.id, Request{Verb: node.Deploy}); !errors.As(err, &down) {
		t.Errorf("deploy = %v, want a *ServiceError", err)
	}
	v, err := eng.Validate(t.Context(), m.id)
	if err != nil || *v["network"].Result || !strings.Contains(v["network"].Reason, "No answer") {
		t.Errorf("validate: %+v, %v", v["network"], err)
	}
}
