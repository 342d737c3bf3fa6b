package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/switched"
	"github.com/ingot-metal/ingot/tools/lab/vswitch"
)

const switchSecret = "canary-of-the-switch"

// switchWorld is a world with a switch, whose port 1 is Ingot's, and whose port 2 is an uplink.
func switchWorld(t *testing.T) (*world, *vswitch.Switch) {
	t.Helper()
	s := vswitch.New("leaf-1", vswitch.EOS, "ingot", switchSecret, "Ethernet1", "Ethernet2")
	s.AddVLANs(100, 201, 202, 999)
	address, public := switched.Serve(t, s)
	table, password := filepath.Join(t.TempDir(), "switches.yaml"), filepath.Join(t.TempDir(), "password")
	for file, text := range map[string]string{password: switchSecret, table: fmt.Sprintf(`
networks:
  provisioning: {vlan: 100}
  quarantine: {vlan: 999}
  tenants: {shop-net: {vlan: 201}, canary-net: {vlan: 202, projects: [none]}}
switches:
  leaf-1: {address: %q, dialect: arista_eos, ids: ["00:1c:73:00:00:01"], host_key: %s, username: ingot,
    password_file: %s, ports: [Ethernet1], timeout: 2s}
`, address, public, password)} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return newWorld(t, "switches.file="+table, "hardware.default_network_interface=switch",
		"deploy.automated_clean=false"), s
}

// cabled makes an available node, with a port at the switch's port, and leases it to "shop".
func (w *world) cabled(name, mac, port string) (node, portUUID string) {
	w.Helper()
	id := w.node(name, "")
	made := w.uuid(w.want(201, root, "POST", "/v1/ports", `{"node_uuid":"`+id+`","address":"`+mac+
		`","local_link_connection":{"switch_id":"00:1c:73:00:00:01","port_id":"`+port+`"}}`))
	w.state(name, "manage", "manageable")
	w.state(name, "provide", "available")
	w.lease(name, "shop")
	return id, made
}

// TestSwitchesFromRecords: what those who may change a node's records can write there brings no machine to another
// tenant's network, to another node's port, or to a port that is not Ingot's; no session with the switch is begun, and
// no name of another project's network is shown.
func TestSwitchesFromRecords(t *testing.T) {
	w, s := switchWorld(t)
	_, port := w.cabled("n", "52:54:00:00:00:01", "Ethernet1")
	refused := func(what, words string) {
		t.Helper()
		out := w.want(400, root, "PUT", "/v1/nodes/n/states/provision", `{"target":"active"}`)
		if !strings.Contains(out, words) {
			t.Errorf("%s: %s, want a sentence about %q", what, out, words)
		}
		w.absent(what, out+w.want(200, leo, "GET", "/v1/nodes/n/validate", ""), switchSecret, "shop-net")
	}
	refused("no network", "no network is attached")
	for _, vif := range []string{"canary-net", "201", "provisioning", "quarantine", "Ethernet1", "shop-ne"} {
		w.want(204, leo, "POST", "/v1/nodes/n/vifs", `{"id":"`+vif+`"}`)
		refused("network "+vif, "network")
		w.want(204, leo, "DELETE", "/v1/nodes/n/vifs/"+vif, "")
	}
	for _, vif := range []string{"../x", "a\\nreload", "a b", strings.Repeat("x", 300), ""} {
		w.want(400, leo, "POST", "/v1/nodes/n/vifs", `{"id":"`+vif+`"}`)
	}
	w.want(204, leo, "POST", "/v1/nodes/n/vifs", `{"id":"shop-net"}`)
	w.want(202, root, "PUT", "/v1/nodes/n/maintenance", "")
	for _, link := range []string{"Ethernet2", "Ethernet1\\nreload", "Ethernet1 ; reload", "Management1",
		"Ethernet99999", "Vlan1"} {
		w.want(200, root, "PATCH", "/v1/ports/"+port,
			`[{"op":"add","path":"/local_link_connection/port_id","value":"`+link+`"}]`)
		w.want(202, root, "DELETE", "/v1/nodes/n/maintenance", "")
		out := w.want(400, root, "PUT", "/v1/nodes/n/states/provision", `{"target":"active"}`)
		if !strings.Contains(out, "not one that Ingot may configure") {
			t.Errorf("port %q: %s", link, out)
		}
		w.want(202, root, "PUT", "/v1/nodes/n/maintenance", "")
	}
	w.want(200, root, "PATCH", "/v1/ports/"+port,
		`[{"op":"add","path":"/local_link_connection/port_id","value":"Ethernet1"}]`)
	w.want(202, root, "DELETE", "/v1/nodes/n/maintenance", "")
	w.cabled("m", "52:54:00:00:00:02", "et1")
	out := w.want(400, root, "PUT", "/v1/nodes/n/states/provision", `{"target":"active"}`)
	if !strings.Contains(out, "cabled to the same port") {
		t.Errorf("another node's port: %s", out)
	}
	if lines, sessions, _ := s.Lines(); sessions != 0 {
		t.Errorf("%d sessions with the switch: %q", sessions, lines)
	}
}

// TestHostileSwitch: a switch that never stops talking, says what it likes, sends escape sequences or repeats its
// password ends a deployment in an error that is short, clean and without the password; the conductor stays small and
// goes on.
func TestHostileSwitch(t *testing.T) {
	w, s := switchWorld(t)
	w.cabled("n", "52:54:00:00:00:01", "Ethernet1")
	before := memoryOf(t, w.d.PID)
	for name, fault := range map[string]vswitch.Fault{"flood": vswitch.Flood, "leak": vswitch.Leak,
		"silence": vswitch.Hang, "lie": vswitch.Ignore} {
		w.want(204, leo, "POST", "/v1/nodes/n/vifs", `{"id":"shop-net"}`)
		s.SetFault(func(line string) vswitch.Fault {
			if strings.HasPrefix(line, "switchport access") {
				return fault
			}
			return vswitch.Scramble
		})
		w.want(202, root, "PUT", "/v1/nodes/n/states/provision", `{"target":"active"}`)
		node := ""
		ingotd.Wait(t, "the deployment has ended", func() bool {
			node = w.want(200, root, "GET", "/v1/nodes/n", "")
			return strings.Contains(node, `"provision_state":"deploy failed"`) ||
				strings.Contains(node, `"provision_state":"active"`)
		})
		if !strings.Contains(node, "switch leaf-1") || strings.Contains(node, `"provision_state":"active"`) {
			t.Errorf("%s: the node is %.600s", name, node)
		}
		history := w.want(200, root, "GET", "/v1/nodes/n/history", "")
		w.absent(name, node+history+w.d.Log.String(), switchSecret, "\\u001b", `\x1b`, "\x1b")
		s.SetFault(nil)
		w.state("n", "deleted", "available")
	}
	if after := memoryOf(t, w.d.PID); after-before > 128<<10 {
		t.Errorf("the conductor has grown from %d to %d KiB", before, after)
	}
	w.want(204, leo, "POST", "/v1/nodes/n/vifs", `{"id":"shop-net"}`)
	w.state("n", "active", "active")
	if p := s.Port("Ethernet1"); p.Access != 201 {
		t.Errorf("the port is %+v", p)
	}
}

// memoryOf is the most memory that a process has had, in KiB.
func memoryOf(t *testing.T, pid int) (kib int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}
