//go:build !race

package netboot

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit"
)

// Real firmware in QEMU, with the boot programs of Debian's package ipxe, all the way to iPXE having fetched kernel and initramfs. (What
// is served as kernel is none, so that is where it ends.) They are not run with the race detector: the other tests send to the
// server what firmware sends.
var firmwares = []struct {
	name   string
	mode   Mode
	uefi   bool
	guid   bool   // admitted by its GUID, as at the first inspection; else by a port
	device string // of QEMU, after the network card's common part
	args   []string
	loader string // which must have been fetched
}{
	{"BIOS/iPXE", Leases, false, true, "", nil, ""},
	{"BIOS/iPXE/proxy", Proxy, false, true, "", nil, ""},
	{"UEFI/PXE", Leases, true, false, ",romfile=", nil, uefiLoader},
	{"UEFI/PXE/proxy", Proxy, true, false, ",romfile=", nil, uefiLoader},
	{"UEFI/HTTP", Leases, true, true, ",romfile=", []string{"-fw_cfg", "name=opt/org.tianocore/IPv4PXESupport,string=n"}, uefiLoader},
	{"UEFI/HTTP/off", Off, true, false, ",romfile=", []string{"-fw_cfg", "name=opt/org.tianocore/IPv4PXESupport,string=n"}, uefiLoader},
}

func TestFirmwareBIOSiPXE(t *testing.T)      { bootFirmware(t, 0) }
func TestFirmwareBIOSiPXEProxy(t *testing.T) { bootFirmware(t, 1) }
func TestFirmwareUEFIPXE(t *testing.T)       { bootFirmware(t, 2) }
func TestFirmwareUEFIPXEProxy(t *testing.T)  { bootFirmware(t, 3) }
func TestFirmwareUEFIHTTP(t *testing.T)      { bootFirmware(t, 4) }
func TestFirmwareUEFIHTTPOff(t *testing.T)   { bootFirmware(t, 5) }

func bootFirmware(t *testing.T, i int) {
	fw := firmwares[i]
	kit.NeedPrograms(t, "qemu-system-x86_64")
	if fw.mode != Leases {
		kit.NeedPrograms(t, "dnsmasq")
	}
	kit.NeedFiles(t, "ipxe", "/usr/lib/ipxe/"+uefiLoader, "/usr/lib/ipxe/"+biosLoader)
	machine := onWire(t)
	if machine == "" {
		return
	}
	r := newRig(t, fw.mode, func(c *Config) { c.Interface, c.Prefix, c.LoaderDir = "prov", netip.Prefix{}, "/usr/lib/ipxe" })
	if fw.uefi {
		// iPXE looks whether firmware could start it. Any EFI program will do.
		efi, err := os.ReadFile("/usr/lib/ipxe/" + uefiLoader)
		if err != nil {
			t.Fatal(err)
		}
		r.ramdisk(string(efi), "the initramfs")
	}
	n := r.node(node.InspectWait, true, func(n *node.Node) {
		if fw.guid {
			n.SystemGUIDs = []string{guidText}
		}
	})
	mac := net.HardwareAddr{0x52, 0x54, 0, 0, 0, 0x77}
	if !fw.guid {
		r.port(n, mac, true)
	}
	serve(t, r.s)
	switch fw.mode {
	case Proxy:
		otherDHCP(t, machine)
	case Off:
		sites[0].start(t, "", t.TempDir(), "10.77.0.1")
	}
	args := append([]string{"-uuid", guidText, "-netdev", "tap,id=n0,ifname=tap0,script=no,downscript=no",
		"-device", "virtio-net-pci,netdev=n0,bootindex=1,mac=" + mac.String() + fw.device,
		"-fw_cfg", "name=opt/org.tianocore/IPv6PXESupport,string=n"}, fw.args...)
	begin := time.Now()
	console := kit.Boot(t, kit.VM{UEFI: fw.uefi, Args: args, Timeout: 2 * time.Minute, Until: `Ingot: starting the agent`})
	t.Logf("%s: boot script carried out %s after power-on", fw.name, time.Since(begin).Round(100*time.Millisecond))
	if !strings.Contains(console, "Ingot: loading the agent for node "+n.UUID) {
		t.Errorf("the console does not say what is being done:\n%s", console)
	}
	marks, err := r.st.Marks(t.Context(), n.UUID, "job")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range marks {
		names = append(names, m.Name)
	}
	for _, want := range []string{node.MarkDHCP, node.MarkBootScript, node.MarkKernel, node.MarkRamdisk} {
		if (want != node.MarkDHCP || fw.mode != Off) && !strings.Contains(strings.Join(names, ","), want) {
			t.Errorf("the time line %q lacks %q", names, want)
		}
	}
	if fw.loader != "" && fw.device != "" && fw.mode == Leases && fw.args == nil && !strings.Contains(strings.Join(names, ","), node.MarkBootProgram) {
		t.Errorf("the time line %q lacks %q", names, node.MarkBootProgram)
	}
}

// otherDHCP is somebody else's DHCP server on the network: it gives addresses, and a boot file of its own to everybody.
func otherDHCP(t *testing.T, ns string) {
	t.Helper()
	kit.Run(t, "ip", "-n", ns, "addr", "add", "10.77.0.2/24", "dev", "eth0")
	program(t, ns, nil, "dnsmasq", "--keep-in-foreground", "--user=root", "--pid-file=", "--log-facility=-", "--conf-file=/dev/null", "--port=0", "--no-ping",
		"--dhcp-leasefile="+t.TempDir()+"/leases", "--dhcp-range=10.77.0.200,10.77.0.210,10m", "--dhcp-boot=pxelinux.0")
}
