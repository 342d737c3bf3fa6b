package netboot

import (
	"fmt"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
)

// inviteTime is how long an unknown machine is answered after its firmware first asked: long enough for a slow one to
// come up, and for one that fails to try again.
const inviteTime = time.Hour

// invite is an unknown machine that may boot the agent.
type invite struct {
	since   time.Time
	scripts int
}

// invites are those of the last hour. A restart forgets them: then their machines ask anew.
type invites struct {
	mu    sync.Mutex
	limit int // in an hour
	by    map[string]*invite
}

// take reports whether a MAC is invited. It invites the MAC if fresh is true and the hourly limit allows it.
func (v *invites) take(mac string, fresh bool, now time.Time) (ok, full bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for m, i := range v.by {
		if now.Sub(i.since) >= inviteTime {
			delete(v.by, m)
		}
	}
	switch {
	case v.by[mac] != nil:
		return true, false
	case !fresh:
		return false, false
	case len(v.by) >= v.limit:
		return false, true
	}
	if v.by == nil {
		v.by = map[string]*invite{}
	}
	v.by[mac] = &invite{since: now}
	return true, false
}

// script counts a boot script that a MAC gets; false: it has had too many.
func (v *invites) script(mac string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	i := v.by[mac]
	if i == nil || i.scripts >= limit.BootScripts {
		return false
	}
	i.scripts++
	return true
}

// admitUnknown decides about an unknown machine. With discovery on, one whose firmware asks for a boot file gets the
// agent, and from then on its address too when its kernel asks for that alone. All other unknown machines are not
// answered.
func (s *Server) admitUnknown(a admission, mac string, boots bool) admission {
	if !a.unknown || s.cfg.Invite == nil {
		return a
	}
	ok, full := s.invites.take(mac, boots, s.now())
	if full {
		a.why = fmt.Sprintf(
			"it is unknown, and %d unknown machines have been booted within the hour, which is the limit (discovery.limit_per_hour)", s.invites.limit)
		return a
	}
	if !ok {
		return a
	}
	return admission{node: &node.Node{}, address: true, boot: true, invited: true}
}
