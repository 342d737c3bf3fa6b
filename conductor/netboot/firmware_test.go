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

// Real firmware in QEMU, with the boot programs of Debian's package ipxe, all the way to iPXE having fetched kernel and
// initramfs. (What is served as kernel is none, so that is where it ends.) They are not run with the race detector: the
// other tests send to the server what firmware sends.
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
	{"UEFI/HTTP", Leases, true, true, ",romfile=",
		[]string{"-fw_cfg", "name=opt/org.tianocore/IPv4PXESupport,string=n"}, uefiLoader},
	{"UEFI/HTTP/off", Off, true, false, ",romfile=",
		[]string{"-fw_cfg", "name=opt/org.tianocore/IPv4PXESupport,string=n"}, uefiLoader},
}

// lastWords is printed when iPXE starts what it loaded. It is not the whole line: these kernels end the machine at
// once, and the last bytes of a serial port can be lost with it.
const lastWords = `Ingot: starting`

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
	r := newRig(t, fw.mode, func(c *Config) {
		c.Interface, c.Prefix, c.LoaderDir = "prov", netip.Prefix{}, "/usr/lib/ipxe"
	})
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
		otherDHCP(t, machine, "pxelinux.0")
	case Off:
		sites[0].start(t, t.TempDir(), "10.77.0.1")
	}
	args := append([]string{"-uuid", guidText, "-netdev", "tap,id=n0,ifname=tap0,script=no,downscript=no",
		"-device", "virtio-net-pci,netdev=n0,bootindex=1,mac=" + mac.String() + fw.device,
		"-fw_cfg", "name=opt/org.tianocore/IPv6PXESupport,string=n"}, fw.args...)
	begin := time.Now()
	console := kit.Boot(t, kit.VM{UEFI: fw.uefi, Args: args, Timeout: 2 * time.Minute, Until: lastWords})
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
	if fw.loader != "" && fw.device != "" && fw.mode == Leases && fw.args == nil &&
		!strings.Contains(strings.Join(names, ","), node.MarkBootProgram) {
		t.Errorf("the time line %q lacks %q", names, node.MarkBootProgram)
	}
}

// TestFirmwareTwoCards: the card that booted is the one that the agent is told, whatever the foreign DHCP server's URL
// names. Only iPXE that drives all cards can name another.
func TestFirmwareTwoCards(t *testing.T) {
	kit.NeedPrograms(t, "qemu-system-x86_64")
	machine := onWire(t)
	if machine == "" {
		return
	}
	r := newRig(t, Off, func(c *Config) { c.Prefix = netip.Prefix{} })
	n := r.node(node.InspectWait, true, func(n *node.Node) { n.SystemGUIDs = []string{guidText} })
	serve(t, r.s)
	otherDHCP(t, machine, "http://10.77.0.1:8080/boot.ipxe?mac=${net0/mac}&uuid=${uuid}")
	console := kit.Boot(t, kit.VM{Timeout: 2 * time.Minute, Until: lastWords, Args: []string{"-uuid", guidText,
		// on no network
		"-netdev", "hubport,id=n0,hubid=7", "-device", "virtio-net-pci,netdev=n0,addr=3,romfile=,mac=" +
			firstCard.String(),
		"-netdev", "tap,id=n1,ifname=tap0,script=no,downscript=no", "-device",
		"virtio-net-pci,netdev=n1,addr=4,bootindex=1,mac=" + secondCard.String()}})
	if !strings.Contains(console, "mac="+firstCard.String()) {
		t.Errorf("net0 is not the other card, so this shows nothing:\n%s", console)
	}
	if r.log.count("msg=\"boot script served\" node="+n.UUID+" mac="+secondCard.String()) != 1 {
		t.Errorf("log:\n%s", r.log.b.String())
	}
}

// A machine whose firmware tries the network first goes on to its disk without waiting for what never comes.
func TestFirmwareBIOSStartsDisk(t *testing.T) {
	if onWire(t) != "" {
		startDisk(t, false, `Booting from Hard Disk`)
	}
}

func TestFirmwareUEFIStartsDisk(t *testing.T) {
	if onWire(t) == "" {
		return
	}
	console := startDisk(t, true, `BdsDxe: (loading|failed to load) Boot\d+ "UEFI Misc Device`)
	// One way after the other: PXE is called off by what DHCP says, HTTP boot by the boot script.
	for text, want := range map[string]bool{"PXE-E21": true, "PXE-E16": false, "/loader/snponly.efi": true} {
		if strings.Contains(console, text) != want {
			t.Errorf("%q on the console: want %v\n%s", text, want, console)
		}
	}
}

func startDisk(t *testing.T, uefi bool, until string) (console string) {
	t.Helper()
	kit.NeedPrograms(t, "qemu-system-x86_64")
	kit.NeedFiles(t, "ipxe", "/usr/lib/ipxe/"+uefiLoader, "/usr/lib/ipxe/"+biosLoader)
	r := newRig(t, Leases, func(c *Config) {
		c.Interface, c.Prefix, c.LoaderDir = "prov", netip.Prefix{}, "/usr/lib/ipxe"
	})
	n := r.node(node.Active, false, onFlat)
	r.port(n, secondCard, true)
	serve(t, r.s)
	device := "virtio-net-pci,netdev=n0,bootindex=0,mac=" + secondCard.String()
	if uefi {
		device += ",romfile="
	}
	begin := time.Now()
	console = kit.Boot(t,
		kit.VM{UEFI: uefi, Disks: []string{kit.TempDisk(t, 1<<20)}, Timeout: 4 * time.Minute, Until: until,
			Args: []string{
				"-netdev", "tap,id=n0,ifname=tap0,script=no,downscript=no", "-device", device, "-fw_cfg",
				"name=opt/org.tianocore/IPv6PXESupport,string=n"}})
	t.Logf("the disk is tried %s after power-on", time.Since(begin).Round(100*time.Millisecond))
	if r.log.count("the machine starts the system on its disk") != 1 ||
		!strings.Contains(console, "Ingot: the system of this machine is on its disk") {
		t.Errorf("no script sent it there:\n%s\n%s", console, r.log.b.String())
	}
	return console
}

// otherDHCP is somebody else's DHCP server on the network: it gives addresses, and a boot file of its own to everybody.
func otherDHCP(t *testing.T, ns, file string) {
	t.Helper()
	kit.Run(t, "ip", "-n", ns, "addr", "add", "10.77.0.2/24", "dev", "eth0")
	program(t, ns, nil, "dnsmasq", "--keep-in-foreground", "--user=root", "--pid-file=", "--log-facility=-",
		"--conf-file=/dev/null", "--port=0", "--no-ping", "--dhcp-leasefile="+t.TempDir()+"/leases",
		"--dhcp-range=10.77.0.200,10.77.0.210,10m", "--dhcp-boot="+file)
}
