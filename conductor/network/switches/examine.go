package switches

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/ingot-metal/ingot/conductor/network/switches/dialect"
)

// Health is the state of a switch as a login shows it that changes nothing.
type Health struct {
	Switch string
	Ports  int      // that Ingot may configure and the switch shows
	Lacks  []string // VLANs and ports that the table has and the switch has not
	Err    error    // of the session: it shows nothing
}

// Examine logs in to each switch of the table, reads its VLANs and the ports that the table has, and changes nothing.
func (t *Table) Examine(ctx context.Context) []Health {
	vlans := map[int]bool{}
	for _, n := range append(slices.Collect(maps.Values(t.Networks.Tenants)), t.Networks.Provisioning,
		t.Networks.Quarantine, *t.Networks.Cleaning) {
		for _, v := range append([]int{n.VLAN, n.Native}, n.tagged...) {
			if v != 0 {
				vlans[v] = true
			}
		}
	}
	all := make([]Health, len(t.Switches))
	var wg sync.WaitGroup
	for i, name := range slices.Sorted(maps.Keys(t.Switches)) {
		wg.Go(func() {
			s := newSwitch(t.Switches[name], nil)
			all[i] = Health{Switch: name}
			if err := s.session(ctx, func(t *session, active map[int]bool) error {
				return s.examine(t, active, slices.Sorted(maps.Keys(vlans)), &all[i])
			}); err != nil {
				all[i].Err = s.fault(err)
			}
		})
	}
	wg.Wait()
	return all
}

func (s *Switch) examine(t *session, active map[int]bool, vlans []int, h *Health) error {
	for _, v := range vlans {
		if !active[v] {
			h.Lacks = append(h.Lacks, fmt.Sprintf("VLAN %d", v))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.conf.owned)) {
		if s.conf.lags[name] {
			continue // they are made when they are needed
		}
		_, err := s.read(t, dialect.Port{Interface: name})
		switch lost := new(connectionError); {
		case errors.As(err, lost):
			return err
		case err != nil:
			h.Lacks = append(h.Lacks, fmt.Sprintf("port %s (%v)", name, err))
		default:
			h.Ports++
		}
	}
	return nil
}
