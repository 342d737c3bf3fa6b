//go:build !race

package app_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/power/ipmi"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
)

var errLink = errors.New("the link is down")

// link carries an agent's connections to the conductor until it is cut.
type link struct {
	addr string
	l    net.Listener
	to   string

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]struct{}
	wg    sync.WaitGroup
}

func newLink(t *testing.T, to string) *link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{addr: l.Addr().String(), l: l, to: to, conns: map[net.Conn]struct{}{}}
	k.wg.Go(k.serve)
	t.Cleanup(func() {
		l.Close()
		k.set(true)
		k.wg.Wait()
	})
	return k
}

// up reports whether the link works; nil is a link that never fails.
func (k *link) up() bool {
	if k == nil {
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.cut
}

// used reports whether the agent has a connection.
func (k *link) used() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.conns) > 0
}

// set cuts the link, which ends what goes over it, or mends it.
func (k *link) set(cut bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut = cut
	if cut {
		for c := range k.conns {
			c.Close()
		}
	}
}

func (k *link) add(c net.Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cut {
		c.Close()
		return false
	}
	k.conns[c] = struct{}{}
	return true
}

func (k *link) serve() {
	for {
		c, err := k.l.Accept()
		if err != nil {
			return
		}
		if !k.add(c) {
			continue
		}
		d, err := net.Dial("tcp", k.to)
		if err != nil || !k.add(d) {
			c.Close()
			continue
		}
		carry := func(to, from net.Conn) {
			io.Copy(to, from)
			to.Close()
			from.Close()
			k.mu.Lock()
			delete(k.conns, from)
			k.mu.Unlock()
		}
		k.wg.Go(func() { carry(c, d) })
		k.wg.Go(func() { carry(d, c) })
	}
}

// rack is six machines with controllers of their own, which watches how many of them are on.
type rack struct {
	*site
	limit    int
	mu       sync.Mutex          // for writing machines, and for the controllers, which read it
	machines map[string]*machine // by name of the node
	bmcs     map[string]*bmc.BMC
}

func newRack(s *site, k, limit int) *rack {
	s.t.Helper()
	r := &rack{site: s, limit: limit, machines: map[string]*machine{}, bmcs: map[string]*bmc.BMC{}}
	for i := range k {
		name := fmt.Sprintf("r%d", i)
		m := newMachine(s)
		m.mac, m.link, m.switchedOn = fmt.Sprintf("52:54:00:aa:cc:%02x", i), newLink(s.t, s.agentAddr), r.watch
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			s.t.Fatal(err)
		}
		b, err := bmc.Start(conn, bmc.Config{Name: name, UUID: m.uuid, User: "admin", Password: "secret", Machine: m})
		if err != nil {
			s.t.Fatal(err)
		}
		r.mu.Lock()
		r.machines[name], r.bmcs[name] = m, b
		r.mu.Unlock()
		s.t.Cleanup(func() {
			m.Stop()
			m.wg.Wait()
			if err := b.Close(); err != nil {
				s.t.Error(err)
			}
		})
	}
	return r
}

// on returns how many machines are powered on.
func (r *rack) on() (k int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.machines {
		if m.On() {
			k++
		}
	}
	return k
}

// watch is called whenever one of them starts.
func (r *rack) watch() {
	if k := r.on(); k > r.limit {
		r.t.Errorf("%d machines are on, %d may be", k, r.limit)
	}
}

// provide makes nodes of all machines, and has them available.
func (r *rack) provide() {
	r.t.Helper()
	for name, m := range r.machines {
		a := r.bmcs[name].Addr()
		n, err := r.CreateNode(r.t.Context(),
			client.NewNode{Name: name, Driver: "ipmi", ResourceClass: "large", DriverInfo: map[string]any{
				"ipmi_address": a.Addr().String(), "ipmi_port": a.Port(), "ipmi_username": "admin",
				"ipmi_password": "secret"}})
		if err != nil {
			r.t.Fatal(err)
		}
		if _, err := r.CreatePort(r.t.Context(), client.NewPort{NodeUUID: string(n.UUID), Address: m.mac}); err != nil {
			r.t.Fatal(err)
		}
	}
	for _, step := range [][2]string{{"manage", "manageable"}, {"provide", "available"}} {
		for name := range r.machines {
			if err := r.Provision(r.t.Context(), name, client.ProvisionRequest{Target: step[0]}); err != nil {
				r.t.Fatal(err)
			}
		}
		for name := range r.machines {
			r.wait(name, step[1])
		}
	}
}

// pool returns the pool, and the names of its warm machines.
func (r *rack) pool() (*rest.Pool, []string) {
	p, err := r.Pool(r.t.Context(), "web")
	if err != nil {
		return &rest.Pool{}, nil
	}
	var warm []string
	for _, n := range p.Nodes {
		if n.State == "warm" {
			warm = append(warm, string(n.Name))
		}
	}
	return p, warm
}

// healed waits until three machines are warm, none of which is gone, and returns them. gone may be empty.
func (r *rack) healed(what, gone string) (warm []string) {
	r.t.Helper()
	defer func() {
		if r.t.Failed() {
			p, _ := r.pool()
			r.t.Logf("after %s (%s): %+v", what, gone, p)
		}
	}()
	began := time.Now()
	defer func() { r.t.Logf("healed after %s in %s", what, time.Since(began).Round(time.Millisecond)) }()
	r.until("three are warm after "+what, func() bool {
		var p *rest.Pool
		p, warm = r.pool()
		return p.Warm == 3 && p.Warming == 0 && len(warm) == 3 && p.On == 3 && !slices.Contains(warm, gone) &&
			r.on() == 3
	})
	return warm
}

func (r *rack) boots() (k int) {
	for _, m := range r.machines {
		boots, _ := m.seen()
		k += len(boots)
	}
	return k
}

// A pool of three warm machines among six, no more than three of which may be on: an agent that is killed, a link that
// is cut, a machine turned off by hand, a conductor that is killed. The pool heals each time, and at no moment are more
// on than may be.
func TestWarmPoolHeals(t *testing.T) {
	s := newSite(t)
	s.env = []string{"INGOT_DEPLOY_AUTOMATED_CLEAN=false", "INGOT_DEPLOY_SESSION_GRACE=6s",
		"INGOT_POOLS_INTERVAL=300ms", "INGOT_POOLS_PAUSE=2s"}
	r := newRack(s, 6, 3)
	s.start()
	r.provide()
	if _, err := s.SetPool(t.Context(), "web",
		map[string]any{"resource_class": "large", "count": 3, "max_on": 3}); err != nil {
		t.Fatal(err)
	}
	warm := r.healed("the pool is made", "")
	if n := r.boots(); n != 3 {
		t.Errorf("%d machines were started for a pool of three", n)
	}

	killed := warm[0]
	r.machines[killed].mu.Lock()
	r.machines[killed].down()
	r.machines[killed].mu.Unlock()
	warm = r.healed("an agent is killed", killed)

	cut := warm[0]
	r.machines[cut].link.set(true)
	warm = r.healed("a link is cut", cut)
	p, _ := r.pool()
	for _, n := range p.Nodes {
		if string(n.Name) == cut && (n.Failures != 1 || !strings.Contains(string(n.LastFailure), "agent was lost")) {
			t.Errorf("the machine without a link is remembered as %+v", n)
		}
	}
	r.machines[cut].link.set(false)

	byHand := warm[0]
	a := r.bmcs[byHand].Addr()
	d, err := ipmi.Open(
		power.Info{"ipmi_address": a.Addr().String(), "ipmi_port": int(a.Port()), "ipmi_username": "admin",
			"ipmi_password": "secret"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.SetPower(t.Context(), power.TurnOff); err != nil {
		t.Fatal(err)
	}
	r.healed("a machine is turned off", byHand)

	// The conductor dies and comes back: what is warm stays as it is.
	s.kill()
	before := r.boots()
	// From here on no agent is lost, and each has the time that it needs to come back.
	s.env = append(s.env, "INGOT_DEPLOY_SESSION_GRACE=2m")
	s.start()
	s.until("the agents are back", func() bool {
		_, warm := r.pool()
		return len(warm) == 3 &&
			!slices.ContainsFunc(warm, func(name string) bool { return !r.machines[name].link.used() })
	})
	r.healed("the conductor is killed", "")
	if n := r.boots(); n != before {
		t.Errorf("%d machines were started because the conductor was killed", n-before)
	}

	// All that is left to take now are machines that failed before.
	warm = r.healed("nothing", "")
	used := warm[0]
	if err := s.SetMaintenance(t.Context(), used, true, "new disks"); err != nil {
		t.Fatal(err)
	}
	s.until("it is said why one is missing", func() bool {
		p, warm := r.pool()
		return p.Warm == 2 && len(warm) == 3 && strings.Contains(string(p.Short), "no more than 3")
	})
	if err := s.SetMaintenance(t.Context(), used, false, ""); err != nil {
		t.Fatal(err)
	}
	r.healed("maintenance is over", "")
	if n := r.boots(); n != before {
		t.Errorf("%d machines were started although three were warm all the time", n-before)
	}

	// An image is written ahead to each, once; a deployment finds its agent there. (That a real agent finds the image
	// is its own tests' to show.)
	digest := strings.Repeat("ab", 32)
	if _, err := s.SetPool(t.Context(), "web", map[string]any{"resource_class": "large", "count": 3, "max_on": 3,
		"image": map[string]any{"image_source": "http://192.0.2.1/debian.raw.zst", "image_os_hash_algo": "sha256",
			"image_os_hash_value": digest}}); err != nil {
		t.Fatal(err)
	}
	s.until("the image is on all that are warm", func() bool {
		p, warm := r.pool()
		staged := 0
		for _, n := range p.Nodes {
			if n.State == "warm" && string(n.Staged) == "sha256:"+digest {
				staged++
			}
		}
		return len(warm) == 3 && staged == 3
	})
	for name, m := range r.machines {
		if n := m.runs("write_image"); n > 1 {
			t.Errorf("the image was written to %s %d times", name, n)
		}
	}
	if n := r.boots(); n != before {
		t.Errorf("%d machines were started for the image", n-before)
	}

	if err := s.DeletePool(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	s.until("all are off", func() bool { return r.on() == 0 })
}
