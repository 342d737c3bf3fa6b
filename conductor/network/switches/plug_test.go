package switches

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/network/switches/dialect"
	"github.com/ingot-metal/ingot/conductor/node"
)

const tableText = `
networks:
  provisioning: {vlan: 100}
  cleaning: {vlan: 101}
  quarantine: {vlan: 999}
  tenants:
    tenant-a: {vlan: 201}
    tenant-b: {vlan: 202, projects: [p-b]}
    hypervisors: {vlans: "211-213,300"}
    routers: {vlans: "211,212", native: 202}
switches:
  leaf-1:
    address: 192.0.2.11
    dialect: cisco_nxos
    ids: ["00:1C:73:00:00:01"]
    host_key: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJbWeTuHqN1mOCm7ExVXX8SKKGNfXlsovpCnBSiFkVKJ
    username: ingot
    password_file: /etc/ingot/leaf-1.password
    ports: [Ethernet1/1-16]
    channels: 10-19
  leaf-2:
    address: 192.0.2.12:2222
    dialect: arista_eos
    ids: ["00:1c:73:00:00:02"]
    host_key: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJbWeTuHqN1mOCm7ExVXX8SKKGNfXlsovpCnBSiFkVKJ
    username: ingot
    key_file: /etc/ingot/key
    ports: [Ethernet1, Ethernet2]
`

// load reads a table, with some of its text replaced.
func load(t *testing.T, replace ...string) (*Table, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "switches.yaml")
	if err := os.WriteFile(file, []byte(strings.NewReplacer(replace...).Replace(tableText)), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(file)
}

// TestTableFaults: what can't be right in a table is said at the start, by its place.
func TestTableFaults(t *testing.T) {
	if _, err := load(t); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, to, want string }{
		{"{vlan: 100}", "{vlan: 5000}", "networks.provisioning: vlan 5000"},
		{"{vlan: 100}", "{vlans: 100-101}", "machines boot without tags"},
		{"{vlan: 999}", "{vlan: 100}", "networks.quarantine: VLAN 100 is that of provisioning or cleaning"},
		{"{vlan: 999}", "{}", "networks.quarantine needs vlan"},
		{"{vlan: 201}", "{vlan: 101}", "networks.tenants.tenant-a: VLAN 101 is that of provisioning, cleaning"},
		{`"211-213,300"`, `"90-110"`, "is that of provisioning, cleaning or quarantine"},
		{`"211-213,300"`, `"x"`, "no list of VLANs"},
		{`"211-213,300"`, `"211", native: 211`, "native and tagged"},
		{`"211-213,300"`, `"211", native: 100`, "native VLAN 100 is that of provisioning"},
		{"    tenant-a:", "    te nant:", "is no name"},
		{"dialect: cisco_nxos", "dialect: junos", "is not one of arista_eos, cisco_nxos"},
		{`"00:1C:73:00:00:01"`, `"leaf-1"`, "no hardware address"},
		{`"00:1C:73:00:00:01"`, `"00:1c:73:00:00:02"`, "is also that of leaf-1"},
		{"Ethernet1/1-16", "mgmt0", `port "mgmt0" is no name of a port`},
		{"Ethernet1/1-16", "Ethernet1/16-1", "empty range"},
		{"username: ingot", "username:", "username is needed"},
		{"password_file: /etc/ingot/leaf-1.password", "password: secret", "field password not found"},
		{"    password_file: /etc/ingot/leaf-1.password\n", "", "password_file or key_file is needed"},
		{"host_key: ssh-ed25519", "host_key: ssh-none", "host_key is needed"},
	} {
		if _, err := load(t, c.from, c.to); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s instead of %s: %v, want %q", c.to, c.from, err, c.want)
		}
	}
}

// book has the records of some ports.
type book struct {
	ports  []*node.Port
	groups []*node.Portgroup
}

func (b *book) PortsOf(_ context.Context, id string) (out []*node.Port, _ error) {
	for _, p := range b.ports {
		if p.NodeUUID == id {
			out = append(out, p)
		}
	}
	return out, nil
}

func (b *book) GroupsOf(context.Context, string) ([]*node.Portgroup, error) { return b.groups, nil }

func (b *book) PortsAt(_ context.Context, id string) (out []*node.Port, _ error) {
	for _, p := range b.ports {
		if p.LocalLinkConnection["switch_id"] == id {
			out = append(out, p)
		}
	}
	return out, nil
}

// at is a port of node n that is cabled there.
func at(n, mac, id, name string, boots bool, vif string) *node.Port {
	p := &node.Port{NodeUUID: n, Address: mac, PXEEnabled: boots}
	if id != "" {
		p.LocalLinkConnection = map[string]any{"switch_id": id, "port_id": name, "switch_info": "x"}
	}
	if vif != "" {
		p.InternalInfo = map[string]any{VIFKey: vif}
	}
	return p
}

// TestPlan: what each switch port of a node is to be in each state, and what is wrong with a node.
func TestPlan(t *testing.T) {
	const one, two, other = "00:1c:73:00:00:01", "00:1c:73:00:00:02", "00:1c:73:00:00:99"
	grouped := func(p *node.Port) *node.Port { p.PortgroupUUID = "g"; return p }
	unmanaged := func(p *node.Port) *node.Port { p.LocalLinkConnection["network_type"] = "unmanaged"; return p }
	group := func(mode string, channel any, vif string) *node.Portgroup {
		g := &node.Portgroup{Mode: mode, Properties: map[string]any{}}
		g.UUID = "g"
		if channel != nil {
			g.Properties["channel"] = channel
		}
		if vif != "" {
			g.InternalInfo = map[string]any{VIFKey: vif}
		}
		return g
	}
	access := func(name string, vlan int) dialect.Port { return dialect.Port{Interface: name, VLAN: vlan} }
	trunk := func(name string) dialect.Port {
		return dialect.Port{Interface: name, Native: 999, Tagged: []int{211, 212, 213, 300}}
	}
	member := func(name string) dialect.Port { return dialect.Port{Interface: name, Channel: 10} }
	plain := []*node.Port{at("n", "a", one, "Eth1/1", true, "tenant-a"), at("n", "b", two, "Ethernet2", false, "")}
	bond := []*node.Port{grouped(at("n", "a", one, "Ethernet1/1", true, "")),
		grouped(at("n", "b", one, "Ethernet1/2", true, ""))}
	for _, c := range []struct {
		name   string
		ports  []*node.Port
		groups []*node.Portgroup
		to     State
		want   map[string][]dialect.Port
		fault  string
	}{
		{"provisioning", plain, nil, Provisioning,
			map[string][]dialect.Port{"leaf-1": {access("Ethernet1/1", 100)}, "leaf-2": {access("Ethernet2", 999)}},
			""},
		{"cleaning", plain, nil, Cleaning,
			map[string][]dialect.Port{"leaf-1": {access("Ethernet1/1", 101)}, "leaf-2": {access("Ethernet2", 999)}},
			""},
		{"tenant", plain, nil, Tenant,
			map[string][]dialect.Port{"leaf-1": {access("Ethernet1/1", 201)}, "leaf-2": {access("Ethernet2", 999)}},
			""},
		{"quarantine", plain, nil, Quarantine,
			map[string][]dialect.Port{"leaf-1": {access("Ethernet1/1", 999)}, "leaf-2": {access("Ethernet2", 999)}},
			""},
		{"trunk", []*node.Port{at("n", "a", one, "Ethernet1/1", true, "hypervisors")}, nil, Tenant,
			map[string][]dialect.Port{"leaf-1": {trunk("Ethernet1/1")}}, ""},
		{"trunk with untagged frames", []*node.Port{at("n", "a", one, "Ethernet1/1", true, "routers")}, nil, Tenant,
			map[string][]dialect.Port{"leaf-1": {{Interface: "Ethernet1/1", Native: 202, Untagged: true,
				Tagged: []int{211, 212}}}}, ""},
		{"LAG", bond, []*node.Portgroup{group("802.3ad", "10", "hypervisors")}, Tenant,
			map[string][]dialect.Port{"leaf-1": {
				trunk("port-channel10"), member("Ethernet1/1"), member("Ethernet1/2")}}, ""},
		{"LAG while it boots", bond, []*node.Portgroup{group("802.3ad", "10", "hypervisors")}, Provisioning,
			map[string][]dialect.Port{"leaf-1": {access("Ethernet1/1", 100), access("Ethernet1/2", 100)}}, ""},
		{"bond without LAG", bond, []*node.Portgroup{group("active-backup", nil, "tenant-a")}, Tenant,
			map[string][]dialect.Port{"leaf-1": {access("Ethernet1/1", 201), access("Ethernet1/2", 201)}}, ""},
		{"LAG without number", bond, []*node.Portgroup{group("802.3ad", nil, "tenant-a")}, Tenant, nil,
			"--property channel=NUMBER"},
		{"LAG of others", bond, []*node.Portgroup{group("802.3ad", 20.0, "tenant-a")}, Tenant, nil,
			"channel 20, which is not one that Ingot may configure"},
		{"LAG without LACP", bond, []*node.Portgroup{group("balance-xor", "10", "tenant-a")}, Tenant, nil,
			"LAG without LACP"},
		{"no network", []*node.Port{at("n", "a", one, "Ethernet1/1", true, "")}, nil, Tenant, nil,
			"openstack baremetal node vif attach n NETWORK"},
		{"unknown network", []*node.Port{at("n", "a", one, "Ethernet1/1", true, "tenant-c")}, nil, Tenant, nil,
			`no network "tenant-c"`},
		{"another project's network", []*node.Port{at("n", "a", one, "Ethernet1/1", true, "tenant-b")}, nil, Tenant,
			nil,
			"not for the node's project"},
		{"nothing known", []*node.Port{at("n", "a", "", "", true, "tenant-a")}, nil, Provisioning, nil,
			"inspect the node"},
		{"nothing known, tenant", []*node.Port{at("n", "a", "", "", true, "tenant-a")}, nil, Tenant, nil,
			"the switch port of that is not known"},
		{"nothing known yet", []*node.Port{at("n", "a", "", "", true, "")}, nil, Inspecting,
			map[string][]dialect.Port{}, ""},
		{"unknown switch", []*node.Port{at("n", "a", other, "Ethernet1", true, "")}, nil, Provisioning, nil,
			"which the table does not have"},
		{"unknown switch, to be inspected", []*node.Port{at("n", "a", other, "Ethernet1", true, "")}, nil, Inspecting,
			map[string][]dialect.Port{}, ""},
		{"foreign port", []*node.Port{at("n", "a", two, "Ethernet3", true, "")}, nil, Provisioning, nil,
			"not one that Ingot may configure"},
		{"foreign port that does not boot", []*node.Port{at("n", "a", two, "Ethernet3", false, ""),
			at("n", "b", two, "Ethernet1", true, "")}, nil, Provisioning,
			map[string][]dialect.Port{"leaf-2": {access("Ethernet1", 100)}}, ""},
		{"unmanaged", []*node.Port{unmanaged(at("n", "a", other, "Ethernet3", true, "")),
			at("n", "b", two, "Ethernet1", true, "")}, nil, Provisioning,
			map[string][]dialect.Port{"leaf-2": {access("Ethernet1", 100)}}, ""},
		{"no name of a port", []*node.Port{at("n", "a", two, "Ethernet1\nreload", true, "")}, nil, Provisioning, nil,
			"port Ethernet1 reload of switch leaf-2"},
		{"another node's port", []*node.Port{at("n", "a", one, "Ethernet1/1", true, "tenant-a"),
			at("m", "c", one, "eth1/1", false, "")}, nil, Tenant, nil,
			"and port c of node m are cabled to the same port"},
		{"one port twice", []*node.Port{at("n", "a", one, "Ethernet1/1", true, "tenant-a"),
			at("n", "b", one, "Eth1/1", true, "")}, nil, Tenant, nil, "two ports of the node"},
	} {
		table, err := load(t)
		if err != nil {
			t.Fatal(err)
		}
		p := New(table, &book{ports: c.ports, groups: c.groups}, nil)
		got, err := p.plan(t.Context(), &node.Node{UUID: "n", Owner: "p-a"}, c.to)
		switch {
		case c.fault == "" && err != nil, c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)):
			t.Errorf("%s: %v, want %q", c.name, err, c.fault)
		case c.fault == "" && !cmp.Equal(got, c.want):
			t.Errorf("%s (-want +got):\n%s", c.name, cmp.Diff(c.want, got))
		}
	}
	// The lessee's project is the one that counts.
	table, err := load(t)
	if err != nil {
		t.Fatal(err)
	}
	p := New(table, &book{ports: []*node.Port{at("n", "a", one, "Ethernet1/1", true, "tenant-b")}}, nil)
	for lessee, ok := range map[string]bool{"p-b": true, "p-c": false} {
		n := &node.Node{Owner: "p-b", Lessee: lessee}
		n.UUID = "n"
		if err := p.Validate(t.Context(), n); (err == nil) != ok {
			t.Errorf("lessee %s: %v", lessee, err)
		}
	}
}
