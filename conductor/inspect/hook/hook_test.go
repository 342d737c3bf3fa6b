package hook

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/node"
)

// parse reads a JSON object.
func parse(t testing.TB, s string) map[string]any {
	t.Helper()
	m := map[string]any{}
	if s == "" {
		return m
	}
	if err := json.Unmarshal([]byte(s), &m); err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return m
}

func options(hooks ...string) Options {
	return Options{Hooks: hooks, AddPorts: "pxe", KeepPorts: "all", UpdatePXEEnabled: true, DiskSpacing: true}
}

func prepare(t testing.TB, o Options) *Settings {
	t.Helper()
	s, err := Prepare(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// kvm is the machine of Ironic's documentation of inspection data, with a second interface that was not booted from.
const kvm = `{"interfaces": [
		{"name": "eth0", "mac_address": "52:54:00:5e:09:ff", "ipv4_address": "192.168.122.164", "ipv6_address": "fe80::5054:ff:fe5e:9ff%eth0", "has_carrier": true,
			"lldp": null, "vendor": "0x1af4", "product": "0x0001", "client_id": null, "biosdevname": null, "speed_mbps": null},
		{"name": "eth1", "mac_address": "52:54:00:5E:0A:00", "ipv4_address": null, "ipv6_address": null, "has_carrier": false, "lldp": null, "client_id": null},
		{"name": "lo", "mac_address": "00:00:00:00:00:00", "ipv4_address": "127.0.0.1"},
		{"name": "ib0", "mac_address": "55:55:55:55:55:55", "client_id": "ff:00:00:00:00:00:02:00:00:02:c9:00:7c:fe:90:03:00:29:24:4f"},
		{"mac_address": "52:54:00:00:00:01"}, {"name": "broken", "mac_address": "nonsense"}],
	"system_vendor": {"product_name": "KVM (9.2.0)", "serial_number": "", "manufacturer": "Red Hat",
		"firmware": {"vendor": "EDK II", "version": "edk2-20221207gitfff6d81270b5-7.el9", "build_date": "12/07/2022"}},
	"cpu": {"count": 4, "architecture": "x86_64", "flags": ["fpu", "vmx", "aes", "pse"]}, "memory": {"physical_mb": 2048, "total": 2080000000},
	"boot": {"current_boot_mode": "uefi", "pxe_interface": "01-52-54-00-5e-09-ff"}, "bmc_address": "192.0.2.7"}`

// TestValidateInterfaces: what Ironic's documentation shows of valid_interfaces, under each policy.
func TestValidateInterfaces(t *testing.T) {
	for _, c := range []struct {
		add, boot string
		valid     []string
		fault     string
	}{
		{"pxe", "01-52-54-00-5e-09-ff", []string{"eth0"}, ""},
		{"pxe", "", []string{"eth0", "eth1", "ib0"}, ""}, // unknown
		{"active", "01-52-54-00-5e-09-ff", []string{"eth0"}, ""},
		{"all", "01-52-54-00-5e-09-ff", []string{"eth0", "eth1", "ib0"}, ""},
		{"disabled", "01-52-54-00-5e-09-ff", []string{"eth0", "eth1", "ib0"}, ""},
		{"pxe", "52:54:00:99:99:99", nil, `no network interfaces match the configuration (add_ports is "pxe")`},
	} {
		inv := parse(t, kvm)
		inv["boot"].(map[string]any)["pxe_interface"] = c.boot
		o := options("validate-interfaces")
		o.AddPorts = c.add
		f := &Found{Node: &node.Node{}, Inventory: inv, PluginData: map[string]any{}}
		err := Run(f, prepare(t, o))
		if c.fault != "" {
			if err == nil || !strings.Contains(err.Error(), c.fault) {
				t.Errorf("%s, booted from %q: %v, want %s", c.add, c.boot, err, c.fault)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		valid := f.PluginData["valid_interfaces"].(map[string]any)
		if got := slices.Sorted(maps.Keys(valid)); !slices.Equal(got, c.valid) {
			t.Errorf("%s, booted from %q: valid are %v, want %v", c.add, c.boot, got, c.valid)
		}
		if all := slices.Sorted(maps.Keys(f.PluginData["all_interfaces"].(map[string]any))); !slices.Equal(all,
			[]string{"eth0", "eth1", "ib0"}) {
			t.Errorf("all_interfaces are %v", all)
		}
		want := parse(t, `{"name": "eth0", "mac_address": "52:54:00:5e:09:ff", "ipv4_address": "192.168.122.164", "ipv6_address": "fe80::5054:ff:fe5e:9ff",
			"has_carrier": true, "lldp": null, "vendor": "0x1af4", "product": "0x0001", "client_id": null, "biosdevname": null, "speed_mbps": null, "pxe_enabled": true}`)
		if diff := cmp.Diff(want, valid["eth0"]); diff != "" {
			t.Errorf("eth0 (-want +got):\n%s", diff)
		}
	}
	for inv, fault := range map[string]string{`{}`: "no interfaces in the inventory",
		`{"interfaces": []}`: "no valid network interfaces"} {
		f := &Found{Node: &node.Node{}, Inventory: parse(t, inv), PluginData: map[string]any{}}
		if err := Run(f, prepare(t, options("validate-interfaces"))); err == nil ||
			!strings.Contains(err.Error(), fault) {
			t.Errorf("%s: %v, want %s", inv, err, fault)
		}
	}
}

// TestOutOfBand: what a controller does not list is a note, and the same of an agent a failure; its hooks run unasked.
func TestOutOfBand(t *testing.T) {
	for hook, inv := range map[string]string{"validate-interfaces": `{"interfaces": []}`,
		"root-device": `{"disks": []}`} {
		for _, outOfBand := range []bool{true, false} {
			f := &Found{Node: &node.Node{Properties: parse(t, `{"root_device": {"name": "/dev/sda"}}`)},
				Inventory: parse(t, inv), PluginData: map[string]any{}, OutOfBand: outOfBand}
			f.Inventory["boot"] = map[string]any{"current_boot_mode": "uefi", "secure_boot": true}
			err := Run(f, prepare(t, options(hook)))
			capabilities, _ := f.Node.Properties["capabilities"].(string)
			if (err == nil) != outOfBand || (len(f.Notes) == 1) != outOfBand ||
				(capabilities == "boot_mode:uefi,secure_boot:true") != outOfBand {
				t.Errorf("%s, out of band %v: %v, notes %v, capabilities %q", hook, outOfBand, err, f.Notes,
					capabilities)
			}
		}
	}
}

func TestPorts(t *testing.T) {
	const boot, second, infiniband, extra = "52:54:00:5e:09:ff", "52:54:00:5e:0a:00", "55:55:55:55:55:55",
		"00:11:00:11:00:11"
	old := func(macs ...string) (out []*node.Port) {
		for _, m := range macs {
			out = append(out, &node.Port{UUID: "uuid-" + m, Address: m, PXEEnabled: m == extra})
		}
		return out
	}
	for _, c := range []struct {
		name, add, keep string
		update          bool
		there           []*node.Port
		foreign         map[string]string
		want            map[string]bool // address: pxe_enabled
		gone            int
	}{
		{"the one booted from", "pxe", "all", true, nil, nil, map[string]bool{boot: true}, 0},
		{"all", "all", "all", true, nil, nil, map[string]bool{boot: true, second: false, infiniband: false}, 0},
		{"none", "disabled", "all", true, nil, nil, map[string]bool{}, 0},
		{"those with an address", "active", "all", true, nil, nil, map[string]bool{boot: true}, 0},
		{"one there already follows the machine", "all", "all", true, []*node.Port{{UUID: "u", Address: boot}}, nil,
			map[string]bool{boot: true, second: false, infiniband: false}, 0},
		{"one there already stays as it is", "all", "all", false, []*node.Port{{UUID: "u", Address: boot}}, nil,
			map[string]bool{boot: false, second: false, infiniband: false}, 0},
		{"keep all", "pxe", "all", false, old(boot, second, extra), nil,
			map[string]bool{boot: false, second: false, extra: true}, 0},
		{"keep present", "pxe", "present", true, old(boot, second, extra), nil,
			map[string]bool{boot: true, second: false}, 1},
		{"keep added", "pxe", "added", true, old(boot, second, extra), nil, map[string]bool{boot: true}, 2},
		{"one of another node", "all", "all", true, nil, map[string]string{second: "other"},
			map[string]bool{boot: true, infiniband: false}, 0},
		{"one in use", "pxe", "present", true,
			[]*node.Port{{UUID: "u", Address: extra, InternalInfo: map[string]any{"tenant_vif_port_id": "vif"}}}, nil,
			map[string]bool{boot: true, extra: false}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := options("validate-interfaces", "ports")
			o.AddPorts, o.KeepPorts, o.UpdatePXEEnabled = c.add, c.keep, c.update
			f := &Found{Node: &node.Node{UUID: "n"}, Ports: c.there, Inventory: parse(t, kvm),
				PluginData: map[string]any{}, Foreign: c.foreign}
			if err := Run(f, prepare(t, o)); err != nil {
				t.Fatal(err)
			}
			got := map[string]bool{}
			for _, p := range f.Ports {
				got[p.Address] = p.PXEEnabled
			}
			if !maps.Equal(got, c.want) || len(f.Gone) != c.gone {
				t.Errorf("ports %v and %d gone, want %v and %d; notes %v", got, len(f.Gone), c.want, c.gone, f.Notes)
			}
			if p := f.Port(infiniband); p != nil &&
				p.Extra["client-id"] != "ff:00:00:00:00:00:02:00:00:02:c9:00:7c:fe:90:03:00:29:24:4f" {
				t.Errorf("client-id = %v", p.Extra)
			}
		})
	}
}

// TestProperties: the results of each hook for the same machine, on a node without properties, on one that an operator
// described, and on the latter with overwrite_existing.
func TestProperties(t *testing.T) {
	pci := `"pci_devices": [{"vendor_id": "8086", "product_id": "2922", "bus": "0000:00:1f.2"}, {"vendor_id": "8086", "product_id": "2918", "bus": "0000:00:1f.0"},
		{"vendor_id": "8086", "product_id": "2930", "bus": "0000:00:1f.3"}, {"vendor_id": "1b36", "product_id": "000c", "bus": "0000:00:01.2"},
		{"vendor_id": "1b36", "product_id": "000c", "bus": "0000:00:01.0"}, {"vendor_id": "10DE", "product_id": "1eb8", "bus": "0000:3b:00.0"}]`
	for _, c := range []struct {
		hook, inventory, plugin string
		key                     string
		want                    any
		theirs                  any // what an operator had set
		both                    any // after overwrite_existing; nil: want
	}{
		{"architecture", kvm, "", "cpu_arch", "x86_64", "aarch64", nil},
		{"memory", kvm, "", "memory_mb", 2048, 1024, nil},
		{"memory", `{"memory": {"physical_mb": null, "total": 4294967296}}`, "", "memory_mb", 4096, "1024", nil},
		{"cpus", kvm, "", "cpus", 4, "2", nil},
		{"boot-mode", kvm, "", "capabilities", "boot_mode:uefi", "boot_mode:bios", nil},
		{"boot-mode", kvm, "", "capabilities", "boot_mode:uefi", "a:b,boot_mode:bios,c:d", "a:b,boot_mode:uefi,c:d"},
		{"cpu-capabilities", kvm, "", "capabilities", "cpu_vt:true,cpu_aes:true,cpu_hugepages:true",
			"cpu_vt:false,cpu_aes:false,cpu_hugepages:no", nil},
		{"pci-devices", `{}`, "{" + pci + "}", "capabilities", "EightyTwentyTwo:1,EightyEighteen:1,OneBZeroC:2",
			"EightyTwentyTwo:9,EightyEighteen:9,OneBZeroC:9", nil},
		{"accelerators", `{}`, "{" + pci + "}", "accelerators",
			[]any{map[string]any{"vendor_id": "10de", "device_id": "1eb8", "type": "GPU",
				"device_info": "NVIDIA Corporation Tesla T4", "pci_address": "0000:3b:00.0"}}, []any{"mine"}, nil},
		{"root-device", `{}`, `{"root_disk": {"name": "/dev/vda", "size": 10737418240}}`, "local_gb", 9, 100, nil},
		{"root-device", `{}`, ``, "local_gb", 0, 100, nil}, // diskless
	} {
		o := options(c.hook)
		o.CPUCapabilities = []string{"vmx:cpu_vt", "svm:cpu_vt", "aes:cpu_aes", "pse:cpu_hugepages", "smx:cpu_txt"}
		o.PCIDeviceAliases = []string{"8086:2922:EightyTwentyTwo", "8086:2918:EightyEighteen", "1b36:000c:OneBZeroC"}
		run := func(had any, overwrite bool, wrote map[string]any) *Found {
			o.Overwrite = overwrite
			f := &Found{Node: &node.Node{}, Inventory: parse(t, c.inventory), PluginData: parse(t, c.plugin),
				Wrote: wrote}
			if had != nil {
				f.Node.Properties = map[string]any{c.key: had}
			}
			if err := Run(f, prepare(t, o)); err != nil {
				t.Fatalf("%s: %v", c.hook, err)
			}
			return f
		}
		f := run(nil, false, nil)
		if got := f.Node.Properties[c.key]; !same(got, c.want) {
			t.Errorf("%s: %s is %v, want %v", c.hook, c.key, got, c.want)
		}
		if got := run(c.theirs, false, nil); !same(got.Node.Properties[c.key], c.theirs) || len(got.Notes) == 0 {
			t.Errorf("%s overwrote what was set: %v with notes %v, want %v", c.hook, got.Node.Properties[c.key],
				got.Notes, c.theirs)
		}
		both := c.both
		if both == nil {
			both = c.want
		}
		if got := run(c.theirs, true, nil); !same(got.Node.Properties[c.key], both) {
			t.Errorf("%s with overwrite_existing: %v, want %v", c.hook, got.Node.Properties[c.key], both)
		}
		// A value that an inspection wrote follows the hardware.
		if c.key != "capabilities" {
			if got := run(c.theirs, false, map[string]any{"properties/" + c.key: c.theirs}); !same(
				got.Node.Properties[c.key], c.want) {
				t.Errorf("%s: what an inspection wrote stays %v, want %v", c.hook, got.Node.Properties[c.key], c.want)
			}
		}
	}
}

// TestWroteIsRemembered: a value that an inspection wrote follows the hardware until a client changes it.
func TestWroteIsRemembered(t *testing.T) {
	s := prepare(t, options("cpus"))
	n := &node.Node{}
	var wrote map[string]any
	inspect := func(count int) any {
		f := &Found{Node: n, Inventory: parse(t, fmt.Sprintf(`{"cpu": {"count": %d}}`, count)),
			PluginData: map[string]any{}, Wrote: wrote}
		if err := Run(f, s); err != nil {
			t.Fatal(err)
		}
		// Through the store and back.
		b, err := json.Marshal(f.Wrote)
		if err != nil {
			t.Fatal(err)
		}
		wrote = parse(t, string(b))
		return n.Properties["cpus"]
	}
	for i, c := range []struct {
		set   any // by an operator, before
		count int
		want  any
	}{{nil, 4, 4}, {nil, 8, 8}, {2, 8, 2}, {nil, 16, 2}, {16, 16, 16}, {nil, 32, 16}} {
		if c.set != nil {
			n.Properties = map[string]any{"cpus": c.set}
		}
		if got := inspect(c.count); !same(got, c.want) {
			t.Errorf("inspection %d: cpus %v, want %v", i, got, c.want)
		}
	}
}

func TestFailures(t *testing.T) {
	for _, c := range []struct{ hook, inventory, plugin, want string }{
		{"ramdisk-error", `{}`, `{"error": "no DHCP answer"}`,
			"inspection hook ramdisk-error: the ramdisk reported an error: no DHCP answer"},
		{"architecture", `{"cpu": {"count": 4}}`, ``, "architecture"},
		{"architecture", `{}`, ``, "architecture"},
		{"memory", `{}`, ``, "memory"},
	} {
		f := &Found{Node: &node.Node{}, Inventory: parse(t, c.inventory), PluginData: parse(t, c.plugin)}
		if err := Run(f, prepare(t, options(c.hook))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.hook, err, c.want)
		}
	}
	// What is not there is said, and no failure.
	for _, hook := range []string{"cpus", "boot-mode", "cpu-capabilities", "accelerators", "raid-device"} {
		f := &Found{Node: &node.Node{}, Inventory: map[string]any{}, PluginData: map[string]any{}}
		if err := Run(f, prepare(t, options(hook))); err != nil || len(f.Notes) != 1 ||
			f.Notes[0].Severity != "WARNING" || len(f.Node.Properties) > 0 {
			t.Errorf("%s without data: %v, notes %v, properties %v", hook, err, f.Notes, f.Node.Properties)
		}
	}
}

// TestRootDevice: Ironic's examples of hints and skipped disks.
func TestRootDevice(t *testing.T) {
	const gib = 1 << 30
	inventory := fmt.Sprintf(`{"disks": [{"name": "/dev/sda", "model": "Model 1", "size": %d, "serial": "1111"}, {"name": "/dev/sdb", "model": "Model 2", "size": %d, "serial": "2222"},
		{"name": "/dev/sdc", "model": "Model 1", "size": %d, "serial": "3333"}, {"name": "/dev/sdd", "model": "Model 3", "size": 0, "serial": "4444"}]}`, 1000*gib, 10*gib, 20*gib)
	for _, c := range []struct {
		name, properties string
		spacing          bool
		disk             string
		gb               int
		fault            string
	}{
		{"no hints", `{}`, true, "", 0, ""},
		{"one matches", `{"root_device": {"serial": "1111"}}`, true, "/dev/sda", 999, ""},
		{"without spacing", `{"root_device": {"serial": "1111"}}`, false, "/dev/sda", 1000, ""},
		{"all match", `{"root_device": {"size": 20, "model": "Model 1"}}`, true, "/dev/sdc", 19, ""},
		{"the first is skipped", `{"root_device": {"model": "Model 1"}, "skip_block_devices": [{"size": 1000}]}`, true,
			"/dev/sdc", 19, ""},
		{"skipped", `{"root_device": {"serial": "1111"}, "skip_block_devices": [{"size": 1000}]}`, true, "", 0,
			"no disk fits the hints"},
		{"none", `{"root_device": {"size": 42}}`, true, "", 0, "no disk fits the hints"},
		{"hints that can't be read", `{"root_device": {"colour": "red"}}`, true, "", 0, "not a hint"},
	} {
		o := options("root-device")
		o.DiskSpacing = c.spacing
		inv := parse(t, inventory)
		f := &Found{Node: &node.Node{Properties: parse(t, c.properties)}, Inventory: inv, PluginData: map[string]any{}}
		err := Run(f, prepare(t, o))
		if c.fault != "" {
			if err == nil || !strings.Contains(err.Error(), c.fault) || f.Node.Properties["local_gb"] != nil {
				t.Errorf("%s: %v, want %s; properties %v", c.name, err, c.fault, f.Node.Properties)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := text(object(f.PluginData["root_disk"])["name"]); got != c.disk ||
			!same(f.Node.Properties["local_gb"], c.gb) || !same(f.PluginData["local_gb"], c.gb) {
			t.Errorf("%s: disk %q, local_gb %v, want %q and %d", c.name, got, f.Node.Properties["local_gb"], c.disk,
				c.gb)
		}
	}
}

func TestRAIDDevice(t *testing.T) {
	const before = `["1111", "2222"]`
	for _, c := range []struct{ name, last, inventory, properties, want string }{
		{"known already", before, `{"disks": [{"serial": "3333"}]}`, `{"root_device": {"name": "/dev/sda"}}`,
			`{"name": "/dev/sda"}`},
		{"no serials", before, `{"disks": [{"name": "/dev/sda", "serial": null}]}`, `{}`, ``},
		{"the first inspection", ``, `{"disks": [{"serial": "1111"}]}`, `{}`, ``},
		{"nothing new", before, `{"disks": [{"serial": "1111"}, {"serial": "2222"}]}`, `{}`, ``},
		{"one new", before, `{"disks": [{"serial": "2222"}, {"serial": "3333"}]}`, `{}`, `{"serial": "3333"}`},
		{"two new", before, `{"disks": [{"serial": "2222"}, {"serial": "3333"}, {"serial": "4444"}]}`, `{}`, ``},
	} {
		f := &Found{Node: &node.Node{Properties: parse(t, c.properties)}, Inventory: parse(t, c.inventory),
			PluginData: map[string]any{}}
		if c.last != "" {
			if err := json.Unmarshal([]byte(c.last), &f.LastSerials); err != nil {
				t.Fatal(err)
			}
		}
		if err := Run(f, prepare(t, options("raid-device"))); err != nil {
			t.Fatal(err)
		}
		var want any
		if c.want != "" {
			want = parse(t, c.want)
		}
		if got := f.Node.Properties["root_device"]; !same(got, want) {
			t.Errorf("%s: root_device %v, want %v", c.name, got, want)
		}
	}
}

// switchSays is the LLDP data of Ironic's tests: chassis, port, time to live, name of the system.
const switchSays = `[[1, "04885a92ec5459"], [2, "0545746865726e6574312f3138"], [3, "0078"], [5, "737730312d646973742d31622d623132"]]`

func TestLLDP(t *testing.T) {
	inventory := func(tlvs string) map[string]any {
		return parse(t, `{"interfaces": [{"name": "em1", "mac_address": "11:11:11:11:11:11", "lldp": `+tlvs+
			`}, {"name": "em2", "mac_address": "22:22:22:22:22:22", "lldp": null}]}`)
	}
	for _, c := range []struct {
		name, tlvs, there string
		overwrite         bool
		want              string
	}{
		{"all of it", switchSays, `{}`, false,
			`{"port_id": "Ethernet1/18", "switch_id": "88:5a:92:ec:54:59", "switch_info": "sw01-dist-1b-b12"}`},
		{"set by an operator", switchSays, `{"switch_id": "00:00:00:00:00:01"}`, false,
			`{"port_id": "Ethernet1/18", "switch_id": "00:00:00:00:00:01", "switch_info": "sw01-dist-1b-b12"}`},
		{"overwritten", switchSays, `{"switch_id": "00:00:00:00:00:01"}`, true,
			`{"port_id": "Ethernet1/18", "switch_id": "88:5a:92:ec:54:59", "switch_info": "sw01-dist-1b-b12"}`},
		{"a port that is an address", `[[1, "04885a92ec5459"], [2, "03885a92ec5458"]]`, `{}`, false,
			`{"port_id": "88:5a:92:ec:54:58", "switch_id": "88:5a:92:ec:54:59"}`},
		{"a port of a kind that says nothing", `[[1, "04885a92ec5459"], [2, "0645746865726e6574312f3138"]]`, `{}`,
			false, `{"switch_id": "88:5a:92:ec:54:59"}`},
		{"a chassis that is no address", `[[1, "0773773031"], [2, "0545746865726e6574312f3138"]]`, `{}`, false,
			`{"port_id": "Ethernet1/18"}`},
		{"not hexadecimal", `[[2, "weee"]]`, `{}`, false, `{}`},
		{"nothing heard", `[]`, `{}`, false, `{}`},
	} {
		o := options("validate-interfaces", "local-link-connection")
		o.AddPorts, o.Overwrite = "all", c.overwrite
		f := &Found{Node: &node.Node{},
			Ports:     []*node.Port{{UUID: "u", Address: "11:11:11:11:11:11", LocalLinkConnection: parse(t, c.there)}},
			Inventory: inventory(c.tlvs), PluginData: map[string]any{}}
		if err := Run(f, prepare(t, o)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(parse(t, c.want), f.Ports[0].LocalLinkConnection); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}

	f := &Found{Node: &node.Node{}, Inventory: inventory(switchSays),
		PluginData: parse(t, `{"lldp_raw": {"em2": [[1, "041122 33aabbcc"]]}}`)}
	object(f.PluginData["lldp_raw"])["em2"] = []any{
		[]any{1.0, "04112233aabbcc"}, []any{5.0, "737730312d646973742d31622d623132"}}
	if err := Run(f, prepare(t, options("parse-lldp"))); err != nil {
		t.Fatal(err)
	}
	em1, em2 := object(object(f.PluginData["parsed_lldp"])["em1"]), object(object(f.PluginData["parsed_lldp"])["em2"])
	if em1["switch_port_id"] != "Ethernet1/18" || em2["switch_chassis_id"] != "11:22:33:aa:bb:cc" ||
		em2["switch_system_name"] != "sw01-dist-1b-b12" {
		t.Errorf("parsed_lldp = %v", f.PluginData["parsed_lldp"])
	}
}

func TestPhysicalNetwork(t *testing.T) {
	o := options("validate-interfaces", "physical-network")
	o.AddPorts, o.PhysicalNetworks = "all", []string{"192.168.10.0/24:network-a", "fe80::/16:network-b"}
	f := &Found{Node: &node.Node{}, PluginData: map[string]any{}, Inventory: parse(t, `{"interfaces": [
			{"name": "em0", "mac_address": "11:11:11:11:11:11", "ipv4_address": "192.168.10.1", "ipv6_address": "2001:db8::1"},
			{"name": "em1", "mac_address": "22:22:22:22:22:22", "ipv4_address": "192.168.12.2", "ipv6_address": "fe80:5054::"},
			{"name": "em2", "mac_address": "33:33:33:33:33:33", "ipv4_address": "192.168.12.3"},
			{"name": "em3", "mac_address": "44:44:44:44:44:44", "ipv4_address": "192.168.10.4"}]}`),
		Ports: []*node.Port{{Address: "11:11:11:11:11:11"}, {Address: "22:22:22:22:22:22"},
			{Address: "33:33:33:33:33:33"}, {Address: "44:44:44:44:44:44", PhysicalNetwork: "mine"}}}
	if err := Run(f, prepare(t, o)); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range f.Ports {
		got = append(got, p.PhysicalNetwork)
	}
	if want := []string{"network-a", "network-b", "", "mine"}; !slices.Equal(got, want) {
		t.Errorf("physical networks %q, want %q", got, want)
	}
}

func TestExtraHardware(t *testing.T) {
	for _, c := range []struct {
		data   string
		strict bool
		want   string
	}{
		{`[["disk", "logical", "count", "1"], ["disk", "sda", "size", "11"], ["ipmi", "lan", "ip-address", "192.0.2.7"]]`, false,
			`{"extra": {"disk": {"logical": {"count": 1}, "sda": {"size": 11}}, "ipmi": {"lan": {"ip-address": "192.0.2.7"}}}}`},
		{`[["disk", "logical", "count"], ["disk", "sda", "size", 11]]`, false,
			`{"extra": {"disk": {"sda": {"size": 11}}}}`},
		{`[["disk", "logical", "count"]]`, true, `{}`},
		{`"foo"`, false, `{"data": "foo"}`},
		{`"foo"`, true, `{}`},
	} {
		o := options("extra-hardware")
		o.ExtraHardwareStrict = c.strict
		f := &Found{Node: &node.Node{}, Inventory: map[string]any{}, PluginData: parse(t, `{"data": `+c.data+`}`)}
		if err := Run(f, prepare(t, o)); err != nil {
			t.Fatal(err)
		}
		if !same(f.PluginData, parse(t, c.want)) {
			t.Errorf("%s (strict %v): %v, want %s", c.data, c.strict, f.PluginData, c.want)
		}
	}
}

func TestPrepare(t *testing.T) {
	good := options("$default_hooks", "memory")
	good.DefaultHooks = []string{"ramdisk-error", "validate-interfaces", "ports", "architecture"}
	s := prepare(t, good)
	var names []string
	for _, h := range s.hooks {
		names = append(names, h.Name)
	}
	if got := strings.Join(names, " "); got != "ramdisk-error validate-interfaces ports architecture memory" {
		t.Errorf("hooks are %s", got)
	}
	dir := t.TempDir()
	file := func(s string) string {
		f := filepath.Join(dir, fmt.Sprint(len(s)))
		if err := os.WriteFile(f, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		return f
	}
	for want, change := range map[string]func(*Options){
		`there is no hook "frobnicate"`: func(o *Options) { o.Hooks = []string{"frobnicate"} },
		"ports needs validate-interfaces before it": func(o *Options) {
			o.Hooks = []string{"ports", "validate-interfaces"}
		},
		"memory is there twice":        func(o *Options) { o.Hooks = append(o.Hooks, "memory") },
		`add_ports: "some" is none of`: func(o *Options) { o.AddPorts = "some" },
		`keep_ports: "" is none of`:    func(o *Options) { o.KeepPorts = "" },
		"not FLAG:CAPABILITY":          func(o *Options) { o.CPUCapabilities = []string{"vmx"} },
		"not VENDOR:PRODUCT:NAME":      func(o *Options) { o.PCIDeviceAliases = []string{"8086:29:x"} },
		"not CIDR:NAME":                func(o *Options) { o.PhysicalNetworks = []string{"physnet"} },
		"physical_network_cidr_map": func(o *Options) {
			o.PhysicalNetworks = []string{"192.0.2.0/99:physnet"}
		},
		"has no list pci_devices": func(o *Options) { o.KnownAccelerators = file("devices: []") },
		"has no device_id": func(o *Options) {
			o.KnownAccelerators = file("pci_devices: [{vendor_id: '10de'}]")
		},
		"no such file": func(o *Options) {
			o.KnownAccelerators = filepath.Join(dir, "none")
		},
	} {
		o := good
		o.Hooks = slices.Clone(good.Hooks)
		change(&o)
		if _, err := Prepare(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Prepare = %v, want %q", err, want)
		}
	}
	o := good
	o.KnownAccelerators = file(
		"pci_devices:\n  - {vendor_id: 'ABCD', device_id: 1234, type: FPGA, device_info: mine}\n")
	if s := prepare(t, o); !reflect.DeepEqual(s.Accelerators,
		[]map[string]any{{"vendor_id": "abcd", "device_id": "1234", "type": "FPGA", "device_info": "mine"}}) {
		t.Errorf("accelerators = %v", s.Accelerators)
	}
}

// FuzzRun: whatever an agent says, no hook panics, and none changes the inventory.
func FuzzRun(f *testing.F) {
	f.Add(kvm, `{"root_disk": {"size": 1}, "pci_devices": [{}], "data": [[1,2,3,4]], "lldp_raw": {"eth0": `+switchSays+
		`}}`, `{"capabilities": "a:b", "root_device": {"size": 4}}`)
	f.Add(`{"interfaces": [{"name": 5}], "cpu": [], "disks": [{"serial": 4}]}`,
		`{"all_interfaces": [], "parsed_lldp": 4, "root_disk": []}`, `{"capabilities": 7}`)
	o := options(Names()...)
	o.AddPorts, o.KeepPorts, o.CPUCapabilities, o.PCIDeviceAliases, o.PhysicalNetworks = "all", "present",
		[]string{"vmx:cpu_vt"}, []string{"8086:2922:a"}, []string{"0.0.0.0/0:p"}
	s := prepare(f, o)
	f.Fuzz(func(t *testing.T, inventory, plugin, properties string) {
		var inv, pd, props map[string]any
		if json.Unmarshal([]byte(inventory), &inv) != nil || json.Unmarshal([]byte(plugin), &pd) != nil ||
			json.Unmarshal([]byte(properties), &props) != nil || pd == nil {
			return
		}
		before, err := json.Marshal(inv)
		if err != nil {
			return
		}
		found := &Found{Node: &node.Node{Properties: props},
			Ports: []*node.Port{{UUID: "u", Address: "52:54:00:5e:09:ff"}}, Inventory: inv, PluginData: pd,
			LastSerials: []string{"x"}}
		_ = Run(found, s)
		if after, err := json.Marshal(inv); err != nil || string(after) != string(before) {
			t.Errorf("the inventory was %s and is %s (%v)", before, after, err)
		}
	})
}
