package driver

import (
	"maps"
	"slices"
)

// Twin is an interface of hardware type redfish that idrac has under another name, in its place or before it.
type Twin struct {
	Kind, Of, Name string
	// Both says that idrac also has it under the name Of.
	Both bool
}

// Twins is the table, as Ironic has it, but for inspect: Metal3 asks for redfish there. Kinds that are not here have
// the same names in both types.
var Twins = []Twin{
	{Kind: "power", Of: "redfish", Name: "idrac-redfish", Both: true},
	{Kind: "management", Of: "redfish", Name: "idrac-redfish"},
	{Kind: "boot", Of: "redfish-virtual-media", Name: "idrac-redfish-virtual-media"},
	{Kind: "bios", Of: "redfish", Name: "idrac-redfish", Both: true},
	{Kind: "inspect", Of: "redfish", Name: "idrac-redfish", Both: true},
	{Kind: "raid", Of: "redfish", Name: "idrac-redfish"},
	{Kind: "vendor", Of: "redfish", Name: "idrac-redfish", Both: true},
}

// twinned returns interfaces of redfish with the twins' names.
func twinned(of map[string][]string) map[string][]string {
	out := maps.Clone(of)
	for _, t := range Twins {
		i := slices.Index(out[t.Kind], t.Of)
		if i < 0 {
			panic("driver: redfish has no " + t.Kind + " interface " + t.Of)
		}
		names := slices.Insert(slices.Clone(out[t.Kind]), i, t.Name)
		if !t.Both {
			names = slices.Delete(names, i+1, i+2)
		}
		out[t.Kind] = names
	}
	return out
}

// described adds the twins to a table of interfaces.
func described(all []Interface) []Interface {
	for _, t := range Twins {
		i := slices.IndexFunc(all, func(i Interface) bool { return i.Kind == t.Kind && i.Name == t.Of })
		twin := all[i]
		twin.Name, twin.Description = t.Name, t.Of+" on Dell's iDRAC"
		if t.Kind == "management" {
			twin.Description += ", with Dell's own steps"
		}
		all = slices.Insert(all, i+1, twin)
	}
	return all
}
