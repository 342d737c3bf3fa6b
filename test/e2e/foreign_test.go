package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab"
	"github.com/ingot-metal/ingot/tools/lab/site"
)

// network is a site and a machine that boots there: a row of the matrix.
type network struct {
	mode, firmware, server, shape string
}

func (n network) String() string {
	return strings.Join([]string{n.mode, n.firmware, n.server, n.shape}, ", ")
}

// Firmware that boots from the network.
const (
	biosIPXE  = "BIOS with iPXE"
	biosOther = "BIOS with another ROM" // QEMU has none; iPXE that calls itself otherwise plays it
	uefiPXE   = "UEFI PXE"
	uefiHTTP  = "UEFI HTTP"
)

// Shapes of networks.
const (
	plain         = "one segment"
	dhcrelay      = "behind dhcrelay"
	dnsmasqRelay  = "behind dnsmasq as a relay"
	slowServer    = "slow server" // its offer comes long after the conductor's
	ownBootFile   = "server with a boot file of its own"
	secondCard    = "second card boots"
	silentAtFirst = "server silent for 30 s" // after the machine's first start
	smallMTU      = "MTU 1400"
	sameHost      = "server on the conductor's host"
)

// axes are all values of each column.
var axes = [4][]string{
	{site.Server, site.Proxy, site.Off},
	{biosIPXE, biosOther, uefiPXE, uefiHTTP},
	{"", site.Dnsmasq, site.Dhcpd, site.Kea},
	{plain, dhcrelay, dnsmasqRelay, slowServer, ownBootFile, secondCard, silentAtFirst, smallMTU, sameHost},
}

// site is the row's, and an error where it makes no sense: the lab refuses it, too, with the reason.
func (n network) site() (site.Site, error) {
	s := site.Site{DHCP: n.server, Netboot: n.mode}
	switch n.shape {
	case dhcrelay:
		s.Relay = site.Dhcrelay
	case dnsmasqRelay:
		s.Relay = site.Dnsmasq
	case slowServer:
		s.Delay = 3 * time.Second
	case ownBootFile:
		s.BootFile = "pxelinux.0"
	case silentAtFirst:
		s.Silent = 30 * time.Second
	case smallMTU:
		s.MTU = 1400
	case sameHost:
		s.SameHost = true
	}
	return s.Fill()
}

// machine is the row's.
func (n network) machine(t *testing.T) lab.NodeSpec {
	t.Helper()
	m := lab.NodeSpec{Name: "m", Disks: disk6(), NICs: []lab.NICSpec{{}}}
	switch n.firmware {
	case biosOther:
		kit.NeedFiles(t, "ipxe", "/usr/lib/ipxe/ipxe.lkrn")
		m.Kernel, m.Initrd = "/usr/lib/ipxe/ipxe.lkrn", filepath.Join(t.TempDir(), "rom.ipxe")
		if err := os.WriteFile(m.Initrd, []byte("#!ipxe\nset user-class OtherROM\nautoboot\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	case uefiPXE, uefiHTTP:
		m.Firmware, m.NICs[0].ROM, m.HTTPOnly = lab.UEFI, lab.ROMNone, n.firmware == uefiHTTP
	}
	if n.shape == secondCard {
		m.NICs = []lab.NICSpec{{Elsewhere: true}, m.NICs[0]}
	}
	return m
}

// boots makes a machine, of which only the controller is known, boot the agent and be inspected: all that follows is
// the same in all networks. The agent reports the card that it booted from.
func (n network) boots(t *testing.T) {
	t.Helper()
	s, err := n.site()
	if err != nil {
		t.Fatal(err)
	}
	timeout := "3m"
	if n.shape == silentAtFirst {
		timeout = "90s"
	}
	r := newRigIn(t, s, []lab.NodeSpec{n.machine(t)}, set("deploy.boot_timeout", timeout))
	m := r.lab.Node("m")
	r.must("POST", "/v1/nodes", object{"name": "m", "driver": "ipmi", "driver_info": controller(m),
		"properties": object{"capabilities": "boot_mode:" + string(m.Spec.Firmware)}})
	r.provision("m", "manage", nil)
	r.wait("m", "manageable", stateLimit)
	begin := time.Now()
	r.provision("m", "inspect", nil)
	if n.shape == silentAtFirst && r.failed("m") {
		// Firmware that has given up on the network, with an empty disk, does nothing more: an inspection is requested
		// again.
		r.provision("m", "inspect", nil)
	}
	r.wait("m", "manageable", bootLimit)
	t.Logf("%s: inspected after %s, %d starts", n, time.Since(begin).Round(time.Second), m.Starts())
	// A server that is silent when the machine starts may cost a start. Nothing else may.
	if m.Starts() != 1 && n.shape != silentAtFirst {
		t.Errorf("the machine was started %d times", m.Starts())
	}
	booted := m.Spec.NICs[len(m.Spec.NICs)-1].MAC
	ports, _ := r.must("GET", "/v1/ports/detail", nil)["ports"].([]any)
	if len(ports) != len(m.Spec.NICs) {
		t.Errorf("%d ports, the machine has %d cards", len(ports), len(m.Spec.NICs))
	}
	for _, p := range ports {
		p := object(p.(map[string]any))
		if enabled := p["pxe_enabled"] == true; enabled != (p.str("address") == booted) {
			t.Errorf("port %s has pxe_enabled %v; the card that booted is %s", p.str("address"), enabled, booted)
		}
	}
}

// failed waits for the end of an inspection and reports whether it failed.
func (r *rig) failed(name string) bool {
	r.t.Helper()
	var n object
	kit.Eventually(r.t, bootLimit, "the inspection of "+name+" ends", func() bool {
		n = r.must("GET", "/v1/nodes/"+name, nil)
		return n.str("provision_state") == "manageable" || n.str("provision_state") == "inspect failed"
	})
	r.t.Logf("%s: %s", n.str("provision_state"), n.str("last_error"))
	return n.str("provision_state") == "inspect failed"
}

// The networks of every run. The others of the matrix are booted with INGOT_FULL.
var (
	bootFileNetwork  = network{site.Proxy, uefiPXE, site.Dnsmasq, ownBootFile}
	twoCardsNetwork  = network{site.Off, biosIPXE, site.Dhcpd, secondCard}
	relayNetwork     = network{site.Proxy, biosIPXE, site.Kea, dnsmasqRelay}
	everyRunNetworks = []network{bootFileNetwork, twoCardsNetwork, relayNetwork}
)

func TestForeignBootFile(t *testing.T) { t.Parallel(); bootFileNetwork.boots(t) }
func TestForeignTwoCards(t *testing.T) { t.Parallel(); twoCardsNetwork.boots(t) }
func TestForeignRelay(t *testing.T)    { t.Parallel(); relayNetwork.boots(t) }

// The matrix, by firmware, each some ten networks.
func TestNetworksBIOS(t *testing.T)     { bootMatrix(t, biosIPXE) }
func TestNetworksOtherROM(t *testing.T) { bootMatrix(t, biosOther) }
func TestNetworksUEFIPXE(t *testing.T)  { bootMatrix(t, uefiPXE) }
func TestNetworksUEFIHTTP(t *testing.T) { bootMatrix(t, uefiHTTP) }

// bootMatrix boots a firmware in its networks of the matrix. Without INGOT_FULL it only looks whether there are enough.
func bootMatrix(t *testing.T, firmware string) {
	t.Parallel()
	rows := 0
	for _, n := range matrix() {
		if n.firmware != firmware {
			continue
		}
		rows++
		if os.Getenv("INGOT_FULL") != "" {
			t.Run(n.String(), n.boots)
		}
	}
	if rows < 7 {
		t.Errorf("%s boots in %d networks only", firmware, rows)
	}
}

// A machine boots in a network in 10 s to two minutes, and more than two hundred make sense. So the matrix has each
// pair of values at least once: most faults come from two things that meet.
func TestMatrixHasEveryPair(t *testing.T) {
	rows := append(matrix(), everyRunNetworks...)
	has := map[string]bool{}
	for _, n := range rows {
		if err := n.fits(); err != nil {
			t.Errorf("%s: %v", n, err)
		}
		for _, p := range n.pairs() {
			has[p] = true
		}
		if testing.Verbose() {
			t.Log(n)
		}
	}
	all := possible()
	for _, n := range all {
		for _, p := range n.pairs() {
			if !has[p] {
				t.Errorf("no network has %s", p)
				has[p] = true
			}
		}
	}
	t.Logf("%d networks of %d that make sense", len(rows), len(all))
}

// fits returns which rows make no sense, in addition to those that the lab refuses.
func (n network) fits() error {
	if _, err := n.site(); err != nil {
		return err
	}
	// A client of HTTP boot wants a URL: a file name for PXE is nothing to it.
	if n.firmware == uefiHTTP && n.shape == ownBootFile {
		return errors.New("a client of HTTP boot takes no file name")
	}
	return nil
}

// possible are all rows that make sense, in order.
func possible() (all []network) {
	for _, mode := range axes[0] {
		for _, firmware := range axes[1] {
			for _, server := range axes[2] {
				for _, shape := range axes[3] {
					if n := (network{mode, firmware, server, shape}); n.fits() == nil {
						all = append(all, n)
					}
				}
			}
		}
	}
	return all
}

func (n network) pairs() (out []string) {
	v := []string{"mode " + n.mode, n.firmware, "server " + n.server, n.shape}
	for i := range v {
		for _, w := range v[i+1:] {
			out = append(out, v[i]+" with "+w)
		}
	}
	return out
}

// matrix returns the networks to boot in addition to everyRunNetworks, so that all pairs are: each time the row with
// the most new ones.
func matrix() (chosen []network) {
	all, has := possible(), map[string]bool{}
	take := func(n network) {
		for _, p := range n.pairs() {
			has[p] = true
		}
	}
	for _, n := range everyRunNetworks {
		take(n)
	}
	news := func(n network) (count int) {
		for _, p := range n.pairs() {
			if !has[p] {
				count++
			}
		}
		return count
	}
	for {
		best := slices.MaxFunc(all, func(a, b network) int { return news(a) - news(b) })
		if news(best) == 0 {
			return chosen
		}
		take(best)
		chosen = append(chosen, best)
	}
}
