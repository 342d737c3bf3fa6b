package agents

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"testing"
	"time"
)

// TestSign: the CA gives no certificate of an agent's, a server's or a CA's kind to another role, and while it is
// rotated it signs with the previous key, which all conductors know, up to the end of the overlap.
func TestSign(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenCA(dir); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	ca, err := RotateCA(dir, now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for what, tmpl := range map[string]*x509.Certificate{
		"an agent":  {ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
		"a server":  {ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}},
		"any usage": {ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}},
		"a CA":      {IsCA: true, BasicConstraintsValid: true},
	} {
		if _, err := ca.Sign(tmpl, key.Public()); err == nil {
			t.Errorf("%s: signed", what)
		}
	}
	signer := func() *x509.Certificate {
		t.Helper()
		der, err := ca.Sign(&x509.Certificate{NotBefore: now, NotAfter: now.AddDate(100, 0, 0)}, key.Public())
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range ca.Roots() {
			if leaf.CheckSignatureFrom(r) == nil {
				if i != 0 || leaf.NotAfter.After(r.NotAfter) {
					t.Errorf("signed by root %d, until %v", i, leaf.NotAfter)
				}
				return r
			}
		}
		t.Fatal("none of the roots has signed it")
		return nil
	}
	if !signer().Equal(ca.cert) || len(ca.Roots()) != 2 {
		t.Errorf("in the overlap the next CA signs, or there are %d roots", len(ca.Roots()))
	}
	ca.goBy(func() time.Time { return now.Add(2 * time.Hour) })
	if !signer().Equal(ca.next.cert) || len(ca.Roots()) != 1 {
		t.Errorf("after the overlap the previous CA signs, or there are %d roots", len(ca.Roots()))
	}
}
