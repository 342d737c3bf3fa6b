package agents

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/keyfile"
)

// Names of the files of a CA that follows the present one. The certificate is written last and counts: without it there
// is no rotation.
const (
	nextCertFile = "ca.next.crt"
	nextKeyFile  = "ca.next.key"
	nextFromFile = "ca.next.from" // when it takes over, in RFC 3339
)

// pending is a rotation that goes on.
type pending struct {
	ca         *CA
	cert, key  []byte // in PEM
	from       time.Time
	takingOver bool // its key is in place already: it was cut short at its end
}

// over reports whether a rotation's overlap has ended. The files are replaced at the next start: until then the key of
// the previous CA makes the tokens, for those that are already in use.
func (c *CA) over() bool { return c.next != nil && !c.now().Before(c.until) }

// present is the CA that agents are to know.
func (c *CA) present() *CA {
	if c.over() {
		return c.next
	}
	return c
}

// expires is when the CA that verified a connection's certificate ceases to count; false if it does not.
func (c *CA) expires(state tls.ConnectionState) (time.Time, bool) {
	if c.next == nil {
		return time.Time{}, false
	}
	byNext := slices.ContainsFunc(state.VerifiedChains,
		func(chain []*x509.Certificate) bool { return chain[len(chain)-1].Equal(c.next.cert) })
	return c.until, !byNext
}

// NextFingerprint is that of the CA which follows this one; "" when none does.
func (c *CA) NextFingerprint() string {
	if c.next == nil || c.over() {
		return ""
	}
	return c.next.Fingerprint()
}

// Until is when the CA that follows this one takes over.
func (c *CA) Until() time.Time { return c.until }

// RotateCA makes a CA that follows the one in dir, which no ingotd may be using. During the overlap both are accepted,
// agents and ramdisks may know either, and the new one issues certificates. Without an overlap the new one takes over
// at once, and all certificates of the old one are refused: for a key that may have been stolen. If it is killed at any
// moment, the rotation has happened or not, or the next start completes it.
func RotateCA(dir string, now time.Time, overlap time.Duration) (*CA, error) {
	ca, err := OpenCA(dir)
	if err != nil {
		return nil, err
	}
	if ca.next != nil && overlap > 0 {
		return nil, fmt.Errorf(
			"the CA is being rotated already, until %s: wait for that, or end it with a rotation without overlap",
			ca.until.UTC().Format(time.RFC3339))
	}
	certPEM, keyPEM, err := newCA()
	if err != nil {
		return nil, err
	}
	if err := remove(dir, nextCertFile); err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name string
		data []byte
		mode fs.FileMode
	}{
		{nextKeyFile, keyPEM, 0o600},
		{nextFromFile, []byte(now.Add(overlap).UTC().Format(time.RFC3339) + "\n"), 0o644},
		{nextCertFile, certPEM, 0o644},
	} {
		if err := keyfile.Write(filepath.Join(dir, f.name), f.data, f.mode); err != nil {
			return nil, fmt.Errorf("write the new CA: %w", err)
		}
	}
	if overlap <= 0 {
		if err := takeOver(dir, certPEM, keyPEM); err != nil {
			return nil, err
		}
	}
	return OpenCA(dir)
}

// readRotation reads the CA that follows the one in dir; nil if none does.
func readRotation(dir string) (*pending, error) {
	cert, err := os.ReadFile(filepath.Join(dir, nextCertFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the next CA: %w", err)
	}
	r := &pending{cert: cert}
	if r.key, err = keyfile.Read(filepath.Join(dir, nextKeyFile)); err != nil {
		return nil, fmt.Errorf("read the next CA's key: %w", err)
	}
	if r.ca, err = parseCA(r.cert, r.key); err != nil {
		return nil, err
	}
	from, err := os.ReadFile(filepath.Join(dir, nextFromFile))
	if err != nil {
		return nil, fmt.Errorf("read when the next CA takes over: %w", err)
	}
	if r.from, err = time.Parse(time.RFC3339, strings.TrimSpace(string(from))); err != nil {
		return nil, fmt.Errorf("read when the next CA takes over: %w", err)
	}
	present, err := keyfile.Read(filepath.Join(dir, caKeyFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the CA's key: %w", err)
	}
	r.takingOver = bytes.Equal(present, r.key)
	return r, nil
}

// settleRotation ends a rotation whose time has come, or which was cut short while it ended.
func settleRotation(dir string, now time.Time) error {
	r, err := readRotation(dir)
	if err != nil || r == nil {
		return err
	}
	if r.takingOver || !now.Before(r.from) {
		return takeOver(dir, r.cert, r.key)
	}
	return nil
}

// takeOver puts the next CA in place of the present one. It can be repeated from wherever it was cut short: the key
// goes first, and shows that.
func takeOver(dir string, cert, key []byte) error {
	if err := keyfile.Write(filepath.Join(dir, caKeyFile), key, 0o600); err != nil {
		return fmt.Errorf("put the new CA's key in place: %w", err)
	}
	if err := keyfile.Write(filepath.Join(dir, CACertFile), cert, 0o644); err != nil {
		return fmt.Errorf("put the new CA's certificate in place: %w", err)
	}
	return remove(dir, nextCertFile, nextFromFile, nextKeyFile)
}

func remove(dir string, names ...string) error {
	for _, name := range names {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove what is left of a rotation: %w", err)
		}
	}
	return keyfile.SyncDir(dir)
}

// sign makes a certificate for the key of another CA, so that who trusts this one trusts what that has issued.
func (c *CA) sign(other *CA) ([]byte, error) {
	tmpl := &x509.Certificate{
		SerialNumber: newSerial(), Subject: other.cert.Subject, NotBefore: longAgo(),
		NotAfter: earlier(other.cert.NotAfter, c.cert.NotAfter), KeyUsage: x509.KeyUsageCertSign,
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true, SubjectKeyId: other.cert.SubjectKeyId,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, c.cert, other.key.Public(), c.key)
	if err != nil {
		return nil, fmt.Errorf("sign the CA before: %w", err)
	}
	return der, nil
}
