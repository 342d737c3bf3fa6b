// Package lldp receives the switches' announcements about the machine's ports; package proto/lldp parses them.
//
// Switches send every thirty seconds, and some as soon as a link comes up. A Listener keeps raw sockets open from the
// start of the agent, so that a later inventory waits briefly or not at all.
package lldp

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/proto/lldp"
)

// groups are the destination addresses of LLDP: nearest bridge, nearest non-TPMR bridge, nearest customer bridge.
var groups = []net.HardwareAddr{{1, 0x80, 0xc2, 0, 0, 0x0e}, {1, 0x80, 0xc2, 0, 0, 3}, {1, 0x80, 0xc2, 0, 0, 0}}

// lookEvery is the interval for new interfaces, whose drivers load one after the other.
const lookEvery = time.Second

// machine is the part of the machine that a Listener uses.
type machine interface {
	// ListenFrames opens a raw socket on an interface: each Read returns one Ethernet frame of the type, including
	// those sent to the groups. Close ends a waiting Read.
	ListenFrames(ifname string, etherType uint16, groups []net.HardwareAddr) (io.ReadCloser, error)
}

// Listener receives the neighbours on a machine's interfaces. Its zero value is not usable; use New.
type Listener struct {
	// Heard is called for every frame; nil is allowed. Set it before Run.
	Heard func(link string, n lldp.Neighbour)

	m     machine
	names func() []string
	log   *slog.Logger

	mu     sync.Mutex
	heard  map[string][]lldp.TLV
	change chan struct{} // closed and replaced on every frame
}

// New returns a listener on the interfaces of names, which is called repeatedly. A nil log is silent.
func New(m machine, names func() []string, log *slog.Logger) *Listener {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return &Listener{m: m, names: names, log: log, heard: map[string][]lldp.TLV{}, change: make(chan struct{})}
}

// Run listens until ctx ends. An interface that can't be listened on is logged once and skipped.
func (l *Listener) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	open, refused := map[string]bool{}, map[string]bool{}
	tick := time.Tick(lookEvery)
	for {
		for _, name := range l.names() {
			mu.Lock()
			skip := open[name] || refused[name]
			open[name] = true
			mu.Unlock()
			if skip {
				continue
			}
			conn, err := l.m.ListenFrames(name, lldp.EtherType, groups)
			if err != nil {
				l.log.Warn("LLDP is not heard", "link", name, "err", err)
				mu.Lock()
				open[name], refused[name] = false, !errors.Is(err, os.ErrNotExist)
				mu.Unlock()
				continue
			}
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			wg.Go(func() {
				l.listen(ctx, name, conn)
				stop()
				conn.Close()
				mu.Lock()
				open[name] = false
				mu.Unlock()
			})
		}
		select {
		case <-tick:
		case <-ctx.Done():
			return nil
		}
	}
}

// listen reads frames of one interface until its socket ends. A link that is down does not end it: it may come back.
func (l *Listener) listen(ctx context.Context, name string, conn io.Reader) {
	buf := make([]byte, 9216)
	for ctx.Err() == nil {
		n, err := conn.Read(buf)
		if err != nil {
			if ctx.Err() == nil {
				l.log.Debug("LLDP socket ended", "link", name, "err", err)
			}
			return
		}
		all, err := lldp.Parse(buf[:n])
		if err != nil {
			l.log.Debug("frame is not understood", "link", name, "err", err)
			continue
		}
		l.take(name, all)
		if l.Heard != nil && !lldp.Leaving(all) {
			l.Heard(name, lldp.Describe(all))
		}
	}
}

func (l *Listener) take(name string, all []lldp.TLV) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lldp.Leaving(all) {
		delete(l.heard, name)
		return
	}
	if _, known := l.heard[name]; !known {
		n := lldp.Describe(all)
		l.log.Info("neighbour heard", "link", name, "switch", n.SystemName, "chassis", n.ChassisID, "port", n.PortID)
	}
	l.heard[name] = all
	close(l.change)
	l.change = make(chan struct{})
}

// Neighbours returns the newest frame of each interface, as TLVs. It waits until every interface in want has received
// one, at most for limit or until ctx ends; with a zero limit it returns the frames so far.
func (l *Listener) Neighbours(ctx context.Context, want []string, limit time.Duration) map[string][]lldp.TLV {
	timer := time.After(limit)
	for {
		l.mu.Lock()
		missing, change := false, l.change
		for _, name := range want {
			missing = missing || l.heard[name] == nil
		}
		out := maps.Clone(l.heard)
		l.mu.Unlock()
		if !missing || limit <= 0 {
			return out
		}
		select {
		case <-change:
		case <-timer:
			limit = 0
		case <-ctx.Done():
			return out
		}
	}
}
