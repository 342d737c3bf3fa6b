package setup

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/ingot-metal/ingot/conductor/config"
)

// office has another DHCP server, machines has none.
var (
	office   = Interface{Name: "eth0", Address: netip.MustParsePrefix("192.0.2.7/24"), Up: true, Gives: true}
	machines = Interface{Name: "eth1", Address: netip.MustParsePrefix("10.0.0.1/24"), Up: true}
	unused   = Interface{Name: "eth2"}
)

type site struct {
	t    *testing.T
	dir  string
	host Host
}

func newSite(t *testing.T, all ...Interface) *site {
	return &site{t: t, dir: t.TempDir(), host: Host{User: -1, Group: -1, Start: "start ingotd",
		Interfaces: func(context.Context) ([]Interface, error) { return all, nil },
		Examine: func(_ context.Context, cfg config.Config) []Finding {
			return []Finding{{Check: "ports", Detail: "tcp " + cfg.API.Listen + " is taken", Remedy: "stop it"},
				{Check: "free space", Detail: "5 GiB", Well: true}}
		},
		Toward: func(to netip.Addr) (netip.Addr, error) {
			switch {
			case office.Address.Contains(to) || netip.MustParsePrefix("10.7.0.0/16").Contains(to): // which is routed
				return office.Address.Addr(), nil
			case machines.Address.Contains(to):
				return machines.Address.Addr(), nil
			}
			return netip.Addr{}, errors.New("network is unreachable")
		},
		Reach: func(_ context.Context, url string) error {
			if url != "https://keystone.example:5000" {
				return errors.New("connection refused")
			}
			return nil
		},
		Exists: func(path string) bool { _, err := os.Stat(path); return err == nil }}}
}

func (s *site) file() string { return filepath.Join(s.dir, "etc", "ingotd.yaml") }

// run runs setup with lines as the answers of a person; nil is no terminal.
func (s *site) run(a Answers, lines []string) (string, error) {
	s.t.Helper()
	var out strings.Builder
	a.File, a.DataDir = s.file(), filepath.Join(s.dir, "data")
	var in io.Reader
	if lines != nil {
		in = strings.NewReader(strings.Join(lines, "\n") + "\n")
	}
	err := Run(s.t.Context(), a, in, &out, s.host)
	return out.String(), err
}

func (s *site) config() config.Config {
	s.t.Helper()
	cfg, _, err := config.Load([]string{"--config", s.file()}, nil, io.Discard)
	if err != nil {
		s.t.Fatal(err)
	}
	return cfg
}

// TestProposals: with Enter to every question, machines get addresses on the network that has no DHCP server, from the
// half without the conductor, and the API wants the password that was printed.
func TestProposals(t *testing.T) {
	s := newSite(t, office, machines, unused)
	out, err := s.run(Answers{}, make([]string, 20))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cfg := s.config()
	if n := cfg.Netboot; n.Interface != "eth1" || n.DHCP != "server" || n.RangeStart != "10.0.0.128" ||
		n.RangeEnd != "10.0.0.254" || n.ImagesDir != filepath.Join(s.dir, "data", "images") {
		t.Errorf("netboot is %+v", n)
	}
	if a := cfg.API; a.Auth != "http_basic" || a.Listen != "127.0.0.1:6385" || a.TLSCert != "" {
		t.Errorf("api is %+v", a)
	}
	_, rest, _ := strings.Cut(out, "OS_USERNAME=admin OS_PASSWORD=")
	password, _, ok := strings.Cut(rest, "\n")
	b, err := os.ReadFile(cfg.API.HtpasswdFile)
	name, hash, _ := strings.Cut(strings.TrimSpace(string(b)), ":")
	if !ok || err != nil || name != "admin" || len(password) < 20 ||
		bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) != nil {
		t.Errorf("htpasswd %q (%v) does not have the password %q", b, err, password)
	}
	for file, want := range map[string]fs.FileMode{s.file(): 0o640, cfg.API.HtpasswdFile: 0o640, cfg.DataDir: 0o700} {
		if st, err := os.Stat(file); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v %v, want mode %o", file, st, err, want)
		}
	}
	for _, want := range []string{"eth0         192.0.2.7/24", "eth2         no IPv4 address, no link",
		"TO DO  ports        tcp 127.0.0.1:6385 is taken", "-> stop it", "ok     free space   5 GiB", "\n  start ingotd\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("setup does not print %q:\n%s", want, out)
		}
	}
}

// TestWrongAnswersAreAskedAgain: each with the reason, and the last one counts.
func TestWrongAnswersAreAskedAgain(t *testing.T) {
	s := newSite(t, office, machines, unused)
	out, err := s.run(Answers{Auth: "none", TLSCert: "none"}, []string{"eth9", "eth2", "eth0", "bmc",
		"10.9.0.1/24", "10.9.0.0/24", "maybe", "server",
		"10.0.0.9", "192.0.2.100", "192.0.2.120", "here", "127.0.0.1:7000", "images", "/srv/images-of-test", "no"})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{`"eth9" is not one of none, eth0, eth1, eth2`, "eth2 has no IPv4 address",
		`"bmc" is no network such as 10.1.0.0/24`, "10.9.0.1/24 is an address in a network: the network is 10.9.0.0/24",
		"TO DO  controllers  this host has no way to 10.9.0.0/24: network is unreachable",
		`"maybe" is not one of server, proxy, off`, `"10.0.0.9" is no address in 192.0.2.0/24`, `"here" is not HOST:PORT`,
		`"images" is not an absolute path`, "DHCP: server (this is the only one), proxy (beside another) or off [proxy]",
		"Nothing was written."} {
		if !strings.Contains(out, want) {
			t.Errorf("setup does not print %q:\n%s", want, out)
		}
	}
	if _, err := os.Stat(s.dir + "/etc"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the answer no there is a folder: %v", err)
	}
}

// TestFlagsAskNothing: a script gives flags, what they leave out is as proposed, and a wrong one ends it.
func TestFlagsAskNothing(t *testing.T) {
	s := newSite(t, office, machines)
	if out, err := s.run(Answers{}, nil); err == nil || !strings.Contains(err.Error(), "--interface") {
		t.Errorf("without a terminal and an interface: %v\n%s", err, out)
	}
	if out, err := s.run(Answers{Interface: "eth0", DHCP: "dhcp"}, nil); err == nil ||
		!strings.Contains(err.Error(), `--dhcp: "dhcp" is not one of`) {
		t.Errorf("with a wrong mode: %v\n%s", err, out)
	}
	if out, err := s.run(Answers{Interface: "eth0", Auth: "none", Listen: ":6385"}, nil); err == nil ||
		!strings.Contains(err.Error(), "api.listen") {
		t.Errorf("an open API without authentication: %v\n%s", err, out)
	}
	if _, err := os.Stat(s.file()); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a failed setup wrote a configuration: %v", err)
	}
	if out, err := s.run(Answers{Interface: "none", Auth: "none"}, nil); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cfg := s.config()
	if cfg.Agents.Advertise != "192.0.2.7:6386" || cfg.Netboot.DHCP != "off" || cfg.API.Auth != "none" {
		t.Errorf("configuration %+v %+v %+v", cfg.Agents, cfg.Netboot, cfg.API)
	}
}

// TestWrongFlags: each ends setup with a sentence that names the flag, and nothing is written.
func TestWrongFlags(t *testing.T) {
	s := newSite(t, office, machines)
	file := filepath.Join(s.dir, "file")
	if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, a := range map[string]Answers{
		"--range-start: 10.0.0.1 is this host's own address":                       {RangeStart: "10.0.0.1"},
		"--range-end: 10.0.0.9 lies before the first address, 10.0.0.10":           {RangeStart: "10.0.0.10", RangeEnd: "10.0.0.9"},
		`--range-end: "10.0.1.9" is no address in 10.0.0.0/24`:                     {RangeEnd: "10.0.1.9"},
		`--bmc-network: "10.0.0.0" is no network`:                                  {BMC: "10.0.0.0"},
		`--listen: "70000" is no port`:                                             {Listen: "127.0.0.1:70000"},
		"--tls-key: " + file + " and " + file + " are no certificate with its key": {TLSCert: file, TLSKey: file},
		"--tls-cert: /nowhere does not exist":                                      {TLSCert: "/nowhere"},
		`--user: "a:b" has a character`:                                            {User: "a:b"},
		`--images-dir: "images" is not an absolute path`:                           {Images: "images"},
		"--dhcp does not go with the other answers, such as --interface none":      {Interface: "none", DHCP: "maybe"},
		"--range-end does not go with the other answers":                           {DHCP: "proxy", RangeEnd: "10.0.0.9"},
		"--tls-key does not go with the other answers":                             {TLSCert: "none", TLSKey: file},
		"--user does not go with the other answers":                                {Auth: "none", User: "admin"},
		"--advertise does not go with the other answers":                           {Advertise: "10.0.0.1:6386"},
		"--keystone-user does not go with the other answers, such as --interface eth1 and --auth http_basic": {
			Keystone: Keystone{User: "ironic"}},
		`--keystone-url: "" is no address such as`:              {Auth: "keystone"},
		`--keystone-url: "keystone:5000" is no address such as`: {Auth: "keystone", Keystone: Keystone{URL: "keystone:5000"}},
		"--keystone-password-file: " + s.dir + "/etc/keystone-password does not exist: write the password into it first": {
			Auth: "keystone", Keystone: Keystone{URL: "https://keystone.example:5000"}},
	} {
		a.Interface = cmp.Or(a.Interface, "eth1")
		if out, err := s.run(a, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with %+v: %v, want %q\n%s", a, err, want, out)
		}
	}
	for _, c := range []struct{ file, data, want string }{
		{file + "/ingotd.yaml", s.dir, file + " is no folder"},
		{s.file(), file, file + " is no folder"},
		{s.file(), "data", `--data-dir: "data" is not an absolute path`},
		{s.dir, s.dir, "is a directory"},
	} {
		a := Answers{File: c.file, DataDir: c.data, Interface: "eth1"}
		if err := Run(t.Context(), a, nil, io.Discard, s.host); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("with %s and %s: %v, want %q", c.file, c.data, err, c.want)
		}
	}
	if _, err := os.Stat(filepath.Dir(s.file())); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a failed setup made a folder: %v", err)
	}
	if out, err := s.run(Answers{}, []string{"eth1"}); err == nil ||
		!strings.Contains(err.Error(), "nothing was written") {
		t.Errorf("questions that end early: %v\n%s", err, out)
	}
}

// TestSettingsAreNotOverwritten without --force; a file that sets nothing is no loss, and users always remain.
func TestSettingsAreNotOverwritten(t *testing.T) {
	s := newSite(t, machines)
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(s.file()), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(filepath.Dir(s.file()), name), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{"hostname: a\n", "no: [yaml", "netboot: {dhcp: proxy}\n"} {
		write("ingotd.yaml", text)
		if _, err := s.run(Answers{}, nil); err == nil || !strings.Contains(err.Error(), "--force") {
			t.Errorf("over %q: %v, want a hint at --force", text, err)
		}
		if b, err := os.ReadFile(s.file()); err != nil || string(b) != text {
			t.Errorf("the file is now %q (%v), want %q", b, err, text)
		}
	}
	write("htpasswd", "bob:kept\n")
	out, err := s.run(Answers{Force: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(s.config().API.HtpasswdFile); err != nil || string(b) != "bob:kept\n" {
		t.Errorf("the users are now %q (%v)", b, err)
	}
	if !strings.Contains(out, "OS_USERNAME=NAME OS_PASSWORD=PASSWORD") {
		t.Errorf("setup names a user that it did not make:\n%s", out)
	}
	write("ingotd.yaml", "# only\n#hostname: a\ndata_dir: /var/lib/ingot\n")
	if _, err := s.run(Answers{}, nil); err != nil {
		t.Errorf("over a file that sets nothing: %v", err)
	}
}

// TestControllers: setup says whether this host reaches the controllers, whether machines could get their addresses,
// and how to find them; without an interface for network boot, virtual media are served to them.
func TestControllers(t *testing.T) {
	for _, c := range []struct {
		answers Answers
		want    []string
	}{
		{Answers{Interface: "eth1", DHCP: "server", BMC: "10.0.0.0/24"}, []string{
			"ok     controllers  this host reaches 10.0.0.0/24 from its address 10.0.0.1",
			"TO DO  controllers  the addresses for machines, 10.0.0.128 to 10.0.0.254, are in their network",
			"\n  ingot bmc discover 10.0.0.0/24\n"}},
		{Answers{Interface: "eth1", DHCP: "server", BMC: "10.7.0.0/16"}, []string{
			"ok     controllers  this host reaches 10.7.0.0/16 from its address 192.0.2.7",
			"ok     controllers  for virtual media, they have to reach 10.0.0.1, which is not in their network"}},
		{Answers{Interface: "eth1", DHCP: "proxy", BMC: "10.0.0.0/24"}, []string{
			"ok     controllers  this host reaches 10.0.0.0/24 from its address 10.0.0.1"}},
	} {
		s := newSite(t, office, machines)
		out, err := s.run(c.answers, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("with %+v setup does not print %q:\n%s", c.answers, want, out)
			}
		}
		others := strings.Count(strings.Join(c.want, ""), "\n  ingot")
		if n := strings.Count(out, "controllers  "); n != len(c.want)-others {
			t.Errorf("with %+v setup has %d lines about controllers:\n%s", c.answers, n, out)
		}
	}
	s := newSite(t, office, machines)
	if out, err := s.run(Answers{Interface: "none", BMC: "10.7.0.0/16"}, nil); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cfg := s.config()
	if n := cfg.Netboot; n.Address != "192.0.2.7" || n.Interface != "" || n.DHCP != "off" || n.TFTP ||
		n.ImagesDir == "" || cfg.Agents.Advertise != "192.0.2.7:6386" {
		t.Errorf("for virtual media the configuration has %+v, agents %+v", n, cfg.Agents)
	}
}

// TestKeystoneAndTLS: with both, the API is open to other hosts, setup says whether Keystone answers, and makes no
// password.
func TestKeystoneAndTLS(t *testing.T) {
	for url, want := range map[string]string{
		"https://keystone.example:5000": "ok     keystone     https://keystone.example:5000 answers",
		"http://10.0.0.3:5000": "TO DO  keystone     http://10.0.0.3:5000 does not answer: connection refused\n" +
			"                      -> look at its address",
	} {
		s := newSite(t, office, machines)
		secret, cert, key := s.dir+"/secret", s.dir+"/api.pem", s.dir+"/api.key"
		writePair(t, cert, key)
		if err := os.WriteFile(secret, []byte("own\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := s.run(Answers{Interface: "eth1"}, []string{"none", "", "", "", "keystone", "nowhere", url, "",
			"secret", secret, cert, "", "", "", "yes"})
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, want := range []string{want, `"nowhere" is no address such as https://keystone.example:5000`,
			`"secret" is not an absolute path`, "Its key (PEM) [" + key + "]", "Address of the API [:6385]",
			"export INGOT_ENDPOINT=https://127.0.0.1:6385 OS_AUTH_URL=" + url +
				" OS_SYSTEM_SCOPE=all OS_USERNAME=NAME OS_PASSWORD=PASSWORD\n"} {
			if !strings.Contains(out, want) {
				t.Errorf("setup does not print %q:\n%s", want, out)
			}
		}
		a := s.config().API
		k := a.Keystone
		if a.Auth != "keystone" || k.AuthURL != url || k.Username != "ironic" || k.PasswordFile != secret ||
			a.HtpasswdFile != "" || a.Listen != ":6385" || a.TLSCert != cert || a.TLSKey != key {
			t.Errorf("api is %+v", a)
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(s.file()), "htpasswd")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("there is a file with users: %v", err)
		}
	}
}

// writePair writes a certificate and its key.
func writePair(t *testing.T, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der},
		key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestHalf(t *testing.T) {
	for _, c := range [][3]string{
		{"10.0.0.1/24", "10.0.0.128", "10.0.0.254"}, {"10.0.0.200/24", "10.0.0.1", "10.0.0.127"},
		{"10.1.2.3/16", "10.1.128.0", "10.1.255.254"}, {"10.0.0.9/29", "10.0.0.12", "10.0.0.14"},
		{"128.0.0.1/1", "192.0.0.0", "255.255.255.254"},
	} {
		first, last := half(netip.MustParsePrefix(c[0]))
		if first.String() != c[1] || last.String() != c[2] {
			t.Errorf("half(%s) = %s, %s, want %s, %s", c[0], first, last, c[1], c[2])
		}
	}
	if first, _ := half(netip.MustParsePrefix("10.0.0.0/31")); first.IsValid() {
		t.Errorf("half of a /31 begins at %s", first)
	}
}
