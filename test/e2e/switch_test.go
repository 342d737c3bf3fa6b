package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
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
// at its inspection, for the other an operator says it. The frames of the deployed systems reach their tenant's VLAN,
// and neither the other tenant's machine nor the provisioning network; and then one is cleaned again, for which it must
// boot over the network. The switch speaks as Cisco NX-OS; with INGOT_FULL it speaks as Arista EOS in a second run.
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
	ports := []string{port(1), port(2), port(46), port(47), port(48), port(49)}
	f := &fabric{Switch: vswitch.New("leaf-1", d, "ingot", password, ports...), seen: map[string]bool{}}
	f.Chassis = [6]byte{0x00, 0x1c, 0x73, 0, 0, 1}
	f.Seen = func(port string, frame []byte) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.seen[net.HardwareAddr(frame[6:12]).String()+" at "+port] = true
	}
	f.AddVLANs(100, 201, 202, 999)
	at := map[int]int{1: 100, 2: 100, // a new machine is inspected there
		48: 100, 46: 201, 47: 202, 49: 999}
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
	var nodes []lab.NodeSpec
	for i, name := range []string{"a", "b"} {
		socket := filepath.Join(dir, name)
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		serve(func() error { return f.ServeSocket(ctx, ports[i], l) })
		nodes = append(nodes, lab.NodeSpec{Name: name, Disks: disk6(), NICs: []lab.NICSpec{{Socket: socket}}})
	}
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
  tenants: {tenant-a: {vlan: 201}, tenant-b: {vlan: 202}}
switches:
  leaf-1:
    address: 10.77.0.1:2222
    dialect: %s
    ids: ["00:1c:73:00:00:01"]
    host_key: %s
    username: ingot
    password_file: %s
    ports: [%s-2]
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
	for i, name := range names {
		r.provision(name, "provide", nil)
		r.wait(name, "available", bootLimit)
		r.source(name, r.ours(r.art.tiny), r.art.tiny.sha256)
		r.must("POST", "/v1/nodes/"+name+"/vifs", object{"id": "tenant-" + name})
		if p := f.Port(ports[i]); p.Access != 100 {
			t.Errorf("after cleaning the port of %s is %+v", name, p)
		}
	}
	for _, name := range names {
		from[name] = r.lab.Node(name).ConsoleSize()
		r.provision(name, "active", hostname("tenant-"+name))
	}
	for _, name := range names {
		r.wait(name, "active", bootLimit)
	}
	f.forget() // the agents' frames; the systems have not started yet, or are in their networks
	for _, name := range names {
		r.boots(r.lab.Node(name), from[name], "tenant-"+name)
	}
	a, b := r.lab.Node("a").MAC, r.lab.Node("b").MAC
	own := map[string]string{a: port(46), b: port(47)}
	for mac, port := range own {
		kit.Eventually(t, osLimit, "frames of "+mac+" reach its tenant's network",
			func() bool { return f.saw(mac, port) })
	}
	for mac, port := range own {
		for _, other := range ports {
			if other != port && f.saw(mac, other) {
				t.Errorf("frames of %s reach %s, in VLAN %d", mac, other, f.Port(other).Access)
			}
		}
	}
	for i, vlan := range []int{201, 202} {
		if p := f.Saved(ports[i]); p.Access != vlan {
			t.Errorf("after a restart of the switch %s would be %+v, want VLAN %d", ports[i], p, vlan)
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
	if lines, _, _ := f.Lines(); strings.Contains(strings.Join(lines, "\n"), "interface "+port(4)) {
		t.Errorf("other ports were configured: %q", lines)
	}
}
