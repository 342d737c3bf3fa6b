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

// trust decides which server is the conductor: one whose server certificate was issued by the pinned CA. Neither the
// agent's clock nor the server's name is used: the CA is the conductor's own and signs no other servers.
type trust struct {
	pin   [sha256.Size]byte
	next  [sha256.Size]byte // of the pinned CA's successor; zero: none
	built *x509.Certificate // a CA built into the ramdisk; it takes precedence over the pin
	seen  *seen             // nil: not needed
}

// seen keeps the CA's certificate from a server's handshake: the boot parameters have only its fingerprint.
type seen struct {
	ca atomic.Pointer[x509.Certificate]
}

// authority returns the conductor's CA; nil before the first connection.
func (t trust) authority() *x509.Certificate {
	if t.built != nil {
		return t.built
	}
	return t.seen.ca.Load()
}

var errForeignServer = errors.New(
	"the server is not the conductor that the boot parameters name (its certificate comes from another CA)")

// verify implements tls.Config.VerifyConnection.
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
	// Any time at which all certificates are valid suffices; the start of the youngest one's validity is such a time
	// unless the chain is broken.
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

// config returns the client's TLS configuration; cert may be nil (Enroll authenticates the server only).
func (t trust) config(cert *tls.Certificate) *tls.Config {
	c := &tls.Config{
		MinVersion: tls.VersionTLS13,
		// The standard check needs a correct clock and a name; VerifyConnection replaces it.
		InsecureSkipVerify: true,
		VerifyConnection:   t.verify,
	}
	if cert != nil {
		c.Certificates = []tls.Certificate{*cert}
	}
	return c
}

// newKey generates the key of this boot. It never leaves the machine's memory.
func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return key, nil
}

// newCSR returns a certificate request for key. The conductor uses only its key: the token identifies the machine.
func newCSR(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: "ingot-agent"}}, key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate request: %w", err)
	}
	return der, nil
}
