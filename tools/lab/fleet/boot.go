package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ingot-metal/ingot/agent"
	"github.com/ingot-metal/ingot/agent/inventory"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/fs/iso9660"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
)

// boot is one run of a machine, from power-on until the power goes. It is also the machine that its agent sees.
type boot struct {
	m      *Machine
	number int
	from   bmc.Boot
	waits  time.Duration // until firmware and kernel are through
	off    context.CancelFunc
	dark   chan struct{} // closed when no packet leaves it any more
	kill   func()        // ends the agent alone
	once   sync.Once

	instance, disc bool // the installed system runs, or one from a disc; under the machine's lock

	mu     sync.Mutex
	loaded bool // a kernel is ready for a jump
	open   bool // the agent has a session
}

// cut takes the power away: nothing says goodbye.
func (b *boot) cut() {
	b.freeze()
	b.off()
}

// freeze stops all packets.
func (b *boot) freeze() { b.once.Do(func() { close(b.dark) }) }

// run boots what firmware was told to boot.
func (b *boot) run(ctx context.Context) {
	if step.Sleep(ctx, b.waits) != nil {
		return
	}
	line := ""
	if b.from.Device == bmc.PXE || b.from.Device == bmc.HTTP {
		var err error
		if line, err = b.script(ctx); err != nil {
			return
		}
	}
	if b.from.Device == bmc.CDROM || b.from.Device == bmc.USBCD {
		if line = b.readDisc(); line == "" {
			return
		}
	}
	if line == "" {
		b.m.mu.Lock()
		b.instance = b.m.installed
		b.m.mu.Unlock()
		return
	}
	if err := b.agent(ctx, line); err != nil && ctx.Err() == nil {
		b.m.f.log.Debug("the agent has ended", "machine", b.m.Name, "err", err)
	}
}

// parameter is one of the agent's, in the archive of a boot image.
var parameter = regexp.MustCompile(`ingot\.[\w.]+=\S+`)

// readDisc boots the disc in the first drive, and returns the parameters of the agent's kernel if it is one of the
// conductor's; empty when another system runs, or none.
func (b *boot) readDisc() (line string) {
	d := b.m.Medium(0)
	if d == nil {
		return ""
	}
	if iso, err := iso9660.Open(io.NewSectionReader(d, 0, d.Size())); err == nil {
		if own, err := fs.ReadFile(iso, "boot/node"); err == nil {
			return strings.Join(parameter.FindAllString(string(own), -1), " ")
		}
	}
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	b.disc = true
	return ""
}

// script fetches the boot script until there is one, as firmware in a loop does, and returns the kernel's line of it;
// empty when the script sends the machine to its disk.
func (b *boot) script(ctx context.Context) (line string, err error) {
	q := url.Values{"mac": {b.m.MAC}, "uuid": {b.m.UUID.String()}}
	servers := strings.Split(b.m.f.o.BootURL, ",")
	logged := ""
	for i := b.m.number; ; i++ {
		text, err := fetch(ctx, b.m.f.http, servers[i%len(servers)]+"/boot.ipxe?"+q.Encode())
		if err == nil {
			for l := range strings.Lines(text) {
				if strings.HasPrefix(l, "kernel ") {
					return l, nil
				}
			}
			return "", nil
		}
		if err.Error() != logged && ctx.Err() == nil {
			logged = err.Error()
			b.m.f.log.Debug("no boot script yet", "machine", b.m.Name, "err", err)
		}
		if err := step.Sleep(ctx, b.m.about(min(3*time.Second, b.m.f.o.Boot))); err != nil {
			return "", err
		}
	}
}

// largestScript bounds the bytes of a boot script.
const largestScript = 64 << 10

func fetch(ctx context.Context, c *http.Client, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, largestScript))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(text)))
	}
	return string(text), err
}

// agent runs the agent with the boot parameters on a kernel's command line, until its boot ends or the power goes.
func (b *boot) agent(ctx context.Context, line string) error {
	cfg, err := agent.ParseCmdline(line)
	if err != nil {
		return err
	}
	f := b.m.f
	ctx = b.withKill(ctx)
	defer b.kill()
	a, err := agent.New(agent.Options{Config: cfg, Version: "fleet", Steps: b.steps(ctx), System: b, Network: wire{},
		Identity: inventory.Identity{BootID: uuid.NewString(), MACs: []string{b.m.MAC}, UUID: b.m.UUID.String(),
			Serial: b.m.Name, BootMode: "bios"},
		Dial: b.dial, Log: ear{b}})
	if err != nil {
		return err
	}
	f.count(&f.agents, 1)
	defer f.count(&f.agents, -1)
	defer b.session(false)
	return a.Run(ctx)
}

// session notes whether the agent has a session.
func (b *boot) session(open bool) {
	b.mu.Lock()
	was := b.open
	b.open = open
	b.mu.Unlock()
	f := b.m.f
	switch {
	case open && !was:
		f.count(&f.sessions, 1)
		f.count(&f.opened, 1)
	case !open && was:
		f.count(&f.sessions, -1)
	}
}

// ear hears from the agent's log how its session is.
type ear struct{ b *boot }

// Enabled is for records that Handle looks at.
func (ear) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

// Handle looks at one record.
func (e ear) Handle(_ context.Context, r slog.Record) error {
	switch r.Message {
	case "session opened":
		e.b.session(true)
	case "no session with the conductor, trying again":
		e.b.session(false)
		r.Attrs(func(a slog.Attr) bool {
			if err, ok := a.Value.Any().(error); ok {
				switch status.Code(err) {
				case codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition, codes.InvalidArgument,
					codes.ResourceExhausted:
					e.b.m.f.count(&e.b.m.f.refused, 1)
					e.b.m.f.log.Warn("an agent is refused", "machine", e.b.m.Name, "err", err)
				}
			}
			return true
		})
	}
	return nil
}

// WithAttrs returns e: attributes of loggers do not matter.
func (e ear) WithAttrs([]slog.Attr) slog.Handler { return e }

// WithGroup returns e.
func (e ear) WithGroup(string) slog.Handler { return e }

// SetClock does nothing: this host's clock is right.
func (b *boot) SetClock(time.Time) error { return nil }

// KernelLog returns one line.
func (b *boot) KernelLog() ([]byte, error) {
	return []byte("<6>[    0.000000] simulated kernel\n"), nil
}

// KernelLoaded reports whether load_kernel has run.
func (b *boot) KernelLoaded() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.loaded
}

// Settle returns at once: there are no devices.
func (b *boot) Settle(ctx context.Context) error { return ctx.Err() }

// End ends this boot.
//
//nolint:contextcheck the next boot outlives this one
func (b *boot) End(_ context.Context, how string) error {
	m := b.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.now != b {
		return errors.New("the power is gone")
	}
	switch how {
	case "reboot":
		m.stopLocked()
		m.startLocked()
	case "off":
		m.stopLocked()
	default: // kexec: the machine stays on
		b.freeze()
		b.instance = m.installed
	}
	return nil
}

// wire is a network that is up.
type wire struct{}

func (wire) Wait(ctx context.Context) error { return ctx.Err() }
func (wire) Rotate()                        {}
func (wire) Reset(context.Context) error    { return nil }
func (wire) Leave(context.Context) error    { return nil }
func (wire) Summary() string                { return "simulated" }

// dial connects from the machine's own address.
func (b *boot) dial(ctx context.Context, addr string) (net.Conn, error) {
	select {
	case <-b.dark:
		<-ctx.Done() // its packets get nowhere
		return nil, ctx.Err()
	default:
	}
	d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: b.m.Addr.AsSlice()}}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &link{Conn: conn, b: b, closed: make(chan struct{})}, nil
}

// link is an agent's connection. While the machine is dark it neither sends nor receives, and the other end does not
// learn that it is gone.
type link struct {
	net.Conn
	b      *boot
	once   sync.Once
	closed chan struct{}
}

func (l *link) dark() bool {
	select {
	case <-l.b.dark:
		return true
	default:
		return false
	}
}

// Read receives.
func (l *link) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if l.dark() {
		<-l.closed
		return 0, net.ErrClosed
	}
	return n, err
}

// Write sends.
func (l *link) Write(p []byte) (int, error) {
	if l.dark() {
		return len(p), nil
	}
	return l.Conn.Write(p)
}

// lost is how long the other end of a connection may believe in a machine that is gone.
const lost = 20 * time.Second

// Close closes the connection. That of a dark machine stays open to the other end for a while.
func (l *link) Close() error {
	var err error
	l.once.Do(func() {
		close(l.closed)
		f := l.b.m.f
		if tcp, ok := l.Conn.(*net.TCPConn); ok && l.dark() && f.ctx.Err() == nil {
			if open, err := tcp.File(); err == nil { // the same connection once more
				f.life.Go(func() {
					_ = step.Sleep(f.ctx, lost)
					_ = open.Close() // it was only there to be there
				})
			}
		}
		err = l.Conn.Close()
	})
	return err
}
