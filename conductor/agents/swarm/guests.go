package swarm

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/ingot-metal/ingot/proto/agentv1"
	contract "github.com/ingot-metal/ingot/proto/swarm"
)

// Answer takes a message of another conductor's relay, and returns the answer to it.
func (r *Relay) Answer(conductor string, b []byte) ([]byte, error) {
	var msg message
	if err := json.Unmarshal(b, &msg); err != nil {
		return nil, fmt.Errorf("it is no message about swarms: %w", err)
	}
	a := answer{Instance: r.greet(conductor)}
	for _, node := range append(slices.Clone(msg.Left), msg.Lost...) {
		if !r.isGuest(conductor, node) {
			continue // it has a session elsewhere by now
		}
		if slices.Contains(msg.Left, node) {
			r.here.Update(Member{Node: node}, State{Left: true})
		} else {
			r.here.Lost(node)
		}
		r.unguest(node, "")
	}
	for _, t := range msg.Members {
		known, err := r.takeGuest(conductor, t)
		if err != nil {
			return nil, fmt.Errorf("what it says of node %.64q makes no sense: %w", t.Node, err)
		}
		if !known {
			a.Again = append(a.Again, t.Node)
		}
	}
	size := 0
	for _, node := range r.dirty(conductor, msg.Full) {
		if size > maxAnswer {
			r.mark(conductor, node) // next time
			continue
		}
		n := r.here.News(node)
		if n == nil {
			continue
		}
		news, err := proto.Marshal(n.Message())
		if err != nil {
			return nil, err
		}
		size += len(news)
		a.News = append(a.News, tidings{Node: node, News: news})
	}
	return json.Marshal(a)
}

// takeGuest takes a report of another conductor's agent. known is false when the swarm knows too little of it.
func (r *Relay) takeGuest(conductor string, t report) (known bool, err error) {
	if t.Node == "" || len(t.Node) > maxName || len(t.Network) > 4*maxName {
		return false, errors.New("its name, or that of its network, is too long or missing")
	}
	addr, err := netip.ParseAddr(t.Address)
	if err != nil {
		return false, err
	}
	var m agentv1.SwarmState
	if err := proto.Unmarshal(t.State, &m); err != nil {
		return false, err
	}
	st, err := contract.StateOf(&m)
	if err != nil {
		return false, err
	}
	r.unguest(t.Node, conductor)
	r.guestMu.Lock()
	if g := r.guests[conductor]; g != nil {
		g.nodes[t.Node] = true
	}
	r.guestMu.Unlock()
	who := Member{Node: t.Node, Generation: t.Generation, Network: t.Network, Addr: addr,
		News: func() { r.mark(conductor, t.Node) }}
	accused, barred := r.here.Update(who, st)
	for _, name := range accused {
		r.cfg.Log.Warn("an agent says that a neighbour sent it wrong bytes of an image; they were thrown away", "node",
			t.Node, "neighbour", name)
	}
	for _, name := range barred {
		r.cfg.Log.Error(Barred, "neighbour", name)
	}
	return st.Whole || r.here.knows(t.Node), nil
}

// Barred is the line of the log about a node that was thrown out of its swarm.
const Barred = "a node sent wrong bytes of an image to several others and was taken out of their swarm: look at its memory and its disk"

// mark notes that there is news for another conductor's agent.
func (r *Relay) mark(conductor, node string) {
	r.guestMu.Lock()
	defer r.guestMu.Unlock()
	if g := r.guests[conductor]; g != nil && g.nodes[node] {
		g.dirty[node] = true
	}
}

// dirty returns the agents of a conductor for which there is news, but for those that take none; then there is none.
func (r *Relay) dirty(conductor string, full []string) (nodes []string) {
	r.guestMu.Lock()
	defer r.guestMu.Unlock()
	g := r.guests[conductor]
	if g == nil {
		return nil
	}
	for node := range g.dirty {
		if !slices.Contains(full, node) {
			nodes = append(nodes, node)
			delete(g.dirty, node)
		}
	}
	return nodes
}

// isGuest reports whether an agent is that of another conductor, or of any other if none is named.
func (r *Relay) isGuest(conductor, node string) bool {
	r.guestMu.Lock()
	defer r.guestMu.Unlock()
	for name, g := range r.guests {
		if (conductor == "" || conductor == name) && g.nodes[node] {
			return true
		}
	}
	return false
}

// greet notes that another conductor is heard of, and returns the instance of what is known of its agents.
func (r *Relay) greet(conductor string) string {
	r.guestMu.Lock()
	defer r.guestMu.Unlock()
	g := r.guests[conductor]
	if g == nil {
		g = &guest{instance: uuid.NewString(), nodes: map[string]bool{}, dirty: map[string]bool{}}
		r.guests[conductor] = g
	}
	g.heard = time.Now()
	return g.instance
}

// unguest notes that an agent is no other conductor's than that.
func (r *Relay) unguest(node, conductor string) {
	r.guestMu.Lock()
	defer r.guestMu.Unlock()
	for name, g := range r.guests {
		if name != conductor {
			delete(g.nodes, node)
			delete(g.dirty, node)
		}
	}
}

// sweep takes the agents of conductors that are not heard of any more for lost.
func (r *Relay) sweep(now time.Time) {
	r.guestMu.Lock()
	var lost []string
	for name, g := range r.guests {
		if now.Sub(g.heard) < silence {
			continue
		}
		for node := range g.nodes {
			lost = append(lost, node)
		}
		delete(r.guests, name)
	}
	r.guestMu.Unlock()
	for _, node := range lost {
		r.here.Lost(node)
	}
	r.here.tidy()
}
