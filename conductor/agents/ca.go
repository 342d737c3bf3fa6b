package agents

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/keyfile"
)

// Names of the CA's files in the data directory.
const (
	CACertFile = "ca.crt"
	caKeyFile  = "ca.key"
)

// Lifetimes. They protect nothing: agents have no reliable clock and pin the CA, and each session checks a client's
// certificate against the store. They only have to be long enough not to get in the way.
const (
	caYears     = 30
	serverYears = 20
	clientDays  = 90
)

// CA is the conductor's own certificate authority.
type CA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	now  func() time.Time

	next  *CA       // follows this one; nil without a rotation
	until time.Time // and when
}

// goBy sets another clock than time.Now.
func (ca *CA) goBy(now func() time.Time) {
	if ca.now = now; ca.next != nil {
		ca.next.now = now
	}
}

// PhoneHomeKey is a key that is the same for as long as the CA is, for the tokens of deployed systems.
func (ca *CA) PhoneHomeKey() ([]byte, error) { return ca.derived("ingot phone home key 1") }

// BootImageKey is such a key for the addresses and tokens of boot images.
func (ca *CA) BootImageKey() ([]byte, error) { return ca.derived("ingot boot image key 1") }

// GlanceKey is such a key for the addresses at which agents get images of Glance.
func (ca *CA) GlanceKey() ([]byte, error) { return ca.derived("ingot glance key 1") }

// DashboardKey is such a key for the sessions of people at the dashboard.
func (ca *CA) DashboardKey() ([]byte, error) { return ca.derived("ingot dashboard key 1") }

func (ca *CA) derived(label string) ([]byte, error) {
	secret, err := ca.key.Bytes()
	if err != nil {
		return nil, fmt.Errorf("derive a key from the CA's: %w", err)
	}
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(label))
	return h.Sum(nil), nil
}

// OtherFiles are the names of the CA's files in the data directory beside its certificate.
func OtherFiles() []string { return []string{caKeyFile, nextKeyFile, nextFromFile, nextCertFile} }

// KeyFiles are the names of the CA's keys in the data directory.
func KeyFiles() []string { return []string{caKeyFile, nextKeyFile} }

// Ends is when the CA's certificate does.
func (ca *CA) Ends() time.Time { return ca.cert.NotAfter }

// ReadCA reads the CA in dir. Without one the error is fs.ErrNotExist.
func ReadCA(dir string) (*CA, error) {
	certPEM, err := os.ReadFile(filepath.Join(dir, CACertFile))
	if err != nil {
		return nil, fmt.Errorf("read the CA's certificate: %w", err)
	}
	keyPEM, err := keyfile.Read(filepath.Join(dir, caKeyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("the CA's certificate has no key")
	}
	if err != nil {
		return nil, fmt.Errorf("read the CA's key: %w", err)
	}
	if r, err := readRotation(dir); err == nil && r != nil && r.takingOver {
		return r.ca, nil // the next start brings it to its end
	}
	return parseCA(certPEM, keyPEM)
}

// OpenCA reads the CA in dir, or makes one when there is none. A certificate without its key, or the other way round,
// is an error: a new CA would lock out every agent that is at work. A rotation whose overlap is over, or that was cut
// short at its end, is brought to the end.
func OpenCA(dir string) (*CA, error) {
	if err := settleRotation(dir, time.Now()); err != nil {
		return nil, err
	}
	certPath, keyPath := filepath.Join(dir, CACertFile), filepath.Join(dir, caKeyFile)
	certPEM, certErr := os.ReadFile(certPath)
	keyPEM, keyErr := keyfile.Read(keyPath)
	switch {
	case errors.Is(certErr, fs.ErrNotExist) && (keyErr == nil || errors.Is(keyErr, fs.ErrNotExist)):
		// The key is written first, so a key alone means a first start that was cut short: that CA was never used.
		return makeCA(dir)
	case errors.Is(keyErr, fs.ErrNotExist):
		return nil, fmt.Errorf(
			"the CA's certificate %s has no key %s: restore the key, or remove the certificate to have a new CA made (ramdisks with the old one built in will refuse it)", certPath, keyPath)
	case certErr != nil:
		return nil, fmt.Errorf("read the CA's certificate: %w", certErr)
	case keyErr != nil:
		return nil, fmt.Errorf("read the CA's key: %w", keyErr)
	}
	ca, err := parseCA(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	r, err := readRotation(dir)
	if err != nil || r == nil {
		return ca, err
	}
	ca.next, ca.until = r.ca, r.from
	return ca, nil
}

func parseCA(certPEM, keyPEM []byte) (*CA, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("read the CA: %w", err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("read the CA: its key is a %T, want an ECDSA key", pair.PrivateKey)
	}
	if !pair.Leaf.IsCA {
		return nil, errors.New("read the CA: its certificate is not that of a CA")
	}
	return &CA{cert: pair.Leaf, key: key, now: time.Now}, nil
}

func makeCA(dir string) (*CA, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the CA: %w", err)
	}
	certPEM, keyPEM, err := newCA()
	if err != nil {
		return nil, err
	}
	if err := keyfile.Write(filepath.Join(dir, caKeyFile), keyPEM, 0o600); err != nil {
		return nil, fmt.Errorf("write the CA's key: %w", err)
	}
	if err := keyfile.Write(filepath.Join(dir, CACertFile), certPEM, 0o644); err != nil {
		return nil, fmt.Errorf("write the CA's certificate: %w", err)
	}
	return parseCA(certPEM, keyPEM)
}

// newCA makes a CA, which may sign the one that it follows.
func newCA() (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make the CA's key: %w", err)
	}
	serial := newSerial()
	now := time.Now().UTC()
	tmpl := &x509.Certificate{
		SerialNumber: serial,
		// The serial in the name keeps two conductors' CAs apart in whatever lists them.
		Subject: pkix.Name{Organization: []string{"Ingot"},
			CommonName: "Ingot CA " + serial.Text(16)[:8]},
		NotBefore:             longAgo(),
		NotAfter:              now.AddDate(caYears, 0, 0),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLen:            1,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, nil, fmt.Errorf("make the CA's certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("make the CA's key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), nil
}

// longAgo is before any clock that a machine with a dead battery shows, apart from 1970 itself, which agents don't go
// by.
func longAgo() time.Time { return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) }

func newSerial() *big.Int {
	b := make([]byte, 16)
	rand.Read(b)
	b[0] = b[0]&0x7f | 0x40 // positive, and always of the same length
	return new(big.Int).SetBytes(b)
}

// Fingerprint is the SHA-256, in hex, of the CA certificate's DER: what boot scripts carry as ingot.ca.
func (c *CA) Fingerprint() string {
	sum := sha256.Sum256(c.present().cert.Raw)
	return hex.EncodeToString(sum[:])
}

// PEM is the CA's certificate, for ramdisks that are to have it built in.
func (c *CA) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.cert.Raw})
}

// ServerTLS makes the server side's configuration with a fresh certificate for names (DNS names or IP addresses). The
// chain that is sent ends in the CA's own certificate, because the agent knows no more of it than its fingerprint.
// While the CA is rotated it leads to both; from the end of the overlap on a connection gets the configuration of the
// next CA alone.
func (c *CA) ServerTLS(names []string) (*tls.Config, error) {
	conf, err := c.serverTLS(names)
	if err != nil || c.next == nil {
		return conf, err
	}
	after, err := c.next.serverTLS(names)
	if err != nil {
		return nil, err
	}
	conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		if c.over() {
			return after, nil
		}
		return nil, nil
	}
	return conf, nil
}

// ControllerTLS is ServerTLS for management controllers, which have no certificates and may be old.
func (c *CA) ControllerTLS(names []string) (*tls.Config, error) {
	conf, err := c.ServerTLS(names)
	if err != nil {
		return nil, err
	}
	old := func(conf *tls.Config) {
		conf.MinVersion, conf.NextProtos, conf.ClientAuth = tls.VersionTLS12, []string{"http/1.1"}, tls.NoClientCert
	}
	old(conf)
	if next := conf.GetConfigForClient; next != nil {
		conf.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			after, err := next(hello)
			if after != nil {
				after = after.Clone()
				old(after)
			}
			return after, err
		}
	}
	return conf, nil
}

func (c *CA) serverTLS(names []string) (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the server's key: %w", err)
	}
	now := c.now().UTC()
	tmpl := &x509.Certificate{
		SerialNumber: newSerial(),
		Subject:      pkix.Name{Organization: []string{"Ingot"}, CommonName: "ingotd"},
		NotBefore:    longAgo().AddDate(1, 0, 0), // after the CA's own, so that this moment is inside both
		NotAfter:     earlier(now.AddDate(serverYears, 0, 0), c.cert.NotAfter),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, n)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, c.cert, key.Public(), c.key)
	if err != nil {
		return nil, fmt.Errorf("make the server's certificate: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(c.cert)
	chain := [][]byte{der, c.cert.Raw}
	if c.next != nil {
		pool.AddCert(c.next.cert)
		cross, err := c.next.sign(c)
		if err != nil {
			return nil, err
		}
		chain = append(chain, cross, c.next.cert.Raw)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		NextProtos:   []string{"h2"},
		Certificates: []tls.Certificate{{Certificate: chain, PrivateKey: key}},
		ClientAuth:   tls.VerifyClientCertIfGiven,
		ClientCAs:    pool,
		// A resumed connection would carry a certificate past the present checks; agents connect too rarely to miss
		// tickets.
		SessionTicketsDisabled: true,
	}, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// identity is the content of a client's certificate.
type identity struct {
	node       string
	boot       string
	generation uint64
}

// uri is where the identity is kept in a certificate: a URI name, which unlike a common name can't be mistaken for a
// host's.
func (id identity) uri() *url.URL {
	return &url.URL{Scheme: "ingot", Host: "node", Path: "/" + id.node,
		RawQuery: url.Values{"boot": {id.boot}, "generation": {strconv.FormatUint(id.generation, 10)}}.Encode()}
}

// issue makes a client certificate for an agent's public key. It returns its DER and serial number in hex.
func (c *CA) issue(pub any, id identity) (der []byte, serial string, err error) {
	if c.next != nil { // a certificate issued now must be valid after the overlap
		c = c.next
	}
	now := c.now().UTC()
	tmpl := &x509.Certificate{
		SerialNumber: newSerial(),
		Subject:      pkix.Name{Organization: []string{"Ingot"}, CommonName: id.node},
		URIs:         []*url.URL{id.uri()},
		NotBefore:    longAgo().AddDate(1, 0, 0), // a conductor's clock may be set back too
		NotAfter:     earlier(now.AddDate(0, 0, clientDays), c.cert.NotAfter),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err = x509.CreateCertificate(rand.Reader, tmpl, c.cert, pub, c.key)
	if err != nil {
		return nil, "", fmt.Errorf("make a client certificate: %w", err)
	}
	return der, tmpl.SerialNumber.Text(16), nil
}

// identify reads the identity out of a certificate that has been verified.
func identify(cert *x509.Certificate) (identity, error) {
	for _, u := range cert.URIs {
		if u.Scheme != "ingot" || u.Host != "node" || len(u.Path) < 2 {
			continue
		}
		q := u.Query()
		gen, err := strconv.ParseUint(q.Get("generation"), 10, 64)
		if err != nil {
			return identity{}, fmt.Errorf("read the certificate's generation: %w", err)
		}
		return identity{node: u.Path[1:], boot: q.Get("boot"), generation: gen}, nil
	}
	return identity{}, errors.New("the certificate names no node")
}
