package lldp

import (
	"context"
	"net"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/proto/lldp"
)

// inNamespace runs the test again as a process in a new user and network namespace, where it may create links and open
// raw sockets; it reports whether this is that process. No root is needed.
func inNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv("LLDP_TEST") != "" {
		return true
	}
	c := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), "LLDP_TEST=1")
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("in a namespace: %v\n%s", err, out)
	}
	return false
}

// cable makes a pair of links; name is the machine's, name+"s" the switch's.
func cable(t *testing.T, name string) {
	t.Helper()
	if err := netlink.LinkAdd(
		&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name + "s"}, PeerName: name}); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{name, name + "s"} {
		l, err := netlink.LinkByName(n)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
	}
}

// send puts a frame onto a link.
func send(t *testing.T, link, to string, etherType uint16, payload []byte) {
	t.Helper()
	i, err := net.InterfaceByName(link)
	if err != nil {
		t.Fatal(err)
	}
	mac, err := net.ParseMAC(to)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	b := slices.Concat(mac, i.HardwareAddr, []byte{byte(etherType >> 8), byte(etherType)}, payload)
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrLinklayer{Ifindex: i.Index}); err != nil {
		t.Fatal(err)
	}
}

// says returns the frame of a switch of a name, with the time to live.
func says(name string, ttl byte) []byte {
	b := []byte{2, 7, 4, 0x11, 0x22, 0x33, 0xaa, 0xbb, 0xcc, 4, 5, 5, 'E', 't', 'h', '1', 6, 2, 0, ttl, 10,
		byte(len(name))}
	return append(append(b, name...), 0, 0)
}

// TestNeighbours sends real frames over veth pairs, and receives them with the agent's own sockets.
func TestNeighbours(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	const nearest, bridge = "01:80:c2:00:00:0e", "01:80:c2:00:00:00"
	cable(t, "eth0")
	cable(t, "eth1")
	ctx, cancel := context.WithCancel(t.Context())
	l := New(linux.Machine{}, func() []string { return []string{"eth0", "eth1", "gone"} }, nil)
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()

	name := func(link string) string { return lldp.Describe(l.Neighbours(ctx, nil, 0)[link]).SystemName }
	// until sends a frame again and again, as switches do, until it is heard: the socket may not be open at the first
	// time.
	until := func(what string, done func() bool, again func()) {
		t.Helper()
		deadline := time.Now().Add(2 * time.Minute)
		for tick := time.NewTicker(20 * time.Millisecond); !done(); <-tick.C {
			if time.Now().After(deadline) {
				t.Fatalf("%s did not happen", what)
			}
			again()
		}
	}
	until("eth0 hears its switch", func() bool { return name("eth0") == "sw0" }, func() {
		send(t, "eth0s", nearest, lldp.EtherType, says("sw0", 120)[:10]) // broken
		send(t, "eth0s", nearest, 0x88b5, says("other", 120))            // another protocol
		send(t, "eth0", nearest, lldp.EtherType, says("itself", 120))    // what the machine itself sends
		send(t, "eth0s", nearest, lldp.EtherType, says("sw0", 120))
	})
	if got := l.Neighbours(ctx, []string{"eth0"}, time.Hour); got["eth1"] != nil || len(got["eth0"]) != 5 {
		t.Errorf("neighbours %v", got)
	}
	// A waiter for a link is woken by its frame.
	woken := make(chan map[string][]lldp.TLV, 1)
	go func() { woken <- l.Neighbours(ctx, []string{"eth0", "eth1"}, time.Hour) }()
	until("eth1 hears its switch", func() bool { return name("eth1") == "sw1" },
		func() { send(t, "eth1s", bridge, lldp.EtherType, says("sw1", 120)) })
	select {
	case got := <-woken:
		if lldp.Describe(got["eth1"]).ChassisID != "11:22:33:aa:bb:cc" || lldp.Describe(got["eth1"]).PortID != "Eth1" {
			t.Errorf("neighbours %v", got)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the one who waits is not woken")
	}
	until("a switch that says goodbye is forgotten", func() bool { return name("eth1") == "" },
		func() { send(t, "eth1s", nearest, lldp.EtherType, says("sw1", 0)) })
	// A link that was down for a while is heard again.
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetDown(link); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
	until("eth0 hears another switch", func() bool { return name("eth0") == "sw9" },
		func() { send(t, "eth0s", nearest, lldp.EtherType, says("sw9", 120)) })
	if got := l.Neighbours(ctx, []string{"eth1"}, time.Millisecond); got["eth1"] != nil {
		t.Errorf("neighbours %v", got)
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the listener does not end")
	}
}
