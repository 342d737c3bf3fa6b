package doctor_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/agents/erasure"
	"github.com/ingot-metal/ingot/conductor/app/doctor"
	"github.com/ingot-metal/ingot/conductor/app/doctor/firewall"
	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/cloudsim"
	"github.com/ingot-metal/ingot/test/kit/switched"
	"github.com/ingot-metal/ingot/tools/lab/vswitch"
)

// healthy is an installation that lacks nothing.
func healthy(t *testing.T) doctor.Patient {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	st, err := store.Open(t.Context(), store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		n := &node.Node{Name: fmt.Sprint("n", i), Driver: "x",
			Extra: map[string]any{"filler": strings.Repeat("x", 20000)}}
		if err := st.CreateNode(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := agents.OpenCA(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := erasure.OpenKey(dir); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.DataDir, c.API.Listen, c.Agents.Listen = dir, "127.0.0.1:0", "127.0.0.1:0"
	return doctor.Patient{Config: c}
}

// worst returns the findings of a check that are no OK.
func worst(all []doctor.Finding, check string) (out []doctor.Finding) {
	for _, f := range all {
		if f.Check == check && f.Status != doctor.OK {
			out = append(out, f)
		}
	}
	return out
}

func TestHealthy(t *testing.T) {
	all := doctor.Examine(t.Context(), healthy(t))
	seen := map[string]bool{}
	for _, f := range all {
		seen[f.Check] = true
		if f.Status == doctor.Fault || f.Detail == "" || f.Status == doctor.OK != (f.Remedy == "") {
			t.Errorf("%+v", f)
		}
	}
	for _, check := range []string{"configuration", "data directory", "permissions", "keys", "database", "CA",
		"certificates", "clock", "ports", "firewall", "network", "boot files", "switches", "clouds", "free space",
		"limits"} {
		if !seen[check] {
			t.Errorf("%s was not looked at", check)
		}
	}
	// Where nothing was ever started there is nothing to complain of but that.
	p := healthy(t)
	p.Config.DataDir = filepath.Join(p.Config.DataDir, "none")
	for _, f := range doctor.Examine(t.Context(), p) {
		if f.Status == doctor.Fault {
			t.Errorf("without a data directory: %+v", f)
		}
	}
}

// TestSpace looks where data and images are, also before their folders are made.
func TestSpace(t *testing.T) {
	kit.NeedRoot(t)
	space := func(megabytes int) string {
		t.Helper()
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", megabytes)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		return dir
	}
	for _, c := range []struct {
		data, images int // MiB; 0: the disk of this host, which has more
		want         []doctor.Status
	}{
		{64, 64, []doctor.Status{doctor.Fault, doctor.Fault}},
		{512, 0, []doctor.Status{doctor.Warning}},
		{2048, 512, []doctor.Status{doctor.OK, doctor.Warning}},
		{2048, -1, []doctor.Status{doctor.OK}}, // on the same file system
	} {
		p := healthy(t)
		p.Address = netip.MustParseAddr("127.0.0.1")
		p.Config.DataDir = filepath.Join(space(c.data), "not", "made", "yet")
		p.Config.Netboot.ImagesDir = filepath.Join(p.Config.DataDir, "images")
		if c.images > 0 {
			p.Config.Netboot.ImagesDir = filepath.Join(space(c.images), "images")
		} else if c.images == 0 {
			p.Config.Netboot.ImagesDir = ""
		}
		var got []doctor.Status
		for _, f := range doctor.Examine(t.Context(), p) {
			if f.Check == "free space" {
				got = append(got, f.Status)
				if remedy := strings.Contains(f.Remedy, "make room"); !strings.Contains(f.Detail, " MiB ") ||
					remedy == (f.Status == doctor.OK) {
					t.Errorf("%+v", f)
				}
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("with %d MiB for data and %d for images: %v, want %v", c.data, c.images, got, c.want)
		}
	}
}

// TestFaultsHaveRemedies: each thing that can be wrong is found by the check for it, with what to do.
func TestFaultsHaveRemedies(t *testing.T) {
	for _, c := range []struct {
		name, check string
		status      doctor.Status
		spoil       func(t *testing.T, p *doctor.Patient)
		want        []string // in detail or remedy
	}{
		{"configuration", "configuration", doctor.Fault,
			func(_ *testing.T, p *doctor.Patient) { p.ConfigFault = config.ErrInvalid }, []string{"not valid"}},
		{"open directory", "data directory", doctor.Fault,
			func(t *testing.T, p *doctor.Patient) { chmod(t, p.Config.DataDir, 0o755) }, []string{"chmod o= "}},
		{"open key", "permissions", doctor.Fault,
			func(t *testing.T, p *doctor.Patient) { chmod(t, p.Config.DataDir+"/ca.key", 0o644) },
			[]string{"chmod 600", "ca.key"}},
		{"no key", "keys", doctor.Fault, func(t *testing.T, p *doctor.Patient) { remove(t, p.Config.DataDir+"/key") },
			[]string{"missing", "elsewhere"}},
		{"no database", "database", doctor.Fault,
			func(t *testing.T, p *doctor.Patient) { remove(t, p.Config.DataDir+"/ingot.db") },
			[]string{"is missing", "ingotd restore"}},
		{"damaged database", "database", doctor.Fault, func(t *testing.T, p *doctor.Patient) {
			f, err := os.OpenFile(p.Config.DataDir+"/ingot.db", os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt([]byte(strings.Repeat("garbage!", 10*512)), 40*4096); err != nil {
				t.Fatal(err)
			}
		}, []string{"is damaged", "ingotd restore"}},
		{"no CA key", "CA", doctor.Fault, func(t *testing.T, p *doctor.Patient) {
			remove(t, p.Config.DataDir+"/ca.key")
		}, []string{"restore"}},
		{"no CA", "CA", doctor.Warning, func(t *testing.T, p *doctor.Patient) { remove(t, p.Config.DataDir+"/ca.crt") },
			[]string{"restore"}},
		{"CA ends", "certificates", doctor.Warning,
			func(t *testing.T, p *doctor.Patient) { at(t, p, -29*24*time.Hour) },
			[]string{"in 29 days", "ingotd ca rotate"}},
		{"CA ended", "certificates", doctor.Fault, func(t *testing.T, p *doctor.Patient) { at(t, p, time.Hour) },
			[]string{"ended on", "ingotd ca rotate"}},
		{"API's certificate", "certificates", doctor.Fault, func(_ *testing.T, p *doctor.Patient) {
			p.Config.API.TLSCert = p.Config.DataDir + "/none"
		}, []string{"api.tls_cert"}},
		{"clock", "clock", doctor.Fault, func(_ *testing.T, p *doctor.Patient) {
			p.Now = func() time.Time { return time.Now().AddDate(-1, 0, 0) }
		}, []string{"NTP"}},
		{"taken port", "ports", doctor.Fault, func(t *testing.T, p *doctor.Patient) { take(t, p) },
			[]string{"taken by another", "api.listen"}},
		{"no loaders", "boot files", doctor.Fault, func(_ *testing.T, p *doctor.Patient) {
			p.Address, p.Config.Netboot.LoaderDir = netip.MustParseAddr("127.0.0.1"), p.Config.DataDir+"/none"
			p.Config.Netboot.TFTP = false
		}, []string{"package ipxe"}},
		{"no table of switches", "switches", doctor.Fault, func(_ *testing.T, p *doctor.Patient) {
			p.Config.Switches.File = p.Config.DataDir + "/none"
		}, []string{"switches.file", "no such file"}},
		{"no switch", "switches", doctor.Fault, func(t *testing.T, p *doctor.Patient) {
			_, key, err := vswitch.NewHostKey()
			if err != nil {
				t.Fatal(err)
			}
			tableOf(t, p, kit.FreeAddr(t), key)
		}, []string{"switch leaf-1", "connection refused", "make it answer"}},
		{"no VLAN", "switches", doctor.Fault, func(t *testing.T, p *doctor.Patient) { leaf(t, p, 100) },
			[]string{"switch leaf-1 lacks VLAN 999", "make them on the switch"}},
		{"no file of clouds", "clouds", doctor.Fault, func(_ *testing.T, p *doctor.Patient) {
			p.Config.OpenStack.CloudsFile = p.Config.DataDir + "/none"
		}, []string{"can't be read: no such file", "openstack.clouds_file"}},
		{"no cloud in it", "clouds", doctor.Fault, func(t *testing.T, p *doctor.Patient) {
			file := filepath.Join(t.TempDir(), "clouds.yaml")
			if err := os.WriteFile(file, []byte("clouds: {}\npassword: xyz"), 0o600); err != nil {
				t.Fatal(err)
			}
			p.Config.OpenStack.CloudsFile = file
		}, []string{"not YAML with clouds"}},
		{"password of a cloud", "clouds", doctor.Fault, func(t *testing.T, p *doctor.Patient) {
			sim := cloudsim.New(t)
			p.Config.OpenStack.CloudsFile = sim.File(t, "lab")
			sim.SetPassword("another")
		}, []string{`cloud "lab"`, "Keystone refuses", "correct the file"}},
		{"no ramdisk", "boot files", doctor.Fault, func(_ *testing.T, p *doctor.Patient) {
			p.Address, p.Config.Netboot.RamdiskDir = netip.MustParseAddr("127.0.0.1"), p.Config.DataDir+"/none"
			p.Config.Netboot.TFTP = false
		}, []string{"ingot ramdisk build"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := healthy(t)
			c.spoil(t, &p)
			found := worst(doctor.Examine(t.Context(), p), c.check)
			text := fmt.Sprint(found)
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("%s: %q does not say %q", c.check, text, want)
				}
			}
			for _, f := range found {
				if f.Remedy == "" {
					t.Errorf("%+v has no remedy", f)
				}
			}
			if len(found) == 0 || found[0].Status != c.status {
				t.Errorf("found %+v, want a %s", found, c.status)
			}
		})
	}
	p := healthy(t)
	p.Config.OpenStack.CloudsFile = cloudsim.New(t).File(t, "lab")
	if found := worst(doctor.Examine(t.Context(), p), "clouds"); len(found) > 0 {
		t.Errorf("a cloud that can be used is complained of: %+v", found)
	}
	take(t, &p)
	p.Running = true
	if found := worst(doctor.Examine(t.Context(), p), "ports"); len(found) > 0 {
		t.Errorf("the ports of a running ingotd are complained of: %+v", found)
	}
}

// leaf starts a switch with VLANs, of which the installation has the only port.
func leaf(t *testing.T, p *doctor.Patient, vlans ...int) *vswitch.Switch {
	t.Helper()
	s := vswitch.New("leaf-1", vswitch.NXOS, "ingot", "password-of-leaf-1", "Ethernet1/1")
	s.AddVLANs(vlans...)
	address, key := switched.Serve(t, s)
	tableOf(t, p, address, key)
	return s
}

// tableOf writes a table of one switch.
func tableOf(t *testing.T, p *doctor.Patient, address, key string) {
	t.Helper()
	dir := t.TempDir()
	p.Config.Switches.File = filepath.Join(dir, "switches.yaml")
	password := filepath.Join(dir, "password")
	text := fmt.Sprintf(`networks: {provisioning: {vlan: 100}, quarantine: {vlan: 999}}
switches:
  leaf-1: {address: %q, dialect: cisco_nxos, ids: ["00:1c:73:00:00:01"], host_key: %q, username: ingot,
    password_file: %s, ports: [Ethernet1/1]}
`, address, key, password)
	if err := errors.Join(os.WriteFile(p.Config.Switches.File, []byte(text), 0o600),
		os.WriteFile(password, []byte("password-of-leaf-1"), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// TestSwitchThatIsWell: the doctor logs in, reads, and changes nothing.
func TestSwitchThatIsWell(t *testing.T) {
	p := healthy(t)
	s := leaf(t, &p, 100, 999)
	for _, f := range doctor.Examine(t.Context(), p) {
		if f.Check == "switches" && (f.Status != doctor.OK || !strings.Contains(f.Detail, "leaf-1 has all VLANs, and shows all 1 ports")) {
			t.Errorf("%+v", f)
		}
	}
	lines, sessions, _ := s.Lines()
	if sessions != 1 || slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "conf") }) {
		t.Errorf("in %d sessions it said %q", sessions, lines)
	}
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// at sets the clock to so long after the CA's end.
func at(t *testing.T, p *doctor.Patient, after time.Duration) {
	t.Helper()
	ca, err := agents.ReadCA(p.Config.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	p.Now = func() time.Time { return ca.Ends().Add(after) }
}

// take listens where the API would.
func take(t *testing.T, p *doctor.Patient) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	p.Config.API.Listen = l.Addr().String()
}

// TestFirewall: what there is is named, with everything that it has to let in.
func TestFirewall(t *testing.T) {
	p := healthy(t)
	p.Config.Netboot.DHCP, p.Config.Netboot.Interface, p.Address = "server", "lo", netip.MustParseAddr("10.0.0.1")
	p.Config.Agents.Listen = ":6386"
	find := func() doctor.Finding {
		t.Helper()
		for _, f := range doctor.Examine(t.Context(), p) {
			if f.Check == "firewall" {
				return f
			}
		}
		t.Fatal("the firewall is not looked at")
		return doctor.Finding{}
	}
	if f := find(); f.Detail != "nothing is dropped" || f.Remedy != "" {
		t.Errorf("without chains: %+v", f)
	}
	p.ChainsFault = fmt.Errorf("ask: %w", os.ErrPermission)
	if f := find(); f.Detail != "only root can look at it" {
		t.Errorf("without rights: %+v", f)
	}
	p.Chains = []firewall.Chain{{Family: "inet", Table: "filter", Name: "input", Drops: true, Rules: 3}}
	p.ChainsFault = nil
	f := find()
	if want := "inet filter input: rules 3, all else is dropped"; f.Detail != want || f.Status != doctor.OK {
		t.Errorf("%+v, want %q", f, want)
	}
	if want := "let in TCP 6386 from machines, TCP 8080 from machines and controllers, UDP 69 from machines, " +
		"UDP 67 from machines"; f.Remedy != want {
		t.Errorf("the remedy is %q, want %q", f.Remedy, want)
	}
}
