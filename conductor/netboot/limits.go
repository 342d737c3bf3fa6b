package netboot

import (
	"log/slog"
	"sync"
	"time"
)

// onceEach remembers what has been marked, so that a mark is made once per boot.
type onceEach struct {
	mu   sync.Mutex
	seen map[string]time.Time // by node and mark: the boot's beginning
}

// first tells whether this is the first time of name for a node's boot.
func (o *onceEach) first(nodeUUID, name string, boot time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen == nil {
		o.seen = map[string]time.Time{}
	}
	key := nodeUUID + " " + name
	if o.seen[key].Equal(boot) {
		return false
	}
	if len(o.seen) > 100_000 {
		clear(o.seen)
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
