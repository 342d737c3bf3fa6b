package nodes

import (
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// A node's network_data has the shape of OpenStack's network_data.json, which Ironic checks it against: links
// (interfaces, bonds, VLANs), networks on them, and services. Other members are let through, as there. Addresses and
// masks are parsed here, instead of compared with a pattern: a mask may be of all ones, and numbers with leading zeros,
// which programs read differently, are refused.

// checkNetworkData refuses network_data of another shape, and says where. Nothing and an empty object are no network
// data.
func checkNetworkData(d map[string]any) *rest.Error {
	if len(d) == 0 {
		return nil
	}
	f := shape{
		{"links", true, listOf(checkLink)}, {"networks", true, listOf(checkNetwork)},
		{"services", true, listOf(checkService)},
	}.check(d)
	if f == nil {
		return nil
	}
	if f.where != "" {
		f.where += ": "
	}
	return rest.BadRequest("Invalid network_data: %s%s", f.where, f.what)
}

// check returns the fault of a value, or nil.
type check func(v any) *fault

// fault names the error of a value, and its place: "routes[0].gateway", or "" for the value itself.
type fault struct{ where, what string }

// in is the fault as seen from outside, where the value is called name.
func (f *fault) in(name string) *fault {
	if f.where != "" && !strings.HasPrefix(f.where, "[") {
		name += "."
	}
	return &fault{name + f.where, f.what}
}

func is(v any, what string) *fault { return &fault{what: rest.Repr(redact.Value(v)) + " is " + what} }

// shape are the members of an object that are known.
type shape []struct {
	name     string
	required bool
	check    check
}

func (s shape) check(v any) *fault {
	o, ok := v.(map[string]any)
	if !ok {
		return is(v, "not of type 'object'")
	}
	for _, m := range s {
		v, ok := o[m.name]
		switch {
		case !ok && m.required:
			return &fault{what: rest.Repr(m.name) + " is a required property"}
		case ok:
			if f := m.check(v); f != nil {
				return f.in(m.name)
			}
		}
	}
	return nil
}

func listOf(c check) check {
	return func(v any) *fault {
		list, ok := v.([]any)
		if !ok {
			return is(v, "not of type 'array'")
		}
		for i, item := range list {
			if f := c(item); f != nil {
				return f.in(fmt.Sprintf("[%d]", i))
			}
		}
		return nil
	}
}

func ofSchema(s rest.Schema) check {
	return func(v any) *fault {
		if what := s.Check(v); what != "" {
			return &fault{what: what}
		}
		return nil
	}
}

// address checks the text of an address.
func address(what string, ok func(s string) bool) check {
	return func(v any) *fault {
		if s, text := v.(string); !text || !ok(s) {
			return is(v, "not "+what)
		}
		return nil
	}
}

var (
	text = ofSchema(rest.Schema{Types: []string{"string"}})
	mac  = ofSchema(
		rest.Schema{Types: []string{"string"}, Pattern: regexp.MustCompile(`(?i)^([0-9A-F]{2}[:-]){5}([0-9A-F]{2})$`)})

	ipv4 = address("an IPv4 address", isIPv4)
	ipv6 = address("an IPv6 address", isIPv6)
	// ipv6Host may say how long its network's prefix is.
	ipv6Host = address("an IPv6 address", func(s string) bool {
		p, err := netip.ParsePrefix(s)
		return isIPv6(s) || err == nil && p.Addr().Is6()
	})
	ipv4Mask = address("an IPv4 network mask", func(s string) bool {
		a, err := netip.ParseAddr(s)
		return err == nil && a.Is4() && contiguous(a.AsSlice())
	})
	ipv6Mask = address("an IPv6 network mask", func(s string) bool {
		a, err := netip.ParseAddr(s)
		return err == nil && a.Is6() && a.Zone() == "" && contiguous(a.AsSlice())
	})
)

func isIPv4(s string) bool {
	a, err := netip.ParseAddr(s)
	return err == nil && a.Is4()
}

func isIPv6(s string) bool {
	a, err := netip.ParseAddr(s)
	return err == nil && a.Is6()
}

// contiguous reports whether all ones of a mask stand before its zeros.
func contiguous(mask []byte) bool {
	zero := false
	for _, b := range mask {
		for bit := 7; bit >= 0; bit-- {
			one := b>>bit&1 == 1
			if one && zero {
				return false
			}
			zero = zero || !one
		}
	}
	return true
}

func mtu(v any) *fault {
	n, ok := exact.Float(v)
	switch {
	case v == nil:
		return nil
	case !ok:
		return is(v, "not of type 'number'")
	case n < 1 || n > math.MaxUint16:
		return is(v, "not from 1 to 65535")
	}
	return nil
}

// oneOf checks an object by the shape for its type.
func oneOf(byType func(typ string) shape, types ...any) check {
	return func(v any) *fault {
		o, ok := v.(map[string]any)
		if !ok {
			return is(v, "not of type 'object'")
		}
		typ, ok := o["type"]
		if !ok {
			return &fault{what: "'type' is a required property"}
		}
		if !slices.Contains(types, typ) {
			return is(typ, "not one of "+rest.Repr(types)).in("type")
		}
		return byType(typ.(string)).check(o)
	}
}

var checkLink = oneOf(func(typ string) shape {
	s := shape{{"id", true, text}, {"mtu", false, mtu}, {"vif_id", false, text}}
	switch typ {
	case "vlan":
		return append(s,
			shape{{"vlan_mac_address", true, mac}, {"vlan_link", true, text},
				{"vlan_id", true, ofSchema(rest.Schema{Types: []string{"integer"}})}}...)
	case "bond":
		return append(s,
			shape{{"ethernet_mac_address", true, mac}, {"bond_links", true, listOf(text)},
				{"bond_mode", true, ofSchema(rest.Schema{
					Enum: []any{"802.1ad", "balance-rr", "active-backup", "balance-xor", "broadcast", "balance-tlb",
						"balance-alb"}, Types: []string{"string"},
				})}}...)
	}
	return append(s, shape{{"ethernet_mac_address", true, mac}}...)
}, "bridge", "dvs", "hw_veb", "hyperv", "ovs", "tap", "vhostuser", "vif", "phy", "bond", "vlan")

var checkNetwork = oneOf(func(typ string) shape {
	s := shape{{"id", true, text}, {"link", true, text}, {"network_id", true, text}}
	host, network, mask, service := ipv4, ipv4, ipv4Mask, serviceOf(ipv4)
	if strings.HasPrefix(typ, "ipv6") {
		host, network, mask, service = ipv6Host, ipv6, ipv6Mask, serviceOf(ipv6Host)
	}
	route := shape{{"network", true, network}, {"netmask", true, mask}, {"gateway", true, network},
		{"services", false, listOf(service)}}
	return append(s,
		shape{{"ip_address", false, host}, {"netmask", false, mask}, {"routes", false, listOf(route.check)}}...)
}, "ipv4", "ipv4_dhcp", "ipv6", "ipv6_dhcp", "ipv6_slaac")

func serviceOf(host check) check {
	return oneOf(func(string) shape { return shape{{"address", true, host}} }, "dns")
}

var checkService = serviceOf(address("an IP address", func(s string) bool { return isIPv4(s) || ipv6Host(s) == nil }))
