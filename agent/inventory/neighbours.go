package inventory

import (
	"context"
	"time"

	"github.com/ingot-metal/ingot/proto/lldp"
)

// listening is implemented by a machine that listens for LLDP.
type listening interface {
	// Neighbours returns the newest LLDP frame of each interface that has received one. It waits for the interfaces in
	// want, at most for limit.
	Neighbours(ctx context.Context, want []string, limit time.Duration) map[string][]lldp.TLV
}

// neighbours adds the switches' LLDP data to the report.
func neighbours(ctx context.Context, m machine, limit time.Duration, r *Report) error {
	l, ok := m.(listening)
	if !ok {
		return nil
	}
	var want []string
	for _, i := range r.Inventory.Interfaces {
		if i.HasCarrier {
			want = append(want, i.Name)
		}
	}
	heard := l.Neighbours(ctx, want, limit)
	r.LLDPRaw, r.LLDP = map[string][]lldp.TLV{}, map[string]lldp.Neighbour{}
	for n := range r.Inventory.Interfaces {
		i := &r.Inventory.Interfaces[n]
		r.LLDPRaw[i.Name] = []lldp.TLV{}
		if all := heard[i.Name]; all != nil {
			r.LLDPRaw[i.Name], i.LLDP, r.LLDP[i.Name] = all, all, lldp.Describe(all)
		}
	}
	return nil
}
