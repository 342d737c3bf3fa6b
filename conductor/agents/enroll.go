package agents

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/agentv1"
)

// protocol is the version of the contract that is spoken here.
const protocol = 1

var (
	tokenForm = regexp.MustCompile(
		`^([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\.[A-Za-z0-9_-]{43}$`)
	bootIDForm = regexp.MustCompile(`^[0-9a-fA-F-]{32,36}$`)
)

// errRefused is the answer to every refused enrolment: the reason is for the node's history alone.
var errRefused = status.Error(codes.PermissionDenied, "enrolment refused")

// refusal is why an enrolment was refused, as a sentence for the node's history.
type refusal string

func (r refusal) Error() string { return string(r) }

// Enroll trades a boot token for a client certificate.
func (s *Server) Enroll(ctx context.Context, req *agentv1.EnrollRequest) (*agentv1.EnrollResponse, error) {
	resp, err := s.enroll(ctx, req)
	switch status.Code(err) {
	case codes.OK:
		s.count("enrolment", "granted")
	case codes.PermissionDenied, codes.InvalidArgument:
		s.count("enrolment", "refused")
	default:
		s.count("enrolment", "failed")
	}
	return resp, err
}

func (s *Server) enroll(ctx context.Context, req *agentv1.EnrollRequest) (*agentv1.EnrollResponse, error) {
	meter := meterOf(ctx)
	defer func() { meter.Free(meter.Message()) }()
	from := remote(ctx)
	nodeUUID, csr, err := checkEnroll(req)
	if err != nil {
		s.log.Warn("enrolment that can't be read", "from", from, "err", err)
		return nil, err
	}
	keyHash := sha256.Sum256(csr.RawSubjectPublicKeyInfo)
	hash := sha256.Sum256([]byte(req.Token))
	claim := claim{token: hex.EncodeToString(hash[:]), key: hex.EncodeToString(keyHash[:]),
		boot: strings.ToLower(req.BootId), firmware: req.BootMode}

	if n, id, ok := s.renewal(ctx, nodeUUID, claim); ok {
		return s.grant(ctx, n, id, csr.PublicKey, req, true, from)
	}
	var m machine
	var again bool
	var id identity
	grant := func(n *node.Node, effects *node.SideEffects) error {
		now := s.now().UTC()
		var err error
		if again, err = claim.settle(n, now); err != nil {
			return err
		}
		id = identity{node: n.UUID, boot: n.Boot.BootID, generation: n.Boot.Generation}
		if again { // with the same key, so by the same machine
			return nil
		}
		if err := m.contradicts(n); err != nil {
			return err
		}
		s.record(n, effects, req, from, now)
		return nil
	}
	n, err := s.store.Node(ctx, nodeUUID)
	if err != nil && s.cfg.NotFound(err) && s.cfg.Discovery != nil {
		var concerns string
		n, again, concerns, err = s.discover(ctx, req, nodeUUID, claim, from)
		switch {
		case err == nil:
			id = identity{node: n.UUID, boot: n.Boot.BootID, generation: n.Boot.Generation}
			return s.grant(ctx, n, id, csr.PublicKey, req, again, from)
		case concerns == "":
			s.uninvited(from, err)
		default:
			nodeUUID = concerns
		}
		var why refusal
		if errors.As(err, &why) && concerns == "" {
			return nil, errRefused
		}
	}
	if err == nil {
		// Addresses are looked up only for callers with the token, and not while others wait to write.
		if _, err = claim.settle(n, s.now().UTC()); err == nil {
			m, err = s.machine(ctx, nodeUUID, req)
		}
	}
	if err == nil {
		n, err = s.store.Change(ctx, nodeUUID, grant)
	}
	var why refusal
	switch {
	case errors.As(err, &why):
		s.refused(ctx, nodeUUID, from, string(why))
		return nil, errRefused
	case err != nil && s.cfg.NotFound(err):
		if s.strangers.take(s.now()) {
			s.log.Warn("enrolment for a node that does not exist", "node", nodeUUID, "from", from)
		}
		return nil, errRefused
	case err != nil:
		s.log.Error("enrolment", "node", nodeUUID, "err", err)
		return nil, status.Error(codes.Unavailable, "the conductor can't store this now, try again")
	}

	return s.grant(ctx, n, id, csr.PublicKey, req, again, from)
}

// renewal reports whether a request comes from an agent that has a certificate of the current boot, and wants another
// one for the same key. The token is not checked: it is as old as the boot, which may last for months.
func (s *Server) renewal(ctx context.Context, nodeUUID string, c claim) (*node.Node, identity, bool) {
	id, err := s.authenticate(ctx)
	if err != nil || id.node != nodeUUID {
		return nil, id, false
	}
	n, err := s.store.Node(ctx, nodeUUID)
	if err != nil || !id.isOf(n) || subtle.ConstantTimeCompare([]byte(n.Boot.KeyHash), []byte(c.key)) != 1 {
		return nil, id, false
	}
	return n, id, true
}

// grant issues an agent's certificate, after its claim has been stored.
func (s *Server) grant(ctx context.Context, n *node.Node, id identity, key any, req *agentv1.EnrollRequest, again bool,
	from string) (*agentv1.EnrollResponse, error) {
	der, serial, err := s.ca.issue(key, id)
	if err != nil {
		s.log.Error("enrolment", "node", n.UUID, "err", err)
		return nil, status.Error(codes.Unavailable, "the conductor can't make a certificate now, try again")
	}
	s.enrolled(ctx, n, req, again, serial, from)
	return &agentv1.EnrollResponse{
		NodeUuid:    n.UUID,
		Certificate: der,
		Clock:       timestamppb.New(s.now()),
		Generation:  id.generation,
		Policy:      s.policy(),
	}, nil
}

// record puts a first enrolment on the node's time line and into its history.
func (s *Server) record(n *node.Node, effects *node.SideEffects, req *agentv1.EnrollRequest, from string,
	now time.Time) {
	job := ""
	if n.Job != nil {
		job = n.Job.ID
	}
	// An uptime of days would be a claim about another boot.
	if up := req.Uptime.AsDuration(); req.Uptime != nil && up > 0 && up < 24*time.Hour {
		effects.Marks = append(effects.Marks, node.Mark{JobID: job, Name: node.MarkKernelStart, At: now.Add(-up)})
		if began := req.Started.AsDuration(); req.Started != nil && began > 0 && began < up {
			effects.Marks = append(effects.Marks,
				node.Mark{JobID: job, Name: node.MarkAgentStart, At: now.Add(began - up)})
		}
	}
	effects.Marks = append(effects.Marks,
		node.Mark{JobID: job, Name: node.MarkEnrolled, At: now, Detail: clip(req.AgentVersion)})
	effects.History = append(effects.History,
		s.line(now, "INFO",
			fmt.Sprintf("agent enrolled from %s, booted by %s", from, cmp.Or(req.BootMode, "unknown firmware"))))
}

func (s *Server) line(at time.Time, severity, event string) node.HistoryEntry {
	return node.HistoryEntry{At: at, Type: "enrolment", Severity: severity, Event: event, Conductor: s.cfg.Hostname}
}

// enrolled keeps what became of an enrolment that is stored already; nothing here may make it fail.
func (s *Server) enrolled(ctx context.Context, n *node.Node, req *agentv1.EnrollRequest, again bool,
	serial, from string) {
	_, err := s.store.UpdateNode(ctx, n.UUID, func(n *node.Node) error {
		if n.Boot != nil && n.Boot.BootID == strings.ToLower(req.BootId) {
			n.Boot.CertSerial = serial
		}
		return nil
	})
	if err != nil {
		s.log.Warn("keep the certificate's serial number", "node", n.UUID, "err", err)
	}
	if again {
		s.log.Info("agent enrolled again, the same as before", "node", n.UUID, "from", from)
	} else {
		s.log.Info("agent enrolled", "node", n.UUID, "from", from, "agent", clip(req.AgentVersion), "boot", req.BootId,
			"mode", req.BootMode, "macs", len(req.Macs), "serial", clip(req.SmbiosSerial))
	}
	s.engine.Enrolled(context.WithoutCancel(ctx), n.UUID)
}

// refused puts a refusal into the node's history. Any host that can reach the port can cause these lines, so their
// number is bounded; the next line that fits says how many were left out.
func (s *Server) refused(ctx context.Context, nodeUUID, from, why string) {
	event := fmt.Sprintf("enrolment from %s refused: %s", from, why)
	s.mu.Lock()
	r := s.refusals[nodeUUID]
	if r == nil {
		r = &refusals{budget: budget{size: 10, every: 10 * time.Minute}}
		s.refusals[nodeUUID] = r
	}
	fits := r.budget.take(s.now())
	left := r.left
	if fits {
		r.left = 0
	} else {
		r.left++
	}
	s.mu.Unlock()
	if !fits {
		return
	}
	if left > 0 {
		event += fmt.Sprintf(" (and %d more refusals before this one)", left)
	}
	s.log.Warn(event, "node", nodeUUID)
	now := s.now().UTC()
	_, err := s.store.Change(ctx, nodeUUID, func(n *node.Node, effects *node.SideEffects) error {
		job := ""
		if n.Job != nil {
			job = n.Job.ID
		}
		effects.History = append(effects.History, s.line(now, "WARNING", event))
		effects.Marks = append(effects.Marks, node.Mark{JobID: job, Name: node.MarkEnrolRefused, At: now, Detail: why})
		return nil
	})
	if err != nil {
		s.log.Warn("record a refused enrolment", "node", nodeUUID, "err", err)
	}
}

type refusals struct {
	budget budget
	left   uint64 // how many were not written since the last that was
}

// claim is the identity that an enrolment claims: hashes in hex.
type claim struct{ token, key, boot, firmware string }

// settle decides on a claim and, when it is the first good one, writes it into the node. again means that the same
// claim had been granted before. The error is a refusal.
func (c claim) settle(n *node.Node, now time.Time) (again bool, err error) {
	b := n.Boot
	switch {
	case b == nil || b.TokenHash == "":
		return false, refusal("no boot token is out for this node")
	case subtle.ConstantTimeCompare([]byte(b.TokenHash), []byte(c.token)) != 1:
		return false, refusal("the boot token is not the newest that was served to this node")
	case b.Ended:
		return false, refusal("the boot that the token belongs to has been ended")
	case !now.Before(b.TokenExpires):
		return false, refusal("the boot token expired at " + b.TokenExpires.UTC().Format(time.RFC3339))
	}
	if b.BootID != "" {
		if subtle.ConstantTimeCompare([]byte(b.KeyHash), []byte(c.key)) != 1 {
			return false, refusal("the boot token has been used with another key")
		}
		if b.BootID != c.boot {
			return false, refusal("the boot token has been used by another boot of the machine")
		}
		return true, nil
	}
	if !b.ClosedAt.IsZero() {
		return false, refusal("the node is no longer expected to boot")
	}
	if b.Generation == 0 {
		n.Generation++
		b.Generation = n.Generation
	}
	b.BootID, b.KeyHash, b.EnrolledAt, b.ClosedAt, b.Firmware = c.boot, c.key, now, now, c.firmware
	if c.firmware != "" {
		n.BootMode = c.firmware
	}
	return false, nil
}

// checkEnroll holds a request against the contract.
func checkEnroll(req *agentv1.EnrollRequest) (nodeUUID string, csr *x509.CertificateRequest, err error) {
	if req.Protocol != protocol {
		return "", nil, status.Errorf(codes.FailedPrecondition,
			"the agent speaks protocol %d, this conductor %d: build the ramdisk from the conductor's release",
			req.Protocol, protocol)
	}
	invalid := func(format string, args ...any) (string, *x509.CertificateRequest, error) {
		return "", nil, status.Errorf(codes.InvalidArgument, format, args...)
	}
	if !bootIDForm.MatchString(req.BootId) {
		return invalid("boot_id is not a boot id")
	}
	m := tokenForm.FindStringSubmatch(req.Token)
	if m == nil {
		return invalid("token is not a boot token")
	}
	if req.BootMode != "" && req.BootMode != "bios" && req.BootMode != "uefi" {
		return invalid("boot_mode is neither bios nor uefi")
	}
	if len(req.Macs) > 1024 {
		return invalid("more than 1024 addresses")
	}
	csr, err = x509.ParseCertificateRequest(req.Csr)
	if err != nil {
		return invalid("csr is not a PKCS #10 request")
	}
	if err := csr.CheckSignature(); err != nil {
		return invalid("csr is not signed by its key")
	}
	switch k := csr.PublicKey.(type) {
	case *ecdsa.PublicKey, ed25519.PublicKey:
	case *rsa.PublicKey:
		if k.N.BitLen() < 2048 {
			return invalid("csr has an RSA key of %d bits, less than 2048", k.N.BitLen())
		}
	default:
		return invalid("csr has a key of an unknown kind")
	}
	return m[1], csr, nil
}

// remote is where a call comes from, for logs.
func remote(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return "unknown"
}

// clip shortens and cleans what an agent says before it is written anywhere.
func clip(s string) string {
	const most = 128
	return clean.Line(s, most)
}
