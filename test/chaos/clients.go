package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/tools/lab/fleet"
)

// clients use the public API of all conductors while the faults happen, and note what was promised to them.
type clients struct {
	*site
	history *history
	nodes   []string // UUIDs of the machines' nodes
	say     func(format string, args ...any)

	mu     sync.Mutex
	faults []string
	codes  map[int]int      // answers by status; 0: none
	made   map[string]bool  // nodes that were made, and not deleted; false: a delete, or the creation, got no answer
	values map[string]int64 // writes so far, by node
	asked  map[string]int   // deployments that were, or may have been, accepted, by node
}

func (c *clients) fault(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

// answer to a request. Sure means that a request without success did nothing.
type answer struct {
	status int
	body   []byte
	sure   bool
}

func (a answer) ok() bool { return a.status >= 200 && a.status < 300 }

// web gives up before a server that is frozen comes back.
var web = &http.Client{Timeout: 12 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

func (c *clients) ask(ctx context.Context, at *conductor, method, path string, body any) (a answer) {
	defer func() {
		c.mu.Lock()
		c.codes[a.status]++
		c.mu.Unlock()
	}()
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	req, err := http.NewRequestWithContext(ctx, method, at.api+path, bytes.NewReader(text))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(rest.VersionHeader, "1.82")
	resp, err := web.Do(req)
	if err != nil {
		return answer{sure: errors.Is(err, syscall.ECONNREFUSED)}
	}
	defer resp.Body.Close()
	if a.body, err = io.ReadAll(resp.Body); err != nil {
		return answer{}
	}
	a.status = resp.StatusCode
	switch {
	case a.status == http.StatusInternalServerError:
		c.fault("%s %s at %s: %d %s", method, path, at.name, a.status, a.body)
	case a.status == http.StatusServiceUnavailable:
		a.sure = bytes.Contains(a.body, []byte("nothing was"))
		if resp.Header.Get("Retry-After") == "" && !bytes.Contains(a.body, []byte("try again")) {
			c.fault("%s %s at %s: 503 without Retry-After: %s", method, path, at.name, a.body)
		}
	default:
		a.sure = true
	}
	return a
}

func (c *clients) any(rng *rand.Rand) *conductor { return c.all[rng.IntN(len(c.all))] }

// pause waits a drawn time.
func pause(ctx context.Context, rng *rand.Rand, most time.Duration) bool {
	select {
	case <-time.After(time.Duration(rng.Int64N(int64(most)))):
		return true
	case <-ctx.Done():
		return false
	}
}

// image is the instance_info of a deployment.
func image() map[string]any {
	return map[string]any{"image_source": "http://192.0.2.1/fleet.raw", "image_os_hash_algo": "sha256",
		"image_os_hash_value": strings.Repeat("ab", 32)}
}

// create makes the nodes of the machines.
func (c *clients) create(ctx context.Context, machines []*fleet.Machine) error {
	for _, m := range machines {
		a := c.ask(ctx, c.all[0], http.MethodPost, "/v1/nodes", client.NewNode{Name: m.Name, UUID: m.UUID.String(),
			Driver: "ipmi", DriverInfo: map[string]any{"ipmi_address": m.Addr.String(), "ipmi_port": m.Port(),
				"ipmi_username": fleet.User, "ipmi_password": fleet.Password}, Extra: map[string]any{"chaos": unset},
			InstanceInfo: image()})
		if a.status != http.StatusCreated {
			return fmt.Errorf("make node %s: %d %s", m.Name, a.status, a.body)
		}
		a = c.ask(ctx, c.all[0], http.MethodPost, "/v1/ports", map[string]any{"address": m.MAC, "node_uuid": m.UUID})
		if a.status != http.StatusCreated {
			return fmt.Errorf("make port of %s: %d %s", m.Name, a.status, a.body)
		}
		c.nodes = append(c.nodes, m.UUID.String())
	}
	return nil
}

// registers reads and changes the registers of nodes.
func (c *clients) registers(ctx context.Context, rng *rand.Rand) {
	last := map[string]string{}
	for pause(ctx, rng, time.Second/3) {
		node := c.nodes[rng.IntN(len(c.nodes))]
		if rng.IntN(16) == 0 {
			c.list(ctx, c.any(rng))
			continue
		}
		switch rng.IntN(4) {
		case 0:
			c.change(ctx, c.any(rng), node, "")
		case 1:
			if old, ok := last[node]; ok {
				c.change(ctx, c.any(rng), node, old)
			}
		default:
			if v, ok := c.read(ctx, c.any(rng), node); ok {
				last[node] = v
			}
		}
	}
}

// read reads a register.
func (c *clients) read(ctx context.Context, at *conductor, node string) (string, bool) {
	o := &op{node: node, conductor: at.name, call: c.history.now()}
	a := c.ask(ctx, at, http.MethodGet, "/v1/nodes/"+node, nil)
	o.end = c.history.now()
	if !a.ok() {
		return "", false
	}
	var n struct{ Extra struct{ Chaos string } }
	if err := json.Unmarshal(a.body, &n); err != nil {
		c.fault("GET %s at %s: %v", node, at.name, err)
		return "", false
	}
	o.value = n.Extra.Chaos
	c.history.add(o)
	return o.value, true
}

// list reads all registers.
func (c *clients) list(ctx context.Context, at *conductor) {
	call := c.history.now()
	a := c.ask(ctx, at, http.MethodGet, "/v1/nodes?fields=uuid,extra&limit=1000", nil)
	end := c.history.now()
	var got struct {
		Nodes []struct {
			UUID  string
			Extra struct{ Chaos string }
		}
	}
	if !a.ok() {
		return
	}
	if err := json.Unmarshal(a.body, &got); err != nil {
		c.fault("the list at %s: %v", at.name, err)
	}
	seen := 0
	for _, n := range got.Nodes {
		if n.Extra.Chaos != "" {
			c.history.add(&op{node: n.UUID, conductor: at.name, value: n.Extra.Chaos, call: call, end: end})
			seen++
		}
	}
	if seen != len(c.nodes) {
		c.fault("the list at %s has %d of the %d machines' nodes", at.name, seen, len(c.nodes))
	}
}

// change writes a new value into a register, where old is not empty only if it is that.
func (c *clients) change(ctx context.Context, at *conductor, node, old string) {
	c.mu.Lock()
	c.values[node]++
	value := fmt.Sprint("v", c.values[node])
	c.mu.Unlock()
	o := &op{node: node, conductor: at.name, kind: opWrite, value: value, old: old, done: true}
	patch := []map[string]any{{"op": "add", "path": "/extra/chaos", "value": value}}
	if old != "" {
		o.kind = opSwap
		patch = append([]map[string]any{{"op": "test", "path": "/extra/chaos", "value": old}}, patch...)
	}
	o.call = c.history.now()
	a := c.ask(ctx, at, http.MethodPatch, "/v1/nodes/"+node, patch)
	o.end = c.history.now()
	switch {
	case a.ok():
	case o.kind == opSwap && a.status == http.StatusBadRequest && bytes.Contains(a.body, []byte("/extra/chaos")):
		o.done = false
	case a.sure:
		return // as if it had not been
	default:
		o.unknown, o.done = true, false
	}
	c.history.add(o)
}

// verbs takes one node through its states.
func (c *clients) verbs(ctx context.Context, rng *rand.Rand, node string) {
	for pause(ctx, rng, 2*time.Second) {
		n, ok := c.node(ctx, c.any(rng), node)
		if !ok {
			continue
		}
		if n.Maintenance {
			c.ask(ctx, c.any(rng), http.MethodDelete, "/v1/nodes/"+node+"/maintenance", nil)
		}
		verb := ""
		switch n.State {
		case "enroll", "inspect failed", "clean failed":
			verb = "manage"
		case "manageable":
			verb = "provide"
		case "available", "deploy failed":
			verb = "active"
		case "active":
			verb = []string{"deleted", "rebuild", "deleted"}[rng.IntN(3)]
		case "error":
			verb = "deleted"
		}
		if verb == "" {
			continue
		}
		if verb == "active" { // the instance before has taken the image with it
			c.ask(ctx, c.any(rng), http.MethodPatch, "/v1/nodes/"+node,
				[]map[string]any{{"op": "add", "path": "/instance_info", "value": image()}})
		}
		at := c.any(rng)
		a := c.ask(ctx, at, http.MethodPut, "/v1/nodes/"+node+"/states/provision", map[string]any{"target": verb})
		if (verb == "active" || verb == "rebuild") && (a.status == http.StatusAccepted || !a.sure) {
			c.mu.Lock()
			c.asked[node]++
			c.mu.Unlock()
		}
		if a.status != http.StatusAccepted || verb == "rebuild" || n.State == "enroll" || n.State == "deploy failed" {
			continue
		}
		// It was accepted: no conductor may show the state before any more.
		if now, ok := c.node(ctx, c.any(rng), node); ok && now.State == n.State {
			c.fault("%s of %s was accepted by %s in state %s, and is lost: the node still is %s", verb, node, at.name,
				n.State, now.State)
		}
	}
}

// shown are fields of a node.
type shown struct {
	UUID        string
	State       string  `json:"provision_state"`
	Error       *string `json:"last_error"`
	Maintenance bool
	Reservation *string
	Conductor   *string
}

func (c *clients) node(ctx context.Context, at *conductor, node string) (n shown, ok bool) {
	a := c.ask(ctx, at, http.MethodGet, "/v1/nodes/"+node, nil)
	return n, a.ok() && json.Unmarshal(a.body, &n) == nil
}

// creates makes and deletes nodes that no machine belongs to.
func (c *clients) creates(ctx context.Context, rng *rand.Rand) {
	mine := []string{}
	note := func(name string, is bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.made[name] = is
	}
	for i := 0; pause(ctx, rng, time.Second); i++ {
		if len(mine) > 0 && rng.IntN(2) == 0 {
			k := rng.IntN(len(mine))
			name := mine[k]
			a := c.ask(ctx, c.any(rng), http.MethodDelete, "/v1/nodes/"+name, nil)
			switch {
			case a.ok():
				c.mu.Lock()
				delete(c.made, name)
				c.mu.Unlock()
			case !a.sure:
				note(name, false)
			case a.status == http.StatusNotFound:
				c.fault("DELETE of %s, which was made and not deleted: 404", name)
			default:
				continue
			}
			mine = append(mine[:k], mine[k+1:]...)
			continue
		}
		name := fmt.Sprintf("made-%d-%d", rng.Uint32(), i)
		a := c.ask(ctx, c.any(rng), http.MethodPost, "/v1/nodes",
			map[string]any{"name": name, "driver": "fake-hardware"})
		switch {
		case a.ok():
			note(name, true)
			mine = append(mine, name)
		case !a.sure:
			note(name, false)
		}
	}
}

// events follows the events at one conductor after the other. None may be missed, none may come twice.
func (c *clients) events(ctx context.Context, rng *rand.Rand) {
	var last int64
	state := map[string]any{}
	for ctx.Err() == nil {
		at := c.any(rng)
		api, err := client.New(at.api, nil)
		if err != nil {
			c.fault("events: %v", err)
			return
		}
		api.Retries = 0
		some, cancel := context.WithTimeout(ctx, time.Second+time.Duration(rng.Int64N(int64(9*time.Second))))
		// However it ends, another follows.
		_ = api.Events(some, client.EventQuery{After: last}, func(e rest.Event) error {
			switch {
			case e.Type == "ingot.gap":
				c.fault("events at %s have a gap after %d: %s", at.name, last, e.Message)
				return nil
			case e.ID == 0:
				return nil
			case e.ID <= last:
				c.fault("events at %s: %d came after %d", at.name, e.ID, last)
			}
			last = e.ID
			if p, ok := e.Changed["provision_state"]; ok {
				if was, ok := state[e.NodeUUID]; ok && was != p.From {
					c.fault("events at %s: at %d node %s went from %v to %v, but it was %v: an event is missing", at.name,
						e.ID, e.NodeUUID, p.From, p.To, was)
				}
				state[e.NodeUUID] = p.To
			}
			return nil
		})
		cancel()
		pause(ctx, rng, time.Second)
	}
}

// work notes what the agents do, and that no step runs beside another, and no image is written twice in one boot.
type work struct {
	mu      sync.Mutex
	running map[*fleet.Machine]map[string]int // steps under way, by boot and name
	wrote   map[string]int                    // images that were begun, by machine and boot
	images  map[*fleet.Machine]int            // likewise, by machine
	faults  []string
	steps   int
}

func (w *work) seen(e fleet.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.running[e.Machine]
	if now == nil {
		now = map[string]int{}
		w.running[e.Machine] = now
	}
	key := fmt.Sprintf("boot %d, %s", e.Boot, e.Step)
	if e.End {
		if now[key]--; now[key] == 0 {
			delete(now, key)
		}
		return
	}
	w.steps++
	for other := range now {
		w.faults = append(w.faults,
			fmt.Sprintf("%s: %s begins while %s is under way", e.Machine.Name, key, other))
	}
	now[key]++
	if e.Step == "write_image" {
		w.images[e.Machine]++
		boot := fmt.Sprintf("%s, boot %d", e.Machine.Name, e.Boot)
		if w.wrote[boot]++; w.wrote[boot] > 1 {
			w.faults = append(w.faults, boot+": the image is written twice")
		}
	}
}

// again returns which machines were written more often than was asked for. A machine that something has happened to may
// be: its job tries again.
func (w *work) again(asked map[string]int) (faults []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for m, images := range w.images {
		if most := asked[m.UUID.String()] + m.Mishaps(); images > most {
			faults = append(faults, fmt.Sprintf("%s was written %d times, for %d deployments and %d mishaps of its own",
				m.Name, images, asked[m.UUID.String()], m.Mishaps()))
		}
	}
	return faults
}
