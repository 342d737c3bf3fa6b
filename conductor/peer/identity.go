package peer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"
)

// usage is the extended key usage of conductors towards each other. No agent's certificate has it, and a conductor's
// has no other: its holder is taken neither for an agent nor for the server that agents connect to. It lies below 2.25,
// where OIDs need no registration.
var usage = asn1.ObjectIdentifier{2, 25, 1768843124}

// A certificate is used for renewAfter and valid for life, from backdate before it was made, so that clocks may differ
// by half a day.
const (
	backdate   = 12 * time.Hour
	life       = 24 * time.Hour
	renewAfter = 12 * time.Hour
)

// authority is the CA that all conductors of a database have in common.
type authority interface {
	Sign(tmpl *x509.Certificate, pub any) (der []byte, err error)
	Roots() []*x509.Certificate // those whose certificates count now, the one that signs first
}

// Identity proves to other conductors that this is one, and checks theirs. Its key is made in memory, and again with
// each certificate. Safe for concurrent use.
type Identity struct {
	name string
	ca   authority
	now  func() time.Time

	mu   sync.Mutex
	cert *tls.Certificate
	by   *x509.Certificate // which has signed it
	made time.Time
}

// NewIdentity makes the identity of the conductor name. A nil now is time.Now.
func NewIdentity(name string, ca authority, now func() time.Time) (*Identity, error) {
	if now == nil {
		now = time.Now
	}
	id := &Identity{name: name, ca: ca, now: now}
	_, err := id.certificate()
	return id, err
}

// certificate returns the present certificate, and makes another when it gets old or its CA is about to be refused.
func (id *Identity) certificate() (*tls.Certificate, error) {
	id.mu.Lock()
	defer id.mu.Unlock()
	now, by := id.now(), id.ca.Roots()[0]
	if age := now.Sub(id.made); id.cert != nil && age >= 0 && age < renewAfter && id.by.Equal(by) {
		return id.cert, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key for other conductors: %w", err)
	}
	der, err := id.ca.Sign(&x509.Certificate{
		Subject:            pkix.Name{Organization: []string{"Ingot"}, CommonName: "ingotd"},
		URIs:               []*url.URL{{Scheme: "ingot", Host: "conductor", Path: "/" + id.name}},
		NotBefore:          now.Add(-backdate).UTC(),
		NotAfter:           now.Add(life).UTC(),
		KeyUsage:           x509.KeyUsageDigitalSignature,
		UnknownExtKeyUsage: []asn1.ObjectIdentifier{usage},
	}, key.Public())
	if err != nil {
		return nil, fmt.Errorf("for other conductors: %w", err)
	}
	id.cert, id.by, id.made = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, by, now
	return id.cert, nil
}

// errStranger is the refusal of all who are no conductors of this database.
var errStranger = errors.New("its certificate is not one of a conductor that shares this one's CA")

// check returns the name of the conductor at the other end of a connection.
func (id *Identity) check(cs tls.ConnectionState) (string, error) {
	if len(cs.PeerCertificates) != 1 { // each is signed by the CA itself
		return "", errStranger
	}
	leaf, roots := cs.PeerCertificates[0], x509.NewCertPool()
	for _, r := range id.ca.Roots() {
		roots.AddCert(r)
	}
	// The usage is compared below: the standard library knows only those that have a name.
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: id.now(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		var invalid x509.CertificateInvalidError
		if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
			return "", fmt.Errorf("its certificate is not valid now, from %s to %s: compare the clocks of both hosts",
				leaf.NotBefore.Format(time.RFC3339), leaf.NotAfter.Format(time.RFC3339))
		}
		return "", fmt.Errorf("%w: %v", errStranger, err)
	}
	if leaf.IsCA || len(leaf.ExtKeyUsage) > 0 || !slices.ContainsFunc(leaf.UnknownExtKeyUsage, usage.Equal) ||
		len(leaf.URIs) != 1 {
		return "", errStranger
	}
	u := leaf.URIs[0]
	if u.Scheme != "ingot" || u.Host != "conductor" || len(u.Path) < 2 || u.RawQuery != "" || u.Fragment != "" {
		return "", errStranger
	}
	return u.Path[1:], nil
}

// tls makes the configuration of either end. allow checks the name of the other end.
func (id *Identity) tls(allow func(name string) error) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"http/1.1"}, // HTTP/2 would only add ways to flood
		ClientAuth: tls.RequireAnyClientCert,
		// VerifyConnection replaces the standard check at both ends, which wants the names of hosts and the usages of
		// agents. Without tickets it is made for every connection.
		InsecureSkipVerify:     true,
		SessionTicketsDisabled: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			name, err := id.check(cs)
			if err != nil {
				return err
			}
			return allow(name)
		},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return id.certificate() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return id.certificate()
		},
	}
}
