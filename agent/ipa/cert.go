package ipa

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// The certificate's life, as in ironic-python-agent. The clock of the conductor may be behind this machine's.
const (
	certBefore = time.Hour
	certLife   = 30 * 24 * time.Hour
)

var tlsVersions = map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

// pair is the certificate of this boot, which the conductor gets with heartbeats and pins, and its key.
type pair struct {
	Cert []byte `json:"cert"` // DER
	Key  []byte `json:"key"`  // PKCS #8
}

// newPair makes a self-signed certificate for the host under which the conductor asks.
func newPair(host string, now time.Time) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		return pair{}, fmt.Errorf("make a key for the command API: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return pair{}, fmt.Errorf("make a certificate for the command API: %w", err)
	}
	name, err := os.Hostname()
	if err != nil || name == "" {
		name = "ingot-agent"
	}
	t := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name[:min(len(name), 64)]},
		NotBefore: now.Add(-certBefore), NotAfter: now.Add(certLife), SignatureAlgorithm: x509.ECDSAWithSHA512,
		// The conductor uses it as its only CA.
		BasicConstraintsValid: true, IsCA: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if ip := net.ParseIP(host); ip != nil {
		t.IPAddresses = []net.IP{ip}
	} else {
		t.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return pair{}, fmt.Errorf("make a certificate for the command API: %w", err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return pair{}, fmt.Errorf("keep the key of the command API: %w", err)
	}
	return pair{der, k}, nil
}

// pem is the certificate as heartbeats carry it.
func (p pair) pem() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Cert}))
}

// config is the TLS configuration of the command API.
func (p pair) config(least uint16) (*tls.Config, error) {
	key, err := x509.ParsePKCS8PrivateKey(p.Key)
	if err != nil {
		return nil, fmt.Errorf("read the key of the command API: %w", err)
	}
	return &tls.Config{MinVersion: max(least, tls.VersionTLS12),
		Certificates: []tls.Certificate{{Certificate: [][]byte{p.Cert}, PrivateKey: key}}}, nil
}
