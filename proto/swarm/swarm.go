// Package swarm holds the swarm messages between agents and the conductor, the contract's SwarmState and SwarmPeers, in
// the form that both sides use; the contract documents the fields. Messages from the other side are validated here.
package swarm

import (
	"fmt"
	"math"
	"net/netip"

	"github.com/ingot-metal/ingot/proto/agentv1"
)

// Image identifies a published image: the SHA-256 of its index.
type Image [32]byte

// State is an agent's message to the conductor; see SwarmState in the contract.
type State struct {
	Image    Image
	Port     uint16
	Chunks   int
	Whole    bool
	Have     []byte
	Added    []uint32
	Fetching []uint32
	Fetched  uint64
	Done     bool
	Left     bool
	Liars    []string
}

// News is the conductor's message to an agent; see SwarmPeers in the contract.
type News struct {
	Image   Image
	Whole   bool
	Peers   []Peer
	Gone    []string
	Seeds   []string
	Fetched uint64
}

// Peer is the change of one neighbour; see SwarmPeer in the contract.
type Peer struct {
	Node       string
	Generation uint64
	Addr       netip.AddrPort
	Whole      bool
	Have       []byte
	Added      []uint32
	Fetching   []uint32
	Fetched    uint64
}

// Message converts the state to its message.
func (s *State) Message() *agentv1.SwarmState {
	return &agentv1.SwarmState{
		Image: s.Image[:], Port: uint32(s.Port), Chunks: uint32(s.Chunks), Whole: s.Whole, Have: s.Have, Added: s.Added,
		Fetching: s.Fetching, Fetched: s.Fetched, Done: s.Done, Left: s.Left, Liars: s.Liars,
	}
}

// StateOf validates and converts an agent's message.
func StateOf(m *agentv1.SwarmState) (State, error) {
	image, err := imageOf(m.Image)
	switch {
	case err != nil:
		return State{}, err
	case m.Port > math.MaxUint16:
		return State{}, fmt.Errorf("port %d", m.Port)
	case m.Chunks > math.MaxInt32:
		return State{}, fmt.Errorf("an image of %d chunks", m.Chunks)
	}
	return State{
		Image: image, Port: uint16(m.Port), Chunks: int(m.Chunks), Whole: m.Whole, Have: m.Have, Added: m.Added,
		Fetching: m.Fetching, Fetched: m.Fetched, Done: m.Done, Left: m.Left, Liars: m.Liars,
	}, nil
}

// Message converts the news to their message.
func (n *News) Message() *agentv1.SwarmPeers {
	m := &agentv1.SwarmPeers{Image: n.Image[:], Whole: n.Whole, Gone: n.Gone, Seeds: n.Seeds, Fetched: n.Fetched}
	for _, p := range n.Peers {
		m.Peers = append(m.Peers,
			&agentv1.SwarmPeer{Node: p.Node, Generation: p.Generation, Address: p.Addr.String(), Whole: p.Whole,
				Have: p.Have, Added: p.Added, Fetching: p.Fetching, Fetched: p.Fetched})
	}
	return m
}

// NewsOf validates and converts the conductor's message.
func NewsOf(m *agentv1.SwarmPeers) (News, error) {
	image, err := imageOf(m.Image)
	if err != nil {
		return News{}, err
	}
	n := News{Image: image, Whole: m.Whole, Gone: m.Gone, Seeds: m.Seeds, Fetched: m.Fetched}
	for _, p := range m.Peers {
		addr, err := netip.ParseAddrPort(p.Address)
		if err != nil {
			return News{}, fmt.Errorf("a neighbour's address: %w", err)
		}
		n.Peers = append(n.Peers, Peer{Node: p.Node, Generation: p.Generation, Addr: addr, Whole: p.Whole, Have: p.Have,
			Added: p.Added, Fetching: p.Fetching, Fetched: p.Fetched})
	}
	return n, nil
}

func imageOf(b []byte) (Image, error) {
	if len(b) != len(Image{}) {
		return Image{}, fmt.Errorf("an image whose name has %d bytes", len(b))
	}
	return Image(b), nil
}
