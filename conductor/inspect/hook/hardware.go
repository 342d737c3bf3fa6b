package hook

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

func ramdiskError(f *Found, _ *Settings) error {
	if e := f.PluginData["error"]; !blank(e) {
		if t, ok := e.(string); ok {
			return fmt.Errorf("the ramdisk reported an error: %s", t)
		}
		return fmt.Errorf("the ramdisk reported an error: %s", show(e))
	}
	return nil
}

func architecture(f *Found, s *Settings) error {
	arch := text(object(f.Inventory["cpu"])["architecture"])
	if arch == "" {
		return errors.New("the inventory does not tell the processors' architecture")
	}
	f.setProperty(s, "cpu_arch", arch)
	return nil
}

// memory takes the installed size; if the firmware does not report it, the size that the kernel sees.
func memory(f *Found, s *Settings) error {
	m := object(f.Inventory["memory"])
	mb := cmp.Or(number(m["physical_mb"]), number(m["total"])>>20)
	if mb == 0 {
		return errors.New("the inventory does not tell how much memory there is")
	}
	f.setProperty(s, "memory_mb", mb)
	return nil
}

func cpus(f *Found, s *Settings) error {
	n := number(object(f.Inventory["cpu"])["count"])
	if n == 0 {
		f.note("WARNING", "the inventory does not tell how many processors there are")
		return nil
	}
	f.setProperty(s, "cpus", n)
	return nil
}

func bootMode(f *Found, s *Settings) error {
	mode := text(object(f.Inventory["boot"])["current_boot_mode"])
	if mode == "" {
		f.note("WARNING", "the inventory does not tell the boot mode")
		return nil
	}
	return f.setCapability(s, "boot_mode", mode)
}

func secureBoot(f *Found, s *Settings) error {
	on, ok := object(f.Inventory["boot"])["secure_boot"].(bool)
	if !ok {
		return nil
	}
	return f.setCapability(s, "secure_boot", strconv.FormatBool(on))
}

func cpuCapabilities(f *Found, s *Settings) error {
	flags := list(object(f.Inventory["cpu"])["flags"])
	if len(flags) == 0 {
		f.note("WARNING", "the inventory does not tell the processors' flags")
		return nil
	}
	for _, c := range s.CPUCapabilities {
		if slices.Contains(flags, any(c[0])) {
			if err := f.setCapability(s, c[1], "true"); err != nil {
				return err
			}
		}
	}
	return nil
}

// pciOf returns the devices on the PCI bus; sent is false when the ramdisk sent no list.
func pciOf(f *Found) (devices []map[string]any, sent bool) {
	all, sent := f.PluginData["pci_devices"]
	if all == nil {
		all, sent = f.Inventory["pci_devices"] // some agents have it there
	}
	for _, d := range list(all) {
		if d := object(d); d != nil {
			devices = append(devices, d)
		}
	}
	return devices, sent && all != nil
}

func pciKey(d map[string]any) [2]string {
	return [2]string{strings.ToLower(text(d["vendor_id"])), strings.ToLower(text(d["product_id"]))}
}

func pciDevices(f *Found, s *Settings) error {
	devices, sent := pciOf(f)
	if !sent {
		if len(s.Aliases) > 0 {
			f.note("WARNING", "the ramdisk sent no list of PCI devices")
		}
		return nil
	}
	count := map[string]int{}
	var order []string
	for _, d := range devices {
		name, ok := s.Aliases[pciKey(d)]
		if !ok {
			continue
		}
		if count[name]++; count[name] == 1 {
			order = append(order, name)
		}
	}
	for _, name := range order {
		if err := f.setCapability(s, name, fmt.Sprint(count[name])); err != nil {
			return err
		}
	}
	return nil
}

func acceleratorsFound(f *Found, s *Settings) error {
	devices, sent := pciOf(f)
	if !sent || len(devices) == 0 {
		f.note("WARNING", "no accelerators can be told, since the ramdisk sent no PCI devices")
		return nil
	}
	found := []any{}
	for _, d := range devices {
		key := pciKey(d)
		for _, known := range s.Accelerators {
			if known["vendor_id"] != key[0] || known["device_id"] != key[1] {
				continue
			}
			a := map[string]any{"pci_address": d["bus"]}
			maps.Copy(a, known)
			found = append(found, a)
			break
		}
	}
	f.setProperty(s, "accelerators", found)
	return nil
}

// extraHardware turns [section, item, key, value] lists into extra[section][item][key] = value.
func extraHardware(f *Found, s *Settings) error {
	data, ok := f.PluginData["data"]
	if !ok {
		f.note("INFO", "the ramdisk sent no extra hardware data")
		return nil
	}
	rows, valid := data.([]any)
	for _, r := range rows {
		row, is := r.([]any)
		valid = valid && is && (!s.StrictExtra || len(row) == 4)
	}
	if !valid {
		f.note("WARNING", "the extra hardware data is in no known form, so it is not read")
		if s.StrictExtra {
			delete(f.PluginData, "data")
		}
		return nil
	}
	extra := map[string]any{}
	bad := 0
	for _, r := range rows {
		row := r.([]any)
		if len(row) == 0 {
			continue
		}
		if len(row) < 4 {
			bad++
			continue
		}
		section, item, key := text(row[0]), text(row[1]), text(row[2])
		if section == "" || item == "" || key == "" {
			bad++
			continue
		}
		v := row[3]
		if t, ok := v.(string); ok && number(t) > 0 && fmt.Sprint(number(t)) == t || v == "0" {
			v = number(v)
		}
		if extra[section] == nil {
			extra[section] = map[string]any{}
		}
		if object(extra[section])[item] == nil {
			object(extra[section])[item] = map[string]any{}
		}
		object(object(extra[section])[item])[key] = v
	}
	if bad > 0 {
		f.note("WARNING", "%d lines of the extra hardware data are in no known form", bad)
	}
	f.PluginData["extra"] = extra
	delete(f.PluginData, "data")
	return nil
}
