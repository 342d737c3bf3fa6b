package netboot

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// admission is the decision about one machine.
type admission struct {
	node    *node.Node
	address bool   // an address
	boot    bool   // something to boot
	why     string // it gets nothing to boot, or nothing at all; never empty then
	unknown bool   // neither its MAC nor its GUID belongs to a node
	invited bool   // unknown, and booted to be enrolled: node is empty
	work    bool   // it boots its node's workload, not the agent
	disk    bool   // its system is on its disk: boot firmware is sent there
}

// admit decides about a machine by its MAC and the system GUIDs that it sent, in either byte order.
func (s *Server) admit(ctx context.Context, mac string, guids []string) (admission, error) {
	port, err := s.store.PortByMAC(ctx, mac)
	if err == nil {
		n, err := s.store.Node(ctx, port.NodeUUID)
		if err != nil {
			return admission{}, err
		}
		return s.admitPort(n, port), nil
	}
	if !s.cfg.NotFound(err) {
		return admission{}, err
	}
	for _, g := range guids {
		n, err := s.store.NodeByGUID(ctx, g)
		if err != nil {
			if s.cfg.NotFound(err) {
				continue
			}
			// Two nodes with one GUID, most likely: the text says so.
			return admission{why: err.Error()}, nil
		}
		return s.admitGUID(ctx, n)
	}
	return s.admitLease(ctx, mac)
}

// admitPort decides about a machine whose MAC is a port of n.
func (s *Server) admitPort(n *node.Node, port *node.Port) admission {
	a := admission{node: n}
	now := s.now()
	open := n.Boot.WindowOpen(now)
	switch {
	case open && n.Boot.Media:
		a.address = true
	case open && port.PXEEnabled:
		a.address, a.boot = true, true
	case s.bootsWorkload(n):
		// Whatever the network is: what boots from here needs an address here.
		a.address, a.boot, a.work = true, port.PXEEnabled, port.PXEEnabled
	case open || atWork(n):
		a.address = true
	case hasInstance(n) && s.cfg.OnFlatNetwork(n):
		a.address = true
	}
	if !a.boot {
		a.why = fmt.Sprintf("its MAC %s is a port of node %s, ", port.Address, n.UUID) + whyNoBoot(n, port, now)
	}
	a.disk = port.PXEEnabled && !a.boot && !open && !atWork(n) && hasInstance(n) && !s.bootsWorkload(n)
	return a
}

// whyMedia is why a machine in an open window gets nothing to boot: a token that is served here would void the one in
// its image.
const whyMedia = "whose boot interface has it boot from virtual media"

// whyNoBoot returns why a machine with a port of n gets nothing to boot. Settings come before the node's state.
func whyNoBoot(n *node.Node, port *node.Port, now time.Time) string {
	b := n.Boot
	switch {
	case b.WindowOpen(now) && b.Media:
		return whyMedia
	case b.WindowOpen(now) && !port.PXEEnabled:
		return "but the port has pxe_enabled=false: set it to true, or let the machine boot with another of its ports"
	case atWork(n):
		return "whose agent has already enrolled since the machine was turned on"
	case n.Provision == node.Active && !port.PXEEnabled:
		return "which is active, and the port has pxe_enabled=false"
	case n.Provision == node.Active:
		return "which is active, so that its machine boots from its disk"
	case b != nil && !b.Ended && b.ClosedAt.IsZero() && !now.Before(b.ClosesAt):
		return fmt.Sprintf("whose boot window closed at %s without an agent (state %s)",
			b.ClosesAt.UTC().Format(time.RFC3339), n.Provision)
	}
	return fmt.Sprintf("which is not expected to boot (state %s)", n.Provision)
}

// admitCards decides about a machine with several cards, of which it booted from the first. Another card may identify
// it: one that is a port while the first is none, or that has pxe_enabled while the first has not. If the first is a
// port, its node decides.
func (s *Server) admitCards(ctx context.Context, macs, guids []string) (admission, error) {
	a, err := s.admit(ctx, macs[0], guids)
	if err != nil {
		return a, err
	}
	for _, mac := range macs[1:] {
		if a.boot {
			break
		}
		b, err := s.admit(ctx, mac, nil)
		if err != nil {
			return b, err
		}
		if b.node != nil && (a.node == nil || a.node.UUID == b.node.UUID && (b.boot || b.disk)) {
			a = b
		}
	}
	return a, nil
}

// admitGUID decides about a machine with an unknown MAC whose GUID is that of n: the first inspection finds out its
// ports.
func (s *Server) admitGUID(ctx context.Context, n *node.Node) (admission, error) {
	if n.Provision != node.Inspecting && n.Provision != node.InspectWait {
		return admission{
			why: fmt.Sprintf(
				"its GUID is that of node %s, but its MAC is none of the node's ports and the node is not being inspected", n.UUID)}, nil
	}
	has, err := s.cfg.HasPorts(ctx, n.UUID)
	if err != nil {
		return admission{}, err
	}
	if has {
		return admission{why: fmt.Sprintf("its GUID is that of node %s, which has ports, but not this one", n.UUID)},
			nil
	}
	if n.Boot.WindowOpen(s.now()) {
		a := admission{node: n, address: true, boot: !n.Boot.Media}
		if !a.boot {
			a.why = fmt.Sprintf("its GUID is that of node %s, %s", n.UUID, whyMedia)
		}
		return a, nil
	}
	if atWork(n) {
		return admission{node: n, address: true,
			why: fmt.Sprintf(
				"its GUID is that of node %s, whose agent has already enrolled since the machine was turned on",
				n.UUID)}, nil
	}
	return admission{why: fmt.Sprintf("its GUID is that of node %s, which is not expected to boot yet", n.UUID)}, nil
}

// admitLease decides about a machine that sends no GUID now, but sent one when its address was leased: the agent's
// kernel asks for an address as any computer does. It gets its address, but no boot file.
func (s *Server) admitLease(ctx context.Context, mac string) (admission, error) {
	none := admission{why: "its MAC is no node's port, and it told no node's GUID", unknown: true}
	if s.cfg.Mode != Leases {
		return none, nil
	}
	l, err := s.store.Lease(ctx, mac)
	if err == nil && l.ExpiresAt.After(s.now()) {
		var n *node.Node
		if n, err = s.store.Node(ctx, l.NodeUUID); err == nil {
			if n.Boot.WindowOpen(s.now()) || atWork(n) {
				return admission{
					node: n, address: true,
					why: fmt.Sprintf(
						"its MAC is no node's port; its lease is of node %s, whose GUID it did not tell this time",
						n.UUID)}, nil
			}
			return none, nil
		}
	}
	if err != nil && !s.cfg.NotFound(err) {
		return admission{}, err
	}
	return none, nil
}

// atWork reports whether the agent of the newest boot has enrolled and that boot has not ended.
func atWork(n *node.Node) bool { return n.Boot != nil && !n.Boot.Ended && !n.Boot.EnrolledAt.IsZero() }

// hasInstance reports whether the machine has an instance, or is about to start one.
func hasInstance(n *node.Node) bool {
	return slices.Contains([]node.State{
		node.Active, node.Deploying, node.DeployWait, node.DeployHold, node.Adopting, node.Rescuing, node.RescueWait,
		node.Rescue, node.RescueFailed, node.Unrescuing, node.UnrescueFailed, node.Servicing, node.ServiceWait,
		node.ServiceHold, node.ServiceFailed,
	}, n.Provision)
}
