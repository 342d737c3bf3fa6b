package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab"
	"github.com/ingot-metal/ingot/tools/lab/vswitch"
)

// fabric is a switch between the machines of a rack and the provisioning network, and the frames that left its ports.
type fabric struct {
	*vswitch.Switch
	mu   sync.Mutex
	seen map[string]bool // "MAC at PORT": a frame of that machine left that port
}

func (f *fabric) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = map[string]bool{}
}

func (f *fabric) saw(mac, port string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[mac+" at "+port]
}

// TestTenantsAreApart: two machines at one switch are deployed for two tenants. Where one is cabled is learnt by LLDP
// at its inspection, for the other an operator says it. The frames of the deployed systems reach their tenant's VLANs,
// and neither the other tenant's machine nor the provisioning network; and then one is cleaned again, for which it must
// boot over the network. That one has two cards. While it is its tenant's, they are a LAG of the switch and a bond of
// the system, which agree by LACP, and a trunk: untagged and tagged frames go to different VLANs. The switch speaks as
// Cisco NX-OS; with INGOT_FULL it speaks as Arista EOS in a second run.
func TestTenantsAreApart(t *testing.T) {
	t.Parallel()
	forms := map[vswitch.Dialect]string{vswitch.NXOS: "Ethernet1/%d"}
	if os.Getenv("INGOT_FULL") != "" {
		forms[vswitch.EOS] = "Ethernet%d"
	}
	for d, form := range forms {
		t.Run(string(d), func(t *testing.T) { tenantsAreApart(t, d, form) })
	}
}

func tenantsAreApart(t *testing.T, d vswitch.Dialect, form string) {
	kit.NeedRoot(t)
	const password = "s3cr3t-of-the-switch"
	port := func(n int) string { return fmt.Sprintf(form, n) }
	ports := []string{port(1), port(2), port(3), port(45), port(46), port(47), port(48), port(49)}
	f := &fabric{Switch: vswitch.New("leaf-1", d, "ingot", password, ports...), seen: map[string]bool{}}
	f.Chassis = [6]byte{0x00, 0x1c, 0x73, 0, 0, 1}
	f.Seen = func(port string, frame []byte) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.seen[net.HardwareAddr(frame[6:12]).String()+" at "+port] = true
	}
	f.AddVLANs(100, 201, 202, 211, 999)
	at := map[int]int{1: 100, 2: 100, // a new machine is inspected there
		3: 999, 48: 100, 45: 211, 46: 201, 47: 202, 49: 999}
	for n, vlan := range at {
		f.Set(port(n), vswitch.Port{Mode: "access", Access: vlan, Native: 1})
		f.Plug(port(n), func([]byte) {})
	}
	key, public, err := vswitch.NewHostKey()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "vsw") // short enough for the names of sockets
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	serve := func(run func() error) {
		running.Go(func() {
			if err := run(); err != nil {
				t.Error(err)
			}
		})
	}
	end := sync.OnceFunc(func() {
		stop()
		running.Wait()
		os.RemoveAll(dir)
	})
	t.Cleanup(end)
	plug := func(name string) lab.NICSpec {
		socket := filepath.Join(dir, strings.ReplaceAll(name, "/", "-"))
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		serve(func() error { return f.ServeSocket(ctx, name, l) })
		return lab.NICSpec{Socket: socket}
	}
	second := plug(port(3))
	second.ROM = lab.ROMNone
	nodes := []lab.NodeSpec{{Name: "a", Disks: disk6(), NICs: []lab.NICSpec{plug(port(1)), second}},
		{Name: "b", Disks: disk6(), NICs: []lab.NICSpec{plug(port(2))}}}
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	table := write("switches.yaml", fmt.Sprintf(`
networks:
  provisioning: {vlan: 100}
  quarantine: {vlan: 999}
  tenants: {tenant-a: {vlans: "211", native: 201}, tenant-b: {vlan: 202}}
switches:
  leaf-1:
    address: 10.77.0.1:2222
    dialect: %s
    ids: ["00:1c:73:00:00:01"]
    host_key: %s
    username: ingot
    password_file: %s
    ports: [%s-3]
    channels: "10"
    save: true
`, d, public, write("password", password), port(1)))
	r := newRig(t, nodes, set("switches.file", table), set("hardware.default_network_interface", "switch"),
		set("deploy.fast_track", true), set("inspection.lldp_timeout", "20s"))
	t.Cleanup(end) // before the rack goes down
	card, err := r.lab.OpenCard("uplink")
	if err != nil {
		t.Fatal(err)
	}
	context.AfterFunc(ctx, func() { card.Close() })
	running.Go(func() { f.ServeCard(port(48), card) })
	ssh, err := r.lab.Listen("tcp", r.lab.Host.String()+":2222")
	if err != nil {
		t.Fatal(err)
	}
	serve(func() error { return f.Serve(ctx, ssh, key) })

	names, from := []string{"a", "b"}, map[string]int64{}
	for _, name := range names {
		m := r.lab.Node(name)
		n := r.must("POST", "/v1/nodes", object{"name": name, "driver": "ipmi", "driver_info": controller(m),
			"inspect_interface": "agent", "automated_clean": name == "a"})
		if name == "b" {
			r.must("POST", "/v1/ports", object{"node_uuid": n.str("uuid"), "address": m.MAC,
				"local_link_connection": object{"switch_id": "00:1c:73:00:00:01", "port_id": port(2)}})
		}
		r.provision(name, "manage", nil)
		r.wait(name, "manageable", stateLimit)
	}
	r.provision("a", "inspect", nil)
	r.wait("a", "manageable", bootLimit)
	group := r.must("POST", "/v1/portgroups", object{"node_uuid": r.must("GET", "/v1/nodes/a", nil).str("uuid"),
		"address": r.lab.Node("a").MAC, "mode": "802.3ad", "properties": object{"channel": "10"}}).str("uuid")
	cards, _ := r.must("GET", "/v1/ports?node=a&detail=True", nil)["ports"].([]any)
	if len(cards) != 2 {
		t.Fatalf("the inspection found %v, want two cards", cards)
	}
	for _, card := range cards {
		r.must("PATCH", "/v1/ports/"+fmt.Sprint(card.(map[string]any)["uuid"]),
			[]object{{"op": "add", "path": "/portgroup_uuid", "value": group}})
	}
	for i, name := range names {
		r.provision(name, "provide", nil)
		r.wait(name, "available", bootLimit)
		r.source(name, r.ours(r.art.tiny), r.art.tiny.sha256)
		vif := object{"id": "tenant-" + name}
		if name == "a" {
			vif["portgroup_uuid"] = group
		}
		r.must("POST", "/v1/nodes/"+name+"/vifs", vif)
		if p := f.Port(ports[i]); p.Access != 100 {
			t.Errorf("after cleaning the port of %s is %+v", name, p)
		}
	}
	for _, name := range names {
		from[name] = r.lab.Node(name).ConsoleSize()
		drive := hostname("tenant-" + name)
		if name == "a" {
			meta, _ := drive["configdrive"].(object)["meta_data"].(object)
			meta["bond"], meta["vlan"] = "802.3ad", "211"
		}
		r.provision(name, "active", drive)
	}
	for _, name := range names {
		r.wait(name, "active", bootLimit)
	}
	f.forget() // the agents' frames; the systems have not started yet, or are in their networks
	for _, name := range names {
		r.boots(r.lab.Node(name), from[name], "tenant-"+name)
	}
	joined, cancel := context.WithTimeout(t.Context(), osLimit)
	defer cancel()
	if err := r.lab.Node("a").WaitConsole(joined, from["a"],
		"INGOT-TINY-BOND eth0 eth1 ports=2 partner=00:1c:73:00:00:01"); err != nil {
		t.Errorf("the system's bond is no LAG with the switch: %v", err)
	}
	a, b := r.lab.Node("a").MAC, r.lab.Node("b").MAC
	own := map[string][]string{a: {port(45), port(46)}, b: {port(47)}}
	for mac, ports := range own {
		for _, port := range ports {
			kit.Eventually(t, osLimit, "frames of "+mac+" reach its tenant's network",
				func() bool { return f.saw(mac, port) })
		}
	}
	for mac, reached := range own {
		for _, other := range ports {
			if !slices.Contains(reached, other) && f.saw(mac, other) {
				t.Errorf("frames of %s reach %s, in VLAN %d", mac, other, f.Port(other).Access)
			}
		}
	}
	lag := map[vswitch.Dialect]string{vswitch.NXOS: "port-channel10", vswitch.EOS: "Port-Channel10"}[d]
	for name, want := range map[string]vswitch.Port{port(1): {Channel: 10}, port(3): {Channel: 10},
		port(2): {Access: 202}, lag: {Native: 201, Allowed: []int{201, 211}}} {
		if p := f.Saved(name); p.Channel != want.Channel || want.Access != 0 && p.Access != want.Access ||
			want.Native != 0 && (p.Native != want.Native || !slices.Equal(p.Allowed, want.Allowed)) {
			t.Errorf("after a restart of the switch %s would be %+v, want %+v", name, p, want)
		}
	}

	r.provision("a", "deleted", nil)
	r.wait("a", "available", bootLimit)
	if head, err := readAt(r.lab.Node("a").DiskFile(0), 0, 1<<20); err != nil || !zero(head) {
		t.Errorf("the tenant's partition table survived (%v)", err)
	}
	if p := f.Port(ports[1]); p.Access != 202 {
		t.Errorf("the other tenant's port is %+v", p)
	}
	for _, name := range []string{port(1), port(3)} {
		if p := f.Port(name); p.Channel != 0 || p.Mode != "access" {
			t.Errorf("after the tenant %s is %+v", name, p)
		}
	}
	if lines, _, _ := f.Lines(); strings.Contains(strings.Join(lines, "\n"), "interface "+port(4)) {
		t.Errorf("other ports were configured: %q", lines)
	}
}
