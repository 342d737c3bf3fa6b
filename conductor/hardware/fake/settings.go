package fake

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/node"
)

// asked makes a step run in these phases when requested.
func asked(phases ...node.Phase) map[node.Phase]int {
	m := map[node.Phase]int{}
	for _, p := range phases {
		m[p] = 0
	}
	return m
}

func (f *Fakes) biosSteps(*node.Node) []hardware.Step {
	when := asked(node.PhaseDeploy, node.PhaseClean, node.PhaseService)
	return []hardware.Step{
		f.step("bios", hardware.Step{Interface: "bios", Name: "apply_configuration",
			Description: "sets BIOS settings; those not named are forgotten", Priority: when,
			Args: []hardware.Arg{hardware.SettingsArg}, Check: hardware.CheckSettings}, f.applyBIOS),
		f.step("bios", hardware.Step{Interface: "bios", Name: "factory_reset", Description: "forgets all BIOS settings",
			Priority: when}, func(hardware.Call) (hardware.Outcome, error) {
			return hardware.Outcome{Apply: func(n *node.Node, _ *node.SideEffects) error {
				n.BIOS = nil
				return nil
			}}, nil
		}),
		f.step("bios", hardware.Step{Interface: "bios", Name: "cache_bios_settings", Description: "reads nothing",
			Priority: asked(node.PhaseClean, node.PhaseService)}, nil),
	}
}

func (f *Fakes) applyBIOS(c hardware.Call) (hardware.Outcome, error) {
	wanted, err := hardware.Settings(c.Args["settings"])
	if err != nil {
		return hardware.Outcome{}, err
	}
	now := f.now().UTC()
	return hardware.Outcome{Apply: func(n *node.Node, _ *node.SideEffects) error {
		var bios []node.BIOSSetting
		for _, w := range wanted {
			s := node.BIOSSetting{Name: w.Name}
			if w.Value != nil {
				s.Value = fmt.Sprint(w.Value)
			}
			bios = append(bios, s)
		}
		n.BIOS = hardware.Cached(n.BIOS, bios, now)
		return nil
	}}, nil
}

func (f *Fakes) firmwareSteps(*node.Node) []hardware.Step {
	return []hardware.Step{
		f.step("firmware",
			hardware.Step{Interface: "firmware", Name: "update",
				Description: "records new versions of firmware components",
				Priority:    asked(node.PhaseDeploy, node.PhaseClean, node.PhaseService), Args: []hardware.Arg{
					{Name: "settings", Type: "array",
						Description: "List of firmware components, each with component and url, and the version it has",
						Required:    true}},
				Check: func(_ *node.Node, args map[string]any) error {
					_, err := updates(args["settings"])
					return err
				}}, f.updateFirmware)}
}

// maxUpdates is more than any machine has components.
const maxUpdates = 10_000

// updates reads a list of components and their new versions. A fake can't look into a file: the version is the
// client's, or the last part of the URL.
func updates(v any) ([][2]string, error) {
	list, ok := v.([]any)
	if !ok || len(list) > maxUpdates {
		return nil, hardware.Invalidf("settings is not a list of at most %d objects with component and url",
			maxUpdates)
	}
	var out [][2]string
	for _, item := range list {
		m, _ := item.(map[string]any)
		component, _ := m["component"].(string)
		url, _ := m["url"].(string)
		version, _ := m["version"].(string)
		if component == "" || url == "" {
			return nil, hardware.Invalidf("settings: %v is not an object with component and url", item)
		}
		version = cmp.Or(version, url[strings.LastIndex(url, "/")+1:])
		out = append(out, [2]string{component, version})
	}
	return out, nil
}

func (f *Fakes) updateFirmware(c hardware.Call) (hardware.Outcome, error) {
	wanted, err := updates(c.Args["settings"])
	if err != nil {
		return hardware.Outcome{}, err
	}
	m, err := readMachine(c.Node)
	if err != nil {
		return hardware.Outcome{}, hardware.Invalidf("driver_info: fake_inventory: %v", err)
	}
	now := f.now().UTC()
	return hardware.Outcome{Apply: func(n *node.Node, _ *node.SideEffects) error {
		list := slices.Clone(n.Firmware)
		for _, w := range wanted {
			i := slices.IndexFunc(list, func(c node.FirmwareComponent) bool { return c.Component == w[0] })
			if i < 0 {
				list = append(list, node.FirmwareComponent{Component: w[0], InitialVersion: "1.0", CreatedAt: now})
				i = len(list) - 1
			}
			list[i].CurrentVersion, list[i].LastVersionFlashed, list[i].UpdatedAt = w[1], w[1], now
			m.identify(&list[i])
		}
		n.Firmware = list
		return nil
	}}, nil
}

// identify makes up who made a component, as far as controllers say: all of a network card, whose name has its serial
// number, the model of a BMC, nothing of a BIOS.
func (m *machine) identify(c *node.FirmwareComponent) {
	if serial, ok := strings.CutPrefix(c.Component, "nic:"); ok {
		c.Vendor, c.Model, c.SerialNumber = m.Vendor, m.Product+" NIC", serial
	}
	if c.Component == "bmc" {
		c.Model = m.Product + " BMC"
	}
}

type raid struct {
	hardware.GenericRAID
	f *Fakes
}

func (r raid) Steps(*node.Node) []hardware.Step {
	f := r.f
	return []hardware.Step{
		f.step("raid", hardware.Step{Interface: "raid", Name: "create_configuration",
			Description: "makes the logical disks of target_raid_config", Args: hardware.VolumeArgs, Check: checkFlags,
			Priority: asked(node.PhaseClean, node.PhaseService)}, func(c hardware.Call) (hardware.Outcome, error) {
			return r.create(c, c.Node.TargetRAID)
		}),
		f.step("raid", hardware.Step{Interface: "raid", Name: "apply_configuration",
			Description: "makes the logical disks of raid_config, given as an argument",
			Args:        append([]hardware.Arg{hardware.RAIDConfigArg}, hardware.VolumeArgs...),
			Check: func(n *node.Node, args map[string]any) error {
				config, ok := args["raid_config"].(map[string]any)
				if !ok {
					return hardware.Invalidf("raid_config is not an object")
				}
				if err := r.GenericRAID.Check(n, config); err != nil {
					return err
				}
				return checkFlags(n, args)
			},
			Priority: asked(node.PhaseDeploy)}, func(c hardware.Call) (hardware.Outcome, error) {
			config, _ := c.Args["raid_config"].(map[string]any)
			return r.create(c, config)
		}),
		f.step("raid", hardware.Step{Interface: "raid", Name: "delete_configuration",
			Description: "removes all logical disks", Priority: asked(node.PhaseClean, node.PhaseService)},
			func(hardware.Call) (hardware.Outcome, error) {
				now := f.now().UTC()
				return hardware.Outcome{Apply: func(n *node.Node, _ *node.SideEffects) error {
					n.RAIDConfig = map[string]any{
						"logical_disks": []any{}, "last_updated": now.Format("2006-01-02T15:04:05.000000")}
					return nil
				}}, nil
			}),
	}
}

func checkFlags(_ *node.Node, args map[string]any) error {
	for _, name := range []string{"create_root_volume", "create_nonroot_volumes", "delete_existing"} {
		if v, ok := args[name]; ok {
			if _, ok := v.(bool); !ok {
				return hardware.Invalidf("%s is not true or false", name)
			}
		}
	}
	return nil
}

// create makes the disks of a configuration that the arguments don't leave out.
func (r raid) create(c hardware.Call, target map[string]any) (hardware.Outcome, error) {
	on := func(name string, otherwise bool) bool {
		if v, ok := c.Args[name].(bool); ok {
			return v
		}
		return otherwise
	}
	if len(target) == 0 {
		return hardware.Outcome{}, hardware.Invalidf("Node %s has no target RAID configuration.", c.Node.UUID)
	}
	if err := r.GenericRAID.Check(c.Node, target); err != nil {
		return hardware.Outcome{}, err
	}
	var made []any
	disks, _ := target["logical_disks"].([]any)
	for _, d := range disks {
		m, _ := d.(map[string]any)
		if m["is_root_volume"] == true && on("create_root_volume", true) || m["is_root_volume"] != true &&
			on("create_nonroot_volumes", true) {
			made = append(made, m)
		}
	}
	if len(made) == 0 {
		return hardware.Outcome{},
			hardware.Invalidf("Node %s has empty target RAID configuration: no volume of it is to be created.",
				c.Node.UUID)
	}
	now := r.f.now().UTC()
	return hardware.Outcome{Apply: func(n *node.Node, _ *node.SideEffects) error {
		var disks []any
		if have, ok := n.RAIDConfig["logical_disks"].([]any); ok && !on("delete_existing", false) {
			disks = append(disks, have...)
		}
		for _, d := range made {
			m := map[string]any{}
			maps.Copy(m, d.(map[string]any))
			if m["volume_name"] == nil {
				m["volume_name"] = fmt.Sprintf("volume-%d", len(disks)+1)
			}
			disks = append(disks, m)
		}
		n.RAIDConfig = map[string]any{"logical_disks": disks, "last_updated": now.Format("2006-01-02T15:04:05.000000")}
		return nil
	}}, nil
}
