package setup

import (
	"fmt"
	"net/netip"
)

// askControllers asks for the network of the machines' controllers, and looks whether this host reaches it.
func (r *run) askControllers() error {
	if err := r.question(&r.BMC, "bmc-network", "Network of the machines' controllers (BMC), such as 10.1.0.0/24, or none", none,
		func(s string) error {
			if s == none {
				return nil
			}
			p, err := netip.ParsePrefix(s)
			if err != nil {
				return fmt.Errorf("%q is no network such as 10.1.0.0/24", s)
			}
			if p != p.Masked() {
				return fmt.Errorf("%s is an address in a network: the network is %s", s, p.Masked())
			}
			return nil
		}); err != nil {
		return err
	}
	if r.BMC != none {
		r.controllers = netip.MustParsePrefix(r.BMC)
		r.local, r.unreachable = r.host.Toward(r.controllers.Addr().Next())
	}
	return nil
}

// servesControllers reports that controllers are the only ones to boot machines from here, by virtual media.
func (r *run) servesControllers() bool {
	return r.Interface == none && r.local.Is4() && !r.local.IsLoopback()
}

// lookAtControllers says how this host and the controllers' network go together.
func (r *run) lookAtControllers(on netip.Addr) (all []Finding) {
	const check = "controllers"
	if r.BMC == none {
		return nil
	}
	if r.unreachable != nil {
		return []Finding{{Check: check, Detail: fmt.Sprintf("this host has no way to %s: %v", r.controllers, r.unreachable),
			Remedy: "give it an address in that network, or a route"}}
	}
	all = append(all, Finding{Check: check, Well: true,
		Detail: fmt.Sprintf("this host reaches %s from its address %s", r.controllers, r.local)})
	first, _ := netip.ParseAddr(r.RangeStart)
	last, _ := netip.ParseAddr(r.RangeEnd)
	if r.DHCP == "server" && first.IsValid() && last.IsValid() && first.Compare(end(r.controllers)) <= 0 &&
		r.controllers.Addr().Compare(last) <= 0 {
		all = append(all, Finding{Check: check,
			Detail: fmt.Sprintf("the addresses for machines, %s to %s, are in their network", first, last),
			Remedy: "see that no controller has one of them, or choose others"})
	}
	if on.IsValid() && on != r.local {
		all = append(all, Finding{Check: check, Well: true,
			Detail: fmt.Sprintf("for virtual media, they have to reach %s, which is not in their network", on)})
	}
	return all
}

// end is the last address of a network.
func end(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// nextDiscovery says how the machines are enrolled, where their network is known.
func (r *run) nextDiscovery() {
	if r.controllers.IsValid() && r.unreachable == nil {
		fmt.Fprintf(r.out, "  ingot bmc discover %s\n", r.controllers)
	}
}
