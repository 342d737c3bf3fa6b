package enrol_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/tools/enrol"
)

// defaults are the flags beside --file.
func defaults() enrol.Machine {
	return enrol.Machine{Node: client.NewNode{Driver: "redfish", ResourceClass: "gold",
		DriverInfo: map[string]any{"redfish_verify_ca": "rack.pem"}}, User: "admin", Password: "from-a-flag"}
}

// TestLists has the same two machines in all forms.
func TestLists(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pw"), []byte("from-a-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const want = `[
{"name":"web1","driver":"redfish","driver_info":{"redfish_address":"192.0.2.1","redfish_password":"from-a-flag","redfish_username":"admin","redfish_verify_ca":"rack.pem"},"resource_class":"gold"} [52:54:00:00:00:01 52:54:00:00:00:02]
{"name":"web2","driver":"ipmi","driver_info":{"ipmi_address":"192.0.2.2","ipmi_password":"from-a-file","ipmi_port":"6230","ipmi_username":"root","ipmi_priv_level":"operator","redfish_verify_ca":"rack.pem"},"properties":{"capabilities":"boot_mode:uefi","rack":"7"},"extra":{"a":"b"},"resource_class":"gold","network_interface":"flat"} []
]`
	const machines = `
  - name: web1
    bmc: 192.0.2.1
    %s
  - {name: web2, driver: ipmi, bmc: "192.0.2.2:6230", bmc_user: root, bmc_password_file: pw, boot_mode: uefi,
     driver_info: {ipmi_priv_level: operator}, properties: {rack: "7"}, extra: {a: b}, network_interface: flat}
`
	for name, text := range map[string]string{
		"list.yaml": fmt.Sprintf(machines, "mac: [52:54:00:00:00:01, 52:54:00:00:00:02]"),
		"nodes.yml": "nodes:" + fmt.Sprintf(machines, `ports: [{address: "52:54:00:00:00:01"}, {address: "52:54:00:00:00:02"}]`),
		"anchor.yaml": `
- &one {name: web1, bmc: 192.0.2.1, macs: 52:54:00:00:00:01 52:54:00:00:00:02}
- {<<: *one, name: web2, driver: ipmi, bmc: "192.0.2.2:6230", bmc_user: root, bmc_password_file: pw, boot_mode: uefi, macs: "",
   driver_info: {ipmi_priv_level: operator}, properties: {rack: "7"}, extra: {a: b}, network_interface: flat}`,
		"nodes.json": `{"nodes": [
			{"name": "web1", "driver_info": {"redfish_address": "192.0.2.1"}, "mac": "52:54:00:00:00:01,52:54:00:00:00:02"},
			{"name": "web2", "driver": "ipmi", "driver_info": {"ipmi_address": "192.0.2.2", "ipmi_port": "6230", "ipmi_priv_level": "operator"},
			 "bmc_user": "root", "bmc_password_file": "pw", "boot_mode": "uefi", "properties": {"rack": "7"}, "extra": {"a": "b"}, "network_interface": "flat"}]}`,
		"list.CSV": "\ufeffname,driver,bmc,bmc-user,bmc_password_file,boot-mode,mac,driver_info.ipmi_priv_level,properties.rack,extra.a,network_interface\r\n" +
			"# of rack 7\r\n" +
			"web1,,192.0.2.1,,,,52:54:00:00:00:01 52:54:00:00:00:02,,,,\r\n" +
			"web2,ipmi,192.0.2.2:6230,root,pw,uefi,,operator,7,b,flat\r\n",
	} {
		list, err := enrol.Read(filepath.Join(dir, name), []byte(text), defaults())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		out := "[\n"
		for _, m := range list {
			n, err := m.Enrolment()
			if err != nil {
				t.Fatal(err)
			}
			b, err := json.Marshal(n)
			if err != nil {
				t.Fatal(err)
			}
			out += fmt.Sprintf("%s %v\n", b, m.MACs)
		}
		if got := sorted(out + "]"); got != sorted(want) {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, sorted(want))
		}
	}
}

// sorted puts the keys of the objects of each line in order.
func sorted(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		object, rest, ok := strings.Cut(line, "} [")
		var v any
		if ok && json.Unmarshal([]byte(object+"}"), &v) == nil {
			b, err := json.Marshal(v)
			if err != nil {
				return err.Error()
			}
			lines[i] = string(b) + " [" + rest
		}
	}
	return strings.Join(lines, "\n")
}

// TestFaults: each is told with its line, and without what may be a password.
func TestFaults(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "large"), make([]byte, 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, text, want string }{
		{"a.yaml", "", "no machines"},
		{"a.yaml", "[]", "no machines"},
		{"a.yaml", "nodes: {}", "no list of machines"},
		{"a.yaml", "hello", "no list of machines"},
		{"a.yaml", "- name: a\n  bmc: h\n---\n- name: b\n", "more than one YAML document"},
		{"a.yaml", "- [secret-canary", "not YAML"},
		{"a.yaml", "- secret-canary", "line 1: the machine is not an object"},
		{"a.yaml", "- {name: a, name: b}", "line 1: the machine is not an object with each key once"},
		{"a.yaml", "- {bmc: h}", "line 1: it has neither a name nor a uuid"},
		{"a.yaml", "- {name: a}", "line 1: it has no address of a controller"},
		{"a.yaml", "- {name: a, bmc: h, bcm: secret-canary}", `line 1: "bcm" is no key of a machine`},
		{"a.yaml", "- {name: a, bmc: h, bmc_password: 123456}", "bmc_password is a number or a truth value"},
		{"a.yaml", "- {name: a, bmc: h, bmc_password: [secret-canary]}", "bmc_password is not a text"},
		{"a.yaml", "- {name: a, bmc: h, extra: secret-canary}", "extra is not an object"},
		{"a.yaml", "- {name: a, bmc: h, mac: {x: secret-canary}}", "mac is not a list of MAC addresses"},
		{"a.yaml", "- {name: a, bmc: h, ports: [{address: x, pxe_enabled: true}]}", "of ports only the address"},
		{"a.yaml", "- {name: a, bmc: h, boot_mode: uefy}", "neither bios nor uefi"},
		{"a.yaml", "- {name: a, bmc: h, bmc_password: x, bmc_password_file: y}", "both bmc_password and"},
		{"a.yaml", "- {name: a, bmc: h, bmc_password_file: missing}", "no such file"},
		{"a.yaml", "- {name: a, bmc: h, bmc_password_file: large}", "larger than 4096 bytes"},
		{"a.yaml", "- {name: a, driver: fake-hardware, bmc: h}", "not fake-hardware"},
		{"a.yaml", "- {name: a, bmc: h}\n- {name: a, bmc: i}", "line 2: a is in line 1 already"},
		{"a.yaml", "- {name: a, bmc: h}\n- {name: b, bmc: https://H/}", "line 2: the controller h is in line 1 already"},
		{"a.yaml", "- {name: a, bmc: h}\n- {x: 1}\n- {y: 2}", "line 2: \"x\" is no key of a machine\nline 3: \"y\""},
		{"a.yaml", strings.Repeat("- {x: 1}\n", 30), "and 10 more"},
		{"a.yaml", strings.Repeat("- {}\n", enrol.MostMachines+1), "at most 100000"},
		{"a.yaml", strings.Repeat(" ", enrol.MostBytes+1), "larger than 16 MiB"},
		// What doubles with each anchor, as an attack on readers of YAML.
		{"a.yaml", "- &a {name: [x, x, x, x, x, x, x, x]}\n- &b {name: [*a, *a, *a, *a, *a, *a, *a, *a]}\n", "name is not a text"},
		{"a.csv", "", "no machines"},
		{"a.csv", "name,bmc\n", "no machines"},
		{"a.csv", "name,bmc,name\n", `has "name" twice`},
		{"a.csv", "name,bmc\na\n", "not CSV"},
		{"a.csv", "name,bmc\n\"secret-canary", "not CSV"},
		{"a.csv", "name,bmc,extra,extra.a\na,h,b,c\n", "line 2: there are both extra and extra.a"},
		{"a.csv", "name,bmc\na,h\nb,h\n", "line 3: the controller h is in line 2 already"},
	} {
		_, err := enrol.Read(filepath.Join(dir, c.name), []byte(c.text), defaults())
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%.80q: %v, want %q", c.text, err, c.want)
		}
	}
}

// TestController: a machine is known by its controller, however that is written.
func TestController(t *testing.T) {
	for _, c := range []struct {
		driver string
		info   map[string]any
		want   string
	}{
		{"redfish", map[string]any{"redfish_address": "https://BMC1.example/"}, "bmc1.example"},
		{"redfish", map[string]any{"redfish_address": "bmc1.example", "redfish_system_id": "/redfish/v1/Systems/2"},
			"bmc1.example /redfish/v1/Systems/2"},
		{"ipmi", map[string]any{"ipmi_address": "192.0.2.1", "ipmi_port": 623}, "192.0.2.1"},
		{"ipmi", map[string]any{"ipmi_address": "192.0.2.1", "ipmi_port": "6230"}, "192.0.2.1 port 6230"},
		{"idrac", map[string]any{"redfish_address": "192.0.2.1"}, "192.0.2.1"},
		{"ipmi", map[string]any{"redfish_address": "192.0.2.1"}, ""},
		{"fake-hardware", map[string]any{"ipmi_address": "192.0.2.1"}, ""},
	} {
		if got := enrol.Controller(c.driver, c.info); got != c.want {
			t.Errorf("%s %v: %q, want %q", c.driver, c.info, got, c.want)
		}
	}
	for in, want := range map[string][2]string{"h": {"h", ""}, "h:1": {"h", "1"},
		"[2001:db8::1]:1": {"2001:db8::1", "1"},
		"[2001:db8::1]":   {"2001:db8::1", ""}, "2001:db8::1": {"2001:db8::1", ""}} {
		if host, port := enrol.SplitBMC(in); [2]string{host, port} != want {
			t.Errorf("%s: %q %q", in, host, port)
		}
	}
}
