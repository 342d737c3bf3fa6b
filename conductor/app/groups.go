package app

import (
	"context"

	"github.com/ingot-metal/ingot/conductor/netboot"
	"github.com/ingot-metal/ingot/conductor/store"
)

// groupsOf returns the port groups of nodes, for the boot parameters of their machines.
func groupsOf(st *store.Store) func(context.Context, string) ([]netboot.Group, error) {
	return func(ctx context.Context, nodeUUID string) ([]netboot.Group, error) {
		list, err := st.Portgroups().List(ctx, nodeUUID)
		if err != nil || len(list) == 0 {
			return nil, err
		}
		ports, err := st.Ports(ctx, store.PortQuery{NodeUUID: &nodeUUID})
		if err != nil {
			return nil, err
		}
		var out []netboot.Group
		for _, g := range list {
			one := netboot.Group{Portgroup: g}
			for _, p := range ports {
				if p.PortgroupUUID == g.UUID {
					one.Members = append(one.Members, p.Address)
				}
			}
			out = append(out, one)
		}
		return out, nil
	}
}
