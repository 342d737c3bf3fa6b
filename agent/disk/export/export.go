// Package export lends a disk to another host, whose program writes a system onto it: the step export_disk.
//
// The kernel makes the disk an iSCSI target on loopback, for one initiator with a secret of the request (CHAP). What
// other hosts reach is a listener of this package, which accepts connections of one address alone, and hands their
// bytes on: so the time window, the address and the end of the step are this package's, not the kernel's. The export
// ends before the step does, however that ends.
//
// Before it the disk loses its partition table, and afterwards what was written is read, checked, and withheld as
// write_image does it, until prepare_instance_boot: a disk that was not written to its end boots nothing.
package export

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// Stall is how long the step may give no sign of life: it gives one each second, and the window ends it.
const Stall = 5 * time.Minute

// Target is a disk as the kernel is to export it, at a port of loopback. It is an alias, so that the machine need not
// know this package.
type Target = struct {
	Name, Disk, Initiator, User, Password string
	Port                                  int
}

// Args declares the arguments of export_disk.
var Args = []step.Arg{
	{Name: "root_device", Type: "object", Given: true, Description: "as for write_image"},
	{Name: "initiator_name", Type: "string", Required: true, Min: step.Limit(8), Max: step.Limit(223),
		Description: "the only initiator, iqn.YYYY-MM.NAME"},
	{Name: "initiator_address", Type: "string", Required: true,
		Description: "IP address of its host"},
	{Name: "chap_user", Type: "string", Required: true, Min: step.Limit(1), Max: step.Limit(63),
		Description: "its user name"},
	{Name: "chap_password", Type: "string", Required: true, Secret: true, Min: step.Limit(12), Max: step.Limit(63),
		Description: "its password"},
	{Name: "port", Type: "integer", Min: step.Limit(1), Max: step.Limit(65534),
		Description: "TCP port (default 3260)"},
	{Name: "window", Type: "integer", Min: step.Limit(30), Max: step.Limit(86400),
		Description: "seconds (default 3600)"},
	{Name: "quiet", Type: "integer", Min: step.Limit(1), Max: step.Limit(600),
		Description: "seconds after its last logout (default 10)"},
}

type args struct {
	RootDevice json.RawMessage `json:"root_device"`
	Initiator  string          `json:"initiator_name"`
	Address    string          `json:"initiator_address"`
	User       string          `json:"chap_user"`
	Password   string          `json:"chap_password"`
	Port       int             `json:"port"`
	Window     int             `json:"window"`
	Quiet      int             `json:"quiet"`
}

// iqn is an iSCSI name (RFC 3720, 3.2.6) that is safe as the name of a folder; userForm is a user name or a password.
var (
	iqn      = regexp.MustCompile(`^iqn\.\d{4}-\d\d\.[a-z0-9.-]+(:[a-z0-9.:-]+)?$`)
	userForm = regexp.MustCompile(`^[!-~]+$`)
)

// machine is the part of the machine that the step uses.
type machine interface {
	Root() string
	Settle(ctx context.Context) error
	OpenExclusive(ctx context.Context, path string) (disk.Device, error)
	Export(ctx context.Context, t Target) (remove func() error, err error)
}

// Result of export_disk.
type Result struct {
	Disk       disk.Disk        `json:"disk"`
	Why        string           `json:"why"`
	Received   int64            `json:"bytes_received"`
	Seconds    float64          `json:"seconds"` // from the first connection to the last
	Table      string           `json:"table"`
	Partitions []disk.Partition `json:"partitions"`
}

// Step exports the disk, and waits until it was written: until an initiator has logged out and none is there any more.
// If stopped, the disk has no partition table.
func Step(m machine) step.Func {
	return step.With(func(ctx context.Context, c *step.Call, a args) (step.Outcome, error) {
		disk.SetPending(c.Facts, nil)
		from, err := a.check()
		if err != nil {
			return step.Outcome{}, err
		}
		hints, err := disk.ParseHints(a.RootDevice)
		if err != nil {
			return step.Outcome{}, err
		}
		c.Report(step.Progress{Phase: "choose disk"})
		choice, err := disk.ChooseWhenReady(ctx, m, disk.RootOf(c.Facts, hints))
		if err != nil {
			return step.Outcome{}, err
		}
		r := Result{Disk: choice.Disk, Why: choice.Why}
		if err := on(ctx, m, choice.Disk, func(dev disk.Device) error { return disk.Wipe(ctx, dev) }); err != nil {
			return step.Outcome{}, err
		}
		if err := a.lend(ctx, m, c, from, &r); err != nil {
			return step.Outcome{}, errors.Join(err, withhold(ctx, m, choice.Disk, nil))
		}
		c.Report(step.Progress{Phase: "check what was written"})
		var p *disk.Pending
		if err := withhold(ctx, m, choice.Disk, func(dev disk.Device) (err error) {
			p, err = read(dev, choice.Disk)
			return err
		}); err != nil {
			return step.Outcome{}, err
		}
		disk.SetPending(c.Facts, p)
		r.Table, r.Partitions = p.Table(), p.Partitions()
		c.Log.Info("the disk was written by another host", "disk", choice.Disk.Name, "from", from, "bytes", r.Received)
		return step.Outcome{Result: r}, nil
	})
}

// check reads the arguments whose form the declaration can't say.
func (a *args) check() (from netip.Addr, err error) {
	if !iqn.MatchString(a.Initiator) {
		return from, step.Failf("give the initiator's name in small letters, as in /etc/iscsi/initiatorname.iscsi",
			"initiator_name is not an iSCSI name (iqn.YYYY-MM.NAME)")
	}
	for key, v := range map[string]string{"chap_user": a.User, "chap_password": a.Password} {
		if !userForm.MatchString(v) {
			return from, step.Failf("use letters, digits and signs of ASCII, without spaces",
				"%s has characters that CHAP can't transfer", key)
		}
	}
	from, err = netip.ParseAddr(a.Address)
	if err != nil || from.IsUnspecified() || from.IsMulticast() {
		return from, step.Failf("give the address of the host that writes",
			"initiator_address is not an IP address of a host")
	}
	if a.Port == 0 {
		a.Port = 3260
	}
	if a.Window == 0 {
		a.Window = 3600
	}
	if a.Quiet == 0 {
		a.Quiet = 10
	}
	return from.Unmap(), nil
}

// on opens the disk of an identity exclusively for what is done with it.
func on(ctx context.Context, m machine, d disk.Disk, do func(disk.Device) error) (err error) {
	dev, _, err := disk.OpenVerified(ctx, m, d.Identity())
	if err != nil {
		return err
	}
	defer disk.Close(dev, &err)
	return do(dev)
}

// withhold takes the partition table off the disk, after what is to be read; also when the step was stopped.
func withhold(ctx context.Context, m machine, d disk.Disk, first func(disk.Device) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute)
	defer cancel()
	return on(ctx, m, d, func(dev disk.Device) error {
		var err error
		if first != nil {
			err = first(dev)
		}
		return errors.Join(err, disk.Wipe(ctx, dev))
	})
}

// read returns what was written, with its table checked, to be committed later.
func read(dev disk.Device, d disk.Disk) (*disk.Pending, error) {
	head, tail := disk.Aligned(disk.HeadSize), disk.Aligned(disk.HeadSize)
	if _, err := dev.ReadAt(head, 0); err != nil {
		return nil, fmt.Errorf("read the start of %s: %w", d.Name, err)
	}
	at := dev.Size() - disk.HeadSize
	if _, err := dev.ReadAt(tail, at); err != nil {
		return nil, fmt.Errorf("read the end of %s: %w", d.Name, err)
	}
	if err := disk.CheckHead(head, dev.Size(), d); err != nil {
		return nil, fmt.Errorf("check what the other host wrote to %s: %w", d.Name, err)
	}
	return disk.NewPending(d, head, tail, at, dev.Size())
}

// lend exports the disk until it was written. When it returns nothing of the export is left.
func (a *args) lend(ctx context.Context, m machine, c *step.Call, from netip.Addr, r *Result) (err error) {
	window := time.Duration(a.Window) * time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, window,
		step.Failf("give the step a longer window, or see why the initiator did not log out",
			"the disk was not written within %s", window))
	defer cancel()
	inner := a.Port + 1 // of loopback
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", ":"+strconv.Itoa(a.Port))
	if err != nil {
		return fmt.Errorf("listen for the initiator: %w", err)
	}
	remove, err := m.Export(ctx, Target{Name: steparg.ExportTarget, Disk: r.Disk.Name, Initiator: a.Initiator,
		User: a.User, Password: a.Password, Port: inner})
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	g := &gate{from: from, inner: inner, log: c.Log, open: map[net.Conn]bool{}}
	served := make(chan error, 1)
	go func() { served <- g.serve(ctx, ln) }()
	defer func() {
		cerr := ln.Close()
		<-served
		g.end() // first: the kernel waits for sessions to end
		err = errors.Join(err, cerr, remove())
	}()
	c.Log.Info("the disk is exported", "disk", r.Disk.Name, "target", steparg.ExportTarget, "port", a.Port,
		"from", from, "window", window)
	return g.wait(ctx, c, time.Duration(a.Quiet)*time.Second, r)
}

// mostConnections is how many an initiator may have at the same time.
const mostConnections = 8

// gate passes connections of one address on to the target.
type gate struct {
	from  netip.Addr
	inner int
	log   *slog.Logger

	mu       sync.Mutex
	open     map[net.Conn]bool
	sessions sync.WaitGroup
	first    time.Time // of a connection that has brought something
	last     time.Time // a connection ended
	// loggedOut says that the last one to end did so by a request of the initiator.
	loggedOut bool
	received  int64
	refused   int
}

// end closes all connections, when none is accepted any more.
func (g *gate) end() {
	g.mu.Lock()
	for c := range g.open {
		_ = c.Close() // what it transferred does not count
	}
	g.mu.Unlock()
	g.sessions.Wait()
}

// serve accepts connections until the listener is closed.
func (g *gate) serve(ctx context.Context, ln net.Listener) error {
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		if !g.take(c) {
			_ = c.Close() // it was not let in
			continue
		}
		go func() {
			defer g.sessions.Done()
			g.pass(ctx, c)
		}()
	}
}

// take admits a connection of the one address.
func (g *gate) take(c net.Conn) bool {
	at, err := netip.ParseAddrPort(c.RemoteAddr().String())
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil || at.Addr().Unmap().WithZone("") != g.from.WithZone("") || len(g.open) >= mostConnections {
		if g.refused++; g.refused < 10 {
			g.log.Warn("a connection to the exported disk was refused", "from", c.RemoteAddr())
		}
		return false
	}
	g.open[c] = true
	g.sessions.Add(1)
	return true
}

// pass carries bytes between an initiator and the target.
func (g *gate) pass(ctx context.Context, c net.Conn) {
	loggedOut := false
	target, err := (&net.Dialer{}).DialContext(ctx, "tcp", "127.0.0.1:"+strconv.Itoa(g.inner))
	if err != nil {
		g.log.Warn("connect to the target", "err", err)
	} else {
		back := make(chan struct{})
		go func() {
			defer close(back)
			_, _ = io.Copy(c, target) // an end of either side ends both
			_ = c.Close()
		}()
		loggedOut = g.count(c, target)
		_ = target.Close()
		<-back
	}
	_ = c.Close()
	g.mu.Lock()
	delete(g.open, c)
	g.last, g.loggedOut = time.Now(), loggedOut
	g.mu.Unlock()
	if !loggedOut && ctx.Err() == nil {
		g.log.Warn("an initiator went away without logging out: the disk does not count as written", "from",
			c.RemoteAddr())
	}
}

// piece is how many bytes are copied at a time.
const piece = 256 << 10

// count copies what the initiator sends, and reports whether it logged out at the end: a connection that merely broke,
// or whose program was killed, looks the same otherwise.
func (g *gate) count(from io.Reader, to io.Writer) (loggedOut bool) {
	buf := make([]byte, piece)
	var last []byte
	for {
		n, err := from.Read(buf)
		g.mu.Lock()
		if g.received += int64(n); n > 0 && g.first.IsZero() {
			g.first = time.Now()
		}
		g.mu.Unlock()
		last = append(last, buf[max(0, n-logoutSize-digestSize):n]...)
		last = last[max(0, len(last)-logoutSize-digestSize):]
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return false
			}
		}
		if err != nil {
			return isLogout(last)
		}
	}
}

// A request to log out has a header alone (RFC 7143, 11.14), which may have a digest after it.
const (
	logoutSize = 48
	digestSize = 4
)

// isLogout reports whether the end of what an initiator has sent is a request to log out.
func isLogout(last []byte) bool {
	for _, after := range []int{0, digestSize} {
		at := len(last) - after - logoutSize
		if at < 0 {
			continue
		}
		h := last[at:]
		if h[0]&0x3f == 0x06 && h[1]&0x7f <= 1 && [14]byte(h[2:16]) == [14]byte{} {
			return true // of the session, or of the connection
		}
	}
	return false
}

// wait returns when an initiator has written and logged out, and no connection has been there for quiet.
func (g *gate) wait(ctx context.Context, c *step.Call, quiet time.Duration, r *Result) error {
	tick := time.NewTicker(min(time.Second, quiet/4))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		g.mu.Lock()
		n, received, first, last, loggedOut := len(g.open), g.received, g.first, g.last, g.loggedOut
		g.mu.Unlock()
		phase := "wait for the initiator"
		if n > 0 {
			phase = "the initiator writes"
		}
		c.Report(step.Progress{Phase: phase, Bytes: uint64(received), Total: uint64(r.Disk.Size)})
		if c.Alive != nil {
			c.Alive() // an initiator may come late, and come back
		}
		// Logging in and looking at the disk takes some KiB; a system is larger.
		if n == 0 && loggedOut && received > 1<<20 && time.Since(last) > quiet {
			r.Received, r.Seconds = received, last.Sub(first).Seconds()
			return nil
		}
	}
}
