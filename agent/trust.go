package agent

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// trust decides which server is the conductor: one whose certificate was issued by the pinned CA for servers. The
// agent's clock plays no part, nor does the server's name: the CA is the conductor's own and signs no other servers.
type trust struct {
	pin   [sha256.Size]byte
	next  [sha256.Size]byte // of the CA that follows the pinned one; zero: none does
	built *x509.Certificate // a CA built into the ramdisk; it comes before the pin
	seen  *seen             // nil: nobody asks
}

// seen is the CA's certificate once a server has shown it: the boot parameters have only its fingerprint.
type seen struct {
	ca atomic.Pointer[x509.Certificate]
}

// authority is the conductor's CA; nil before the first connection.
func (t trust) authority() *x509.Certificate {
	if t.built != nil {
		return t.built
	}
	return t.seen.ca.Load()
}

var errForeignServer = errors.New(
	"the server is not the conductor that the boot parameters name (its certificate comes from another CA)")

// verify is a tls.Config.VerifyConnection.
func (t trust) verify(cs tls.ConnectionState) error {
	ca := t.built
	if ca == nil && t.pin != ([sha256.Size]byte{}) {
		for _, c := range cs.PeerCertificates {
			if sum := sha256.Sum256(c.Raw); sum == t.pin || t.next != ([sha256.Size]byte{}) && sum == t.next {
				ca = c
				break
			}
		}
	}
	if ca == nil || !ca.IsCA {
		return errForeignServer
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(ca)
	// Any moment at which all certificates are valid will do; the youngest one's first is such a moment unless the
	// chain is broken.
	at := ca.NotBefore
	for _, c := range cs.PeerCertificates {
		if c.NotBefore.After(at) {
			at = c.NotBefore
		}
		between.AddCert(c)
	}
	_, err := cs.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: at.Add(time.Second),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return fmt.Errorf("%w: %v", errForeignServer, err)
	}
	if t.seen != nil {
		t.seen.ca.Store(ca)
	}
	return nil
}

// config is the client side of TLS; cert may be nil (Enroll authenticates the server alone).
func (t trust) config(cert *tls.Certificate) *tls.Config {
	c := &tls.Config{
		MinVersion: tls.VersionTLS13,
		// The standard check wants a right clock and a name; VerifyConnection takes its place, it does not fall away.
		InsecureSkipVerify: true,
		VerifyConnection:   t.verify,
	}
	if cert != nil {
		c.Certificates = []tls.Certificate{*cert}
	}
	return c
}

// newKey makes the key of this boot. It never leaves the machine's memory.
func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return key, nil
}

// newCSR asks for a certificate for key. The conductor takes nothing from it but the key: who the machine is says the
// token.
func newCSR(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: "ingot-agent"}}, key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate request: %w", err)
	}
	return der, nil
}
