package netboot

import (
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// Several conductors of one database may be on a network. All hear what a machine broadcasts, and one is to answer it:
// for each MAC they are in an order, in which the first answers at once, and each of the others when the machine has
// been asking for so long that those before it are silent. A conductor that is known to be dead or to leave is not in
// the order. The order only spares machines and network a choice: whichever conductors answer, addresses are unique in
// the store.
//
// Only what every conductor of the network hears is a matter of turns. A packet that a relay sends on goes to those
// that the relay knows, one on port 4011 and one that names a server to that one, and a renewal (it has the address
// already) to the one that gave it, or to whichever hears it when that is silent: each has the lease in the store.
//
// The field "secs" of a packet is not believed: firmware leaves it at zero, counts from its own start, or writes its
// bytes in the other order.

// patience is how long a machine has to ask in vain until it is the next conductor's turn. iPXE asks again after a
// second, and in mode proxy it then waits for no further boot file.
const patience = 900 * time.Millisecond

// askPause is longer than any pause between two tries: up to 32 seconds, by the PXE specification. A machine that asks
// after a longer one has begun anew.
const askPause = 40 * time.Second

// SetTurns has this server take turns with other conductors on its network. turns returns the order as it is now: how
// many conductors come before this one for a key, or less than zero if this one answers nothing that others answer. It
// must be called before Serve.
func (s *Server) SetTurns(turns func() func(key string) int) { s.turns = turns }

// isOurTurn reports whether this conductor answers a packet of an admitted machine.
func (s *Server) isOurTurn(q request, port int) bool {
	if s.turns == nil {
		return true
	}
	key := q.mac + " " + string('0'+rune(q.firmware)) // firmware and the iPXE that it loads begin anew
	if q.typ == dhcpv4.MessageTypeRequest && q.server.IsValid() && s.cfg.Mode == Leases {
		s.waits.answered(key) // by the server that it names; in mode proxy that need not be one of ours
	}
	if port != dhcpv4.ServerPort || q.relay.IsValid() {
		return true
	}
	rebooted := q.typ == dhcpv4.MessageTypeRequest && !q.server.IsValid() && !q.client.IsValid() // INIT-REBOOT
	if q.typ != dhcpv4.MessageTypeDiscover && !rebooted {
		return true
	}
	before := s.turns()(q.mac)
	asking := s.waits.asking(key, s.now())
	return before >= 0 && asking >= time.Duration(before)*patience
}

// waits remembers since when machines have been asking.
type waits struct {
	mu sync.Mutex
	by map[string]wait
}

type wait struct{ first, last time.Time }

// asking notes that a machine asks, and returns for how long it has been doing so.
func (w *waits) asking(key string, now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	a, ok := w.by[key]
	if !ok && len(w.by) >= maxCounted {
		for k, old := range w.by {
			if now.Sub(old.last) > askPause {
				delete(w.by, k)
			}
		}
		if len(w.by) >= maxCounted {
			clear(w.by) // costs a machine one more try, if the first conductor of its order is silent
		}
	}
	if !ok || now.Sub(a.last) > askPause || now.Before(a.last) {
		a.first = now
	}
	a.last = now
	if w.by == nil {
		w.by = map[string]wait{}
	}
	w.by[key] = a
	return now.Sub(a.first)
}

func (w *waits) answered(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.by, key)
}
