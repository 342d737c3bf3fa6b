package swarm

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Identity identifies this agent to its neighbours.
type Identity struct {
	Node       string // UUID
	Generation uint64
	// Certificate is the one from enrolment. It is for clients, on both ends of a connection: if it were valid for
	// servers, each agent could impersonate the conductor.
	Certificate tls.Certificate
	// CA is the conductor's.
	CA *x509.Certificate
}

// who is the identity in a neighbour's certificate.
type who struct {
	node       string
	generation uint64
}

var errStranger = errors.New("its certificate is not one that the conductor gave to an agent")

// identify verifies and parses a certificate. As everywhere in the agent, the clock is not used: the conductor decides
// which generation of which node is present.
func (id Identity) identify(cs tls.ConnectionState) (who, error) {
	if len(cs.PeerCertificates) != 1 || cs.NegotiatedProtocol != protocol {
		return who{}, errStranger
	}
	leaf := cs.PeerCertificates[0]
	roots := x509.NewCertPool()
	roots.AddCert(id.CA)
	at := leaf.NotBefore
	if id.CA.NotBefore.After(at) {
		at = id.CA.NotBefore
	}
	_, err := leaf.Verify(
		x509.VerifyOptions{Roots: roots, CurrentTime: at.Add(time.Second),
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return who{}, fmt.Errorf("%w: %v", errStranger, err)
	}
	for _, u := range leaf.URIs {
		if u.Scheme != "ingot" || u.Host != "node" || len(u.Path) < 2 {
			continue
		}
		gen, err := strconv.ParseUint(u.Query().Get("generation"), 10, 64)
		if err != nil {
			return who{}, errStranger
		}
		return who{u.Path[1:], gen}, nil
	}
	return who{}, errStranger
}

// tls returns the configuration of one end of a connection; allow checks the identity of the other end.
func (id Identity) tls(allow func(who) error) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		NextProtos:   []string{protocol},
		Certificates: []tls.Certificate{id.Certificate},
		ClientAuth:   tls.RequireAnyClientCert,
		// VerifyConnection replaces the standard check, which needs a name and a correct clock.
		InsecureSkipVerify:     true,
		SessionTicketsDisabled: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			w, err := id.identify(cs)
			if err != nil {
				return err
			}
			return allow(w)
		},
	}
}
