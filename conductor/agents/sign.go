package agents

import (
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
)

// Sign makes a certificate for a role that is neither an agent's nor that of the agents' server. A template with one of
// the usages by which agents and conductor know each other is refused: such certificates are made in ca.go alone.
// It ends no later than the CA. While the CA is rotated the previous one signs, which all conductors know; those that
// were not started again meanwhile don't know the next.
func (ca *CA) Sign(tmpl *x509.Certificate, pub any) (der []byte, err error) {
	if len(tmpl.ExtKeyUsage) > 0 || tmpl.IsCA {
		return nil, errors.New("make a certificate: its usage is that of an agent, of their server or of a CA")
	}
	by := ca.present()
	t := *tmpl
	t.SerialNumber, t.NotAfter = newSerial(), earlier(t.NotAfter, by.cert.NotAfter)
	der, err = x509.CreateCertificate(rand.Reader, &t, by.cert, pub, by.key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	return der, nil
}

// Roots are the CAs whose certificates count now; the first is the one that signs.
func (ca *CA) Roots() []*x509.Certificate {
	roots := []*x509.Certificate{ca.present().cert}
	if ca.next != nil && !ca.over() {
		roots = append(roots, ca.next.cert)
	}
	return roots
}
