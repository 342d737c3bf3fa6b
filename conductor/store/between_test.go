package store

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
)

// certificate writes a certificate of its own for a host name, and its key, as PEM into dir. It returns the name of the
// certificate's file.
func certificate(t *testing.T, dir, host string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: host},
		DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, host+".crt")
	for file, block := range map[string]*pem.Block{name: {Type: "CERTIFICATE", Bytes: der},
		filepath.Join(dir, host+".key"): {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return name
}

// TestVerifyFull: with sslmode=verify-full a server is used whose certificate is of the CA and of the name in the
// address, and no other.
func TestVerifyFull(t *testing.T) {
	c := pgserver.New(t)
	_, plain := c.Database(t)
	cert, other := certificate(t, c.Dir, "localhost"), certificate(t, t.TempDir(), "elsewhere")
	key := strings.TrimSuffix(cert, ".crt") + ".key"
	if os.Geteuid() == 0 { // the server is not root, and insists that its key is its own
		fi, err := os.Stat(c.Dir)
		if err != nil {
			t.Fatal(err)
		}
		owner, ok := fi.Sys().(*syscall.Stat_t)
		if !ok {
			t.Fatalf("%T", fi.Sys())
		}
		for _, name := range []string{cert, key} {
			if err := os.Chown(name, int(owner.Uid), int(owner.Gid)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start("ssl=on", "ssl_cert_file="+cert, "ssl_key_file="+key); err != nil {
		t.Fatal(err)
	}
	at := func(host, ca string) Options {
		u := strings.Replace(plain, "127.0.0.1", host, 1)
		return Options{Dir: t.TempDir(), Password: pgserver.Password,
			URL: strings.Replace(u, "sslmode=disable", "sslmode=verify-full&sslrootcert="+url.QueryEscape(ca), 1)}
	}
	s := openTest(t, at("localhost", cert))
	if err := s.CreateNode(t.Context(), &node.Node{Name: "n", Driver: "x"}); err != nil {
		t.Error(err)
	}
	used, err := c.Query(t.Context(), s.server.Database(),
		"SELECT BOOL_AND(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'ingotd'")
	if err != nil || used != "t" {
		t.Errorf("TLS is in use: %q, %v", used, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	refusedWith(t, at("127.0.0.1", cert), "can't be used", "127.0.0.1")
	refusedWith(t, at("localhost", other), "can't be used", "certificate")
}

// bouncer starts Debian's PgBouncer in front of a cluster, and returns the address of a database through it.
func bouncer(t *testing.T, c *pgserver.Cluster, database, mode string) string {
	t.Helper()
	kit.NeedPrograms(t, "pgbouncer")
	dir, err := os.MkdirTemp("", "ingot-bouncer-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	host, port, err := net.SplitHostPort(kit.FreeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	users, config := filepath.Join(dir, "users"), filepath.Join(dir, "pgbouncer.ini")
	for name, text := range map[string]string{users: fmt.Sprintf("%q %q\n", pgserver.User, pgserver.Password),
		config: fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%d
[pgbouncer]
listen_addr = %s
listen_port = %s
unix_socket_dir =
auth_type = scram-sha-256
auth_file = %s
pool_mode = %s
`, c.Port, host, port, users, mode)} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("pgbouncer", config)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534} // it refuses root
	}
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // an error says that it has ended
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(said.String())
		}
	})
	eventually(t, "PgBouncer answers", func() bool {
		conn, err := net.Dial("tcp", net.JoinHostPort(host, port))
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", pgserver.User, net.JoinHostPort(host, port), database)
}

// TestPgBouncer: two conductors work through a pool by session and hear of each other; a pool by transaction, in which
// locks and wake-ups would be another's, is refused.
func TestPgBouncer(t *testing.T) {
	c := pgserver.New(t)
	name, _ := c.Database(t)
	key := make([]byte, 32)
	at := func(url, conductor string) Options {
		return Options{Dir: t.TempDir(), URL: url, Password: pgserver.Password, Key: key, Name: conductor}
	}
	by := bouncer(t, c, name, "session")
	one, two := openTest(t, at(by, "c1")), openTest(t, at(by, "c2"))
	n := &node.Node{Name: "n", Driver: "x"}
	if err := one.CreateNode(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if _, err := two.UpdateNode(t.Context(), n.UUID, func(n *node.Node) error {
		n.Description = "two"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if got, err := one.Node(t.Context(), n.UUID); err != nil || got.Description != "two" {
		t.Errorf("at the other conductor: %+v, %v", got, err)
	}
	eventually(t, "the first hears of the other's event", func() bool { return one.LastEvent() == two.LastEvent() })
	other, _ := c.Database(t)
	refusedWith(t, at(bouncer(t, c, other, "transaction"), "c1"), "pool", "pool_mode = session")
}
