// Package neutron connects machines to networks of OpenStack's network service, Neutron, as Ironic's network interface
// of that name does.
//
// While a ramdisk runs, the node has ports of its own in the network for that purpose: provisioning, cleaning,
// inspection or rescuing. For the instance, the ports that a user or Nova has attached (VIFs) are bound to the node's
// cards. What does the switching is Neutron's mechanism driver, which reads the link of the card from binding:profile.
//
// Neutron is where the truth about ports is: the own ones carry the node's UUID as device_id, Ironic's device_owner,
// and in their description the mark of this installation. Each call of Attach compares what is there with what has to
// be, so it can be repeated after any death, and Repair finds what was left behind.
package neutron

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/guard/oscloud"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Purpose is the use of a network.
type Purpose string

// Purposes.
const (
	Provisioning Purpose = "provisioning"
	Cleaning     Purpose = "cleaning"
	Inspection   Purpose = "inspection"
	Rescuing     Purpose = "rescuing"
)

// Purposes are all, in the order in which they are shown.
var Purposes = []Purpose{Provisioning, Cleaning, Inspection, Rescuing}

// of returns what a node's ramdisk is booted for.
func of(n *node.Node) Purpose {
	if n.Job != nil {
		switch n.Job.Phase {
		case node.PhaseClean:
			return Cleaning
		case node.PhaseInspect:
			return Inspection
		case node.PhaseRescue:
			return Rescuing
		}
	}
	return Provisioning
}

// Network is a network by its ID or name, and the security groups of the own ports there.
type Network struct {
	Name   string
	Groups []string
}

// Option is a DHCP option that Neutron's server is to give a machine.
type Option struct{ Name, Value string }

// Config says what to work with.
type Config struct {
	Client   *gophercloud.ServiceClient
	Mark     string // of this installation: no other one has it
	Networks map[Purpose]Network
	// Ports returns the ports and port groups of a node.
	Ports func(ctx context.Context, nodeUUID string) ([]*node.Port, []*node.Portgroup, error)
	// Node finds a node; an error for which NotFound holds says that it does not exist.
	Node     func(ctx context.Context, uuid string) (*node.Node, error)
	NotFound func(error) bool
	// Mine reports whether this conductor owns a node, and Here whether the node's network interface is this one.
	Mine, Here func(*node.Node) bool
	// Options are those by which a card boots the ramdisk, where Neutron's DHCP serves it; nil: another server does.
	Options func(n *node.Node, mac string) []Option
}

// Service is Neutron, as seen by a conductor. Safe for concurrent use.
type Service struct {
	c   Config
	log *slog.Logger

	mu    sync.Mutex
	locks map[string]*lock // of nodes whose ports are being changed
}

type lock struct {
	held chan struct{}
	uses int
}

// New makes a Service. It does not connect.
func New(c Config, log *slog.Logger) *Service {
	return &Service{c: c, log: cmp.Or(log, slog.New(slog.DiscardHandler)), locks: map[string]*lock{}}
}

// ours are the service's name in errors.
const ours = "Neutron"

// longest bounds all exchanges that one call makes.
const longest = 2 * time.Minute

// hold makes changes to a node's ports one at a time.
func (s *Service) hold(ctx context.Context, uuid string) (release func(), err error) {
	s.mu.Lock()
	l := s.locks[uuid]
	if l == nil {
		l = &lock{held: make(chan struct{}, 1)}
		s.locks[uuid] = l
	}
	l.uses++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.uses--; l.uses == 0 {
			delete(s.locks, uuid)
		}
	}
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// begin is hold, and bounds the time of what follows.
func (s *Service) begin(ctx context.Context, n *node.Node) (context.Context, func(), error) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	release, err := s.hold(ctx, n.UUID)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	return ctx, func() { release(); cancel() }, nil
}

// ToRamdisk brings a node's cards to the network of what its job boots the ramdisk for.
func (s *Service) ToRamdisk(ctx context.Context, n *node.Node) error {
	ctx, end, err := s.begin(ctx, n)
	if err != nil {
		return err
	}
	defer end()
	at, err := s.network(ctx, n, of(n))
	if err != nil {
		return err
	}
	cards, groups, err := s.c.Ports(ctx, n.UUID)
	if err != nil {
		return err
	}
	boots, err := booting(n, cards)
	if err != nil {
		return err
	}
	if err := s.unbindAll(ctx, cards, groups); err != nil {
		return err
	}
	have, err := s.own(ctx, n.UUID)
	if err != nil {
		return err
	}
	good := map[string]bool{} // by MAC
	for _, p := range have {
		mac := strings.ToLower(p.MAC)
		wanted := slices.ContainsFunc(boots, func(b *node.Port) bool { return b.Address == mac })
		if wanted && !good[mac] && p.NetworkID == at.id && p.VIFType != bindingFailed {
			good[mac] = true
			continue
		}
		if err := s.remove(ctx, p.ID); err != nil {
			return err
		}
	}
	var faults []error
	for _, b := range boots {
		if good[b.Address] {
			continue
		}
		if err := s.create(ctx, n, at, b); err != nil {
			faults = append(faults, fmt.Errorf("card %s: %w", b.Address, err))
		} else {
			good[b.Address] = true
		}
	}
	// As in Ironic, one card that boots is enough.
	if len(faults) > 0 && len(good) > 0 {
		s.log.Warn("some cards of the node have no port in Neutron", "node", n.UUID, "network", at.id, "err",
			errors.Join(faults...))
		return nil
	}
	return errors.Join(faults...)
}

// booting are the cards that the ramdisk may be booted by.
func booting(n *node.Node, cards []*node.Port) (boots []*node.Port, _ error) {
	bare := 0
	for _, p := range cards {
		switch {
		case !p.PXEEnabled:
		case len(p.LocalLinkConnection) == 0:
			bare++
		default:
			boots = append(boots, p)
		}
	}
	switch {
	case len(boots) > 0:
		return boots, nil
	case bare > 0:
		return nil, node.Invalidf(
			"none of the %d ports of node %s that boot has a local_link_connection, by which Neutron finds the switch: inspect the node, or openstack baremetal port set --local-link-connection switch_id=MAC --local-link-connection port_id=NAME PORT",
			bare, n.UUID)
	}
	return nil, node.Invalidf("node %s has no port with pxe_enabled: add the card that boots (openstack baremetal port create)",
		n.UUID)
}

// withPorts calls f with the node's ports and port groups, while nothing else changes its networks.
func (s *Service) withPorts(ctx context.Context, n *node.Node,
	f func(ctx context.Context, cards []*node.Port, groups []*node.Portgroup) error) error {
	ctx, end, err := s.begin(ctx, n)
	if err != nil {
		return err
	}
	defer end()
	cards, groups, err := s.c.Ports(ctx, n.UUID)
	if err != nil {
		return err
	}
	return f(ctx, cards, groups)
}

// ToTenant takes the ramdisk's ports away, and binds what is attached to the node.
func (s *Service) ToTenant(ctx context.Context, n *node.Node) error {
	return s.withPorts(ctx, n, func(ctx context.Context, cards []*node.Port, groups []*node.Portgroup) error {
		carriers := carriersOf(cards, groups)
		if len(carriers) == 0 {
			return errNoVIF(n)
		}
		if err := s.removeAll(ctx, n.UUID); err != nil {
			return err
		}
		for _, at := range carriers {
			if err := s.bind(ctx, n, at); err != nil {
				return err
			}
		}
		return nil
	})
}

func errNoVIF(n *node.Node) error {
	return node.Invalidf(
		"no port of Neutron is attached to node %s, so the instance would have no network: openstack baremetal node vif attach %s PORT",
		n.UUID, n.UUID)
}

// Off takes all networks from a node: the ramdisk's ports are deleted, what is attached is no longer bound.
func (s *Service) Off(ctx context.Context, n *node.Node) error {
	return s.withPorts(ctx, n, func(ctx context.Context, cards []*node.Port, groups []*node.Portgroup) error {
		if err := s.unbindAll(ctx, cards, groups); err != nil {
			return err
		}
		return s.removeAll(ctx, n.UUID)
	})
}

// Moves reports whether ToRamdisk would take a running ramdisk to another network.
func (s *Service) Moves(ctx context.Context, n *node.Node) (bool, error) {
	at, err := s.network(ctx, n, of(n))
	if err != nil {
		return false, err
	}
	have, err := s.own(ctx, n.UUID)
	return !slices.ContainsFunc(have, func(p port) bool { return p.NetworkID == at.id }), err
}

// Validate looks for what a deployment of a node needs: its networks, a card that boots, and something attached.
func (s *Service) Validate(ctx context.Context, n *node.Node) error {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	for _, p := range []Purpose{Provisioning, Cleaning} {
		if _, err := s.network(ctx, n, p); err != nil {
			return err
		}
	}
	for _, p := range []Purpose{Inspection, Rescuing} { // of those, most sites name none
		if s.named(n, p).Name != "" {
			if _, err := s.network(ctx, n, p); err != nil {
				return err
			}
		}
	}
	cards, groups, err := s.c.Ports(ctx, n.UUID)
	if err != nil {
		return err
	}
	if _, err := booting(n, cards); err != nil {
		return err
	}
	carriers := carriersOf(cards, groups)
	if len(carriers) == 0 {
		return errNoVIF(n)
	}
	for _, at := range carriers {
		if _, err := s.get(ctx, at.vif); oscloud.Is(err, http.StatusNotFound) {
			return node.Invalidf("port %s, which is attached to node %s, is not in Neutron any more: detach it", at.vif,
				n.UUID)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// keeps reports whether a node's ramdisk may run, so that its ports have to stay.
func keeps(n *node.Node) bool {
	return n.Job != nil || n.Boot != nil && !n.Boot.Ended || n.Provision == node.Rescue
}

// Repair deletes own ports that nothing needs: of nodes without work on which no ramdisk runs, and of nodes that are
// no more. Other conductors' nodes are theirs to look after.
func (s *Service) Repair(ctx context.Context) error {
	all, err := s.own(ctx, "")
	if err != nil {
		return err
	}
	of := map[string][]port{}
	for _, p := range all {
		of[p.DeviceID] = append(of[p.DeviceID], p)
	}
	var faults []error
	for _, uuid := range slices.Sorted(maps.Keys(of)) {
		if err := s.repair(ctx, uuid); err != nil {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

func (s *Service) repair(ctx context.Context, uuid string) error {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	release, err := s.hold(ctx, uuid)
	if err != nil {
		return err
	}
	defer release()
	// Read after the lock was taken: work that begins from now on comes to Attach after this, and makes ports anew.
	n, err := s.c.Node(ctx, uuid)
	switch {
	case err != nil && !s.c.NotFound(err):
		return err
	case err == nil && (!s.c.Mine(n) || s.c.Here(n) && keeps(n)):
		return nil
	}
	have, err := s.own(ctx, uuid)
	if err != nil || len(have) == 0 {
		return err
	}
	s.log.Warn("ports in Neutron that nothing needs any more are deleted", "node", clean.Line(uuid, 64), "ports", len(have))
	for _, p := range have {
		if err := s.remove(ctx, p.ID); err != nil {
			return err
		}
	}
	return nil
}

// Run repairs at the start and from time to time, until ctx ends.
func (s *Service) Run(ctx context.Context, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		if err := s.Repair(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("ports in Neutron that may be left over can't be looked at, trying again later", "err", err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}
