package swarm

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Identity is who this agent is to its neighbours.
type Identity struct {
	Node       string // UUID
	Generation uint64
	// Certificate is the one from enrolment. It is for clients, on either end of a connection: were it good for servers
	// too, each agent could pass for the conductor.
	Certificate tls.Certificate
	// CA is the conductor's.
	CA *x509.Certificate
}

// who is what a neighbour's certificate says.
type who struct {
	node       string
	generation uint64
}

var errStranger = errors.New("its certificate is not one that the conductor gave to an agent")

// identify checks a certificate and reads it. As everywhere in the agent, the clock plays no part: it is the conductor
// who tells which generation of which node is there now.
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

// tls is one end of a connection; allow says whether the other end may be who it is.
func (id Identity) tls(allow func(who) error) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		NextProtos:   []string{protocol},
		Certificates: []tls.Certificate{id.Certificate},
		ClientAuth:   tls.RequireAnyClientCert,
		// VerifyConnection takes the place of the standard check, which wants a name and a right clock.
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
