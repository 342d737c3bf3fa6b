package setup

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	out, err := s.run(Answers{Auth: "none", TLSCert: "none"}, []string{"eth9", "eth2", "eth0", "maybe", "server",
		"10.0.0.9", "192.0.2.100", "192.0.2.120", "here", "127.0.0.1:7000", "images", "/srv/images-of-test", "no"})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{`"eth9" is none of none, eth0, eth1, eth2`, "eth2 has no IPv4 address",
		`"maybe" is none of server, proxy, off`, `"10.0.0.9" is no address in 192.0.2.0/24`, `"here" is not HOST:PORT`,
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
		!strings.Contains(err.Error(), `"dhcp" is none of`) {
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
