package netboot

import (
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// onceEach remembers names, so that a mark is made once per boot.
type onceEach struct {
	mu   sync.Mutex
	seen map[string]time.Time // by node and mark: the boot's beginning
}

// first reports whether this is the first time of name for a node's boot.
func (o *onceEach) first(nodeUUID, name string, boot time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := nodeUUID + " " + name
	if o.seen[key].Equal(boot) {
		return false
	}
	if o.seen == nil || len(o.seen) > 100_000 {
		o.seen = map[string]time.Time{}
	}
	o.seen[key] = boot
	return true
}

// quiet lets one line through per key and while.
type quiet struct {
	mu   sync.Mutex
	last map[string]time.Time
}

const quietFor = 5 * time.Minute

func (q *quiet) speak(key string, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if at, ok := q.last[key]; ok && now.Sub(at) < quietFor {
		return false
	}
	if q.last == nil || len(q.last) > 10_000 {
		q.last = map[string]time.Time{}
	}
	q.last[key] = now
	return true
}

// seldom returns the log for something that may happen again and again: with the same key it is heard once in a while.
func (s *Server) seldom(key string) *slog.Logger {
	if s.refused.speak(key, s.now()) {
		return s.log
	}
	return slog.New(slog.DiscardHandler)
}

// rate bounds the lines about machines that are not ours: a large network has many, and anybody can make up more.
type rate struct {
	mu   sync.Mutex
	from time.Time
	n    int
}

const strangersPerMinute = 30

func (r *rate) speak(log *slog.Logger, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.from) >= time.Minute {
		if r.n > strangersPerMinute {
			log.Info("more DHCP requests were not answered", "requests", r.n-strangersPerMinute)
		}
		r.from, r.n = now, 0
	}
	r.n++
	return r.n <= strangersPerMinute
}

// recently remembers which machines were given something to boot.
type recently struct {
	mu sync.Mutex
	at map[string]time.Time
}

const bootingTime = 2 * time.Minute

func (r *recently) note(mac string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at == nil || len(r.at) > 10_000 {
		r.at = map[string]time.Time{}
	}
	r.at[mac] = now
}

func (r *recently) recent(mac string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.at[mac]
	return ok && now.Sub(at) < bootingTime
}

// Limits of TFTP and DHCP. The source addresses of their packets can be forged, so that the answers must not be much
// larger than the requests until the client has answered.
const (
	maxCounted = 10_000 // addresses, machines
)

// tftpLimits counts transfers.
type tftpLimits struct {
	mu    sync.Mutex
	open  int
	by    map[netip.Addr]*tftpPeer
	swept time.Time
}

type tftpPeer struct {
	open   int
	silent float64
	at     time.Time
}

func (p *tftpPeer) refresh(now time.Time) {
	p.silent = max(0, p.silent-float64(now.Sub(p.at))/float64(limit.TFTPForgive))
	p.at = now
}

// begin takes a place for a transfer, unless too many are under way. The caller passes to end whether the machine
// answered at all.
func (l *tftpLimits) begin(from netip.Addr, now time.Time) (end func(answered bool), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by == nil {
		l.by = map[netip.Addr]*tftpPeer{}
	}
	p := l.by[from]
	if p == nil {
		// made-up addresses must not cost a look at all others each
		if len(l.by) >= maxCounted && now.Sub(l.swept) >= limit.TFTPForgive/10 {
			l.swept = now
			for a, old := range l.by {
				if old.refresh(now); old.open == 0 && old.silent == 0 {
					delete(l.by, a)
				}
			}
		}
		if len(l.by) >= maxCounted {
			return nil, false // so many addresses without an answer are made up
		}
		p = &tftpPeer{at: now}
		l.by[from] = p
	}
	p.refresh(now)
	if l.open >= limit.TFTPTransfers || p.open >= limit.TFTPPerAddress || p.silent+float64(p.open) >= limit.TFTPSilent {
		return nil, false
	}
	l.open++
	p.open++
	return func(answered bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open--
		p.open--
		if !answered {
			p.silent++
		} else {
			p.silent = 0
		}
	}, true
}

// replies counts what DHCP sends to each machine.
type replies struct {
	mu   sync.Mutex
	left map[string]*allowance
}

type allowance struct {
	left float64
	at   time.Time
}

func (r *replies) take(mac string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left == nil || len(r.left) > maxCounted {
		r.left = map[string]*allowance{}
	}
	a := r.left[mac]
	if a == nil {
		a = &allowance{left: limit.DHCPReplies, at: now}
		r.left[mac] = a
	}
	a.left = min(limit.DHCPReplies, a.left+float64(max(0, now.Sub(a.at)))/float64(limit.DHCPRefill))
	a.at = now
	if a.left < 1 {
		return false
	}
	a.left--
	return true
}
