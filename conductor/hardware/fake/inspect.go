package fake

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/node"
)

func (f *Fakes) inspectSteps(*node.Node) []hardware.Step {
	return []hardware.Step{
		f.step("inspect",
			hardware.Step{Interface: "inspect", Name: "inspect_hardware",
				Description: "makes an inventory, of what fake_inventory says",
				Priority:    map[node.Phase]int{node.PhaseInspect: 100}},
			func(c hardware.Call) (hardware.Outcome, error) {
				m, err := readMachine(c.Node)
				if err != nil {
					return hardware.Outcome{}, fmt.Errorf("driver_info: fake_inventory: %w", err)
				}
				return hardware.Outcome{Apply: m.apply}, nil
			})}
}

// machine is the result of an inspection.
type machine struct {
	CPUs     int      `json:"cpus"`
	Arch     string   `json:"cpu_arch"`
	MemoryMB int      `json:"memory_mb"`
	DisksGB  []int    `json:"disks_gb"`
	MACs     []string `json:"macs"`
	Vendor   string   `json:"vendor"`
	Product  string   `json:"product"`
	Serial   string   `json:"serial"`
	BootMode string   `json:"boot_mode"`

	described bool // by driver_info, rather than made up
}

// Limits of a description, so that an inventory stays small.
const (
	maxDisks = 1000
	maxMACs  = 1000
)

// readMachine reads fake_inventory; missing values are derived from the node's UUID.
func readMachine(n *node.Node) (*machine, error) {
	m := &machine{CPUs: 4, Arch: "x86_64", MemoryMB: 8192, DisksGB: []int{50}, Vendor: "Ingot", Product: "Fake",
		Serial: n.UUID, BootMode: "uefi"}
	v := n.DriverInfo["fake_inventory"]
	if v == nil {
		m.MACs = []string{macOf(n.UUID)}
		return m, nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(strings.NewReader(string(b)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(m); err != nil {
		return nil, err
	}
	m.described = true
	switch {
	case m.CPUs < 1 || m.MemoryMB < 1:
		return nil, fmt.Errorf("cpus and memory_mb are at least 1")
	case len(m.DisksGB) > maxDisks || len(m.MACs) > maxMACs:
		return nil, fmt.Errorf("more than %d disks or %d MACs", maxDisks, maxMACs)
	case m.BootMode != "bios" && m.BootMode != "uefi":
		return nil, fmt.Errorf("boot_mode %q is neither bios nor uefi", m.BootMode)
	}
	for i, mac := range m.MACs {
		m.MACs[i] = strings.ToLower(mac)
		if !isMAC(m.MACs[i]) {
			return nil, fmt.Errorf("%q is not a MAC", mac)
		}
	}
	for _, gb := range m.DisksGB {
		if gb < 1 {
			return nil, fmt.Errorf("a disk of %d GB", gb)
		}
	}
	return m, nil
}

func isMAC(s string) bool {
	parts := strings.Split(s, ":")
	for _, p := range parts {
		if len(p) != 2 || strings.Trim(p, "0123456789abcdef") != "" {
			return false
		}
	}
	return len(parts) == 6
}

// macOf is a locally administered address of QEMU's kind.
func macOf(uuid string) string {
	x := uint32(fraction(uuid) * (1 << 24))
	return fmt.Sprintf("52:54:00:%02x:%02x:%02x", x>>16&0xff, x>>8&0xff, x&0xff)
}

// apply stores the inventory in the words of ironic-python-agent. The node's properties and ports change only if the
// machine was described: derived values are only shown.
func (m *machine) apply(n *node.Node, effects *node.SideEffects) error {
	type object = map[string]any
	var disks, interfaces []any
	for i, gb := range m.DisksGB {
		name := "/dev/sd" + letters(i)
		disks = append(disks, object{"name": name, "model": "Fake disk", "size": int64(gb) << 30, "rotational": false,
			"wwn": nil, "serial": fmt.Sprintf("%s-%d", m.Serial, i), "vendor": m.Vendor, "by_path": nil,
			"logical_sectors": 512, "physical_sectors": 4096})
	}
	all := object{}
	for i, mac := range m.MACs {
		name := fmt.Sprintf("eth%d", i)
		interfaces = append(interfaces,
			object{"name": name, "mac_address": mac, "ipv4_address": nil, "ipv6_address": nil, "has_carrier": true,
				"lldp": nil, "vendor": nil, "product": nil, "client_id": nil, "biosdevname": nil, "speed_mbps": 10000})
		all[name] = object{"name": name, "mac_address": mac, "pxe_enabled": i == 0}
		if m.described {
			effects.Ports = append(effects.Ports, node.Port{Address: mac, PXEEnabled: i == 0})
		}
	}
	var boot any
	if len(m.MACs) > 0 {
		boot = m.MACs[0]
	}
	inventory := object{
		"interfaces": interfaces, "disks": disks, "bmc_address": nil, "bmc_v6address": nil,
		"cpu": object{"model_name": "Fake CPU", "frequency": "2000", "count": m.CPUs, "architecture": m.Arch,
			"flags": []any{}, "socket_count": 1},
		"memory":        object{"total": int64(m.MemoryMB) << 20, "physical_mb": m.MemoryMB},
		"boot":          object{"current_boot_mode": m.BootMode, "pxe_interface": boot},
		"system_vendor": object{"manufacturer": m.Vendor, "product_name": m.Product, "serial_number": m.Serial},
	}
	var err error
	effects.Inventory, err = json.Marshal(
		object{"inventory": inventory, "all_interfaces": all, "valid_interfaces": all, "boot_interface": boot})
	if err != nil || !m.described {
		return err
	}
	if n.Properties == nil {
		n.Properties = map[string]any{}
	}
	n.Properties["cpus"], n.Properties["cpu_arch"], n.Properties["memory_mb"] = m.CPUs, m.Arch, m.MemoryMB
	if len(m.DisksGB) > 0 {
		n.Properties["local_gb"] = max(1, m.DisksGB[0]-1)
	}
	n.BootMode = m.BootMode
	return nil
}

// letters names disks as Linux does: a, b, ..., z, aa.
func letters(i int) string {
	if i < 26 {
		return string(rune('a' + i))
	}
	return letters(i/26-1) + letters(i%26)
}
