package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// Targets are the provision states that Drive takes nodes to.
var Targets = []string{"manageable", "available", "active"}

// Driver takes the nodes of a fleet through their states, by the public API.
type Driver struct {
	api    *client.Client
	log    *slog.Logger
	target string
	tries  int
	verbs  chan *member

	mu    sync.Mutex
	of    map[string]*member // by UUID
	began time.Time
}

// member is the node of one machine.
type member struct {
	uuid, name string
	state      string
	moved      time.Time // when it came into its state
	asking     bool      // a verb is under way, or waits for its turn
	inspected  bool
	failures   int
	up         bool      // nothing more is to be done
	asked      time.Time // when its deployment was asked for
	done       time.Time // when it came to the target
}

// requests is how many requests Drive has under way at the same time, and poll how often it looks at all nodes: what
// happens is told by events, but a stream of them may have a gap.
const (
	requests = 16
	poll     = 15 * time.Second
)

// NewDriver makes a driver of the nodes of the fleet's machines at an API. A node whose work fails is tried again, as
// often as tries says, and left where it is then.
func NewDriver(api *client.Client, target string, tries int, log *slog.Logger) *Driver {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Driver{api: api, log: log, target: target, tries: tries, of: map[string]*member{}}
}

// Create makes a node for each machine; one of the same name is taken as it is.
func (d *Driver) Create(ctx context.Context, machines []*Machine) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(requests)
	for _, m := range machines {
		g.Go(func() error {
			n, err := d.api.CreateNode(ctx, client.NewNode{Name: m.Name, Driver: "ipmi", ResourceClass: "fleet",
				DriverInfo: map[string]any{"ipmi_address": m.Addr.String(), "ipmi_port": m.Port(),
					"ipmi_username": User, "ipmi_password": Password},
				InstanceInfo: map[string]any{"image_source": "http://192.0.2.1/fleet.raw",
					"image_os_hash_algo": "sha256", "image_os_hash_value": strings.Repeat("ab", 32)}})
			var refused *rest.Error
			if errors.As(err, &refused) && refused.Status == http.StatusConflict {
				n, err = d.api.Node(ctx, m.Name)
			}
			if err != nil {
				return fmt.Errorf("make node %s: %w", m.Name, err)
			}
			d.mu.Lock()
			defer d.mu.Unlock()
			d.of[n.UUID] = &member{uuid: n.UUID, name: m.Name, state: string(n.ProvisionState), moved: time.Now()}
			return nil
		})
	}
	return g.Wait()
}

// Target changes the state that nodes are taken to.
func (d *Driver) Target(state string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.target = state
	for _, m := range d.of {
		m.up, m.failures = false, 0
	}
}

// Run takes all nodes to the target, and returns when each is there or was given up.
func (d *Driver) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	d.mu.Lock()
	d.verbs, d.began = make(chan *member, len(d.of)), time.Now()
	d.mu.Unlock()
	for range requests {
		g.Go(func() error { return d.work(ctx) })
	}
	g.Go(func() error {
		err := d.api.Events(ctx, client.EventQuery{Types: []string{"baremetal.node"}, After: -1},
			func(e rest.Event) error {
				if c, ok := e.Changed["provision_state"]; ok {
					d.moved(e.NodeUUID, fmt.Sprint(c.To))
				}
				return nil
			})
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("follow events: %w", err)
	})
	g.Go(func() error {
		defer stop()
		return d.look(ctx)
	})
	err := g.Wait()
	if errors.Is(err, context.Canceled) && context.Cause(ctx) != nil && d.over() {
		return nil
	}
	return err
}

// look looks at all nodes from time to time, until all is done.
func (d *Driver) look(ctx context.Context) error {
	tick := time.NewTicker(time.Second / 4)
	defer tick.Stop()
	var last time.Time
	for {
		if time.Since(last) > poll {
			last = time.Now()
			nodes, err := d.api.States(ctx)
			if err != nil {
				d.log.Warn("list nodes", "err", err)
			}
			for _, n := range nodes {
				if d.quiet(n.UUID, last) {
					d.moved(n.UUID, string(n.ProvisionState))
				}
			}
		}
		if d.over() {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// quiet reports whether no event of a node has come since: then a list that was asked for at that time says nothing
// older than what is known.
func (d *Driver) quiet(uuid string, since time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.of[uuid]
	return m != nil && m.moved.Before(since)
}

func (d *Driver) over() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.of {
		if !m.up {
			return false
		}
	}
	return true
}

// moved notes the state of a node, and has the next verb sent.
func (d *Driver) moved(uuid, state string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.of[uuid]
	if m == nil || m.up {
		return // not of this fleet, or an event that was slower than a list
	}
	if m.state != state {
		if strings.HasSuffix(state, "failed") || m.state == "verifying" && state == "enroll" {
			m.failures++
			d.log.Warn("work on a node failed", "node", m.name, "state", state)
		}
		m.inspected = m.inspected || (m.state == "inspecting" || m.state == "inspect wait") && state == "manageable"
		m.state, m.moved = state, time.Now()
	}
	if m.asking {
		return
	}
	if m.state == d.target && (state != "manageable" || m.inspected) {
		m.up, m.done = true, time.Now()
		return
	}
	if m.failures > d.tries {
		m.up = true
		return
	}
	if d.next(m) != "" {
		m.asking = true
		d.verbs <- m
	}
}

// next returns the verb that takes a node on; empty while ingotd works on it, and when it is where it is to be.
func (d *Driver) next(m *member) string {
	if m.state == d.target && (m.state != "manageable" || m.inspected) {
		return ""
	}
	switch m.state {
	case "enroll", "inspect failed", "clean failed":
		return "manage"
	case "manageable":
		if !m.inspected {
			return "inspect"
		}
		return "provide"
	case "available", "deploy failed":
		return "active"
	}
	return ""
}

// work sends verbs.
func (d *Driver) work(ctx context.Context) error {
	for {
		var m *member
		select {
		case m = <-d.verbs:
		case <-ctx.Done():
			return nil
		}
		d.mu.Lock()
		state, verb := m.state, d.next(m)
		if verb == "active" {
			m.asked = time.Now()
		}
		d.mu.Unlock()
		var err error
		if strings.HasSuffix(state, "failed") { // a failed cleaning puts a node into maintenance
			err = d.api.SetMaintenance(ctx, m.uuid, false, "")
		}
		if err == nil && verb != "" {
			err = d.api.Provision(ctx, m.uuid, client.ProvisionRequest{Target: verb})
		}
		if err != nil && ctx.Err() == nil {
			d.log.Warn("a request failed, and is repeated", "node", m.name, "verb", verb, "err", err)
		}
		d.mu.Lock()
		m.asking = false
		now := m.state
		d.mu.Unlock()
		if err == nil && now != state {
			d.moved(m.uuid, now) // it moved on while the answer was under way
		}
	}
}

// States counts the nodes in each provision state.
func (d *Driver) States() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]int{}
	for _, m := range d.of {
		out[m.state]++
	}
	return out
}

// Failed lists the nodes that were given up, with their states.
func (d *Driver) Failed() map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]string{}
	for _, m := range d.of {
		if m.up && m.state != d.target {
			out[m.name] = m.state
		}
	}
	return maps.Clone(out)
}

// Deployment is the course of a node's deployment.
type Deployment struct {
	Asked, Done time.Time
}

// Deployments lists the finished deployments.
func (d *Driver) Deployments() (all []Deployment) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.of {
		if m.state == "active" && !m.asked.IsZero() {
			all = append(all, Deployment{m.asked, m.done})
		}
	}
	return all
}
