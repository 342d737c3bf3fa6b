package agents

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/agentv1"
)

// Discovery says how unknown machines that boot the agent become nodes.
type Discovery struct {
	Driver       string            // hardware type of the nodes made
	Interfaces   map[string]string // those that are not the type's defaults
	LimitPerHour int               // of nodes made
	TokenLife    time.Duration
}

// An invitation is a boot token for an unknown machine. It has the form of any other, a UUID and 32 bytes, and is not
// stored: the UUID, which the node will get, begins with the time (RFC 9562, version 7), and the bytes are computed
// from the UUID, the MAC of the machine, and the CA's key. So a conductor that was restarted meanwhile recognises it,
// and it is valid for that one machine alone, once.

// Invite makes the boot token of the machine with a MAC.
func (ca *CA) Invite(mac string, now time.Time) (string, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("make a boot token: %w", err)
	}
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(now.UnixMilli()))
	copy(id[:6], ms[2:])
	sealed, err := ca.seal(id.String(), mac)
	if err != nil {
		return "", fmt.Errorf("make a boot token: %w", err)
	}
	return id.String() + "." + base64.RawURLEncoding.EncodeToString(sealed), nil
}

// seal computes bytes of a UUID and a MAC that need the CA's key.
func (ca *CA) seal(id, mac string) ([]byte, error) {
	secret, err := ca.key.Bytes()
	if err != nil {
		return nil, err
	}
	key := hmac.New(sha256.New, secret)
	key.Write([]byte("ingot invitation 1"))
	h := hmac.New(sha256.New, key.Sum(nil))
	h.Write([]byte(id + " " + strings.ToLower(mac)))
	return h.Sum(nil), nil
}

// invited returns nil if a token is an invitation that is still valid, of a machine with one of these MACs.
func (ca *CA) invited(token string, macs []string, now time.Time, life time.Duration) error {
	text, sealed, _ := strings.Cut(token, ".")
	id, err := uuid.Parse(text)
	if err != nil || id.Version() != 7 {
		return refusal("the boot token is no invitation")
	}
	got, err := base64.RawURLEncoding.DecodeString(sealed)
	if err != nil || !slices.ContainsFunc(macs, func(mac string) bool {
		want, err := ca.seal(text, mac)
		return err == nil && subtle.ConstantTimeCompare(got, want) == 1
	}) {
		return refusal("the boot token is no invitation of this machine")
	}
	at := time.UnixMilli(int64(binary.BigEndian.Uint64(append([]byte{0, 0}, id[:6]...))))
	if now.Before(at.Add(-time.Minute)) || !now.Before(at.Add(life)) {
		return refusal("the invitation of " + at.UTC().Format(time.RFC3339) + " has expired")
	}
	return nil
}

// discover creates a node for an unknown machine, or finds the node that it already is. The node is stored with the
// claim settled, and waits in state enroll: it has no credentials, and its machine is only inspected until an operator
// manages it. concerns is the node that a refusal is about; empty: none.
func (s *Server) discover(ctx context.Context, req *agentv1.EnrollRequest, id string, c claim,
	from string) (n *node.Node, again bool, concerns string, err error) {
	now := s.now().UTC()
	d := s.cfg.Discovery
	if err := s.ca.invited(req.Token, req.Macs, now, d.TokenLife); err != nil {
		return nil, false, "", err
	}
	s.discovering.Lock() // so that a machine that enrols twice at once is one node
	defer s.discovering.Unlock()
	known, err := s.isNode(ctx, req)
	if err != nil {
		return nil, false, "", err
	}
	boot := &node.Boot{OpenedAt: now, ClosesAt: now, TokenHash: c.token, TokenExpires: now.Add(d.TokenLife),
		TokensServed: 1}
	if known != "" {
		n, err = s.store.Change(ctx, known, func(n *node.Node, effects *node.SideEffects) error {
			switch {
			case n.Boot != nil && n.Boot.TokenHash == c.token: // the answer was lost
			case n.DiscoveredAt.IsZero() || n.Provision != node.Enroll || n.Job != nil:
				return refusal(fmt.Sprintf(
					"an unknown machine booted the agent, but it is this node: make a port with one of its addresses (%s)", clip(strings.Join(req.Macs, ", "))))
			default:
				boot.Generation, n.Boot = 0, boot
			}
			var err error
			if again, err = c.settle(n, now); err == nil && !again {
				s.record(n, effects, req, from, now)
				effects.History = append(effects.History,
					s.line(now, "INFO", "the machine booted the agent again, as an unknown one"))
			}
			return err
		})
		return n, again, known, err
	}
	if !s.discoveries.take(now) {
		return nil, false, "",
			refusal(fmt.Sprintf(
				"%d unknown machines have become nodes within the hour, which is the limit (discovery.limit_per_hour)", d.LimitPerHour))
	}
	n = &node.Node{UUID: id, Driver: d.Driver, Interfaces: d.Interfaces, Provision: node.Enroll, DiscoveredAt: now,
		SystemGUIDs: guidForms(req.SmbiosUuid), Boot: boot}
	if _, err := c.settle(n, now); err != nil {
		return nil, false, "", err
	}
	if err := s.store.CreateNode(ctx, n); err != nil {
		return nil, false, "", err
	}
	made, err := s.store.Change(ctx, n.UUID, func(n *node.Node, effects *node.SideEffects) error {
		s.record(n, effects, req, from, now)
		effects.History = append(effects.History,
			s.line(now, "INFO",
				fmt.Sprintf("discovered: an unknown machine booted the agent (addresses %s, serial number %s); set its credentials and manage it, or delete it",
					clip(strings.Join(req.Macs, ", ")), orNone(clip(req.SmbiosSerial)))))
		return nil
	})
	if err != nil { // the node is there all the same
		s.log.Warn("record a discovery", "node", n.UUID, "err", err)
		return n, false, n.UUID, nil
	}
	return made, false, n.UUID, nil
}

func orNone(s string) string {
	return cmp.Or(s, "not known")
}

// isNode finds the node that a machine is: by its addresses, else by its UUID. "" is none.
func (s *Server) isNode(ctx context.Context, req *agentv1.EnrollRequest) (string, error) {
	known := ""
	for _, mac := range req.Macs {
		p, err := s.store.PortByMAC(ctx, mac)
		switch {
		case err != nil && s.cfg.NotFound(err):
		case err != nil:
			return "", err
		case known != "" && p.NodeUUID != known:
			return "", refusal(fmt.Sprintf("its addresses are ports of several nodes, %s and %s among them", known,
				p.NodeUUID))
		default:
			known = p.NodeUUID
		}
	}
	if known != "" {
		return known, nil
	}
	for _, g := range guidForms(req.SmbiosUuid) {
		n, err := s.store.NodeByGUID(ctx, g)
		switch {
		case err == nil:
			return n.UUID, nil
		case s.cfg.NotFound(err):
		case ctx.Err() != nil:
			return "", err
		default: // of two nodes, most likely: the text says so
			return "", refusal(err.Error())
		}
	}
	return "", nil
}

// guidForms are a machine's UUID as text in both byte orders that firmware uses; none for those that vendors forgot to
// set.
func guidForms(s string) []string {
	plain := plainGUID(s)
	if plain == "" || placeholder(plain) {
		return nil
	}
	b, err := hex.DecodeString(plain)
	if err != nil {
		return nil
	}
	var out []string
	for range 2 {
		u, err := uuid.FromBytes(b)
		if err != nil {
			return nil
		}
		if !slices.Contains(out, u.String()) {
			out = append(out, u.String())
		}
		slices.Reverse(b[0:4])
		slices.Reverse(b[4:6])
		slices.Reverse(b[6:8])
	}
	return out
}

// uninvited has the log tell of an enrolment that no node can tell of.
func (s *Server) uninvited(from string, err error) {
	var why refusal
	if errors.As(err, &why) && s.strangers.take(s.now()) {
		s.log.Warn("enrolment refused", "from", from, "err", err)
	}
}
