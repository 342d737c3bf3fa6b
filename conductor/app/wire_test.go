//go:build !race

package app_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/app/doctor"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// wire makes two network namespaces with a wire between them: the conductor's with "prov", 10.77.0.1, and another
// host's with "eth0", 10.77.0.2.
func wire(t *testing.T) (conductor, other string) {
	t.Helper()
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "ip", "dnsmasq")
	conductor, other = fmt.Sprintf("ingot-app-c%d", os.Getpid()), fmt.Sprintf("ingot-app-o%d", os.Getpid())
	for _, ns := range []string{conductor, other} {
		kit.Run(t, "ip", "netns", "add", ns)
		t.Cleanup(func() {
			if out, err := exec.Command("ip", "netns", "del", ns).CombinedOutput(); err != nil {
				t.Errorf("remove namespace %s: %v %s", ns, err, out)
			}
		})
		kit.Run(t, "ip", "-n", ns, "link", "set", "lo", "up")
	}
	kit.Run(t, "ip", "-n", conductor, "link", "add", "prov", "type", "veth", "peer", "name", "eth0", "netns", other)
	kit.Run(t, "ip", "-n", conductor, "addr", "add", "10.77.0.1/24", "dev", "prov")
	kit.Run(t, "ip", "-n", other, "addr", "add", "10.77.0.2/24", "dev", "eth0")
	kit.Run(t, "ip", "-n", conductor, "link", "set", "prov", "up")
	kit.Run(t, "ip", "-n", other, "link", "set", "eth0", "up")
	return conductor, other
}

// conductorIn is the command that runs ingotd in a namespace, with a configuration that lacks nothing. before are words
// before ingotd.
func conductorIn(t *testing.T, ns string, before []string, args ...string) *exec.Cmd {
	t.Helper()
	s := &site{t: t, dir: t.TempDir()}
	s.writeRamdisk()
	words := append([]string{"netns", "exec", ns}, before...)
	words = append(append(words, made.Program(t, "ingotd")), args...)
	return exec.CommandContext(t.Context(), "ip",
		append(words, "--data-dir", filepath.Join(s.dir, "data"), "--set", "hostname=wire",
			"--set", "netboot.ramdisk_dir="+filepath.Join(s.dir, "ramdisk"), "--set", "netboot.loader_dir=", "--set",
			"netboot.tftp=false")...)
}

func examined(t *testing.T, cmd *exec.Cmd) []doctor.Finding {
	t.Helper()
	out, err := cmd.Output() // the status only says that there are faults; the findings name them
	var all []doctor.Finding
	if jerr := json.Unmarshal(out, &all); jerr != nil {
		t.Fatalf("doctor: %v, %v\n%s", err, jerr, out)
	}
	return all
}

func wantFinding(t *testing.T, all []doctor.Finding, check string, status doctor.Status, detail, remedy string) {
	t.Helper()
	for _, f := range all {
		if f.Check == check && f.Status == status && strings.Contains(f.Detail, detail) &&
			strings.Contains(f.Remedy, remedy) {
			return
		}
	}
	t.Errorf("no %s of %q says %q and %q: %+v", status, check, detail, remedy, all)
}

// The real ingotd at its start, and the real doctor, say which other servers answer on the wire and whether they fit
// the mode.
func TestOtherServersAreReported(t *testing.T) {
	ns, other := wire(t)
	proxy := kit.Dnsmasq(t, other, "interface=eth0", "except-interface=lo", "dhcp-range=10.77.0.0,proxy",
		`pxe-service=X86-64_EFI,"other",other.efi`)
	set := []string{"--set", "netboot.interface=prov", "--set", "netboot.dhcp=proxy"}
	const text = "ProxyDHCP server 10.77.0.2 answers on this network as well"
	doctor := append([]string{"doctor", "--json"}, set...)

	all := examined(t, conductorIn(t, ns, nil, doctor...))
	wantFinding(t, all, "network", "warning", text, "pxe-service")
	wantFinding(t, all, "network", "warning", "no DHCP server answers", "set netboot.dhcp to server")
	wantFinding(t, all, "ports", "ok", "are free", "")

	kit.NeedPrograms(t, "setpriv")
	all = examined(t, conductorIn(t, ns, []string{"setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw"},
		doctor...))
	wantFinding(t, all, "network", "warning", "can't be looked for", "CAP_NET_RAW")
	wantFinding(t, all, "ports", "fault", "it takes the capability CAP_NET_RAW", "")

	cmd := conductorIn(t, ns, nil, set...)
	log := &buffer{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("ingotd: %v\n%s", err, log)
		}
	}()
	kit.Eventually(t, 2*time.Minute, "what ingotd says at its start",
		func() bool { return strings.Contains(log.String(), text) })
	if leases := proxy.Leases(); leases != "" {
		t.Errorf("leases: %s", leases)
	}
}

// Network boot is IPv4 only, and a network without it is refused in words.
func TestIPv6OnlyNetworkIsRefused(t *testing.T) {
	ns, _ := wire(t)
	kit.Run(t, "ip", "-n", ns, "addr", "flush", "dev", "prov")
	kit.Run(t, "ip", "-n", ns, "addr", "add", "fd00:77::1/64", "dev", "prov", "nodad")
	lease := []string{"--set", "netboot.range_start=10.77.0.50", "--set", "netboot.range_end=10.77.0.60"}
	for _, mode := range []string{"server", "proxy", "off"} {
		for _, c := range []struct{ set, want, check, remedy string }{
			{"netboot.dhcp=" + mode,
				"netboot.interface prov has no IPv4 address, and network boot is IPv4 only: give it one", "ports",
				"IPv4 address"},
			{"netboot.address=fd00:77::1", `netboot.address: "fd00:77::1" is not an IPv4 address`, "configuration",
				"correct"},
		} {
			args := append([]string{"--set", "netboot.interface=prov", "--set", "netboot.dhcp=" + mode, "--set", c.set},
				lease...)
			if out, err := conductorIn(t, ns, nil, args...).CombinedOutput(); err == nil ||
				!strings.Contains(string(out), c.want) {
				t.Errorf("ingotd %q ended with %v, want %q: %s", args, err, c.want, out)
			}
			all := examined(t, conductorIn(t, ns, nil, append([]string{"doctor", "--json"}, args...)...))
			wantFinding(t, all, c.check, "fault", c.want, c.remedy)
		}
	}
}
