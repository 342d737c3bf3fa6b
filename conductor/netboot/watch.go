package netboot

import (
	"context"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/netboot/probe"
)

// soonAgain is after how long the network is probed again while no DHCP server answers: a switch may have dropped the
// first probes (spanning tree takes half a minute), and an operator may be working on it.
const soonAgain = time.Minute

// watchNetwork probes the provisioning network at once and again and again, and logs what answers when that has
// changed.
func (s *Server) watchNetwork(ctx context.Context) {
	var before []probe.Server
	var said []probe.Judgement
	for ctx.Err() == nil {
		now, more, err := probe.Find(ctx, s.cfg.Interface, s.cfg.Address, s.probeWait)
		if ctx.Err() != nil {
			return
		}
		// One answer may be lost: a server is gone when it misses two probes.
		judged := probe.Judge(string(s.cfg.Mode), s.cfg.Address, probe.Merge(now, before), more)
		before = now
		if err != nil {
			judged = []probe.Judgement{
				{Warning: true, Text: "the network can't be probed for other DHCP servers: " + err.Error(),
					Remedy: probe.Remedy(err)}}
		}
		for _, j := range judged {
			switch {
			case slices.Contains(said, j):
			case j.Warning:
				s.log.Warn(j.Text, "interface", s.cfg.Interface, "to_do", j.Remedy)
			default:
				s.log.Info(j.Text, "interface", s.cfg.Interface)
			}
		}
		said = judged
		wait := s.cfg.ProbeEvery
		if s.cfg.Mode != Leases && len(now) == 0 {
			wait = min(wait, soonAgain)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}
