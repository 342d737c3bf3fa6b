package netboot

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
)

func class(s string) dhcpv4.Modifier { return dhcpv4.WithOption(dhcpv4.OptClassIdentifier(s)) }

// The options that clients send besides, as they were seen on the wire or stand in their sources.
var (
	hostName = raw(12, []byte("tenant-7")...)
	duid     = raw(61, 0xff, 0, 0, 0, 1, 0, 2, 0, 0, 0xab, 0x11, 1, 2, 3, 4, 5, 6, 7, 8)
	macID    = raw(61, 1, 0x52, 0x54, 0, 0x12, 0x34, 0x56)
)

var clients = []struct {
	name   string
	typ    dhcpv4.MessageType
	mods   []dhcpv4.Modifier
	system bool
}{
	{"dhclient of Debian", dhcpv4.MessageTypeDiscover,
		[]dhcpv4.Modifier{hostName, raw(55, 1, 28, 2, 3, 15, 6, 119, 12, 44, 47, 26, 121, 42)}, true},
	{"dhclient that has no host name", dhcpv4.MessageTypeDiscover, []dhcpv4.Modifier{raw(55, 1, 28, 2, 3, 15, 6, 12)},
		true},
	{"dhclient that knows its address", dhcpv4.MessageTypeRequest,
		[]dhcpv4.Modifier{raw(50, 10, 77, 0, 9), raw(55, 1, 28, 2, 3, 15, 6, 12)}, true},
	{"systemd-networkd", dhcpv4.MessageTypeDiscover,
		[]dhcpv4.Modifier{duid, raw(57, 5, 0xc0), raw(55, 1, 3, 6, 12, 15, 26, 33, 42, 120, 121)}, true},
	{"NetworkManager", dhcpv4.MessageTypeRequest,
		[]dhcpv4.Modifier{macID, hostName, raw(57, 5, 0xc0),
			raw(55, 1, 2, 6, 12, 15, 26, 28, 121, 3, 33, 40, 41, 42, 119, 249, 252, 17)}, true},
	{"Windows", dhcpv4.MessageTypeDiscover,
		[]dhcpv4.Modifier{macID, hostName, class("MSFT 5.0"),
			raw(55, 1, 3, 6, 15, 31, 33, 43, 44, 46, 47, 119, 121, 249, 252)}, true},
	{"Windows, with a name of its own", dhcpv4.MessageTypeRequest,
		[]dhcpv4.Modifier{macID, raw(81, append([]byte{0, 0, 0}, "tenant-7"...)...), class("MSFT 5.0"),
			raw(55, 1, 3, 6)}, true},
	{"Windows, after its address", dhcpv4.MessageTypeInform,
		[]dhcpv4.Modifier{macID, class("MSFT 5.0"), raw(55, 1, 3, 6, 252)}, true},
	{"udhcpc", dhcpv4.MessageTypeDiscover,
		[]dhcpv4.Modifier{macID, raw(57, 2, 0x40), class("udhcp 1.35.0"), raw(55, 1, 3, 6, 12, 15, 28, 42)}, true},
	{"dhcpcd", dhcpv4.MessageTypeDiscover,
		[]dhcpv4.Modifier{duid, class("dhcpcd-9.4.1:Linux-6.1.0:x86_64:GenuineIntel"), raw(55, 1, 121, 33, 3, 6)},
		true},
	{"ipconfig of an installed system's initramfs", dhcpv4.MessageTypeDiscover,
		[]dhcpv4.Modifier{class("Linux ipconfig"), raw(55, 1, 3, 6, 12, 15, 17, 26, 28, 40)}, true},
	{"Linux kernel with ip=", dhcpv4.MessageTypeDiscover, []dhcpv4.Modifier{raw(55, 1, 3, 6, 12, 15, 17, 26, 40, 42)},
		true},

	{"our agent", dhcpv4.MessageTypeDiscover,
		[]dhcpv4.Modifier{class("ingot-agent"), raw(97, guidBytes...), raw(55, 1, 3, 6, 15, 12, 26, 121)}, false},
	{"our agent without a GUID", dhcpv4.MessageTypeRequest,
		[]dhcpv4.Modifier{class("ingot-agent"), raw(55, 1, 3, 6, 15, 12, 26, 121)}, false},
	{"an agent that sends its GUID alone", dhcpv4.MessageTypeDiscover,
		[]dhcpv4.Modifier{raw(97, guidBytes...), raw(55, 1, 3, 6, 15, 12, 26, 121)}, false},
	{"BIOS PXE", dhcpv4.MessageTypeDiscover, pxe(iana.INTEL_X86PC, classPXE), false},
	{"EDK2 PXE", dhcpv4.MessageTypeDiscover,
		append(pxe(iana.EFI_BC, classPXE),
			raw(55, 1, 2, 3, 4, 5, 6, 12, 13, 15, 17, 18, 22, 23, 28, 40, 41, 42, 43, 50, 51, 54, 58, 59, 60, 66, 67,
				97, 128)), false},
	{"EDK2 HTTP boot", dhcpv4.MessageTypeDiscover, pxe(iana.EFI_X86_64_HTTP, classHTTP), false},
	{"EDK2 HTTP boot of ARM", dhcpv4.MessageTypeDiscover, pxe(iana.EFI_ARM64_HTTP, classHTTP), false},
	{"EDK2's IPv4 driver", dhcpv4.MessageTypeDiscover, []dhcpv4.Modifier{raw(55, 1, 3, 6)}, false},
	{"EDK2's iSCSI driver", dhcpv4.MessageTypeRequest, []dhcpv4.Modifier{raw(55, 1, 3, 6, 17, 54)}, false},
	{"EDK2's DNS driver", dhcpv4.MessageTypeInform, []dhcpv4.Modifier{raw(55, 6)}, false},
	{"firmware that sends its architecture alone", dhcpv4.MessageTypeDiscover,
		[]dhcpv4.Modifier{raw(93, 0, 7), raw(55, 1, 3, 6, 12, 66, 67)}, false},
	{"iSCSI of an adapter", dhcpv4.MessageTypeDiscover,
		[]dhcpv4.Modifier{class("BRCM ISAN"), raw(55, 1, 3, 6, 12, 17, 43)}, false},
	{"iPXE", dhcpv4.MessageTypeDiscover, ipxePacket(iana.EFI_X86_64), false},
	{"iPXE that calls itself nothing", dhcpv4.MessageTypeDiscover,
		[]dhcpv4.Modifier{raw(175, 1, 1, 0), raw(55, 1, 3, 6, 12, 66, 67)}, false},
	{"a client that says nothing", dhcpv4.MessageTypeDiscover, nil, false},
	{"a release", dhcpv4.MessageTypeRelease, []dhcpv4.Modifier{hostName}, false},
	{"a decline", dhcpv4.MessageTypeDecline, []dhcpv4.Modifier{hostName}, false},
}

// TestWhoIsAnInstalledSystem: systems are told from firmware and from the agent by what their clients send.
func TestWhoIsAnInstalledSystem(t *testing.T) {
	for _, c := range clients {
		q, err := read(packet(t, c.typ, c.mods...))
		if err != nil {
			t.Fatal(err)
		}
		if got := q.isInstalled(); got != c.system {
			t.Errorf("%s: an installed system: %v, want %v", c.name, got, c.system)
		}
	}
}

// windows makes a Windows system ask for an address.
func (r *rig) windows() { r.ask(dhcpv4.MessageTypeDiscover, macID, hostName, class("MSFT 5.0\x1b[2J")) }

// TestInstalledSystemInsteadOfAgent: what a system's request does to the record of a boot.
func TestInstalledSystemInsteadOfAgent(t *testing.T) {
	for _, mode := range []Mode{Leases, Proxy} {
		for _, c := range []struct {
			name   string
			state  node.State
			change func(*node.Node)
			before func(*rig, *node.Node)
			want   bool
			marks  int // of the system
		}{
			{name: "while the agent is expected", state: node.CleanWait, want: true, marks: 1},
			{name: "after its firmware was answered", state: node.CleanWait, want: true, marks: 1,
				before: func(r *rig, _ *node.Node) {
					r.ask(dhcpv4.MessageTypeDiscover, pxe(iana.INTEL_X86PC, classPXE)...)
				}},
			{name: "after the boot script was fetched", state: node.DeployWait, want: true, marks: 1,
				change: func(n *node.Node) { n.Boot.TokensServed = 1 }},
			{name: "after the kernel was fetched", state: node.CleanWait, marks: 1,
				before: func(r *rig, n *node.Node) { r.s.mark(r.t.Context(), n, node.MarkKernel, "") }},
			{name: "after the kernel was fetched for the job before", state: node.DeployWait, marks: 1,
				change: func(n *node.Node) { n.Job.Adopted = "before" }, before: func(r *rig, n *node.Node) {
					if err := r.st.AddMark(r.t.Context(),
						node.Mark{NodeUUID: n.UUID, JobID: "before", Name: node.MarkRamdisk,
							At: r.s.now()}); err != nil {
						r.t.Fatal(err)
					}
				}},
			{name: "after the kernel was fetched in a boot before", state: node.CleanWait, want: true, marks: 1,
				before: func(r *rig, n *node.Node) {
					if err := r.st.AddMark(r.t.Context(),
						node.Mark{NodeUUID: n.UUID, JobID: "job", Name: node.MarkKernel,
							At: n.Boot.OpenedAt.Add(-time.Minute)}); err != nil {
						r.t.Fatal(err)
					}
				}},
			{name: "after the agent enrolled", state: node.CleanWait,
				change: func(n *node.Node) { n.Boot.EnrolledAt, n.Boot.ClosedAt = time.Now(), time.Now() }},
			{name: "after the window closed", state: node.CleanFailed,
				change: func(n *node.Node) { n.Boot.ClosedAt = time.Now() }},
			{name: "of an active node that reboots", state: node.Active,
				change: func(n *node.Node) { n.Boot, n.Job = nil, nil }},
			{name: "of a node with a workload", state: node.Active,
				change: func(n *node.Node) { n.Boot.Ended, n.Boot.ClosedAt = true, time.Now() }},
		} {
			t.Run(string(mode)+"/"+c.name, func(t *testing.T) {
				reported := 0
				r := newRig(t, mode, func(c *Config) { c.SystemStarted = func(context.Context, string) { reported++ } })
				n := r.node(c.state, true, c.change)
				r.port(n, testMAC, true)
				if c.before != nil {
					c.before(r, n)
				}
				for range 5 {
					r.windows()
				}
				got, err := r.st.Node(t.Context(), n.UUID)
				if err != nil {
					t.Fatal(err)
				}
				recorded := got.Boot != nil && got.Boot.System != nil
				if recorded != c.want || reported != map[bool]int{true: 1}[c.want] {
					t.Errorf("recorded: %v, reported %d times; want %v\n%s", recorded, reported, c.want,
						r.log.b.String())
				}
				if recorded && (got.Boot.System.MAC != testMAC.String() ||
					!strings.HasPrefix(got.Boot.System.Class, "MSFT 5.0") ||
					strings.Contains(got.Boot.System.Class, "\x1b")) {
					t.Errorf("recorded as %+v", got.Boot.System)
				}
				marks, err := r.st.Marks(t.Context(), n.UUID, "job")
				if err != nil {
					t.Fatal(err)
				}
				seen := 0
				for _, m := range marks {
					if m.Name == node.MarkSystem {
						seen++
					}
				}
				lines, err := r.st.History(t.Context(), n.UUID, 0)
				if err != nil {
					t.Fatal(err)
				}
				said := 0
				for _, h := range lines {
					if strings.Contains(h.Event, "the installed system started instead of the agent: DHCP request by "+
						testMAC.String()) {
						said++
					}
				}
				if seen != c.marks || said != map[bool]int{true: 1}[c.want] {
					t.Errorf("%d marks and %d lines in the history, want %d and: %v", seen, said, c.marks, c.want)
				}
			})
		}
	}
}

// TestInstalledSystemOfAMachineKnownByGUID: the machine of a node without ports is known by the lease that its firmware
// got.
func TestInstalledSystemOfAMachineKnownByGUID(t *testing.T) {
	r := newRig(t, Leases, nil)
	n := r.node(node.InspectWait, true, func(n *node.Node) { n.SystemGUIDs = []string{guidText} })
	r.windows()
	if got, err := r.st.Node(t.Context(), n.UUID); err != nil || got.Boot.System != nil {
		t.Fatalf("a machine that told no GUID yet is taken for the node's: %+v, %v", got.Boot.System, err)
	}
	r.boot(pxe(iana.INTEL_X86PC, classPXE)...)
	r.windows()
	if got, err := r.st.Node(t.Context(), n.UUID); err != nil || got.Boot.System == nil {
		t.Errorf("not recorded (%v)", err)
	}
}

// TestInstalledSystemsAreLookedIntoSometimes: packets with made-up content cost the store no more than the limit.
func TestInstalledSystemsAreLookedIntoSometimes(t *testing.T) {
	r := newRig(t, Leases, nil)
	now := time.Now()
	taken := 0
	for range 1000 {
		if r.s.installed.take(testMAC.String(), now) {
			taken++
		}
	}
	n := r.node(node.CleanWait, true, nil)
	r.port(n, testMAC, true)
	r.windows()
	if got, err := r.st.Node(t.Context(), n.UUID); err != nil || got.Boot.System != nil || taken != limit.DHCPReplies {
		t.Errorf("%d of 1000 looked into; one more was recorded as %+v (%v)", taken, got.Boot.System, err)
	}
	r.clock.Add(int64(2 * limit.DHCPRefill))
	r.windows()
	if got, err := r.st.Node(t.Context(), n.UUID); err != nil || got.Boot.System == nil {
		t.Errorf("not recorded later (%v)", err)
	}
}
