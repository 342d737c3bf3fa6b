package access

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func writePair(t *testing.T, dir string, serial int64) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"}}
	c, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: c},
		key: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	cert, key := writePair(t, dir, 1)
	var log bytes.Buffer
	c, err := OpenCertificate(cert, key, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	serial := func() int64 {
		t.Helper()
		c.looked = time.Time{}
		got, err := c.Config().GetCertificate(&tls.ClientHelloInfo{})
		if err != nil {
			t.Fatal(err)
		}
		x, err := x509.ParseCertificate(got.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return x.SerialNumber.Int64()
	}
	if got := serial(); got != 1 {
		t.Errorf("serial = %d", got)
	}
	writePair(t, dir, 2)
	if got := serial(); got != 2 {
		t.Errorf("after the files changed: serial = %d", got)
	}
	for _, broken := range []string{"", "-----BEGIN CERTIFICATE-----\n"} {
		if err := os.WriteFile(cert, []byte(broken), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := serial(); got != 2 || !strings.Contains(log.String(), "the one before stays") {
			t.Errorf("with a broken file: serial = %d, log %s", got, log.String())
		}
	}
	writePair(t, dir, 3)
	if got := serial(); got != 3 {
		t.Errorf("after it was put right: serial = %d", got)
	}
	if _, err := OpenCertificate(filepath.Join(dir, "none"), key, nil); err == nil {
		t.Error("a missing certificate is taken at the start")
	}
}

// TLS 1.2 is the least.
func TestOldTLSIsRefused(t *testing.T) {
	cert, key := writePair(t, t.TempDir(), 1)
	c, err := OpenCertificate(cert, key, nil)
	if err != nil {
		t.Fatal(err)
	}
	for version, want := range map[uint16]bool{tls.VersionTLS10: false, tls.VersionTLS11: false, tls.VersionTLS12: true,
		tls.VersionTLS13: true} {
		near, far := net.Pipe()
		served := make(chan error, 1)
		go func() { served <- tls.Server(far, c.Config()).Handshake(); far.Close() }()
		// an old client that trusts everybody
		err := tls.Client(near,
			&tls.Config{InsecureSkipVerify: true, MinVersion: version, MaxVersion: version}).Handshake()
		near.Close()
		if err := errors.Join(err, <-served); (err == nil) != want {
			t.Errorf("%s: %v, want it served: %v", tls.VersionName(version), err, want)
		}
	}
}
