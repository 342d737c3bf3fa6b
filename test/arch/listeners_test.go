package arch

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// listeners are all places at which a program that is shipped opens a socket for others to reach, as PACKAGE: CALL,
// with the tests that attack what listens there.
var listeners = map[string][]string{
	`conductor/app: net.Listen("tcp", cfg.API.Listen)`: {"test/attack.TestEveryRoute",
		"test/attack.TestHalfSentRequests", "test/attack.TestConnectionsPerAddress", "test/attack.TestSignInsAtTheDashboard",
		"test/attack.TestForgedRequestsOfPages"},
	`conductor/app: net.FileListener(f)`: {"conductor/app.TestSocketsThatAreHandedOverAreGuarded",
		"conductor/app.TestInheritedOnlyWhenMeantForUs"},
	`conductor/app: net.Listen("tcp", cfg.Agents.Listen)`: {"test/attack.TestStrangersToAgentsListener",
		"test/attack.TestConnectionsPerAddress", "test/attack.TestAgentOfAnotherNode"},
	`conductor/app: net.Listen("tcp", cfg.PeerListen())`: {"test/attack.TestStrangersToConductorsListener",
		"conductor/peer.TestStrangersAreNotAnswered", "conductor/peer.TestMessages"},
	`conductor/app: net.Listen("tcp", cfg.Metrics.Listen)`: {"test/attack.TestScrapesNeedTheRight",
		"test/attack.TestScrapeFlood"},
	// HTTP and HTTPS, the latter for boot images alone
	`conductor/netboot: net.Listen("tcp4", net.JoinHostPort(c.Address.String(), strconv.Itoa(port)))`: {
		"test/attack.TestConfigDriveOfAKnownMAC",
		"test/attack.TestBootHTTP", "conductor/netboot.TestBootImagesOverHTTPS"},
	`conductor/netboot: listenAt.Listen(context.Background(), "tcp4", at)`: {
		"test/attack.TestBootHTTP", "conductor/netboot.TestVirtualAddress"},
	`conductor/netboot: listenAt.ListenPacket(context.Background(), "udp4", netip.AddrPortFrom(a, 69).String())`: {
		"conductor/netboot.TestTransfersAreBounded",
		"conductor/netboot.TestEveryFileOfferedIsServed"},
	`conductor/netboot: lc.ListenPacket(context.Background(), "udp4", fmt.Sprintf("0.0.0.0:%d", port))`: {
		"conductor/netboot.FuzzAnswer", "conductor/netboot.TestRepliesAreBounded",
		"conductor/netboot.TestReadRefuses"},
	`conductor/netboot/rawudp: unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(wire[:]), Ifindex: ifindex})`: {"conductor/netboot/rawudp.FuzzParse",
		"conductor/netboot/probe.FuzzRead", "conductor/netboot/probe.TestMadeUpServersAreBounded"},
	// sends; nothing is read from it
	`conductor/netboot/rawudp: lc.ListenPacket(context.Background(), protocolRaw, from.String())`: {
		"conductor/netboot/rawudp.FuzzParse"},
	`conductor/netboot: icmp.ListenPacket("ip6:ipv6-icmp", "::")`: {
		"conductor/netboot.TestSolicitor"},
	`conductor/app: nb.Listen()`: {"test/attack.TestBootHTTP"}, // the three before
	`conductor/app/drain: net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})`: {
		"conductor/app/drain.TestStrangersAtTheSocket", "conductor/app/drain.TestNonsenseAtTheSocket"},
	// Opened and closed at once, to find out whether they are free.
	`conductor/app/doctor: lc.ListenPacket(ctx, network, address)`: {"test/attack.TestDoctor"},
	`conductor/app/doctor: lc.Listen(ctx, network, address)`:       {"test/attack.TestDoctor"},
	// A conductor for trying things out; it is guarded as any other.
	`conductor/app: net.Listen("tcp", *listen)`: {"conductor/app.TestDev", "conductor/app.TestDevBasic",
		"conductor/config.TestListenBeyondLoopbackNeedsConsent"},

	// Of machines: the swarm, the console of a rescued machine, a measurement of the network, and an image for the
	// machine itself.
	`agent/image/swarm: net.Listen("tcp", netip.AddrPortFrom(local, 0).String())`: {"agent/image/swarm.TestStrangers", "agent/image/swarm.TestListener", "agent/image/swarm.FuzzRequest"},
	`agent/disk/export: (&net.ListenConfig{}).Listen(ctx, "tcp", ":"+strconv.Itoa(a.Port))`: {
		"agent/disk/export.TestOtherHostsAreRefused", "agent/disk/export.TestStoppedInTheMiddle",
		"test/machine.TestExportedDiskIsWritten"},
	`agent/rescue: net.Listen("tcp", h.listen)`: {"agent/rescue.TestWhoGetsIn", "agent/rescue.TestGuessing", "agent/rescue.TestTooMany", "agent/rescue.TestNothingElse"},
	// only where the boot parameters name an Ironic
	`agent/ipa: net.Listen("tcp", at)`: {"test/attack.TestStrangersToCommandsOfAnAgent",
		"test/attack.TestFloodOfAnAgentUnderIronic", "agent/ipa/command.FuzzCommand"},
	`agent/burnin: new(net.ListenConfig).Listen(ctx, "tcp", netip.AddrPortFrom(n.local, port).String())`:                           {"agent/burnin.TestNetworkStranger", "agent/burnin.FuzzGreeting"},
	`agent/standalone: net.Listen("tcp", "127.0.0.1:0")`:                                                                           {"agent/standalone.TestLocalImages"},
	`agent/machine/mdns: net.ListenUDP("udp4", &net.UDPAddr{IP: n.IP})`:                                                            {"agent/machine/mdns.FuzzAnswer", "agent/machine/mdns.FuzzURL"},
	`agent/machine/netup: icmp.ListenPacket("ip6:ipv6-icmp", "::")`:                                                                {"agent/machine/netup.FuzzParseRA"},
	`agent/machine/linux: unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(wire[:]), Ifindex: i.Index})`: {"proto/lldp.FuzzParse"},
	// The kernel's own messages, which no other process can send.
	`initramfs/pid1: unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1})`: {
		"initramfs/pid1.TestParseUevent"},
	`initramfs/pid1: unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})`: {
		"initramfs/pid1.TestPowerButton"},
}

// opens are the functions that open a socket for others. A method of that name is taken for one, too, for what it
// belongs to is not known here.
var opens = []string{"Listen", "ListenPacket", "ListenTCP", "ListenUDP", "ListenMulticastUDP", "ListenIP", "ListenUnix",
	"ListenUnixgram", "ListenAndServe", "ListenAndServeTLS", "FileListener", "FilePacketConn", "NewIPv4UDPConn",
	"NewIPv6UDPConn", "Bind"}

// TestEveryListenerIsAttacked: a place that opens a socket for others has tests that attack it. It is here, and not
// beside the attacks, since these rules are held by every check: a new listener may be anywhere.
func TestEveryListenerIsAttacked(t *testing.T) {
	found := map[string]int{}
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path, err = filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			// What is not shipped: tests, what makes the ramdisk, and a rack on this host with controllers that are
			// made up.
			if name := d.Name(); slices.Contains([]string{"test", "build", "tools/lab", "tools/demo"}, path) ||
				name == "testdata" || strings.HasSuffix(name, "test") || name != "." && strings.HasPrefix(name, ".") &&
				path != "." {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, filepath.Join(root, path), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ours := map[string]bool{} // names of packages of ours that the file imports
		for _, i := range f.Imports {
			if name := strings.Trim(i.Path.Value, `"`); strings.HasPrefix(name, "github.com/ingot-metal/ingot/") {
				ours[name[strings.LastIndex(name, "/")+1:]] = true
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains(opens, sel.Sel.Name) {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && ours[x.Name] {
				return true // limit.Listen: a listener around another, whose own call is found
			}
			var b bytes.Buffer
			if err := printer.Fprint(&b, token.NewFileSet(), call); err != nil {
				t.Fatal(err)
			}
			site := filepath.Dir(path) + ": " + strings.Join(strings.Fields(b.String()), " ")
			if found[site]++; listeners[site] == nil || found[site] > 1 {
				t.Errorf("%s opens a socket for others and is in no row of listeners, or in one with another place: attack it, and name the test", fset.Position(call.Pos()))
				t.Log(site)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for site, tests := range listeners {
		if found[site] == 0 {
			t.Errorf("%s: this does not exist", site)
		}
		if len(tests) == 0 {
			t.Errorf("%s: no test attacks it", site)
		}
		for _, test := range tests {
			if pkg, name, _ := strings.Cut(test, "."); !isTest(t, pkg, name+"(") {
				t.Errorf("%s: %s does not exist", site, test)
			}
		}
	}
}
