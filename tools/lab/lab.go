// Package lab is a virtual rack: QEMU machines with controllers, on a network of their own inside a network namespace.
//
// Up makes it, Down removes it. Nothing of a lab touches the host's network: the bridge prov, the machines' taps and
// the controllers' addresses are in the namespace ingot-NAME, and what is to talk to them runs there too (Lab.Command,
// Lab.StartConductor, Lab.Listen). Machines are off until something turns them on, usually by IPMI.
//
// Machines and controllers live in the program that called Up. When it ends, however it ends, the kernel ends its
// machines; the name of the namespace and a small folder below /run/ingot-lab may stay behind, and the next Up of any
// lab removes what belongs to programs that are gone. A lab that outlives a command is run by a daemon (Serve, Launch).
//
// Needs root, iproute2, QEMU for x86 with its iPXE ROMs (qemu-system-x86, ipxe-qemu) and, for UEFI, ovmf. KVM is used
// only after it has booted a kernel in front of us: a /dev/kvm that opens is no proof that it works.
package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/ingot-metal/ingot/tools/lab/bmc"
	"github.com/ingot-metal/ingot/tools/lab/bmc/media"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/vmedia"
	"github.com/ingot-metal/ingot/tools/lab/nbd"
	"github.com/ingot-metal/ingot/tools/lab/pg"
)

// bridge is the provisioning network inside the namespace.
const bridge = "prov"

// Lab is a rack that is up.
type Lab struct {
	// Name and Namespace; `ip netns exec NAMESPACE ...` is the way in.
	Name, Namespace string
	// Dir holds disks, UEFI variables and console logs.
	Dir string
	// Host is the address that the conductor and whatever else runs in the namespace has on the provisioning network.
	Host netip.Addr
	// Subnet is the provisioning network. Machines may be given .10 to .199 of it.
	Subnet netip.Prefix
	// Accel is the accelerator of the machines, and AccelWhy the reason.
	Accel    Accel
	AccelWhy string

	opts     Options
	ns       *netns
	foreign  *foreign
	claim    *claim
	control  *control
	machines []*Machine

	mu         sync.Mutex
	conductors map[*Conductor]bool
	database   *pg.Cluster // nil: none
	down       bool

	askDown   sync.Once
	downAsked chan struct{}
	purge     bool // as asked; set before downAsked is closed
}

// DownAsked is closed when another program (TakeDown) wants the lab to go down. The owner of the lab should then call
// Down.
func (l *Lab) DownAsked() <-chan struct{} { return l.downAsked }

// Up makes the lab. ctx is for making it only. Whatever goes wrong, nothing is left behind.
func Up(ctx context.Context, o Options) (_ *Lab, err error) {
	o, err = o.fill()
	if err != nil {
		return nil, err
	}
	if err := ready(o); err != nil {
		return nil, err
	}
	sweep(o.Log)
	l := &Lab{
		Name: o.Name, Namespace: "ingot-" + o.Name, Dir: o.Dir, Subnet: o.Subnet, Host: o.Subnet.Addr().Next(),
		opts: o, conductors: map[*Conductor]bool{}, downAsked: make(chan struct{}),
	}
	if l.claim, err = claimName(ctx, o.Name); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Down(context.WithoutCancel(ctx)))
		}
	}()
	// The name is ours, so a namespace that bears it is a leftover.
	if err := deleteSpaces(l.Namespace); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the lab's folder: %w", err)
	}
	l.Accel, l.AccelWhy = chooseAccel(ctx, o)
	o.Log.Info("lab accelerator", "accel", string(l.Accel), "why", l.AccelWhy)

	if l.ns, err = openNetns(l.Namespace); err != nil {
		return nil, err
	}
	if err := l.network(); err != nil {
		return nil, err
	}
	if err := l.startForeign(ctx); err != nil {
		return nil, err
	}
	for i := range o.Nodes {
		m, err := l.machine(i)
		if err != nil {
			return nil, fmt.Errorf("machine %s: %w", o.Nodes[i].Name, err)
		}
		l.machines = append(l.machines, m)
	}
	if err := l.serveControl(); err != nil {
		return nil, err
	}
	l.save()
	return l, ctx.Err()
}

// ready reports what is missing on this host.
func ready(o Options) error {
	if os.Geteuid() != 0 {
		return errors.New("the lab needs root, for a network namespace with taps: run it with sudo")
	}
	var errs []error
	for prog, pkg := range map[string]string{"ip": "iproute2", "qemu-system-x86_64": "qemu-system-x86"} {
		if _, err := exec.LookPath(prog); err != nil {
			errs = append(errs, fmt.Errorf("%s is not installed: apt-get install %s", prog, pkg))
		}
	}
	for _, n := range o.Nodes {
		if n.Firmware != UEFI {
			continue
		}
		if _, err := os.Stat(ovmfCode); err != nil {
			errs = append(errs, fmt.Errorf("machine %s has UEFI: apt-get install ovmf", n.Name))
		}
		break
	}
	return errors.Join(errs...)
}

// network makes bridge, taps and the controllers' addresses.
func (l *Lab) network() error {
	var b strings.Builder
	line := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	line("link set lo up")
	// No spanning tree: a port must forward from the first packet, or PXE gives up. No snooping: there is no querier
	// here.
	segments := []string{bridge}
	if b := l.machinesBridge(); b != bridge {
		segments = append(segments, b)
	}
	mtu := ""
	if l.opts.Site.MTU != 0 {
		mtu = fmt.Sprintf(" mtu %d", l.opts.Site.MTU)
	}
	for _, b := range segments {
		line("link add %s type bridge stp_state 0 forward_delay 0 mcast_snooping 0", b)
		line("link set %s%s up", b, mtu)
	}
	line("addr add %s/%d dev %s", l.Host, l.Subnet.Bits(), bridge)
	for i, n := range l.opts.Nodes {
		line("addr add %s/32 dev %s", l.controller(i), bridge)
		for j, nic := range n.NICs {
			line("tuntap add %s mode tap", tap(i, j))
			if nic.Elsewhere || nic.Socket != "" {
				line("link set %s up", tap(i, j))
			} else {
				line("link set %s master %s%s up", tap(i, j), l.machinesBridge(), mtu)
			}
		}
	}
	if err := ipBatch(b.String(), "-n", l.Namespace, "-batch", "-"); err != nil {
		return fmt.Errorf("set up the lab's network: %w", err)
	}
	return nil
}

func tap(node, nic int) string { return fmt.Sprintf("n%de%d", node, nic) }

// controller is the address of a machine's controller.
func (l *Lab) controller(i int) netip.Addr {
	a := l.Subnet.Addr().As4()
	a[3] = byte(firstController + i)
	return netip.AddrFrom4(a)
}

// machine makes one machine, off, and its controller.
func (l *Lab) machine(i int) (_ *Machine, err error) {
	n := l.opts.Nodes[i]
	n.Disks = append([]DiskSpec(nil), n.Disks...) // opts goes on telling which files are the caller's
	log := l.opts.Log.With("machine", n.Name)
	m := &Machine{
		Spec: n, BMCAddress: l.controller(i).String(), BMCPort: 623, User: l.opts.User, Password: l.opts.Password,
		MAC: n.NICs[0].MAC, ConsoleLog: filepath.Join(l.Dir, n.Name+"-console.log"),
		dir: l.Dir, log: log, ns: l.ns, accel: l.Accel, changed: l.save,
		// until its controller is wired
		powered: func() { l.foreign.machineStarts(l.opts.Site.Silent) }, unplugged: true,
	}
	m.files = files{vars: filepath.Join(l.Dir, n.Name+"-vars.fd"), kcs: filepath.Join(l.claim.dir, n.Name+".kcs")}
	for j := range n.NICs {
		m.taps = append(m.taps, tap(i, j))
	}
	for j := range n.Disks {
		if err := m.disk(j); err != nil {
			return nil, err
		}
	}
	if m.con, err = openConsole(m.ConsoleLog); err != nil {
		return nil, err
	}
	mac, err := net.ParseMAC(m.MAC)
	if err != nil {
		return nil, err
	}
	mac[3] = 0xbc // the controller's own, next to the machine's
	if m.bmc, err = l.startBMC(i, m, mac); err == nil && l.opts.BMC != IPMI {
		err = l.startRedfish(i, m)
	}
	if err != nil {
		if m.bmc != nil {
			err = errors.Join(err, m.bmc.Close())
		}
		return nil, errors.Join(fmt.Errorf("start controller: %w", err), m.con.close())
	}
	_ = os.Remove(m.files.kcs)
	kcs, err := net.Listen("unix", m.files.kcs)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for the system interface: %w", err), m.bmc.Close(), m.con.close())
	}
	m.watchers.Go(func() {
		if err := m.bmc.ServeSystemInterface(kcs); err != nil {
			log.Error("system interface", "err", err)
		}
	})
	m.PlugIn()
	return m, nil
}

// startBMC starts a machine's controller, with IPMI if it is to speak that.
func (l *Lab) startBMC(i int, m *Machine, mac net.HardwareAddr) (*bmc.BMC, error) {
	var conn net.PacketConn
	if l.opts.BMC != Redfish {
		err := l.ns.do(func() (err error) {
			conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: l.controller(i).AsSlice(), Port: m.BMCPort})
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	b, err := bmc.Start(conn, bmc.Config{
		Name: m.Spec.Name, UUID: m.Spec.UUID, User: m.User, Password: m.Password, Machine: m, MAC: mac,
		Prefix: netip.PrefixFrom(l.controller(i), l.Subnet.Bits()), Gateway: l.Host, Log: m.log,
	})
	if err != nil && conn != nil {
		conn.Close()
	}
	return b, err
}

// startRedfish starts the Redfish service of a machine's controller.
func (l *Lab) startRedfish(i int, m *Machine) error {
	ln, err := l.Listen("tcp4", net.JoinHostPort(l.controller(i).String(), "443"))
	if err != nil {
		return err
	}
	personality, _ := redfish.ByName(l.opts.Personality)
	m.drives.discs = map[string]*nbd.Server{}
	for d := range vmedia.Drives(personality.Name) {
		m.drives.sockets = append(m.drives.sockets, filepath.Join(l.claim.dir, fmt.Sprintf("%s.cd%d", m.Spec.Name, d)))
	}
	var macs []string
	for _, nic := range m.Spec.NICs {
		macs = append(macs, nic.MAC)
	}
	m.redfish, err = redfish.Start(ln, m.bmc, redfish.Config{User: m.User, Password: m.Password,
		Personality: personality, MACs: macs, Media: media.Options{Dial: l.dialFrom(l.controller(i))}, Log: m.log})
	if err != nil {
		ln.Close()
		return err
	}
	m.CAFile = filepath.Join(l.Dir, m.Spec.Name+"-bmc.pem")
	if err := os.WriteFile(m.CAFile, m.redfish.CertificatePEM(), 0o644); err != nil {
		return errors.Join(err, m.redfish.Close())
	}
	return nil
}

// disk makes the file of a disk, sparse, unless it is there.
func (m *Machine) disk(j int) error {
	d := &m.Spec.Disks[j]
	if d.File != "" {
		info, err := os.Stat(d.File)
		if err != nil {
			return fmt.Errorf("disk %d: %w", j, err)
		}
		d.SizeBytes = cmp.Or(d.SizeBytes, info.Size())
		if d.SizeBytes < info.Size() {
			return fmt.Errorf("disk %d: %s has %d bytes, more than the %d of the disk", j, d.File, info.Size(),
				d.SizeBytes)
		}
		if d.File, err = filepath.Abs(d.File); err != nil {
			return err
		}
		return os.Truncate(d.File, d.SizeBytes)
	}
	d.File = filepath.Join(m.dir, fmt.Sprintf("%s-disk%d.raw", m.Spec.Name, j))
	f, err := os.OpenFile(d.File, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("disk %d: %w", j, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() == d.SizeBytes {
		return nil // a disk keeps its contents over Down and Up
	}
	if err := f.Truncate(d.SizeBytes); err != nil {
		return fmt.Errorf("disk %d: %w", j, err)
	}
	return nil
}

// DiskFile is the file behind a machine's disk.
func (m *Machine) DiskFile(i int) string { return m.Spec.Disks[i].File }

// Node returns the machine of that name, nil if there is none.
func (l *Lab) Node(name string) *Machine {
	for _, m := range l.machines {
		if m.Spec.Name == name {
			return m
		}
	}
	return nil
}

// Nodes returns all machines in the order of Options.
func (l *Lab) Nodes() []*Machine { return append([]*Machine(nil), l.machines...) }

// Command is exec.CommandContext inside the lab's namespace.
func (l *Lab) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", l.Namespace, name}, args...)...)
}

// Listen is net.Listen inside the lab's namespace. The listener may be used from anywhere.
func (l *Lab) Listen(network, address string) (net.Listener, error) {
	var ln net.Listener
	err := l.ns.do(func() (err error) {
		ln, err = net.Listen(network, address)
		return err
	})
	return ln, err
}

// DialContext is net.Dialer.DialContext inside the lab's namespace; address must be numeric. It fits http.Transport.
func (l *Lab) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return l.dialFrom(netip.Addr{})(ctx, network, address)
}

// dialFrom is DialContext from an address of the lab's.
func (l *Lab) dialFrom(a netip.Addr) func(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	if a.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, 0))
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		var c net.Conn
		err := l.ns.visit(func() (err error) {
			c, err = d.DialContext(ctx, network, address)
			return err
		})
		return c, err
	}
}

// Down stops everything that runs in the lab and removes its network. Disks and logs stay. Calling it again does
// nothing.
func (l *Lab) Down(ctx context.Context) error { return l.takeDown(ctx, false) }

// takeDown is Down, and with purge Purge when all went well. The name is given back last: who waits for that finds
// nothing any more.
func (l *Lab) takeDown(ctx context.Context, purge bool) error {
	l.mu.Lock()
	if l.down {
		l.mu.Unlock()
		return nil
	}
	l.down = true
	conductors := slices.Collect(maps.Keys(l.conductors))
	l.mu.Unlock()

	var errs []error
	if l.control != nil {
		errs = append(errs, l.control.close())
	}
	for _, c := range conductors {
		errs = append(errs, c.Stop(ctx))
	}
	errs = append(errs, l.stopDatabase(purge))
	for _, m := range l.machines {
		m.mu.Lock()
		m.unplugged = true // nothing starts it again
		m.mu.Unlock()
		errs = append(errs, m.Stop())
	}
	for _, m := range l.machines {
		if m.redfish != nil {
			errs = append(errs, m.redfish.Close())
		}
		errs = append(errs, m.bmc.Close())
		m.watchers.Wait()
		errs = append(errs, m.closeDrives())
		errs = append(errs, m.con.close())
	}
	if l.foreign != nil {
		errs = append(errs, l.foreign.close())
	}
	if l.ns != nil {
		errs = append(errs, l.ns.close())
	}
	if purge && errors.Join(errs...) == nil {
		errs = append(errs, l.Purge())
	}
	if l.claim != nil {
		errs = append(errs, l.claim.release())
	}
	return errors.Join(errs...)
}

// Purge removes the disks, UEFI variables, console logs, controllers' certificates and the files of a site's programs
// that the lab made, after Down. Disks of the caller's stay.
func (l *Lab) Purge() error {
	var errs []error
	for i, m := range l.machines {
		files := []string{m.ConsoleLog, m.files.vars, m.CAFile}
		for j, d := range m.Spec.Disks {
			if l.opts.Nodes[i].Disks[j].File == "" {
				files = append(files, d.File)
			}
		}
		for _, f := range files {
			if err := os.Remove(f); err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	errs = append(errs, os.RemoveAll(filepath.Join(l.Dir, "site")))
	_ = os.Remove(l.Dir) // only if nothing else is in it
	return errors.Join(errs...)
}
