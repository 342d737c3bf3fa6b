package hook

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/lldp"
)

// MAC brings an Ethernet address into the form of the store: lower case with colons. BOOTIF's form has a hardware type
// before it. "" is none.
func MAC(s string) string {
	s = strings.ToLower(strings.ReplaceAll(strings.TrimSpace(s), "-", ":"))
	if len(s) == len("01:00:00:00:00:00:00") && strings.HasPrefix(s, "01:") {
		s = s[3:]
	}
	if m, err := net.ParseMAC(s); err != nil || len(m) != 6 || s == "00:00:00:00:00:00" || len(s) != 17 {
		return ""
	}
	return s
}

// Interfaces returns the inventory's interfaces by name, with their addresses in the form of the store; those without
// are left out.
func Interfaces(inventory map[string]any) (names []string, of map[string]map[string]any) {
	of = map[string]map[string]any{}
	for _, i := range list(inventory["interfaces"]) {
		i := object(i)
		name, mac := text(i["name"]), MAC(text(i["mac_address"]))
		if name == "" || mac == "" || of[name] != nil {
			continue
		}
		c := maps.Clone(i)
		c["mac_address"] = mac
		if a := text(c["ipv6_address"]); a != "" {
			c["ipv6_address"], _, _ = strings.Cut(a, "%") // without its scope
		}
		names, of[name] = append(names, name), c
	}
	return names, of
}

// bootMAC returns the address of the interface that the machine was booted from; "" if unknown.
func bootMAC(f *Found) string {
	return cmp.Or(MAC(text(object(f.Inventory["boot"])["pxe_interface"])), MAC(text(f.PluginData["boot_interface"])))
}

func loopback(ip string) bool {
	a, err := netip.ParseAddr(ip)
	return err == nil && a.IsLoopback()
}

func address(i map[string]any) string {
	return cmp.Or(text(i["ipv4_address"]), text(i["ipv6_address"]))
}

// validateInterfaces: if the interface that the machine was booted from is unknown, any may be it.
func validateInterfaces(f *Found, s *Settings) error {
	if _, ok := f.Inventory["interfaces"]; !ok {
		return errors.New("no interfaces in the inventory")
	}
	boot := bootMAC(f)
	names, of := Interfaces(f.Inventory)
	if len(names) == 0 && f.OutOfBand {
		f.note("WARNING", "the controller lists no network cards: create the node's ports by hand")
		return nil
	}
	if len(names) == 0 {
		return errors.New("no valid network interfaces in the inventory")
	}
	all, valid, macs := map[string]any{}, map[string]any{}, []any{}
	for _, name := range names {
		i := of[name]
		pxe := boot == "" || i["mac_address"] == boot
		i["pxe_enabled"] = pxe
		all[name] = i
		ip := address(i)
		if name == "lo" || loopback(ip) || s.AddPorts == "pxe" && !pxe || s.AddPorts == "active" && ip == "" {
			continue
		}
		valid[name] = maps.Clone(i)
		macs = append(macs, i["mac_address"])
	}
	if len(valid) == 0 {
		return fmt.Errorf("no network interfaces match the configuration (add_ports is %q)", s.AddPorts)
	}
	f.PluginData["all_interfaces"], f.PluginData["valid_interfaces"], f.PluginData["macs"] = all, valid, macs
	return nil
}

// validated returns the interfaces that validateInterfaces accepted, by name in the order of the inventory.
func validated(f *Found, key string) (names []string, of map[string]map[string]any) {
	m := object(f.PluginData[key])
	of = map[string]map[string]any{}
	all, _ := Interfaces(f.Inventory)
	for _, name := range all {
		if i := object(m[name]); i != nil {
			names, of[name] = append(names, name), i
		}
	}
	return names, of
}

// ofPorts are the ports with the interfaces that they are of, in the order of the inventory.
func ofPorts(f *Found) iter.Seq2[*node.Port, map[string]any] {
	return func(yield func(*node.Port, map[string]any) bool) {
		names, of := validated(f, "all_interfaces")
		for _, name := range names {
			if p := f.Port(text(of[name]["mac_address"])); p != nil && !yield(p, of[name]) {
				return
			}
		}
	}
}

func ports(f *Found, s *Settings) error {
	_, all := validated(f, "all_interfaces")
	if s.AddPorts != "disabled" {
		valid, of := validated(f, "valid_interfaces")
		for _, name := range valid {
			addPort(f, of[name])
		}
	}
	var keep []string
	switch s.KeepPorts {
	case "present":
		for _, i := range all {
			keep = append(keep, text(i["mac_address"]))
		}
	case "added":
		for _, mac := range list(f.PluginData["macs"]) {
			keep = append(keep, text(mac))
		}
	}
	if keep != nil {
		f.Ports = slices.DeleteFunc(f.Ports,
			func(p *node.Port) bool { return !slices.Contains(keep, p.Address) && remove(f, p) })
	}
	for p, i := range ofPorts(f) {
		place := "ports/" + p.Address + "/"
		// Booting from the network is a choice that operators make with ports, so it is theirs unless it was asked to
		// follow the machine.
		if pxe, _ := i["pxe_enabled"].(bool); p.UUID != "" && pxe != p.PXEEnabled && s.UpdatePXEEnabled {
			p.PXEEnabled = pxe
			f.note("INFO", "pxe_enabled of port %s is now %v", p.Address, pxe)
		}
		if id := text(i["client_id"]); id != "" && f.may(s, place+"client-id", p.Extra["client-id"], id) {
			p.Extra = node.With(p.Extra, "client-id", any(id))
		}
	}
	return nil
}

// addPort makes a port for an interface that has none yet. One that belongs to another node is left there, and said so.
func addPort(f *Found, i map[string]any) {
	mac := text(i["mac_address"])
	if other := f.Foreign[mac]; other != "" {
		f.note("WARNING",
			"interface %s was found on this node, but is a port of node %s: delete it there if it is wrong", mac, other)
		return
	}
	if f.Port(mac) != nil {
		return
	}
	pxe, _ := i["pxe_enabled"].(bool)
	f.Ports = append(f.Ports, &node.Port{NodeUUID: f.Node.UUID, Address: mac, PXEEnabled: pxe})
}

// remove takes a port away, unless something is attached to it.
func remove(f *Found, p *node.Port) bool {
	if p.UUID == "" {
		return true
	}
	if !blank(p.InternalInfo["tenant_vif_port_id"]) || p.PortgroupUUID != "" {
		f.note("WARNING", "port %s is not of this machine, but it is in use, so it is kept", p.Address)
		return false
	}
	f.note("INFO", "port %s is removed: the machine has no such interface among those that keep_ports keeps", p.Address)
	f.Gone = append(f.Gone, p.UUID)
	for place := range f.Wrote {
		if strings.HasPrefix(place, "ports/"+p.Address+"/") {
			delete(f.Wrote, place)
		}
	}
	return true
}

// neighbour reads the LLDP data of the switch at an interface; ok is false when there is none.
func neighbour(f *Found, name string, i map[string]any) (n lldp.Neighbour, ok bool) {
	raw := object(f.PluginData["lldp_raw"])[name]
	if blank(raw) {
		raw = i["lldp"]
	}
	var all []lldp.TLV
	for _, pair := range list(plain(raw)) {
		var t lldp.TLV
		b, err := json.Marshal(pair)
		if err == nil {
			err = json.Unmarshal(b, &t)
		}
		if err != nil {
			f.note("WARNING", "what the switch at %s says can't be read: %v", name, err)
			return n, false
		}
		all = append(all, t)
	}
	return lldp.Describe(all), len(all) > 0
}

func parseLLDP(f *Found, _ *Settings) error {
	parsed := maps.Clone(object(f.PluginData["parsed_lldp"]))
	if parsed == nil {
		parsed = map[string]any{}
	}
	names, of := Interfaces(f.Inventory)
	for _, name := range names {
		if n, ok := neighbour(f, name, of[name]); ok {
			if v := object(plain(n)); len(v) > 0 {
				parsed[name] = v
			}
		}
	}
	if len(parsed) > 0 {
		f.PluginData["parsed_lldp"] = parsed
	}
	return nil
}

// localLink fills in missing values only: present ones come from an operator who knows the cabling.
func localLink(f *Found, s *Settings) error {
	names, of := validated(f, "all_interfaces")
	for _, name := range names {
		p := f.Port(text(of[name]["mac_address"]))
		if p == nil {
			continue
		}
		n, ok := neighbour(f, name, of[name])
		if !ok {
			continue
		}
		link := map[string]string{"port_id": n.PortID, "switch_info": n.SystemName}
		if m, err := net.ParseMAC(n.ChassisID); err == nil { // switches are known by their address
			link["switch_id"] = m.String()
		}
		for _, key := range slices.Sorted(maps.Keys(link)) {
			if link[key] == "" ||
				!f.may(s, "ports/"+p.Address+"/local_link_connection/"+key, p.LocalLinkConnection[key], link[key]) {
				continue
			}
			p.LocalLinkConnection = node.With(p.LocalLinkConnection, key, any(link[key]))
		}
	}
	return nil
}

func physicalNetwork(f *Found, s *Settings) error {
	for p, i := range ofPorts(f) {
		if to := networkOf(s, i); to != "" && f.may(s, "ports/"+p.Address+"/physical_network", p.PhysicalNetwork, to) {
			p.PhysicalNetwork = to
		}
	}
	return nil
}

// networkOf finds the first subnet that an address of the interface is in, its IPv4 address first.
func networkOf(s *Settings, i map[string]any) string {
	for _, key := range []string{"ipv4_address", "ipv6_address"} {
		a, err := netip.ParseAddr(text(i[key]))
		if err != nil {
			continue
		}
		for _, n := range s.Networks {
			if n.Prefix.Contains(a) {
				return n.Name
			}
		}
	}
	return ""
}
