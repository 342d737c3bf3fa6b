package netboot

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/ingot-metal/ingot/conductor/node"
)

// Cards of a machine; testMAC is a third one.
var (
	firstCard  = net.HardwareAddr{0x52, 0x54, 0, 0, 1, 1}
	secondCard = net.HardwareAddr{0x52, 0x54, 0, 0, 1, 2}
)

func cards(macs ...net.HardwareAddr) string {
	q := "/boot.ipxe?uuid=" + guidText
	for _, m := range macs {
		q += "&mac=" + m.String()
	}
	return q + "&mac=&mac=" // iPXE has nothing to say of cards that are not there
}

// TestSecondCardBoots: a machine with several cards is a node's by any of them, and what it boots is told the card that
// it booted from.
func TestSecondCardBoots(t *testing.T) {
	for _, mode := range []Mode{Proxy, Off} {
		for _, c := range []struct {
			name    string
			prepare func(r *rig)
			asks    []net.HardwareAddr
			bootif  net.HardwareAddr // nil: it gets no script
		}{
			{"no ports, by its GUID", func(r *rig) {
				r.node(node.InspectWait, true, func(n *node.Node) { n.SystemGUIDs = []string{guidText} })
			}, []net.HardwareAddr{secondCard, firstCard}, secondCard},
			{"only the other card is a port",
				func(r *rig) { r.port(r.node(node.InspectWait, true, nil), firstCard, true) },
				[]net.HardwareAddr{secondCard, firstCard}, secondCard},
			{"both are ports", func(r *rig) {
				n := r.node(node.InspectWait, true, nil)
				r.port(n, firstCard, true)
				r.port(n, secondCard, true)
			}, []net.HardwareAddr{secondCard, firstCard}, secondCard},
			{"the other one alone has pxe_enabled", func(r *rig) {
				n := r.node(node.InspectWait, true, nil)
				r.port(n, firstCard, true)
				r.port(n, secondCard, false)
			}, []net.HardwareAddr{secondCard, firstCard}, secondCard},
			{"none has pxe_enabled", func(r *rig) {
				n := r.node(node.InspectWait, true, nil)
				r.port(n, firstCard, false)
				r.port(n, secondCard, false)
			}, []net.HardwareAddr{secondCard, firstCard}, nil},
			{"the other one is a port of a node that boots, this one of a node that does not", func(r *rig) {
				r.port(r.node(node.InspectWait, true, nil), firstCard, true)
				r.port(r.node(node.Available, false, nil), secondCard, true)
			}, []net.HardwareAddr{secondCard, firstCard}, nil},
			{"unknown", func(*rig) {}, []net.HardwareAddr{secondCard, firstCard}, nil},
			{"too many cards", func(r *rig) { r.port(r.node(node.InspectWait, true, nil), testMAC, true) },
				[]net.HardwareAddr{{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}, {2, 0, 0, 0, 0, 3}, {2, 0, 0, 0, 0, 4},
					{2, 0, 0, 0, 0, 5}, {2, 0, 0, 0, 0, 6}, {2, 0, 0, 0, 0, 7}, {2, 0, 0, 0, 0, 8}, {2, 0, 0, 0, 0, 9},
					{2, 0, 0, 0, 0, 10}, testMAC}, nil},
		} {
			t.Run(string(mode)+" "+c.name, func(t *testing.T) {
				r := newRig(t, mode, nil)
				c.prepare(r)
				resp := r.get(cards(c.asks...), "192.0.2.9")
				text := body(t, resp)
				if c.bootif == nil {
					if resp.StatusCode != http.StatusForbidden {
						t.Errorf("%s\n%s", resp.Status, text)
					}
					return
				}
				if want := " BOOTIF=01-" + strings.ReplaceAll(c.bootif.String(), ":", "-") +
					" "; resp.StatusCode != http.StatusOK || !strings.Contains(text, want) {
					t.Errorf("%s, want a script with %q:\n%s", resp.Status, want, text)
				}
			})
		}
	}
}

// TestIPXEIsAskedForItsCards: a URL that names one card, which is often the wrong one, has iPXE ask again for all of
// them. That costs no token.
func TestIPXEIsAskedForItsCards(t *testing.T) {
	for _, mode := range []Mode{Proxy, Off} {
		r := newRig(t, mode, nil)
		n := r.node(node.InspectWait, true, nil)
		r.port(n, firstCard, true)
		old := "/boot.ipxe?mac=" + firstCard.String() + "&uuid=" + guidText
		text := body(t, r.get(old, "192.0.2.9", "User-Agent", "iPXE/1.0.0+git"))
		want := "#!ipxe\nchain --replace http://10.77.0.1:8080/boot.ipxe?mac=${netX/mac}&mac=" + firstCard.String() +
			"&mac=${net0/mac}&mac=${net1/mac}&"
		if !strings.HasPrefix(text, want) || !strings.HasSuffix(text, "&uuid=${uuid}\n") ||
			r.load(n).Boot.TokensServed != 0 {
			t.Errorf("%s: %q, want %q...; %d tokens", mode, text, want, r.load(n).Boot.TokensServed)
		}
		// What is no MAC does not get into a script.
		evil := body(t, r.get("/boot.ipxe?mac=%24%7Bx%7D%0Ashell", "192.0.2.9", "User-Agent", "iPXE/1.0.0+git"))
		if strings.Contains(evil, "shell") || strings.Contains(evil, "${x}") {
			t.Errorf("%s: %q", mode, evil)
		}
		// Others can't be asked: the old form is good for them as it was.
		if text := body(t, r.get(old, "192.0.2.9")); !strings.Contains(text, "ingot.token=") {
			t.Errorf("%s: %q", mode, text)
		}
	}
	// In mode server the lease identifies the machine.
	r := newRig(t, Leases, nil)
	r.port(r.node(node.DeployWait, true, nil), testMAC, true)
	addr, _ := r.boot(ipxePacket(iana.INTEL_X86PC)...)
	if text := body(t, r.get("/boot.ipxe", addr, "User-Agent", "iPXE/1.0.0+git")); !strings.Contains(text,
		"ingot.token=") {
		t.Errorf("mode server: %q", text)
	}
}

func onFlat(n *node.Node) { n.Interfaces = map[string]string{"network": "flat"} }

// TestActiveNodeStartsItsDisk: a machine that has its system on its disk is sent there, and the answer holds nothing
// else.
func TestActiveNodeStartsItsDisk(t *testing.T) {
	ended := func(n *node.Node) {
		onFlat(n)
		n.Boot.EnrolledAt, n.Boot.ClosedAt, n.Boot.Ended = time.Now(), time.Now(), true
	}
	for _, mode := range []Mode{Leases, Proxy, Off} {
		for _, c := range []struct {
			name  string
			state node.State
			open  bool
			pxe   bool
			with  func(*node.Node)
			disk  bool
		}{
			{"active", node.Active, false, true, onFlat, true},
			{"its deployment ends with a reboot", node.Deploying, true, true, ended, true},
			{"without pxe_enabled", node.Active, false, false, onFlat, false},
			{"no instance", node.Available, false, true, onFlat, false},
			{"clean failed, with an older system on the disk", node.CleanFailed, false, true, onFlat, false},
			{"agent at work", node.DeployWait, true, true,
				func(n *node.Node) { onFlat(n); n.Boot.EnrolledAt, n.Boot.ClosedAt = time.Now(), time.Now() }, false},
		} {
			t.Run(string(mode)+" "+c.name, func(t *testing.T) {
				r := newRig(t, mode, nil)
				n := r.node(c.state, c.open, c.with)
				r.port(n, testMAC, c.pxe)
				target, from := cards(testMAC), "192.0.2.9"
				if mode == Leases {
					target = "/boot.ipxe"
					if from, _ = r.boot(ipxePacket(iana.INTEL_X86PC)...); from == "" {
						from = "10.77.0.50"
					}
				}
				resp := r.get(target, from)
				text := body(t, resp)
				if want := map[bool]int{
					true: http.StatusOK, false: http.StatusForbidden}[c.disk]; resp.StatusCode != want ||
					(text == diskScript) != c.disk {
					t.Errorf("%s, want %d:\n%s", resp.Status, want, text)
				}
				if strings.Contains(text, n.UUID) || strings.Contains(text, "token") {
					t.Errorf("the script says more than it has to:\n%s", text)
				}
				if mode == Off {
					return
				}
				for _, fw := range []struct {
					name string
					mods []dhcpv4.Modifier
					menu bool // else a file
				}{
					{"BIOS", pxe(iana.INTEL_X86PC, classPXE), true},
					{"UEFI", pxe(iana.EFI_BC, classPXE), true},
					{"UEFI HTTP", pxe(iana.EFI_X86_64_HTTP, classHTTP), false},
					{"iPXE", ipxePacket(iana.EFI_BC), false},
				} {
					o := r.ask(dhcpv4.MessageTypeDiscover, fw.mods...)
					menu, file := false, ""
					if o != nil {
						menu, file = string(o.Options.Get(dhcpv4.OptionVendorSpecificInformation)) == string(
							localBoot.Value.ToBytes()) && o.ClassIdentifier() == classPXE, o.BootFileNameOption()
					}
					if menu != (c.disk && fw.menu) || (file != "") != (c.disk && !fw.menu) {
						t.Errorf("%s: menu %v, file %q, want it sent to its disk: %v\n%v", fw.name, menu, file, c.disk,
							o)
					}
				}
			})
		}
	}
	// The network of an instance elsewhere is not ours: beside another DHCP server nothing is offered there.
	r := newRig(t, Proxy, nil)
	n := r.node(node.Active, false, nil)
	r.port(n, testMAC, true)
	if o := r.ask(dhcpv4.MessageTypeDiscover, pxe(iana.EFI_BC, classPXE)...); o != nil {
		t.Errorf("an instance on another network: %v", o)
	}
	// A rescue is of the agent, from the moment its window opens.
	r.update(n, func(n *node.Node) {
		n.Provision, n.Generation = node.RescueWait, 1
		n.Boot = &node.Boot{OpenedAt: time.Now(), ClosesAt: time.Now().Add(time.Hour), Generation: 1}
	})
	if text := body(t, r.get(cards(testMAC), "192.0.2.9")); !strings.Contains(text, "ingot.token=") {
		t.Errorf("during a rescue: %q", text)
	}
}

// sink is a client of TFTP that takes everything.
type sink struct{ from net.IP }

func (s sink) ReadFrom(r io.Reader) (n int64, err error) {
	buf := make([]byte, 512)
	for {
		k, err := r.Read(buf)
		n += int64(k)
		if err != nil {
			return n, nil
		}
	}
}
func (s sink) SetSize(int64)           {}
func (s sink) RemoteAddr() net.UDPAddr { return net.UDPAddr{IP: s.from, Port: 2070} }

// marksOf gives the marks of a node, but for those of DHCP.
func (r *rig) marksOf(n *node.Node) string {
	r.t.Helper()
	marks, err := r.st.Marks(r.t.Context(), n.UUID, "job")
	if err != nil {
		r.t.Fatal(err)
	}
	var names []string
	for _, m := range marks {
		if m.Name != node.MarkDHCP {
			names = append(names, m.Name)
		}
	}
	return strings.Join(names, ",")
}

// TestFetchesAreOfWhoMadeThem: what is fetched is marked for the node whose card is behind the address now, or which
// the request names; never for one that had the address before.
func TestFetchesAreOfWhoMadeThem(t *testing.T) {
	for _, mode := range []Mode{Leases, Proxy, Off} {
		t.Run(string(mode), func(t *testing.T) {
			r := newRig(t, mode, nil)
			a, b := r.node(node.DeployWait, true, nil), r.node(node.DeployWait, true, nil)
			r.port(a, testMAC, true)
			r.port(b, secondCard, false) // the agent uses any card
			ip, script := "10.77.0.50", cards(testMAC)
			if mode == Leases {
				ip, _ = r.boot(ipxePacket(iana.INTEL_X86PC)...)
				script = "/boot.ipxe"
			}
			text := body(t, r.get(script, ip))
			at := strings.Index(text, "?boot=")
			if at < 0 {
				t.Fatalf("no key in\n%s", text)
			}
			key, _, _ := strings.Cut(text[at:], " ")
			rd, err := r.s.files.currentRamdisk()
			if err != nil {
				t.Fatal(err)
			}
			kernel, initrd := "/ramdisk/"+rd.Kernel.SHA256+"/vmlinuz", "/ramdisk/"+rd.Initrd.SHA256+
				"/initramfs.cpio.zst"
			tftp := func(name string) {
				t.Helper()
				if err := r.s.tftpRead(t.Context(), name, sink{net.ParseIP(ip)}); err != nil {
					t.Fatal(err)
				}
			}
			everything := func() {
				t.Helper()
				tftp(biosLoader)
				r.get("/loader/"+uefiLoader, ip)
				r.get("/images/sub/tiny.raw", ip)
				for _, k := range []string{"", "?boot=", "?boot=" + a.UUID, "?boot=" + a.UUID + ".",
					"?boot=" + a.UUID + ".0000000000000000", "?boot=" + b.UUID + key[strings.Index(key, "."):]} {
					r.get(kernel+k, ip)
				}
			}

			// The address has no known neighbour.
			r.s.neighbour = func(netip.Addr) string { return "" }
			everything()
			if got := r.marksOf(a); got != node.MarkBootScript {
				t.Errorf("an address without a MAC: marks %q", got)
			}
			// Now the card is unknown, and then another node's.
			r.s.neighbour = func(netip.Addr) string { return firstCard.String() }
			everything()
			if got := r.marksOf(a); got != node.MarkBootScript {
				t.Errorf("an address of an unknown card: marks %q", got)
			}
			r.s.neighbour = func(netip.Addr) string { return secondCard.String() }
			everything()
			if got, want := r.marksOf(b),
				strings.Join([]string{node.MarkBootProgram, node.MarkBootProgram, node.MarkImageFetch,
					node.MarkImageFetched, node.MarkKernel}, ","); got != want {
				t.Errorf("the node whose card it is: marks %q, want %q", got, want)
			}
			if got := r.marksOf(a); got != node.MarkBootScript {
				t.Errorf("an address that was this node's: marks %q", got)
			}
			// What the script names is this node's from wherever.
			r.get(kernel+key, "192.0.2.77")
			r.get(initrd+key, "192.0.2.77")
			if got, want := r.marksOf(a),
				strings.Join([]string{node.MarkBootScript, node.MarkKernel, node.MarkRamdisk}, ","); got != want {
				t.Errorf("fetched with the script's key: marks %q, want %q", got, want)
			}
			if strings.Contains(r.marksOf(b), node.MarkRamdisk) {
				t.Errorf("fetched with the other node's key: marks %q", r.marksOf(b))
			}
		})
	}
}

// TestFetchesBehindARelay: there the file's name says whose it is, in mode proxy alone.
func TestFetchesBehindARelay(t *testing.T) {
	for _, mode := range []Mode{Proxy, Leases, Off} {
		r := newRig(t, mode, nil)
		n := r.node(node.DeployWait, true, nil)
		r.port(n, testMAC, true)
		r.s.neighbour = func(netip.Addr) string { return "" }
		name := namedFile(testMAC.String(), uefiLoader)
		if mode == Proxy {
			o := r.ask(dhcpv4.MessageTypeDiscover,
				append(pxe(iana.EFI_BC, classPXE), dhcpv4.WithGatewayIP(net.IP{192, 168, 9, 1}))...)
			if o == nil || o.BootFileNameOption() != name || o.BootFileName != name {
				t.Fatalf("offered %v, want %s", o, name)
			}
		}
		for asked, ok := range map[string]bool{name: true, "/" + name + "\xff": true, "m/zz/" + uefiLoader: false,
			"m/" + uefiLoader: false, namedFile(testMAC.String(), "../"+uefiLoader): false,
			namedFile(testMAC.String(), "secret"): false} {
			if err := r.s.tftpRead(t.Context(), asked, sink{net.IP{192, 168, 9, 7}}); (err == nil) != ok {
				t.Errorf("%s: TFTP of %q: %v", mode, asked, err)
			}
		}
		if got, want := r.marksOf(n), map[Mode]string{Proxy: node.MarkBootProgram}[mode]; got != want {
			t.Errorf("%s: marks %q, want %q", mode, got, want)
		}
	}
}
