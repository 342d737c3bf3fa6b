package netboot

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/initramfs/kernel"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab/site"
)

// siteProgram gives a folder with a DHCP server or relay of Debian, and what it needs, and LD_LIBRARY_PATH for it.
// Nothing is installed: a package would start it on whatever network the computer has.
func siteProgram(t *testing.T, name string) (dir string, env []string) {
	t.Helper()
	cache, err := kernel.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	dir, err = site.Fetch(t.Context(), cache, slog.New(slog.DiscardHandler), name)
	if err != nil {
		t.Fatal(err)
	}
	libraries, err := site.Libraries(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir, []string{"LD_LIBRARY_PATH=" + libraries}
}

// program runs a server in a namespace ("" is this process's) until the test ends; what it says is logged when the test
// failed.
func program(t *testing.T, ns string, env []string, args ...string) {
	t.Helper()
	if ns != "" {
		args = append([]string{"ip", "netns", "exec", ns}, args...)
	}
	var mu sync.Mutex
	var out bytes.Buffer
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout = writer(func(p []byte) { mu.Lock(); defer mu.Unlock(); out.Write(p) })
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill() // it may have ended
		cmd.Wait()         // it was killed
		if t.Failed() {
			t.Logf("%s:\n%s", args[0], out.String())
		}
	})
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }

// foreignSite is somebody else's DHCP server on 10.77.0.1, with what docs/howto/dhcp-servers.md has for it.
type foreignSite struct {
	name  string
	start func(t *testing.T, dir, address string) // address is the conductor's, for ADDRESS
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

var sites = []foreignSite{
	{"dnsmasq", func(t *testing.T, dir, address string) {
		text := "interface=prov\nbind-interfaces\nport=0\nno-ping\ndhcp-range=10.77.0.100,10.77.0.150,1h\n" +
			site.OffText("dnsmasq", address)
		program(t, "", nil, "dnsmasq", "--keep-in-foreground", "--user=root", "--pid-file=", "--log-facility=-",
			"--log-dhcp", "--dhcp-leasefile="+dir+"/leases", "--conf-file="+write(t, dir+"/conf", text+"\n"))
	}},
	{"dhcpd", func(t *testing.T, dir, address string) {
		text := site.OffText("dhcpd", address) +
			"\nping-check false;\nauthoritative;\nsubnet 10.77.0.0 netmask 255.255.255.0 { range 10.77.0.100 10.77.0.150; }\n"
		root, env := siteProgram(t, "isc-dhcp-server")
		program(t, "", env, root+"/usr/sbin/dhcpd", "-4", "-f", "-d", "-cf", write(t, dir+"/conf", text), "-lf",
			write(t, dir+"/leases", ""), "-pf", dir+"/pid", "prov")
	}},
	{"kea", func(t *testing.T, dir, address string) {
		text := `{"Dhcp4": {"interfaces-config": {"interfaces": ["prov"]}, "lease-database": {"type": "memfile", "persist": false},
"loggers": [{"name": "kea-dhcp4", "output_options": [{"output": "stdout"}], "severity": "INFO"}],
"subnet4": [{"subnet": "10.77.0.0/24", "pools": [{"pool": "10.77.0.100 - 10.77.0.150"}]}],
` + site.OffText("kea", address) + "}}\n"
		root, env := siteProgram(t, "kea-dhcp4-server")
		program(t, "", append(env, "KEA_PIDFILE_DIR="+dir, "KEA_LOCKFILE_DIR=none"),
			root+"/usr/sbin/kea-dhcp4", "-c", write(t, dir+"/conf", text))
	}},
}

// What each firmware asks for in option 55: EDK2's PXE and HTTP boot, and iPXE.
var (
	edk2PXE = raw(55, 1, 2, 3, 4, 5, 6, 12, 13, 15, 17, 18, 22, 23, 28, 40, 41, 42, 43, 50, 51, 54, 58, 59, 60, 66, 67,
		97, 128, 129, 130, 131, 132, 133, 134, 135)
	edk2HTTP = raw(55, 1, 2, 3, 4, 5, 6, 12, 13, 15, 17, 18, 22, 23, 28, 40, 41, 42, 43, 50, 51, 54, 58, 59, 60, 0, 67,
		97)
	ipxeAsks = raw(55, 1, 3, 6, 7, 12, 15, 17, 26, 43, 60, 66, 67, 119, 128, 129, 130, 131, 132, 133, 134, 135, 175,
		203)
)

// What the documented configurations of other DHCP servers make of each firmware: sent to the real servers, and what
// they answer has to be what this conductor serves.
func TestDocumentedSites(t *testing.T) {
	kit.NeedPrograms(t, "dnsmasq")
	for _, name := range []string{"isc-dhcp-server", "kea-dhcp4-server"} {
		siteProgram(t, name) // fetched here: the conductor's namespace has no way out
	}
	machine := onWire(t)
	if machine == "" {
		return
	}
	const siteAddress = "10.77.0.9" // not the DHCP server's, so that an answer with the server's own is told from it
	script := "http://" + siteAddress + ":8080/boot.ipxe?mac=${netX/mac}&uuid=${uuid}"
	loader := "http://" + siteAddress + ":8080/loader/" + uefiLoader
	for _, s := range sites {
		t.Run(s.name, func(t *testing.T) {
			r := newRig(t, Off, nil)
			r.port(r.node(node.DeployWait, true, nil), testMAC, true)
			s.start(t, t.TempDir(), siteAddress)
			for _, c := range []struct {
				name  string
				mods  []dhcpv4.Modifier
				file  string
				class string
			}{
				{"BIOS PXE", append(pxe(iana.INTEL_X86PC, classPXE), edk2PXE), biosLoader, ""},
				{"UEFI PXE, architecture 7", append(pxe(iana.EFI_BC, classPXE), edk2PXE), uefiLoader, ""},
				{"UEFI PXE, architecture 9", append(pxe(iana.EFI_X86_64, classPXE), edk2PXE), uefiLoader, ""},
				{"UEFI HTTP boot", append(pxe(iana.EFI_X86_64_HTTP, classHTTP), edk2HTTP), loader, "HTTPClient"},
				{"iPXE, BIOS", append(ipxePacket(iana.INTEL_X86PC), ipxeAsks), script, ""},
				{"iPXE, UEFI", append(ipxePacket(iana.EFI_BC), ipxeAsks), script, ""},
				{"iPXE, user class of RFC 3004",
					append(pxe(iana.EFI_BC, classPXE), ipxeAsks, raw(77, []byte("\x04iPXE")...)), script, ""},
				{"32-bit UEFI", append(pxe(iana.EFI_IA32, classPXE), edk2PXE), "", ""},
				{"ARM UEFI", append(pxe(iana.EFI_ARM64, classPXE), edk2PXE), "", ""},
				{"ARM HTTP boot", append(pxe(iana.EFI_ARM64_HTTP, classHTTP), edk2HTTP), "", ""},
				{"Linux", []dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptClassIdentifier("dhcpcd-9.4.1"))}, "", ""},
			} {
				var lease *nclient4.Lease
				in(t, machine, func() error {
					// The server may not be listening yet: it is asked until it answers.
					client, err := nclient4.New("eth0", nclient4.WithTimeout(time.Second), nclient4.WithRetry(60))
					if err != nil {
						return err
					}
					defer client.Close()
					lease, err = client.Request(t.Context(), c.mods...)
					return err
				})
				for _, m := range []*dhcpv4.DHCPv4{lease.Offer, lease.ACK} {
					file := strings.TrimRight(string(m.Options.Get(dhcpv4.OptionBootfileName)), "\x00")
					if file == "" {
						file = m.BootFileName
					}
					if file != c.file || m.BootFileName != "" && m.BootFileName != file {
						t.Errorf("%s: %s with boot file %q, in the header %q, want %q", c.name, m.MessageType(), file,
							m.BootFileName, c.file)
					}
					if got := string(m.Options.Get(dhcpv4.OptionClassIdentifier)); got != c.class {
						t.Errorf("%s: %s with option 60 %q, want %q", c.name, m.MessageType(), got, c.class)
					}
					if c.file != "" && !strings.Contains(file, "://") && m.ServerIPAddr.String() != siteAddress {
						t.Errorf("%s: %s with TFTP server %s, want %s", c.name, m.MessageType(), m.ServerIPAddr,
							siteAddress)
					}
					want := ""
					if c.file == script {
						want = string(noProxyDHCP)
					}
					if got := strings.TrimSuffix(string(m.Options.Get(optEtherboot)), "\xff"); got != want {
						t.Errorf("%s: %s with option 175 %x, want %x", c.name, m.MessageType(), got, want)
					}
				}
				if t.Failed() || c.file == "" {
					continue
				}
				if !strings.Contains(c.file, "://") {
					f, err := r.s.files.loader(c.file)
					if err != nil {
						t.Errorf("%s: TFTP does not have %s: %v", c.name, c.file, err)
						continue
					}
					f.Close()
					continue
				}
				u, err := url.Parse(
					strings.NewReplacer("${netX/mac}", testMAC.String(), "${uuid}", guidText).Replace(c.file))
				if err != nil {
					t.Fatal(err)
				}
				if resp := r.get(u.RequestURI(), "10.77.0.100"); resp.StatusCode != http.StatusOK {
					t.Errorf("%s: GET %s = %s", c.name, u.RequestURI(), resp.Status)
				}
			}
		})
	}
}

// A relay sends what machines of another segment ask to ingotd as well as to the DHCP server: the ProxyDHCP offer
// reaches them.
func TestProxyThroughRelays(t *testing.T) {
	kit.NeedPrograms(t, "dnsmasq")
	root, env := siteProgram(t, "isc-dhcp-relay")
	relay := onWire(t) // what is a machine elsewhere: the relay's other leg is eth0
	if relay == "" {
		return
	}
	far := fmt.Sprintf("ingot-nb-f%d", os.Getpid())
	mac := net.HardwareAddr{0x52, 0x54, 0, 0, 0, 0x88}
	kit.Run(t, "ip", "netns", "add", far)
	t.Cleanup(func() {
		if out, err := exec.Command("ip", "netns", "del", far).CombinedOutput(); err != nil {
			t.Errorf("remove namespace %s: %v %s", far, err, out)
		}
	})
	for _, args := range []string{
		"-n " + relay + " addr add 10.77.0.9/24 dev eth0",
		"-n " + relay + " link add name segment type veth peer name far0 address " + mac.String() + " netns " + far,
		"-n " + relay + " addr add 10.78.0.1/24 dev segment",
		"-n " + relay + " link set segment up",
		"-n " + far + " link set far0 up",
		"route add 10.78.0.0/24 via 10.77.0.9",
	} {
		kit.Run(t, "ip", strings.Fields(args)...)
	}
	r := newRig(t, Proxy, func(c *Config) { c.Interface, c.Prefix = "prov", netip.Prefix{} })
	r.port(r.node(node.DeployWait, true, nil), mac, true)
	serve(t, r.s)
	for name, args := range map[string][]string{
		"dnsmasq": {"dnsmasq", "--keep-in-foreground", "--user=root", "--pid-file=", "--log-facility=-",
			"--conf-file=/dev/null", "--port=0", "--dhcp-relay=10.78.0.1,10.77.0.1"},
		"dhcrelay": {root + "/usr/sbin/dhcrelay", "-4", "-d", "--no-pid", "-a", "-id", "segment", "-iu", "eth0",
			"10.77.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			program(t, relay, env, args...)
			for _, c := range []struct {
				name string
				mods []dhcpv4.Modifier
				file string
			}{
				{"UEFI PXE", append(pxe(iana.EFI_X86_64, classPXE), edk2PXE), namedFile(mac.String(), uefiLoader)},
				{"iPXE", append(ipxePacket(iana.EFI_BC), ipxeAsks),
					"http://10.77.0.1:8080/boot.ipxe?mac=52%3A54%3A00%3A00%3A00%3A88&uuid=33221100-5544-7766-8899-aabbccddeeff"},
			} {
				in(t, far, func() error {
					client, err := nclient4.New("far0", nclient4.WithTimeout(time.Second), nclient4.WithRetry(60))
					if err != nil {
						return err
					}
					defer client.Close()
					offer, err := client.DiscoverOffer(t.Context(), c.mods...)
					if err != nil {
						return err
					}
					if offer.BootFileNameOption() != c.file || !offer.YourIPAddr.IsUnspecified() ||
						!offer.GatewayIPAddr.Equal(net.IP{10, 78, 0, 1}) {
						t.Errorf("%s got %s", c.name, offer.Summary())
					}
					return nil
				})
			}
		})
	}
}
