package agents

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

func TestCAIsKept(t *testing.T) {
	dir := t.TempDir()
	first, err := OpenCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := OpenCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	if first.Fingerprint() != again.Fingerprint() {
		t.Errorf("fingerprint %s after a restart, was %s", again.Fingerprint(), first.Fingerprint())
	}
	sum := sha256.Sum256(first.cert.Raw)
	if got, want := first.Fingerprint(), hex.EncodeToString(sum[:]); got != want {
		t.Errorf("Fingerprint() = %s, want %s", got, want)
	}
	info, err := os.Stat(filepath.Join(dir, caKeyFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the CA's key has mode %v (%v), want 0600", info.Mode(), err)
	}

	if err := os.Remove(filepath.Join(dir, caKeyFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenCA(dir); err == nil || !strings.Contains(err.Error(), "restore the key") {
		t.Errorf("OpenCA without the key = %v, want an error that says what to do", err)
	}
}

// A first start that was cut short after the key had been written must not need an operator.
func TestCAAfterHalfAStart(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenCA(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, CACertFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenCA(dir); err != nil {
		t.Errorf("OpenCA with a key alone: %v", err)
	}
}

func TestServerCertificate(t *testing.T) {
	ca, err := OpenCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	conf, err := ca.ServerTLS([]string{"10.1.2.3", "conductor.example", "fd00::1"})
	if err != nil {
		t.Fatal(err)
	}
	if conf.MinVersion != tls.VersionTLS13 || conf.ClientAuth != tls.VerifyClientCertIfGiven {
		t.Errorf("MinVersion %x ClientAuth %v", conf.MinVersion, conf.ClientAuth)
	}
	chain := conf.Certificates[0].Certificate
	if len(chain) != 2 || !slices.Equal(chain[1], ca.cert.Raw) {
		t.Fatalf("the chain has %d certificates and must end in the CA's", len(chain))
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	// An agent with a dead clock verifies at a moment taken from the certificate itself.
	for _, at := range []time.Time{leaf.NotBefore, time.Now()} {
		for _, name := range []string{"10.1.2.3", "conductor.example", "fd00::1"} {
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: name, CurrentTime: at}); err != nil {
				t.Errorf("verify for %s at %s: %v", name, at, err)
			}
		}
	}
}

func TestClientCertificate(t *testing.T) {
	ca, err := OpenCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	want := identity{"1be26c0b-03f2-4d2e-ae87-c02d7f33c123", "5d6c9c1a-0000-4000-8000-000000000001", 7}
	der, serial, err := ca.issue(key.Public(), want)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := identify(cert); err != nil || got != want {
		t.Errorf("identify = %+v, %v, want %+v", got, err, want)
	}
	if cert.IsCA || !slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) ||
		cert.SerialNumber.Text(16) != serial {
		t.Errorf("IsCA %v, ExtKeyUsage %v, serial %s, want %s", cert.IsCA, cert.ExtKeyUsage, cert.SerialNumber.Text(16),
			serial)
	}
}

// TestCertificatesOfAnotherTime: an agent that enrolled before the conductor's clock was set back by a year is not
// locked out.
func TestCertificatesOfAnotherTime(t *testing.T) {
	ca, err := OpenCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ca.now = func() time.Time { return time.Now().AddDate(1, 0, 0) }
	cert := issued(t, ca)
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	if _, err := cert.Verify(
		x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
}

func TestJournal(t *testing.T) {
	var j journal
	now := time.Now()
	for range limit.LogLines + 10 {
		j.add("a", LogLine{Message: "x"}, now)
	}
	got := j.after("a", 0)
	if len(got) != limit.LogLines || got[0].Number != 11 || got[len(got)-1].Number != limit.LogLines+10 {
		t.Errorf("kept %d lines, %d to %d", len(got), got[0].Number, got[len(got)-1].Number)
	}
	if got := j.after("a", limit.LogLines+8); len(got) != 2 || got[0].Number != limit.LogLines+9 {
		t.Errorf("after: %+v", got)
	}
	if got := j.after("a", limit.LogLines+10); got != nil {
		t.Errorf("after the last line: %+v", got)
	}
	for i := range keptNodes + 5 {
		j.add(string(rune('b'+i)), LogLine{}, now.Add(time.Duration(i)))
	}
	if len(j.rings) > keptNodes {
		t.Errorf("%d rings, want at most %d", len(j.rings), keptNodes)
	}
	if j.after("a", 0) == nil {
		// "a" was the oldest: it makes room first.
		return
	}
	t.Error("the oldest ring is still kept")
}

func TestBudget(t *testing.T) {
	b := budget{size: 2, every: time.Minute}
	now := time.Now()
	for i, c := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {0, true}, {0, false}, {10 * time.Second, false}, {20 * time.Second, true}, {0, false},
		{time.Hour, true}, {0, true}, {0, false}} {
		now = now.Add(c.after)
		if got := b.take(now); got != c.want {
			t.Errorf("take %d = %v, want %v", i, got, c.want)
		}
	}
}
