package netboot

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/pin/tftp/v3"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit"
)

// machineNS is the namespace of the machine, for the process that is in the conductor's.
const machineEnv = "INGOT_TEST_MACHINE_NS"

// onWire makes two network namespaces: the conductor's, with 10.77.0.1/24 on the bridge "prov", and the machine's, with
// "eth0" on that bridge; "tap0" is for a machine in QEMU. It runs the test again as a process that is wholly in the
// conductor's (a server makes sockets on any of its threads) and returns the machine's namespace there; in the outer
// process it returns "" when that is over.
func onWire(t *testing.T) string {
	t.Helper()
	if ns := os.Getenv(machineEnv); ns != "" {
		return ns
	}
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "ip")
	conductor, machine := fmt.Sprintf("ingot-nb-c%d", os.Getpid()), fmt.Sprintf("ingot-nb-m%d", os.Getpid())
	for _, ns := range []string{conductor, machine} {
		kit.Run(t, "ip", "netns", "add", ns)
		t.Cleanup(func() {
			if out, err := exec.Command("ip", "netns", "del", ns).CombinedOutput(); err != nil {
				t.Errorf("remove namespace %s: %v %s", ns, err, out)
			}
		})
		kit.Run(t, "ip", "-n", ns, "link", "set", "lo", "up")
	}
	kit.Run(t, "ip", "-n", conductor, "link", "add", "prov", "type", "bridge")
	kit.Run(t, "ip", "-n", conductor, "addr", "add", "10.77.0.1/24", "dev", "prov")
	kit.Run(t, "ip", "-n", conductor, "link", "add", "wire", "type", "veth", "peer", "name", "eth0", "address",
		testMAC.String(), "netns", machine)
	kit.Run(t, "ip", "-n", conductor, "tuntap", "add", "tap0", "mode", "tap")
	for _, port := range []string{"wire", "tap0"} {
		kit.Run(t, "ip", "-n", conductor, "link", "set", port, "master", "prov", "up")
	}
	kit.Run(t, "ip", "-n", conductor, "link", "set", "prov", "up")
	kit.Run(t, "ip", "-n", machine, "link", "set", "eth0", "up")
	cmd := exec.CommandContext(t.Context(), "ip", "netns", "exec", conductor, os.Args[0], "-test.run", "^"+t.Name()+"$",
		"-test.v")
	cmd.Env = append(os.Environ(), machineEnv+"="+machine)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("in the conductor's namespace: %v\n%s", err, out)
	}
	return ""
}

// in runs f on a thread that is in a namespace; sockets stay in the one that they were made in.
func in(t *testing.T, ns string, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		fd, err := unix.Open("/run/netns/"+ns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			unix.Close(fd)
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("in namespace %s: %v", ns, err)
	}
}

func serve(t *testing.T, s *Server) {
	t.Helper()
	s.neighbour = s.kernelNeighbour
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
}

// A machine's way on a real network: DHCP twice, TFTP, HTTP, and the router advertisement.
func TestOnTheWire(t *testing.T) {
	machine := onWire(t)
	if machine == "" {
		return
	}
	r := newRig(t, Leases, func(c *Config) { c.Interface, c.Prefix = "prov", netip.Prefix{} })
	n := r.node(node.DeployWait, true, nil)
	r.port(n, testMAC, true)
	serve(t, r.s)

	var ack *dhcpv4.DHCPv4
	in(t, machine, func() error {
		c, err := nclient4.New("eth0", nclient4.WithTimeout(5*time.Second))
		if err != nil {
			return err
		}
		defer c.Close()
		lease, err := c.Request(t.Context(), pxe(iana.INTEL_X86PC, classPXE)...)
		if err != nil {
			return err
		}
		ack = lease.ACK
		return nil
	})
	if ack.BootFileNameOption() != biosLoader || !ack.YourIPAddr.Equal(net.IP{10, 77, 0, 50}) ||
		ack.IPAddressLeaseTime(0) != time.Hour {
		t.Fatalf("ACK %s", ack.Summary())
	}
	kit.Run(t, "ip", "-n", machine, "addr", "add", ack.YourIPAddr.String()+"/24", "dev", "eth0")

	in(t, machine, func() error {
		c, err := tftp.NewClient("10.77.0.1:69")
		if err != nil {
			return err
		}
		c.SetBlockSize(1400)
		c.RequestTSize(true)
		for name, want := range map[string]int{"undionly.kpxe": 4000, "/snponly.efi\xff": 8000, "secret": -1,
			"../outside": -1, "/etc/passwd": -1} {
			wt, err := c.Receive(name, "octet")
			if want < 0 {
				if err == nil {
					t.Errorf("TFTP serves %q", name)
				}
				continue
			}
			if err != nil {
				return fmt.Errorf("TFTP %q: %w", name, err)
			}
			var b bytes.Buffer
			if size, ok := wt.(tftp.IncomingTransfer).Size(); !ok || size != int64(want) {
				t.Errorf("TFTP says that %q has %d bytes, want %d", name, size, want)
			}
			if _, err := wt.WriteTo(&b); err != nil || b.Len() != want {
				t.Errorf("TFTP %q: %d bytes, %v, want %d", name, b.Len(), err, want)
			}
		}
		return nil
	})

	get := func(path string) (status int) {
		t.Helper()
		in(t, machine, func() error {
			conn, err := net.DialTimeout("tcp", "10.77.0.1:8080", time.Minute)
			if err != nil {
				return err
			}
			defer conn.Close()
			req, err := http.NewRequest("GET", "http://10.77.0.1:8080"+path, nil)
			if err != nil {
				return err
			}
			if err := req.Write(conn); err != nil {
				return err
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), req)
			if err != nil {
				return err
			}
			status = resp.StatusCode
			return resp.Body.Close()
		})
		return status
	}
	if got := get("/boot.ipxe"); got != http.StatusOK {
		t.Errorf("GET /boot.ipxe = %d\n%s", got, r.log.b.String())
	}
	if got := get("/images/debian.raw.zst"); got != http.StatusOK {
		t.Errorf("GET image = %d", got)
	}
	kit.Eventually(t, time.Minute, "the boot program's mark", func() bool {
		marks, err := r.st.Marks(t.Context(), n.UUID, "job")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range marks {
			if m.Name == node.MarkBootProgram && m.Detail == biosLoader {
				return true
			}
		}
		return false
	})

	in(t, machine, func() error { return solicit(t) })
}

// With somebody else's DHCP server iPXE still hears at once that there is no router.
func TestOffAdvertisesOnTheWire(t *testing.T) {
	machine := onWire(t)
	if machine == "" {
		return
	}
	r := newRig(t, Off, func(c *Config) { c.Interface = "prov" })
	r.port(r.node(node.DeployWait, true, nil), testMAC, true)
	serve(t, r.s)
	in(t, machine, func() error { return solicit(t) })
}

// solicit asks for routers as iPXE does, and wants to hear of one that offers nothing.
func solicit(t *testing.T) error {
	ifi, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	// Duplicate address detection takes a second or two; without a link-local address nothing can be sent.
	kit.Eventually(t, time.Minute, "a link-local address", func() bool {
		c, err := icmp.ListenPacket("ip6:ipv6-icmp", linkLocal(ifi))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	c, err := icmp.ListenPacket("ip6:ipv6-icmp", linkLocal(ifi))
	if err != nil {
		return err
	}
	defer c.Close()
	any, err := icmp.ListenPacket("ip6:ipv6-icmp", "::")
	if err != nil {
		return err
	}
	defer any.Close()
	p := any.IPv6PacketConn()
	var f ipv6.ICMPFilter
	f.SetAll(true)
	f.Accept(ipv6.ICMPTypeRouterAdvertisement)
	if err := p.SetICMPFilter(&f); err != nil {
		return err
	}
	if err := p.SetControlMessage(ipv6.FlagHopLimit, true); err != nil {
		return err
	}
	b, err := (&icmp.Message{Type: ipv6.ICMPTypeRouterSolicitation,
		Body: &icmp.RawBody{Data: make([]byte, 4)}}).Marshal(nil)
	if err != nil {
		return err
	}
	to := &net.IPAddr{IP: net.IPv6linklocalallrouters, Zone: "eth0"}
	if _, err := c.IPv6PacketConn().WriteTo(b, &ipv6.ControlMessage{IfIndex: ifi.Index, HopLimit: 255},
		to); err != nil {
		return err
	}
	if err := any.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	buf := make([]byte, 1500)
	n, cm, _, err := p.ReadFrom(buf)
	if err != nil {
		return fmt.Errorf("no router advertisement: %w", err)
	}
	// Four bytes of ICMP header, then hop limit, flags, lifetime (2), reachable (4), retransmit (4).
	if n != 16 || !bytes.Equal(buf[4:16], make([]byte, 12)) || cm.HopLimit != 255 {
		t.Errorf("advertisement % x with hop limit %d, want one that offers nothing", buf[:n], cm.HopLimit)
	}
	return nil
}

func linkLocal(ifi *net.Interface) string {
	addrs, err := ifi.Addrs()
	if err != nil {
		return "none"
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsLinkLocalUnicast() && p.Addr().Is6() {
			return p.Addr().String() + "%" + ifi.Name
		}
	}
	return "none"
}

// With another DHCP server on the network, the machine gets a boot file from here and no address; a machine that is not
// admitted gets nothing.
func TestProxyOnTheWire(t *testing.T) {
	machine := onWire(t)
	if machine == "" {
		return
	}
	r := newRig(t, Proxy, func(c *Config) { c.Interface = "prov" })
	n := r.node(node.DeployWait, true, nil)
	r.port(n, testMAC, true)
	serve(t, r.s)

	in(t, machine, func() error {
		c, err := nclient4.New("eth0", nclient4.WithTimeout(5*time.Second))
		if err != nil {
			return err
		}
		defer c.Close()
		offer, err := c.DiscoverOffer(t.Context(), pxe(iana.EFI_X86_64, classPXE)...)
		if err != nil {
			return err
		}
		if offer.BootFileNameOption() != uefiLoader || !offer.YourIPAddr.IsUnspecified() ||
			offer.ClassIdentifier() != classPXE {
			t.Errorf("offer %s", offer.Summary())
		}
		return nil
	})

	// The boot server's port: firmware asks it with the address that the other server gave it.
	kit.Run(t, "ip", "-n", machine, "addr", "add", "10.77.0.77/24", "dev", "eth0")
	in(t, machine, func() error {
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IP{10, 77, 0, 77}, Port: 68})
		if err != nil {
			return err
		}
		defer conn.Close()
		m := packet(t, dhcpv4.MessageTypeRequest,
			append(pxe(iana.EFI_X86_64, classPXE), dhcpv4.WithClientIP(net.IP{10, 77, 0, 77}))...)
		if _, err := conn.WriteToUDP(m.ToBytes(),
			&net.UDPAddr{IP: net.IP{10, 77, 0, 1}, Port: bootServerPort}); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			return err
		}
		buf := make([]byte, 1500)
		k, err := conn.Read(buf)
		if err != nil {
			return err
		}
		ack, err := dhcpv4.FromBytes(buf[:k])
		if err != nil {
			return err
		}
		if ack.MessageType() != dhcpv4.MessageTypeAck || ack.BootFileName != uefiLoader {
			t.Errorf("port 4011 answers %s", ack.Summary())
		}
		return nil
	})

	r.update(n, func(n *node.Node) { n.Boot.ClosedAt = time.Now() })
	in(t, machine, func() error {
		c, err := nclient4.New("eth0", nclient4.WithTimeout(300*time.Millisecond), nclient4.WithRetry(1))
		if err != nil {
			return err
		}
		defer c.Close()
		if o, err := c.DiscoverOffer(t.Context(), pxe(iana.EFI_X86_64, classPXE)...); err == nil {
			t.Errorf("a machine that is not expected to boot got %s", o.Summary())
		}
		return nil
	})
}
