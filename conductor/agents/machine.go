package agents

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/agentv1"
)

// machine is the identity that an enrolling machine claims, compared with the ports in the store.
type machine struct {
	macs    []string
	guid    string
	foreign *node.Port // a port of another node that has one of the addresses
	ports   bool       // the node has ports
	matched bool       // and one of the addresses is one of them
}

// machine looks up the owners of the addresses in a request for the node.
func (s *Server) machine(ctx context.Context, nodeUUID string, req *agentv1.EnrollRequest) (machine, error) {
	m := machine{macs: req.Macs, guid: req.SmbiosUuid}
	var err error
	if m.ports, err = s.store.HasPorts(ctx, nodeUUID); err != nil {
		return m, err
	}
	for _, mac := range req.Macs {
		p, err := s.store.PortByMAC(ctx, mac)
		switch {
		case err != nil && s.cfg.NotFound(err):
		case err != nil:
			return m, err
		case p.NodeUUID == nodeUUID:
			m.matched = true
		case m.foreign == nil:
			m.foreign = p
		}
	}
	return m, nil
}

// contradicts returns a refusal if the machine can't be that of n: a token that reached another machine, by a swapped
// cable or by theft, must not make that machine's disks the node's. Attributes that the node lacks contradict nothing.
func (m machine) contradicts(n *node.Node) error {
	switch {
	case m.foreign != nil:
		return refusal(fmt.Sprintf(
			"the machine has the address %s, which is a port of node %s: the boot token reached the wrong machine, or the port belongs to this node",
			m.foreign.Address, m.foreign.NodeUUID))
	case m.matched:
		return nil // the controller's GUID may be that of a board that was replaced
	case m.ports:
		return refusal(fmt.Sprintf(
			"none of the machine's addresses (%s) is a port of this node: the boot token reached the wrong machine, or a port is missing",
			m.addresses()))
	}
	guid := plainGUID(m.guid)
	if guid == "" || placeholder(guid) {
		return nil
	}
	known := ""
	for _, g := range n.SystemGUIDs {
		switch plain := plainGUID(g); {
		case plain == "":
		case plain == guid, placeholder(plain):
			return nil
		case known == "":
			known = g
		}
	}
	if known == "" {
		return nil
	}
	return refusal(fmt.Sprintf(
		"the machine's UUID %s is not the one that the node's controller reports (%s), and the node has no ports: the boot token reached the wrong machine, or the node needs a port",
		clip(m.guid), known))
}

// addresses names the machine's addresses, as far as they fit into a line.
func (m machine) addresses() string {
	if len(m.macs) == 0 {
		return "it sent none"
	}
	return clip(strings.Join(m.macs, ", "))
}

// plainGUID is a GUID's 32 digits in lower case; "" if it is none.
func plainGUID(s string) string {
	s = strings.ToLower(strings.ReplaceAll(strings.Trim(strings.TrimSpace(s), "{}"), "-", ""))
	if len(s) != 32 || strings.Trim(s, "0123456789abcdef") != "" {
		return ""
	}
	return s
}

// placeholder reports whether a GUID, in either byte order, is one that a vendor puts into all its boards.
func placeholder(plain string) bool {
	allSame := plain == strings.Repeat(plain[:2], 16) // all zeros, all ones
	return allSame || slices.Contains([]string{
		"03000200040005000006000700080009", "00020003000400050006000700080009",
		"000102030405060708090a0b0c0d0e0f", "030201000504070608090a0b0c0d0e0f",
		"123456781234567890abcddeefaabbcc", "785634123412785690abcddeefaabbcc",
	}, plain)
}
