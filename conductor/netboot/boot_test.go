package netboot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/storetest"
)

const guidText = "00112233-4455-6677-8899-aabbccddeeff"

type rig struct {
	t     testing.TB
	st    *store.Store
	s     *Server
	dir   string
	clock atomic.Int64
	log   *lines
}

// lines keeps what is logged.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.b.Write(p) }

func (l *lines) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), s)
}

// newRig makes a server on a real store, with boot programs, a ramdisk and images that say what they are.
func newRig(t testing.TB, mode Mode, change func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), log: &lines{}}
	var err error
	now := func() time.Time { return time.Now().Add(time.Duration(r.clock.Load())) }
	if r.st, err = store.Open(t.Context(), store.Options{Dir: storetest.Fresh(t), Now: now}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.st.Close(); err != nil {
			t.Error(err)
		}
	})
	r.write("ipxe/undionly.kpxe", strings.Repeat("bios", 1000))
	r.write("ipxe/snponly.efi", strings.Repeat("uefi", 2000))
	r.write("ipxe/secret", "not for TFTP")
	r.write("images/debian.raw.zst", strings.Repeat("image", 1000))
	r.write("images/sub/tiny.raw", "tiny")
	r.write("outside", "outside of every root")
	if err := os.Symlink("../outside", filepath.Join(r.dir, "images/link")); err != nil {
		t.Fatal(err)
	}
	r.ramdisk("the kernel", "the initramfs")
	c := conf(mode)
	c.LoaderDir, c.RamdiskDir, c.ImagesDir = filepath.Join(r.dir, "ipxe"), filepath.Join(r.dir, "ramdisk"),
		filepath.Join(r.dir, "images")
	c.Hostname = "test"
	c.NotFound = func(err error) bool { return errors.Is(err, store.ErrNotFound) }
	c.HasPorts = func(ctx context.Context, id string) (bool, error) {
		p, err := r.st.Ports(ctx, store.PortQuery{NodeUUID: &id, Limit: 1})
		return len(p) > 0, err
	}
	c.OnFlatNetwork = func(n *node.Node) bool { return n.Interfaces["network"] == "flat" }
	c.Now = now
	if change != nil {
		change(&c)
	}
	if r.s, err = New(r.st, c, slog.New(slog.NewTextHandler(r.log, nil))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.s.files.close)
	r.s.neighbour = func(ip netip.Addr) string { // machines use the addresses that were leased to them
		l, err := r.st.LeaseByIP(context.Background(), ip.String())
		if err != nil {
			return ""
		}
		return l.MAC
	}
	return r
}

func (r *rig) write(name, text string) {
	r.t.Helper()
	name = filepath.Join(r.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
		r.t.Fatal(err)
	}
}

// ramdisk builds a ramdisk, with the boot loaders that are named.
func (r *rig) ramdisk(kernel, initrd string, loaders ...string) {
	r.t.Helper()
	file := func(name, text string) map[string]any {
		r.write("ramdisk/"+name, text)
		sum := sha256.Sum256([]byte(text))
		return map[string]any{"file": name, "size": len(text), "sha256": hex.EncodeToString(sum[:])}
	}
	var also []map[string]any
	for _, name := range loaders {
		also = append(also, file(name, strings.Repeat(name, 100)))
	}
	b, err := json.Marshal(map[string]any{"format": 1, "kernel": file("vmlinuz", kernel),
		"initramfs": file("initramfs.cpio.zst", initrd), "loaders": also})
	if err != nil {
		r.t.Fatal(err)
	}
	r.write("ramdisk/manifest.json", string(b))
}

// node makes a node in a state; open opens its boot window.
func (r *rig) node(state node.State, open bool, change func(*node.Node)) *node.Node {
	r.t.Helper()
	n := &node.Node{Driver: "ipmi", Provision: state, Job: &node.Job{ID: "job"}}
	if open {
		now := r.s.now()
		n.Generation = 1
		n.Boot = &node.Boot{OpenedAt: now, ClosesAt: now.Add(time.Hour), Generation: 1}
	}
	if change != nil {
		change(n)
	}
	if err := r.st.CreateNode(r.t.Context(), n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

func (r *rig) port(n *node.Node, mac net.HardwareAddr, pxe bool) {
	r.t.Helper()
	if err := r.st.CreatePort(r.t.Context(),
		&node.Port{NodeUUID: n.UUID, Address: mac.String(), PXEEnabled: pxe}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) update(n *node.Node, change func(*node.Node)) {
	r.t.Helper()
	if _, err := r.st.UpdateNode(r.t.Context(), n.UUID,
		func(n *node.Node) error { change(n); return nil }); err != nil {
		r.t.Fatal(err)
	}
}

// ask sends a packet and returns the reply, or nil.
func (r *rig) ask(typ dhcpv4.MessageType, mods ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	r.t.Helper()
	reply, _ := r.s.dhcpReply(r.t.Context(), packet(r.t, typ, mods...), nil, 67)
	return reply
}

// boot goes through DHCP as a machine does, and returns the address and the boot file.
func (r *rig) boot(mods ...dhcpv4.Modifier) (addr, file string) {
	r.t.Helper()
	o := r.ask(dhcpv4.MessageTypeDiscover, mods...)
	if o == nil {
		return "", ""
	}
	ack := r.ask(dhcpv4.MessageTypeRequest,
		append(slices.Clone(mods), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(o.ServerIdentifier())),
			dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(o.YourIPAddr)))...)
	if ack == nil || ack.MessageType() != dhcpv4.MessageTypeAck {
		r.t.Fatalf("after an offer of %s the request got %v", o.YourIPAddr, ack)
	}
	return ack.YourIPAddr.String(), ack.BootFileNameOption()
}

// get fetches over HTTP as from an address.
func (r *rig) get(target, from string, header ...string) *http.Response {
	r.t.Helper()
	req := httptest.NewRequest("GET", target, nil)
	req.RemoteAddr = from + ":1234"
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	r.s.Handler().ServeHTTP(w, req)
	return w.Result()
}

func body(t testing.TB, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestAdmission(t *testing.T) {
	linux := []dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptClassIdentifier("linux"))}
	bios := pxe(iana.INTEL_X86PC, classPXE)
	for _, c := range []struct {
		name          string
		prepare       func(r *rig)
		mods          []dhcpv4.Modifier
		address, boot bool
	}{
		{"unknown", func(*rig) {}, bios, false, false},
		{"port, window open", func(r *rig) { r.port(r.node(node.DeployWait, true, nil), testMAC, true) }, bios, true,
			true},
		{"port, virtual media", func(r *rig) {
			r.port(r.node(node.DeployWait, true, func(n *node.Node) { n.Boot.Media = true }), testMAC, true)
		}, bios, true, false},
		{"GUID, virtual media", func(r *rig) {
			r.node(node.InspectWait, true,
				func(n *node.Node) { n.SystemGUIDs, n.Boot.Media = []string{guidText}, true })
		}, bios, true, false},
		{"port without pxe_enabled", func(r *rig) { r.port(r.node(node.DeployWait, true, nil), testMAC, false) }, bios,
			true, false},
		{"port, no boot", func(r *rig) { r.port(r.node(node.Available, false, nil), testMAC, true) }, bios, false,
			false},
		{"port, window run out", func(r *rig) {
			r.port(r.node(node.DeployWait, true, nil), testMAC, true)
			r.clock.Store(int64(2 * time.Hour))
		}, bios, false, false},
		{"port, agent at work", func(r *rig) {
			r.port(r.node(node.DeployWait, true,
				func(n *node.Node) { n.Boot.EnrolledAt, n.Boot.ClosedAt = time.Now(), time.Now() }), testMAC, true)
		}, linux, true, false},
		{"port, agent at work, but it boots again", func(r *rig) {
			r.port(r.node(node.DeployWait, true,
				func(n *node.Node) { n.Boot.EnrolledAt, n.Boot.ClosedAt = time.Now(), time.Now() }), testMAC, true)
		}, bios, true, false},
		{"port, boot ended", func(r *rig) {
			r.port(r.node(node.Deploying, true,
				func(n *node.Node) { n.Boot.EnrolledAt, n.Boot.ClosedAt, n.Boot.Ended = time.Now(), time.Now(), true }),
				testMAC, true)
		}, linux, false, false},
		{"instance on the flat network", func(r *rig) {
			r.port(r.node(node.Active, false,
				func(n *node.Node) { n.Interfaces = map[string]string{"network": "flat"} }), testMAC, true)
		}, bios, true, false},
		{"instance elsewhere", func(r *rig) { r.port(r.node(node.Active, false, nil), testMAC, true) }, bios, false,
			false},
		{"no instance, though flat", func(r *rig) {
			r.port(r.node(node.Available, false,
				func(n *node.Node) { n.Interfaces = map[string]string{"network": "flat"} }), testMAC, true)
		}, bios, false, false},
		{"GUID during inspection", func(r *rig) {
			r.node(node.InspectWait, true, func(n *node.Node) { n.SystemGUIDs = []string{guidText} })
		}, bios, true, true},
		{"GUID in the other byte order", func(r *rig) {
			r.node(node.Inspecting, true, func(n *node.Node) { n.SystemGUIDs = []string{guidTexts(guidBytes[1:])[0]} })
		}, bios, true, true},
		{"GUID, not inspecting", func(r *rig) {
			r.node(node.DeployWait, true, func(n *node.Node) { n.SystemGUIDs = []string{guidText} })
		}, bios, false, false},
		{"GUID, window not open", func(r *rig) {
			r.node(node.Inspecting, false, func(n *node.Node) { n.SystemGUIDs = []string{guidText} })
		}, bios, false, false},
		{"GUID, but the node has ports", func(r *rig) {
			r.port(r.node(node.InspectWait, true, func(n *node.Node) { n.SystemGUIDs = []string{guidText} }),
				net.HardwareAddr{2, 0, 0, 0, 0, 9}, true)
		}, bios, false, false},
		{"GUID not told", func(r *rig) {
			r.node(node.InspectWait, true, func(n *node.Node) { n.SystemGUIDs = []string{guidText} })
		}, linux, false, false},
		{"GUID of two nodes", func(r *rig) {
			for range 2 {
				r.node(node.InspectWait, true, func(n *node.Node) { n.SystemGUIDs = []string{guidText} })
			}
		}, bios, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, Leases, nil)
			r.t = t
			c.prepare(r)
			addr, file := r.boot(c.mods...)
			if (addr != "") != c.address || (file != "") != c.boot {
				t.Errorf("address %q, file %q, want address %v, boot %v\n%s", addr, file, c.address, c.boot,
					r.log.b.String())
			}
			if !c.boot {
				q, err := read(packet(t, dhcpv4.MessageTypeDiscover, c.mods...))
				if err != nil {
					t.Fatal(err)
				}
				if a, err := r.s.admit(t.Context(), q.mac, q.guids); err != nil || a.why == "" {
					t.Errorf("nothing to boot, reason %q, %v", a.why, err)
				}
			}
			if !c.address {
				for range 5 {
					r.ask(dhcpv4.MessageTypeDiscover, c.mods...)
				}
				if n := r.log.count("not answered"); n != 1 {
					t.Errorf("%d lines about a refused machine, want 1", n)
				}
			}
		})
	}
}

// What a refused machine's log line says: the true reason, in every mode, for DHCP and for the boot script.
func TestReasons(t *testing.T) {
	mac := "its MAC " + testMAC.String() + " is a port of node "
	flat := func(n *node.Node) { n.Interfaces = map[string]string{"network": "flat"} }
	atWork := func(n *node.Node) { n.Boot.EnrolledAt, n.Boot.ClosedAt = time.Now(), time.Now() }
	for _, c := range []struct {
		name    string
		prepare func(r *rig)
		want    []string
	}{
		{"active, pxe_enabled=false", func(r *rig) { r.port(r.node(node.Active, false, flat), testMAC, false) },
			[]string{mac, "which is active, and the port has pxe_enabled=false"}},
		{"pxe_enabled=false", func(r *rig) { r.port(r.node(node.CleanWait, true, nil), testMAC, false) },
			[]string{mac, "but the port has pxe_enabled=false"}},
		{"agent at work", func(r *rig) { r.port(r.node(node.CleanWait, true, atWork), testMAC, true) },
			[]string{mac, "whose agent has already enrolled"}},
		{"window run out", func(r *rig) {
			r.port(r.node(node.CleanWait, true, nil), testMAC, true)
			r.clock.Store(int64(2 * time.Hour))
		}, []string{mac, "whose boot window closed at ", "(state clean wait)"}},
		{"not expected", func(r *rig) { r.port(r.node(node.Available, false, nil), testMAC, true) },
			[]string{mac, "which is not expected to boot (state available)"}},
		{"unknown", func(*rig) {}, []string{"its MAC is no node's port, and it told no node's GUID"}},
	} {
		for _, mode := range []Mode{Leases, Proxy, Off} {
			t.Run(c.name+"/"+string(mode), func(t *testing.T) {
				r := newRig(t, mode, nil)
				c.prepare(r)
				addr := "192.0.2.7"
				if mode != Off {
					if got, file := r.boot(ipxePacket(iana.EFI_X86_64)...); file != "" {
						t.Errorf("it was given %s to boot", file)
					} else if got != "" {
						addr = got
					}
				}
				if resp := r.get("/boot.ipxe?mac="+testMAC.String(), addr); resp.StatusCode != http.StatusForbidden {
					t.Errorf("boot script: %s", resp.Status)
				}
				if got := r.get("/boot.ipxe?mac=$%7bnet0/mac%7d", addr); got.StatusCode != http.StatusForbidden {
					t.Errorf("boot script with a broken URL: %s", got.Status)
				}
				lines := strings.Split(strings.TrimSpace(r.log.b.String()), "\n")
				for _, l := range lines {
					if strings.HasSuffix(l, `: "`) || strings.Contains(l, "has this address") {
						t.Errorf("a line without a reason: %s", l)
					}
				}
				match := func(about string) bool {
					return slices.ContainsFunc(lines, func(l string) bool {
						ok := strings.Contains(l, about)
						for _, w := range c.want {
							ok = ok && strings.Contains(l, w)
						}
						return ok
					})
				}
				if dhcp := match("DHCP request not answered") ||
					match("machine gets an address, but nothing to boot"); dhcp != (mode != Off) {
					t.Errorf("reason of DHCP in the log: %v, want %v\n%s", dhcp, mode != Off, r.log.b.String())
				}
				leased := addr != "192.0.2.7"
				if script := match("boot script not served"); script != (mode != Leases || leased) {
					t.Errorf("reason of the script in the log: %v\n%s", script, r.log.b.String())
				}
				if broken := strings.Contains(r.log.b.String(), "its URL has no MAC"); broken != (mode != Leases) {
					t.Errorf("told of the broken URL: %v\n%s", broken, r.log.b.String())
				}
			})
		}
	}
}

// The URLs in a boot script are the conductor's, whatever name it was asked by.
func TestBootURLsDoNotCopyTheHost(t *testing.T) {
	r := newRig(t, Off, nil)
	r.port(r.node(node.DeployWait, true, nil), testMAC, true)
	for _, query := range []string{"", "?mac=" + testMAC.String(), "?mac=" + testMAC.String() + "&mac=" +
		secondCard.String()} {
		text := body(t, r.get("http://evil.example:99/boot.ipxe"+query, "192.0.2.7", "X-Forwarded-Host",
			"evil.example"))
		if strings.Contains(text, "evil") || query != "" && !strings.Contains(text, r.s.base()) {
			t.Errorf("%s: %s", query, text)
		}
	}
}

// In mode off no DHCP request comes here: the MAC of a solicitation says whether the machine is about to boot.
func TestWhoHearsOfNoRouter(t *testing.T) {
	mac := testMAC.String()
	for _, c := range []struct {
		name    string
		mode    Mode
		prepare func(r *rig)
		want    bool
	}{
		{"off, window open", Off, func(r *rig) { r.port(r.node(node.DeployWait, true, nil), testMAC, true) }, true},
		{"off, pxe_enabled=false", Off, func(r *rig) { r.port(r.node(node.DeployWait, true, nil), testMAC, false) },
			false},
		// its firmware is sent on to the disk
		{"off, active", Off, func(r *rig) { r.port(r.node(node.Active, false, nil), testMAC, true) }, true},
		{"off, available", Off, func(r *rig) { r.port(r.node(node.Available, false, nil), testMAC, true) }, false},
		{"off, unknown", Off, func(*rig) {}, false},
		{"proxy, before DHCP", Proxy, func(r *rig) { r.port(r.node(node.DeployWait, true, nil), testMAC, true) },
			false},
		{"proxy, after DHCP", Proxy, func(r *rig) {
			r.port(r.node(node.DeployWait, true, nil), testMAC, true)
			r.ask(dhcpv4.MessageTypeDiscover, ipxePacket(iana.EFI_X86_64)...)
		}, true},
	} {
		r := newRig(t, c.mode, nil)
		c.prepare(r)
		if got := r.s.bootsHere(t.Context(), mac); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		if r.s.bootsHere(t.Context(), "") {
			t.Errorf("%s: a solicitation without a MAC is answered", c.name)
		}
	}
}

// A machine whose node has no port yet: its firmware sends the GUID, the agent under Linux does not.
func TestInspectionWithoutPorts(t *testing.T) {
	r := newRig(t, Leases, nil)
	n := r.node(node.InspectWait, true, func(n *node.Node) { n.SystemGUIDs = []string{guidText} })
	addr, file := r.boot(pxe(iana.INTEL_X86PC, classPXE)...)
	if file != biosLoader {
		t.Fatalf("boot file %q", file)
	}
	again, script := r.boot(ipxePacket(iana.INTEL_X86PC)...)
	if again != addr || !strings.HasSuffix(script, "/boot.ipxe") {
		t.Fatalf("iPXE got %s %s, the firmware had %s", again, script, addr)
	}
	u, err := url.Parse(script)
	if err != nil {
		t.Fatal(err)
	}
	if resp := r.get(u.RequestURI(), addr); resp.StatusCode != http.StatusOK {
		t.Fatalf("boot script: %s\n%s", resp.Status, r.log.b.String())
	}
	if agent, file := r.boot(); agent != addr || file != "" {
		t.Errorf("the agent got %q %q, want %s and no boot file", agent, file, addr)
	}
	// Enrolled: the window is closed, renewals go on.
	r.update(n, func(n *node.Node) { n.Boot.EnrolledAt, n.Boot.ClosedAt = time.Now(), time.Now() })
	renew := r.ask(dhcpv4.MessageTypeRequest, dhcpv4.WithClientIP(net.ParseIP(addr)))
	if renew == nil || renew.MessageType() != dhcpv4.MessageTypeAck {
		t.Errorf("renewal got %v", renew)
	}
	if resp := r.get(u.RequestURI(), addr); resp.StatusCode != http.StatusForbidden {
		t.Errorf("boot script after enrolment: %s", resp.Status)
	}
	r.update(n, func(n *node.Node) { n.Boot.Ended = true })
	if renew := r.ask(dhcpv4.MessageTypeRequest, dhcpv4.WithClientIP(net.ParseIP(addr))); renew != nil {
		t.Errorf("renewal after the end of the boot got %v", renew)
	}
	marks, err := r.st.Marks(t.Context(), n.UUID, "job")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range marks {
		names = append(names, m.Name+" "+m.Detail)
	}
	want := []string{"dhcp answered 10.77.0.50 undionly.kpxe",
		"dhcp answered 10.77.0.50 http://10.77.0.1:8080/boot.ipxe", "boot script fetched 10.77.0.50",
		"dhcp answered 10.77.0.50"}
	if !slices.Equal(names, want) {
		t.Errorf("marks %q, want %q", names, want)
	}
}

func TestLeases(t *testing.T) {
	r := newRig(t, Leases, nil)
	n := r.node(node.DeployWait, true, nil)
	r.port(n, testMAC, true)
	addr, _ := r.boot()
	l, err := r.st.Lease(t.Context(), testMAC.String())
	if err != nil || l.IP != addr || l.NodeUUID != n.UUID || time.Until(l.ExpiresAt) < 59*time.Minute {
		t.Fatalf("lease %+v, %v", l, err)
	}
	// Run out and given back: the address is still the machine's.
	r.clock.Store(int64(30 * time.Minute))
	r.ask(dhcpv4.MessageTypeRelease, dhcpv4.WithClientIP(net.ParseIP(addr)))
	if l, err := r.st.Lease(t.Context(), testMAC.String()); err != nil || l.ExpiresAt.After(r.s.now()) {
		t.Errorf("after release: %+v, %v", l, err)
	}
	if again, _ := r.boot(dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(net.IP{10, 77, 0, 52}))); again != addr {
		t.Errorf("address %s, had %s", again, addr)
	}
	// A new server on the same store knows it, and takes a renewal.
	cfg := r.s.cfg
	s, err := New(r.st, cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.files.close()
	reply, _ := s.dhcpReply(t.Context(), packet(t, dhcpv4.MessageTypeRequest, dhcpv4.WithClientIP(net.ParseIP(addr))),
		nil, 67)
	if reply == nil || reply.MessageType() != dhcpv4.MessageTypeAck {
		t.Errorf("renewal after a restart got %v", reply)
	}
	// Wrong address, as after a move from another network.
	if nak := r.ask(dhcpv4.MessageTypeRequest,
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(net.IP{192, 168, 1, 7}))); nak == nil ||
		nak.MessageType() != dhcpv4.MessageTypeNak {
		t.Errorf("a foreign address got %v, want NAK", nak)
	}
	// In use by somebody else.
	r.ask(dhcpv4.MessageTypeDecline, dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(net.ParseIP(addr))))
	if other, _ := r.boot(); other == addr || other == "" {
		t.Errorf("after decline of %s: %q", addr, other)
	}
}

func TestRelayFromAnotherNetwork(t *testing.T) {
	r := newRig(t, Leases, nil)
	r.port(r.node(node.DeployWait, true, nil), testMAC, true)
	if o := r.ask(dhcpv4.MessageTypeDiscover, dhcpv4.WithGatewayIP(net.IP{192, 168, 9, 1})); o != nil {
		t.Errorf("a relay of another network got %v", o)
	}
}

var tokenInScript = regexp.MustCompile(` ingot\.token=([0-9a-f-]{36}\.[A-Za-z0-9_-]{43}) `)

func TestBootScript(t *testing.T) {
	r := newRig(t, Leases, func(c *Config) { c.KernelParams = "quiet ingot.debug=1" })
	n := r.node(node.DeployWait, true, func(n *node.Node) {
		n.Name = "rack1-n7"
		n.DriverInfo = map[string]any{"kernel_append_params": "console=ttyS1,115200 %default%"}
	})
	r.port(n, testMAC, true)
	addr, _ := r.boot(ipxePacket(iana.INTEL_X86PC)...)

	if resp := r.get("/boot.ipxe", "10.77.0.51"); resp.StatusCode != http.StatusForbidden {
		t.Errorf("script from an address that is not leased: %s", resp.Status)
	}
	resp := r.get("/boot.ipxe", addr)
	text := body(t, resp)
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%s %v %s", resp.Status, resp.Header, text)
	}
	m := tokenInScript.FindStringSubmatch(text)
	if m == nil || !strings.HasPrefix(m[1], n.UUID+".") {
		t.Fatalf("no token of the node in\n%s", text)
	}
	kernel := sha256.Sum256([]byte("the kernel"))
	want := fmt.Sprintf(
		"kernel http://10.77.0.1:8080/ramdisk/%x/vmlinuz?boot=%s initrd=rd console=tty0 console=ttyS0,115200n8 console=ttyS1,115200 quiet ingot.debug=1 "+
			"ingot.conductor=10.77.0.1:6386 ingot.ca=%s ingot.token=%s BOOTIF=01-52-54-00-12-34-56 || goto failed\n",
		kernel, bootKey(n.UUID, r.load(n).Boot.TokenHash), strings.Repeat("ab", 32), m[1])
	if !strings.Contains(text, want) {
		t.Errorf("script\n%s\nlacks\n%s", text, want)
	}
	for _, s := range []string{"#!ipxe\n", "initrd --name rd http://10.77.0.1:8080/ramdisk/", "rack1-n7",
		"boot || goto failed"} {
		if !strings.Contains(text, s) {
			t.Errorf("script lacks %q", s)
		}
	}
	hash := sha256.Sum256([]byte(m[1]))
	b := r.load(n).Boot
	if b.TokenHash != hex.EncodeToString(hash[:]) || b.TokensServed != 1 ||
		time.Until(b.TokenExpires) > 15*time.Minute {
		t.Errorf("stored %+v", b)
	}
	again := tokenInScript.FindStringSubmatch(body(t, r.get("/boot.ipxe", addr)))
	if again == nil || again[1] == m[1] {
		t.Errorf("the second serving has the token %v, the first had %s", again, m[1])
	}
	if r.load(n).Boot.TokenHash == hex.EncodeToString(hash[:]) {
		t.Error("a newer token left the older one valid")
	}
	for i := 3; i <= limit.BootScripts; i++ {
		if resp := r.get("/boot.ipxe", addr); resp.StatusCode != http.StatusOK {
			t.Fatalf("serving %d: %s", i, resp.Status)
		}
	}
	for range 3 {
		if resp := r.get("/boot.ipxe", addr); resp.StatusCode != http.StatusForbidden {
			t.Errorf("serving %d: %s", limit.BootScripts+1, resp.Status)
		}
	}
	h, err := r.st.History(t.Context(), n.UUID, 0)
	if err != nil || len(h) != 1 || !strings.Contains(h[0].Event, "too often") {
		t.Errorf("history %+v, %v", h, err)
	}
	// HEAD must not cost a token.
	req := httptest.NewRequest("HEAD", "/boot.ipxe", nil)
	req.RemoteAddr = addr + ":1"
	w := httptest.NewRecorder()
	r.s.Handler().ServeHTTP(w, req)
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("HEAD: %d", w.Code)
	}
}

func (r *rig) load(n *node.Node) *node.Node {
	r.t.Helper()
	n, err := r.st.Node(r.t.Context(), n.UUID)
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

func TestBootScriptOutsideServerMode(t *testing.T) {
	for _, mode := range []Mode{Proxy, Off} {
		r := newRig(t, mode, nil)
		n := r.node(node.InspectWait, true, func(n *node.Node) { n.SystemGUIDs = []string{guidText} })
		q := "?mac=" + testMAC.String() + "&uuid=" + guidText
		if resp := r.get("/boot.ipxe"+q, "192.0.2.9"); resp.StatusCode != http.StatusOK ||
			!strings.Contains(body(t, resp), n.UUID) {
			t.Errorf("%s: %s", mode, resp.Status)
		}
		for _, q := range []string{"", "?mac=02:00:00:00:00:01", "?mac=zz&uuid=" + guidText, "?uuid=" + guidText,
			"?mac=02:00:00:00:00:01&uuid=ffffffff-4455-6677-8899-aabbccddeeff"} {
			if resp := r.get("/boot.ipxe"+q, "192.0.2.9"); resp.StatusCode != http.StatusForbidden {
				t.Errorf("%s %s: %s, want 403", mode, q, resp.Status)
			}
		}
	}
}

func TestKernelParams(t *testing.T) {
	for _, c := range []struct {
		params string
		from   source
		ok     bool
	}{
		{"", ofNode, true},
		{"quiet nomodeset console=ttyS1,115200n8 pci=noaer%default% a=b:c/d@e+f-g", ofNode, true},
		{"ingot.shell=1", configured, true},
		{"ingot.shell=1", ofNode, false},
		{"ingot.token=x", configured, false},
		{"INGOT.ca=00", configured, false},
		{"ingot.conductor=evil:1", ofNode, false},
		{"rdinit=/bin/sh", ofNode, false},
		{"init=/bin/sh", configured, false},
		{"initrd=other", ofNode, false},
		{"BOOTIF=01-00", ofNode, false},
		{"a=${token}", ofNode, false},
		{"a||reboot", ofNode, false},
		{"a && shell", ofNode, false},
		{"a;b", ofNode, false},
		{"a=\"b\"", ofNode, false},
		{"a='b'", ofNode, false},
		{"a=\\n", ofNode, false},
		{"a=\x00", ofNode, false},
		{"a=ä", ofNode, false},
		{"#comment", ofNode, false},
		{"`id`", ofNode, false},
	} {
		if err := checkParams(c.params, c.from); (err == nil) != c.ok {
			t.Errorf("checkParams(%q, %d) = %v, want ok %v", c.params, c.from, err, c.ok)
		}
	}
	// A line break is only a space.
	line, err := commandLine(conf(Leases), "t", "52:54:00:00:00:01", "a\nb\r\nkernel=x")
	if err != nil || strings.ContainsAny(line, "\r\n") || !strings.Contains(line, " a b kernel=x ") {
		t.Errorf("commandLine with line breaks = %q, %v", line, err)
	}
	rotating := conf(Leases)
	rotating.NextCA = strings.Repeat("cd", 32)
	if line, err := commandLine(rotating, "t", "", ""); err != nil ||
		!strings.Contains(line, " ingot.ca="+rotating.CA+" ") ||
		!strings.Contains(line+" ", " ingot.ca.next="+rotating.NextCA+" ") {
		t.Errorf("commandLine while the CA is rotated = %q, %v", line, err)
	}
	ended := &Server{cfg: rotating}
	ended.cfg.Trust = func() (string, string) { return rotating.NextCA, "" }
	if line, err := commandLine(ended.currentConfig(), "t", "", ""); err != nil ||
		!strings.Contains(line, " ingot.ca="+rotating.NextCA+" ") || strings.Contains(line, "ingot.ca.next") {
		t.Errorf("commandLine after a rotation = %q, %v", line, err)
	}
	if _, err := commandLine(conf(Leases), "t", "", strings.Repeat("a=b ", 600)); err == nil {
		t.Error("a command line longer than the kernel's buffer was accepted")
	}

	r := newRig(t, Leases, nil)
	n := r.node(node.DeployWait, true, func(n *node.Node) {
		n.DriverInfo = map[string]any{"kernel_append_params": "x=${y} ingot.shell=1"}
		n.Name = "evil || shell"
	})
	r.port(n, testMAC, true)
	addr, _ := r.boot()
	if resp := r.get("/boot.ipxe", addr); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("script with bad parameters: %s", resp.Status)
	}
	if b := r.load(n).Boot; b.TokensServed != 0 {
		t.Error("a script that was not served cost a token")
	}
	if h, err := r.st.History(t.Context(), n.UUID, 0); err != nil || len(h) != 1 ||
		!strings.Contains(h[0].Event, "${y}") {
		t.Errorf("history %+v, %v", h, err)
	}
	r.update(n, func(n *node.Node) { n.DriverInfo = nil })
	if text := body(t, r.get("/boot.ipxe", addr)); strings.Contains(text, "evil") || !strings.Contains(text, n.UUID) {
		t.Errorf("a node's name that is not plain got into the script:\n%s", text)
	}
}

// Both ends of the promise: whatever name DHCP or the script gives a machine, TFTP or HTTP serves.
func TestEveryFileOfferedIsServed(t *testing.T) {
	for _, mode := range []Mode{Leases, Proxy} {
		r := newRig(t, mode, nil)
		r.port(r.node(node.DeployWait, true, nil), testMAC, true)
		fetch := func(file, from string) string {
			t.Helper()
			if !strings.Contains(file, "://") {
				f, err := r.s.files.loader(loaderName(file))
				if err != nil {
					t.Fatalf("%s: TFTP does not serve %q: %v", mode, file, err)
				}
				defer f.Close()
				b, err := io.ReadAll(f)
				if err != nil {
					t.Fatal(err)
				}
				return string(b)
			}
			u, err := url.Parse(file)
			if err != nil || u.Host != "10.77.0.1:8080" {
				t.Fatalf("%s: offered %q: %v", mode, file, err)
			}
			resp := r.get(u.RequestURI(), from)
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("%s: HTTP answers %q with %s", mode, file, resp.Status)
			}
			return body(t, resp)
		}
		offered := 0
		for arch := range iana.Arch(40) {
			for _, mods := range [][]dhcpv4.Modifier{pxe(arch, classPXE), pxe(arch, classHTTP), ipxePacket(arch)} {
				r.s.replies.left = nil // a machine has one kind of firmware, and asks less often
				o := r.ask(dhcpv4.MessageTypeDiscover, mods...)
				if o == nil || o.BootFileNameOption() == "" {
					continue
				}
				addr := "192.0.2.1"
				if mode == Leases {
					addr, _ = r.boot(mods...)
				}
				r.update(&node.Node{UUID: r.first().UUID}, func(n *node.Node) { n.Boot.TokensServed = 0 })
				text := fetch(o.BootFileNameOption(), addr)
				offered++
				if !strings.HasPrefix(text, "#!ipxe") {
					continue
				}
				urls := regexp.MustCompile(`http://\S+/ramdisk/\S+`).FindAllString(text, -1)
				if len(urls) != 2 || fetch(urls[0], addr) != "the kernel" || fetch(urls[1], addr) != "the initramfs" {
					t.Errorf("%s: the script offers %v", mode, urls)
				}
			}
		}
		for _, uefi := range []bool{false, true} {
			names := ""
			for _, o := range r.s.Options(testMAC.String(), uefi) {
				if names += o.Name + " "; !strings.HasSuffix(o.Name, ",67") || mode == Leases {
					continue // in mode server a script is for an address that was leased here
				}
				r.update(&node.Node{UUID: r.first().UUID}, func(n *node.Node) { n.Boot.TokensServed = 0 })
				want := map[string]bool{"tag:ipxe,67": true}[o.Name]
				if text := fetch(o.Value, "192.0.2.1"); strings.HasPrefix(text, "#!ipxe") != want {
					t.Errorf("%s: option %s leads to %q", mode, o.Name, text)
				}
			}
			if names != "tag:!ipxe,67 66 150 server-ip-address tag:ipxe,67 " {
				t.Errorf("%s: options for another server are %s", mode, names)
			}
		}
		if offered < 40 {
			t.Errorf("%s: %d offers with a file", mode, offered)
		}
	}
}

func (r *rig) first() *node.Node {
	r.t.Helper()
	ns, err := r.st.Nodes(r.t.Context(), store.Query{})
	if err != nil || len(ns) == 0 {
		r.t.Fatal(err)
	}
	return ns[0]
}

func TestHTTPFiles(t *testing.T) {
	r := newRig(t, Leases, nil)
	n := r.node(node.DeployWait, true, nil)
	r.port(n, testMAC, true)
	addr, _ := r.boot()
	image := strings.Repeat("image", 1000)

	resp := r.get("/images/debian.raw.zst", addr)
	tag := resp.Header.Get("ETag")
	if body(t, resp) != image || !regexp.MustCompile(`^"[0-9a-f-]+"$`).MatchString(tag) ||
		resp.Header.Get("Accept-Ranges") != "bytes" {
		t.Errorf("image: %s %v", resp.Status, resp.Header)
	}
	for _, c := range []struct {
		name   string
		header []string
		status int
		want   string
	}{
		{"range", []string{"Range", "bytes=4990-"}, 206, image[4990:]},
		{"range of the same version", []string{"Range", "bytes=10-19", "If-Range", tag}, 206, image[10:20]},
		{"range of another version", []string{"Range", "bytes=10-19", "If-Range", `"other"`}, 200, image},
		{"not modified", []string{"If-None-Match", tag}, 304, ""},
		{"beyond the end", []string{"Range", "bytes=5000-"}, 416, ""},
	} {
		resp := r.get("/images/debian.raw.zst", addr, c.header...)
		if got := body(t, resp); resp.StatusCode != c.status || c.status < 400 && got != c.want {
			t.Errorf("%s: %s, %d bytes, want %d, %d bytes", c.name, resp.Status, len(got), c.status, len(c.want))
		}
	}
	// A file that is replaced gets another tag.
	if err := os.Rename(filepath.Join(r.dir, "images/sub/tiny.raw"),
		filepath.Join(r.dir, "images/debian.raw.zst")); err != nil {
		t.Fatal(err)
	}
	if got := r.get("/images/debian.raw.zst", addr).Header.Get("ETag"); got == tag || got == "" {
		t.Errorf("ETag %s after a replacement, was %s", got, tag)
	}

	for _, path := range []string{"/", "/images/", "/images", "/images/sub", "/images/sub/", "/images/none",
		"/images/link", "/images/..%2foutside", "/images/%2e%2e/outside", "/images//sub/tiny.raw",
		"/images/sub%2f..%2fsub%2ftiny.raw", "/ramdisk/", "/ramdisk/manifest.json", "/ramdisk/x/vmlinuz",
		"/ramdisk/" + strings.Repeat("0", 64) + "/vmlinuz", "/loader/secret", "/loader/..%2foutside", "/loader/",
		"/boot.ipxe/x"} {
		if resp := r.get(path, addr); resp.StatusCode == http.StatusOK {
			t.Errorf("GET %s: %s %q", path, resp.Status, body(t, resp))
		}
	}
	for _, method := range []string{"POST", "PUT", "DELETE"} {
		w := httptest.NewRecorder()
		r.s.Handler().ServeHTTP(w, httptest.NewRequest(method, "/images/debian.raw.zst", nil))
		if w.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", method, w.Code)
		}
	}

	rd, err := r.s.files.currentRamdisk()
	if err != nil {
		t.Fatal(err)
	}
	resp = r.get("/ramdisk/"+rd.Kernel.SHA256+"/vmlinuz", addr)
	if body(t, resp) != "the kernel" || resp.Header.Get("ETag") != `"`+rd.Kernel.SHA256+`"` {
		t.Errorf("kernel: %s %v", resp.Status, resp.Header)
	}
	r.get("/ramdisk/"+rd.Initrd.SHA256+"/initramfs.cpio.zst", addr)
	marks, err := r.st.Marks(t.Context(), n.UUID, "job")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, m := range marks {
		seen[m.Name]++
	}
	for _, name := range []string{node.MarkKernel, node.MarkRamdisk, node.MarkImageFetch, node.MarkImageFetched} {
		if seen[name] != 1 {
			t.Errorf("mark %q %d times, want once: %v", name, seen[name], seen)
		}
	}
}

// A ramdisk that is built anew is served at once; one that is not what its manifest says is not.
func TestRamdiskIsReplaced(t *testing.T) {
	r := newRig(t, Leases, nil)
	old, err := r.s.files.currentRamdisk()
	if err != nil {
		t.Fatal(err)
	}
	r.ramdisk("a newer kernel", "a newer initramfs")
	now, err := r.s.files.currentRamdisk()
	if err != nil || now.Kernel.SHA256 == old.Kernel.SHA256 {
		t.Fatalf("after a build: %+v, %v", now, err)
	}
	if got := body(t, r.get("/ramdisk/"+now.Kernel.SHA256+"/vmlinuz", "10.0.0.1")); got != "a newer kernel" {
		t.Errorf("kernel %q", got)
	}
	if resp := r.get("/ramdisk/"+old.Kernel.SHA256+"/vmlinuz", "10.0.0.1"); resp.StatusCode != http.StatusNotFound {
		t.Errorf("the older kernel: %s", resp.Status)
	}
	r.write("ramdisk/manifest.json",
		strings.Replace(string(must(os.ReadFile(filepath.Join(r.dir, "ramdisk/manifest.json")))), now.Kernel.SHA256,
			strings.Repeat("0", 64), 1))
	if _, err := r.s.files.currentRamdisk(); err == nil || !strings.Contains(err.Error(), "build it again") {
		t.Errorf("a manifest that is wrong: %v", err)
	}
	for _, bad := range []string{`{"format":2}`, `{"format":1,"kernel":{"file":"../outside","sha256":"` +
		strings.Repeat("0", 64) + `"}}`, `nonsense`} {
		r.write("ramdisk/manifest.json", bad)
		if _, err := r.s.files.currentRamdisk(); err == nil {
			t.Errorf("manifest %s was accepted", bad)
		}
	}
	dir := filepath.Join(r.dir, "ramdisk")
	if err := os.Remove(filepath.Join(dir, "manifest.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.s.files.currentRamdisk(); err == nil ||
		!strings.Contains(err.Error(), "(ingot ramdisk build --out "+dir+")") {
		t.Errorf("no manifest: %v", err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestNewRefuses(t *testing.T) {
	r := newRig(t, Leases, nil)
	for name, spoil := range map[string]func(*Config){
		"no address":    func(c *Config) { c.Address = netip.Addr{} },
		"no loaders":    func(c *Config) { c.LoaderDir = filepath.Join(r.dir, "images") },
		"bad conductor": func(c *Config) { c.Conductor = "x || reboot:1" },
		"bad params":    func(c *Config) { c.KernelParams = "a ${b}" },
	} {
		c := r.s.cfg
		spoil(&c)
		if _, err := New(r.st, c, nil); err == nil {
			t.Errorf("%s: New accepts it", name)
		}
	}
	for _, ok := range []string{"10.0.0.1:6386", "[fd00::1]:6386", "conductor.example:6386"} {
		if !goodConductor(ok) {
			t.Errorf("goodConductor(%q) = false", ok)
		}
	}
}

// Whatever an operator writes, the command line stays one line of harmless words with ours at its end.
func FuzzCommandLine(f *testing.F) {
	for _, s := range []string{"", "quiet", "%default%", "a=${b}", "ingot.token=x", "a\n#!ipxe", "x || shell"} {
		f.Add(s)
	}
	word := regexp.MustCompile(`^[A-Za-z0-9_.,:/=@%+-]+$`)
	f.Fuzz(func(t *testing.T, own string) {
		c := conf(Leases)
		c.KernelParams = "quiet"
		line, err := commandLine(c, "TOKEN", "52:54:00:00:00:01", own)
		if err != nil {
			return
		}
		words := strings.Split(line, " ")
		for i, w := range words {
			if !word.MatchString(w) {
				t.Fatalf("%q gives the word %q", own, w)
			}
			key, _, _ := strings.Cut(strings.ToLower(w), "=")
			ours := i >= len(words)-4
			if strings.HasPrefix(key, "ingot.") != (ours && key != "bootif") ||
				(key == "bootif") != (i == len(words)-1) {
				t.Fatalf("%q gives %q", own, line)
			}
		}
	})
}

// TestDiscovery: with discovery on, an unknown machine whose firmware wants to boot gets the agent, and other unknown
// machines get nothing; with it off, none gets anything.
func TestDiscovery(t *testing.T) {
	token := "01234567-89ab-7def-8123-456789abcdef." + strings.Repeat("A", 43)
	invite := func(limit int) func(*Config) {
		return func(c *Config) {
			c.Invite, c.InviteLimit = func(mac string) (string, error) { return token, nil }, limit
		}
	}
	off := newRig(t, Leases, nil)
	if addr, file := off.boot(pxe(iana.INTEL_X86PC, classPXE)...); addr != "" {
		t.Errorf("with discovery off an unknown machine got %s %s", addr, file)
	}

	r := newRig(t, Leases, invite(1))
	if addr, _ := r.boot(); addr != "" {
		t.Errorf("a machine that does not want to boot got %s", addr)
	}
	addr, file := r.boot(pxe(iana.INTEL_X86PC, classPXE)...)
	if file != biosLoader {
		t.Fatalf("boot file %q", file)
	}
	again, script := r.boot(ipxePacket(iana.INTEL_X86PC)...)
	u, err := url.Parse(script)
	if err != nil || again != addr {
		t.Fatalf("iPXE got %s %s, the firmware had %s", again, script, addr)
	}
	resp := r.get(u.RequestURI(), addr)
	if text := body(t, resp); resp.StatusCode != http.StatusOK || !strings.Contains(text, "ingot.token="+token) ||
		!strings.Contains(text, testMAC.String()+", which is new here") {
		t.Fatalf("boot script: %s\n%s", resp.Status, text)
	}
	// The agent's kernel asks for its address alone, also while it is being enrolled.
	if agent, file := r.boot(); agent != addr || file != "" {
		t.Errorf("the agent got %q %q, want %s and no boot file", agent, file, addr)
	}
	// One in an hour is the limit.
	other := dhcpv4.WithHwAddr(net.HardwareAddr{0x52, 0x54, 0, 0, 9, 9})
	if o := r.ask(dhcpv4.MessageTypeDiscover, append(pxe(iana.INTEL_X86PC, classPXE), other)...); o != nil {
		t.Errorf("a second machine within the hour got %v", o)
	}
	if r.log.count("which is the limit (discovery.limit_per_hour)") != 1 {
		t.Errorf("log:\n%s", r.log.b.String())
	}
	for range limit.BootScripts {
		resp = r.get(u.RequestURI(), addr)
	}
	if resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("after many boot scripts: %s", resp.Status)
	}
	// Once it is a node's it is treated as such: the agent at work keeps its address, and after that there is nothing
	// to boot.
	n := r.node(node.Enroll, false, func(n *node.Node) {
		n.Boot = &node.Boot{OpenedAt: time.Now(), EnrolledAt: time.Now(), ClosedAt: time.Now(), Generation: 1}
	})
	r.port(n, testMAC, true)
	if renew := r.ask(dhcpv4.MessageTypeRequest, dhcpv4.WithClientIP(net.ParseIP(addr))); renew == nil ||
		renew.MessageType() != dhcpv4.MessageTypeAck {
		t.Errorf("renewal got %v", renew)
	}
	if resp := r.get(u.RequestURI(), addr); resp.StatusCode != http.StatusForbidden {
		t.Errorf("boot script of an enrolled machine: %s", resp.Status)
	}
	r.update(n, func(n *node.Node) { n.Boot.Ended = true })
	if addr, file := r.boot(pxe(iana.INTEL_X86PC, classPXE)...); addr != "" {
		t.Errorf("a node's machine that is not expected got %s %s", addr, file)
	}
	// An hour later another one may.
	r.clock.Add(int64(time.Hour))
	if o := r.ask(dhcpv4.MessageTypeDiscover, append(pxe(iana.INTEL_X86PC, classPXE), other)...); o == nil {
		t.Error("an hour later a second machine got nothing")
	}

	// A machine that sends the GUID of a node is not unknown; in the other modes unknown machines are not answered.
	known := newRig(t, Leases, invite(9))
	known.node(node.Manageable, false, func(n *node.Node) { n.SystemGUIDs = []string{guidText} })
	if addr, _ := known.boot(pxe(iana.INTEL_X86PC, classPXE)...); addr != "" {
		t.Errorf("a node's machine got %s", addr)
	}
	for _, mode := range []Mode{Proxy, Off} {
		r := newRig(t, mode, invite(1))
		if resp := r.get("/boot.ipxe?mac="+testMAC.String()+"&uuid="+guidText,
			"192.0.2.9"); resp.StatusCode != http.StatusOK || !strings.Contains(body(t, resp), token) {
			t.Errorf("%s: %s", mode, resp.Status)
		}
		if resp := r.get("/boot.ipxe?mac=52:54:00:00:09:09", "192.0.2.9"); resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s, a second machine: %s", mode, resp.Status)
		}
	}
}
