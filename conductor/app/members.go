package app

import (
	"errors"
	"strings"

	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/member"
	"github.com/ingot-metal/ingot/conductor/netboot"
	"github.com/ingot-metal/ingot/conductor/node"
)

// about describes this conductor to the others. reach is where agents reach it, and peers where other conductors do.
func about(cfg config.Config, types *driver.Table, reach, peers string, boot *member.Segment) member.About {
	return member.About{Agents: reach, Peer: peers, Group: strings.ToLower(cfg.ConductorGroup), Types: types.Names(),
		Weight: float64(cfg.ConductorWeight), Boot: boot}
}

// segmentOf is the network on which this conductor and others of its database take turns in answering DHCP; nil when
// it answers none, or is the only one.
func segmentOf(cfg config.Config, nb *netboot.Server) *member.Segment {
	if nb == nil || cfg.Store.Server() == "" || !nb.Network().IsValid() {
		return nil
	}
	return &member.Segment{Mode: cfg.Netboot.DHCP, Network: nb.Network().String()}
}

// agentsOf returns where agents reach the living conductors except self.
func agentsOf(c *member.Conductors, self string) func() []string {
	return func() (all []string) {
		for _, m := range c.All() {
			if m.Alive && !m.Draining && m.Agents != "" && m.Name != self {
				all = append(all, m.Agents)
			}
		}
		return all
	}
}

// elsewhere returns where agents reach the conductor that a node belongs to; "" when that is this one, or not known.
func elsewhere(en *engine.Engine, c *member.Conductors) func(*node.Node) string {
	return func(n *node.Node) string {
		var other *engine.ElsewhereError
		if !errors.As(en.Here(n), &other) {
			return ""
		}
		m, _ := c.Find(other.Conductor)
		return m.Agents
	}
}
