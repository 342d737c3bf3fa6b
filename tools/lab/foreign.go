package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/initramfs/kernel"
	"github.com/ingot-metal/ingot/tools/lab/site"
)

// Names in the lab's namespace. A dot is in no lab's name, so that the further namespaces can't be another lab's.
const (
	rackBridge = site.IfMachines // the machines' segment, if it is not the conductor's
	toDHCP     = "to-dhcp"
	toRouter   = "to-router"
	dhcpSpace  = ".dhcp"
	relaySpace = ".relay"
)

// serviceLimit is how long a DHCP server or a relay may take to serve.
const serviceLimit = time.Minute

// foreign is the part of the lab's network that is not Ingot's: namespaces as other hosts, a cable, and their services.
type foreign struct {
	plan     site.Plan
	spaces   []*netns
	wire     *wire
	silenced sync.Once
	mu       sync.Mutex
	services []*service
}

// service is a DHCP server or a relay.
type service struct {
	what, name string
	addr       netip.Addr
	log        string
	cmd        *exec.Cmd
	said       *lastBytes
	ready      *readyWriter
	ended      chan struct{}
}

// machinesBridge is the segment that machines are on.
func (l *Lab) machinesBridge() string {
	if l.opts.Site.Relay != "" {
		return rackBridge
	}
	return bridge
}

// FetchSite fetches the programs of a site into the cache, unless they are there, and returns their folders by package.
func FetchSite(ctx context.Context, o Options) (map[string]string, error) {
	packages := o.Site.Packages()
	if len(packages) == 0 {
		return nil, nil
	}
	cache, err := kernel.DefaultCache()
	if err != nil {
		return nil, err
	}
	dirs := map[string]string{}
	for _, name := range packages {
		if dirs[name], err = site.Fetch(ctx, cache, o.Log, name); err != nil {
			return nil, fmt.Errorf("get %s for the lab's network: %w", name, err)
		}
	}
	return dirs, nil
}

// startForeign adds what the site has to the lab's network, which is up.
func (l *Lab) startForeign(ctx context.Context) error {
	s := l.opts.Site
	l.foreign = &foreign{plan: s.Plan(l.Subnet)}
	if s.DHCP == "" {
		return nil
	}
	dirs, err := FetchSite(ctx, l.opts)
	if err != nil {
		return err
	}
	work := filepath.Join(l.Dir, "site")
	if err := os.MkdirAll(work, 0o755); err != nil {
		return fmt.Errorf("make a folder for the DHCP server: %w", err)
	}
	f := l.foreign
	mtu := 1500
	if s.MTU != 0 {
		mtu = s.MTU
	}
	if s.Relay != "" {
		ns, err := l.space(relaySpace)
		if err != nil {
			return err
		}
		here := fmt.Sprintf(
			"link add %s type veth peer name %s netns %s\nlink add %s type veth peer name %s netns %s\n",
			toRouter, site.IfServers, ns.name, toRouter+"2", site.IfMachines, ns.name) +
			fmt.Sprintf("link set %s master %s mtu %d up\nlink set %s master %s mtu %d up\n", toRouter, bridge, mtu,
				toRouter+"2", rackBridge, mtu) +
			fmt.Sprintf("route add %s via %s\n", f.plan.Machines, f.plan.RouterServers)
		there := fmt.Sprintf(
			"link set lo up\naddr add %s/24 dev %s\naddr add %s/24 dev %s\nlink set %s mtu %d up\nlink set %s mtu %d up\n",
			f.plan.RouterServers, site.IfServers, f.plan.RouterMachines, site.IfMachines, site.IfServers, mtu,
			site.IfMachines, mtu)
		err = errors.Join(ipBatch(here, "-n", l.Namespace, "-batch", "-"), ipBatch(there, "-n", ns.name, "-batch", "-"),
			ns.do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }))
		if err != nil {
			return fmt.Errorf("set up the lab's router: %w", err)
		}
		if err := l.serve(ctx, ns, "relay", s.Relay, f.plan.RouterMachines, dirs, s.RelayProgram(f.plan, work),
			work); err != nil {
			return err
		}
	}
	ns := l.ns
	if !s.SameHost {
		if ns, err = l.space(dhcpSpace); err != nil {
			return err
		}
		if f.wire, err = openWire(l.ns, toDHCP, ns, site.IfServers, s.Delay); err != nil {
			return err
		}
		there := fmt.Sprintf("link set lo up\naddr add %s/24 dev %s\nlink set %s mtu %d up\n", f.plan.DHCP,
			site.IfServers, site.IfServers, mtu)
		if s.Relay != "" {
			there += fmt.Sprintf("route add default via %s\n", f.plan.RouterServers)
		}
		err = errors.Join(ipBatch(fmt.Sprintf("link set %s master %s mtu %d up\n", toDHCP, bridge, mtu), "-n",
			l.Namespace, "-batch", "-"),
			ipBatch(there, "-n", ns.name, "-batch", "-"))
		if err != nil {
			return fmt.Errorf("set up the DHCP server's network: %w", err)
		}
	}
	return l.serve(ctx, ns, "dhcp", s.DHCP, f.plan.DHCP, dirs, s.Server(f.plan, work), work)
}

// space makes a namespace beside the lab's own.
func (l *Lab) space(suffix string) (*netns, error) {
	if err := deleteNetns(l.Namespace + suffix); err != nil {
		return nil, err
	}
	ns, err := openNetns(l.Namespace + suffix)
	if err == nil {
		l.foreign.spaces = append(l.foreign.spaces, ns)
	}
	return ns, err
}

// serve starts a program and returns when it serves.
func (l *Lab) serve(ctx context.Context, ns *netns, what, name string, addr netip.Addr, dirs map[string]string,
	p site.Program, work string) error {
	dir := dirs[p.Package]
	libraries, err := site.Libraries(dir)
	if err != nil {
		return err
	}
	for file, text := range p.Files {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return fmt.Errorf("write the configuration of %s: %w", name, err)
		}
	}
	s := &service{what: what, name: name, addr: addr, log: filepath.Join(work, what+".log"), said: &lastBytes{},
		ended: make(chan struct{})}
	log, err := os.Create(s.log)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", name, err)
	}
	s.ready = &readyWriter{log: log, said: s.said, word: p.Ready, seen: make(chan struct{})}
	s.cmd = exec.Command(filepath.Join(dir, p.Path), p.Args...)
	s.cmd.Env = append(append(os.Environ(), p.Env...), "LD_LIBRARY_PATH="+libraries)
	s.cmd.Stdout, s.cmd.Stderr = s.ready, s.ready
	s.cmd.Dir = work
	s.cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if err := ns.start(s.cmd); err != nil {
		log.Close()
		return fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		err := s.cmd.Wait()
		_ = log.Close() // the server has one of its own
		close(s.ended)
		l.mu.Lock()
		down := l.down
		l.mu.Unlock()
		if !down {
			l.opts.Log.Error("a program of the lab's network ended", "what", s.what, "name", s.name, "err", err, "said",
				s.said.words())
		}
	}()
	l.foreign.mu.Lock()
	l.foreign.services = append(l.foreign.services, s)
	l.foreign.mu.Unlock()
	l.save()
	limit := time.NewTimer(serviceLimit)
	defer limit.Stop()
	select {
	case <-s.ready.seen:
		l.opts.Log.Info("lab network", "what", what, "name", name, "address", addr, "pid", s.cmd.Process.Pid)
		return nil
	case <-s.ended:
		return fmt.Errorf("start %s: it ended (%v): %s", name, s.cmd.ProcessState, s.said.words())
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-limit.C:
		return fmt.Errorf("start %s: it does not say %q within %s: %s", name, p.Ready, serviceLimit, s.said.words())
	}
}

// failure returns why a service does not run; "" when it does.
func (s *service) failure() string {
	select {
	case <-s.ended:
		return fmt.Sprintf("it ended (%v): %s", s.cmd.ProcessState, s.said.words())
	default:
		return ""
	}
}

func (s *service) pid() int {
	if s.failure() != "" {
		return 0
	}
	return s.cmd.Process.Pid
}

// machineStarts is called at each start of a machine.
func (f *foreign) machineStarts(silent time.Duration) {
	if f.wire != nil && silent > 0 {
		f.silenced.Do(func() { f.wire.silence(silent) })
	}
}

func (f *foreign) list() []*service {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*service(nil), f.services...)
}

// close ends the programs and removes their namespaces.
func (f *foreign) close() error {
	for _, s := range f.list() {
		_ = s.cmd.Process.Kill() // it may have ended; leases are not kept
		<-s.ended
	}
	if f.wire != nil {
		f.wire.close()
	}
	var errs []error
	for _, ns := range f.spaces {
		errs = append(errs, ns.close())
	}
	return errors.Join(errs...)
}

// deleteSpaces removes all namespaces of a lab that is gone.
func deleteSpaces(lab string) error {
	return errors.Join(deleteNetns(lab), deleteNetns(lab+dhcpSpace), deleteNetns(lab+relaySpace))
}

// readyWriter writes a log and waits for a word in it.
type readyWriter struct {
	log  *os.File
	said *lastBytes
	word string
	seen chan struct{}
	rest string // of what came last, for a word that comes in two pieces
	done bool
}

func (w *readyWriter) Write(p []byte) (int, error) {
	_, _ = w.said.Write(p)
	if !w.done {
		text := w.rest + string(p)
		if w.done = strings.Contains(text, w.word); w.done {
			close(w.seen)
		}
		w.rest = text[max(0, len(text)-len(w.word)):]
	}
	return w.log.Write(p)
}
