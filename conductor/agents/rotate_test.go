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
	"strings"
	"testing"
	"time"
)

// trusts reports whether a client that knows one CA, by its fingerprint or because it is built in, accepts the
// conductor.
func trusts(t *testing.T, server *CA, known *x509.Certificate) bool {
	t.Helper()
	conf := serving(t, server)
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(known)
	shown := false
	var leaf *x509.Certificate
	for i, der := range conf.Certificates[0].Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			leaf = c
		}
		shown = shown || c.Equal(known)
		between.AddCert(c)
	}
	_, err := leaf.Verify(
		x509.VerifyOptions{Roots: roots, Intermediates: between,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return shown && err == nil
}

// serving is the configuration that a connection gets now.
func serving(t *testing.T, server *CA) *tls.Config {
	t.Helper()
	conf, err := server.ServerTLS([]string{"c"})
	if err != nil {
		t.Fatal(err)
	}
	if conf.GetConfigForClient != nil {
		now, err := conf.GetConfigForClient(nil)
		if err != nil {
			t.Fatal(err)
		}
		if now != nil {
			return now
		}
	}
	return conf
}

// issued is a certificate of an agent.
func issued(t *testing.T, ca *CA) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, _, err := ca.issue(key.Public(), identity{node: "n", boot: "b", generation: 1})
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// admits reports whether a conductor accepts an agent with this certificate.
func admits(t *testing.T, server *CA, cert *x509.Certificate) bool {
	t.Helper()
	_, err := cert.Verify(
		x509.VerifyOptions{Roots: serving(t, server).ClientCAs,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err == nil
}

func TestRotationWithOverlap(t *testing.T) {
	dir := t.TempDir()
	old, err := OpenCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	before := issued(t, old)
	both, err := RotateCA(dir, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	next := both.next.cert
	if sum := sha256.Sum256(next.Raw); both.Fingerprint() != old.Fingerprint() ||
		both.NextFingerprint() != hex.EncodeToString(sum[:]) {
		t.Errorf("fingerprints %s and %s", both.Fingerprint(), both.NextFingerprint())
	}
	during := issued(t, both)
	for name, known := range map[string]*x509.Certificate{"old": old.cert, "next": next} {
		if !trusts(t, both, known) {
			t.Errorf("in the overlap, who knows the %s CA does not trust the conductor", name)
		}
	}
	if !admits(t, both, before) || !admits(t, both, during) {
		t.Errorf("in the overlap an agent of before is admitted: %v, one of now: %v", admits(t, both, before),
			admits(t, both, during))
	}
	if _, err := RotateCA(dir, time.Now(), time.Hour); err == nil || !strings.Contains(err.Error(), "rotated already") {
		t.Errorf("another rotation meanwhile = %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, nextFromFile), []byte("2020-01-01T00:00:00Z\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	after, err := OpenCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	if after.next != nil || !after.cert.Equal(next) || trusts(t, after, old.cert) || !trusts(t, after, next) ||
		admits(t, after, before) || !admits(t, after, during) {
		t.Error("after the overlap the next CA is not the only one")
	}
	again, err := RotateCA(dir, time.Now(), time.Hour)
	if err != nil || !trusts(t, again, again.next.cert) || !trusts(t, again, next) {
		t.Errorf("a second rotation, of a CA that followed another: %v", err)
	}
}

// TestOverlapEndsWhileServing: from its end on the old CA is neither shown nor accepted, by a conductor that was
// started before.
func TestOverlapEndsWhileServing(t *testing.T) {
	dir := t.TempDir()
	old, err := OpenCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	before := issued(t, old)
	both, err := RotateCA(dir, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	var ahead time.Duration
	both.goBy(func() time.Time { return time.Now().Add(ahead) })
	next, during := both.NextFingerprint(), issued(t, both)
	if !trusts(t, both, old.cert) || !admits(t, both, before) || both.Fingerprint() == next {
		t.Error("the old CA does not count in the overlap")
	}
	ahead = 2 * time.Hour
	if trusts(t, both, old.cert) || admits(t, both, before) || !trusts(t, both, both.next.cert) ||
		!admits(t, both, during) || !admits(t, both, issued(t, both)) {
		t.Error("after the overlap the next CA is not the only one")
	}
	if both.Fingerprint() != next || both.NextFingerprint() != "" {
		t.Errorf("fingerprints %s and %q, want %s alone", both.Fingerprint(), both.NextFingerprint(), next)
	}
	if conf := serving(t, both); len(conf.NextProtos) != 1 || conf.MinVersion != tls.VersionTLS13 ||
		conf.ClientAuth != tls.VerifyClientCertIfGiven {
		t.Errorf("agents are served with %+v", conf)
	}
}

func TestRotationWithoutOverlap(t *testing.T) {
	dir := t.TempDir()
	old, err := OpenCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	before := issued(t, old)
	// One with an overlap that is under way may be of the same thief's making.
	if _, err := RotateCA(dir, time.Now(), time.Hour); err != nil {
		t.Fatal(err)
	}
	ca, err := RotateCA(dir, time.Now(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if ca.next != nil || ca.Fingerprint() == old.Fingerprint() || trusts(t, ca, old.cert) || admits(t, ca, before) ||
		!trusts(t, ca, ca.cert) || !admits(t, ca, issued(t, ca)) {
		t.Error("the old CA still counts, or the new one does not")
	}
	left, err := filepath.Glob(filepath.Join(dir, "ca.next.*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestRotationKilled: a rotation that ended after any of its writes is one that has not begun, goes on, or is brought
// to its end, and whatever it is, the conductor has a CA whose key is its own.
func TestRotationKilled(t *testing.T) {
	begin, over := t.TempDir(), t.TempDir()
	old, err := OpenCA(begin)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{CACertFile, caKeyFile} {
		copyInto(t, filepath.Join(begin, name), filepath.Join(over, name))
	}
	both, err := RotateCA(over, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	next := both.NextFingerprint()
	at := func(name string) string { return filepath.Join(over, name) }
	for _, c := range []struct {
		name  string
		files map[string]string // name to source
		want  string            // fingerprint
		next  string
	}{
		{"key written", map[string]string{nextKeyFile: at(nextKeyFile)}, old.Fingerprint(), ""},
		{"time written", map[string]string{nextKeyFile: at(nextKeyFile), nextFromFile: at(nextFromFile)},
			old.Fingerprint(), ""},
		{"certificate written",
			map[string]string{nextKeyFile: at(nextKeyFile), nextFromFile: at(nextFromFile),
				nextCertFile: at(nextCertFile)}, old.Fingerprint(), next},
		{"key in place",
			map[string]string{nextKeyFile: at(nextKeyFile), nextFromFile: at(nextFromFile),
				nextCertFile: at(nextCertFile), caKeyFile: at(nextKeyFile)}, next, ""},
		{"certificate in place",
			map[string]string{nextKeyFile: at(nextKeyFile), nextFromFile: at(nextFromFile),
				nextCertFile: at(nextCertFile), caKeyFile: at(nextKeyFile), CACertFile: at(nextCertFile)}, next, ""},
		{"certificate removed",
			map[string]string{nextKeyFile: at(nextKeyFile), nextFromFile: at(nextFromFile), caKeyFile: at(nextKeyFile),
				CACertFile: at(nextCertFile)}, next, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			copyInto(t, filepath.Join(begin, CACertFile), filepath.Join(dir, CACertFile))
			copyInto(t, filepath.Join(begin, caKeyFile), filepath.Join(dir, caKeyFile))
			for name, from := range c.files {
				copyInto(t, from, filepath.Join(dir, name))
			}
			for range 2 {
				ca, err := OpenCA(dir)
				if err != nil {
					t.Fatal(err)
				}
				if ca.Fingerprint() != c.want || ca.NextFingerprint() != c.next || !admits(t, ca, issued(t, ca)) {
					t.Errorf("CA %s, next %q, want %s and %q", ca.Fingerprint(), ca.NextFingerprint(), c.want, c.next)
				}
			}
			if _, err := RotateCA(dir, time.Now(), 0); err != nil {
				t.Errorf("a rotation after it: %v", err)
			}
		})
	}
}

// TestTakeOverCutShort: the order in which the next CA takes over lets the next start bring to its end what one of its
// writes cut short.
func TestTakeOverCutShort(t *testing.T) {
	for _, name := range []string{caKeyFile, CACertFile, nextCertFile, nextFromFile, nextKeyFile} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			both, err := RotateCA(dir, time.Now(), time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			r, err := readRotation(dir)
			if err != nil {
				t.Fatal(err)
			}
			path, kept := filepath.Join(dir, name), filepath.Join(dir, "kept")
			if err := os.Rename(path, kept); err != nil {
				t.Fatal(err)
			}
			// it can be neither replaced nor removed
			if err := os.MkdirAll(filepath.Join(path, "in the way"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := takeOver(dir, r.cert, r.key); err == nil {
				t.Fatal("nothing was cut short")
			}
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(kept, path); err != nil {
				t.Fatal(err)
			}
			ca, err := OpenCA(dir)
			if err != nil {
				t.Fatal(err)
			}
			want := both.NextFingerprint()
			if name == caKeyFile { // nothing has happened
				want = both.Fingerprint()
			}
			if ca.Fingerprint() != want {
				t.Errorf("the CA is %s, want %s", ca.Fingerprint(), want)
			}
		})
	}
}

func copyInto(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
