package lab

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/tools/lab/bmc"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
)

// startLimit is how long QEMU may take to set a machine up. It takes 0.1 s on a quiet host.
const startLimit = 30 * time.Second

// Machine is one machine of a lab: a QEMU process while it is on, nothing while it is off. Its methods may be called at
// any time.
type Machine struct {
	// Spec is the machine with all defaults filled in.
	Spec NodeSpec
	// BMCAddress, BMCPort, User and Password are the controller's. The address is inside the lab's namespace.
	BMCAddress     string
	BMCPort        int
	User, Password string
	// CAFile has the certificate of the controller's Redfish service; "" when it has none.
	CAFile string
	// MAC is the first network card's.
	MAC string
	// ConsoleLog is the file with everything the machine ever said on its serial port, and a line of the lab's at each
	// start.
	ConsoleLog string

	dir   string
	log   *slog.Logger
	ns    *netns
	accel Accel
	taps  []string
	files files
	con   *console
	bmc   *bmc.BMC

	redfish *redfish.Service // nil when the controller has none
	drives  drives           // that its media are in

	mu        sync.Mutex
	take      func() bmc.Boot
	proc      *process // nil when off
	unplugged bool
	starts    int
	failure   string // why the last start failed, in QEMU's words; "" after a start that succeeded
	powered   func() // called at each start
	changed   func() // called without lock when a process came or went
	watchers  sync.WaitGroup
}

// process is one run of QEMU.
type process struct {
	cmd    *exec.Cmd
	qmp    *qmp
	stderr *lastBytes
	ended  chan struct{} // closed when the process has ended
	gone   chan struct{} // closed when the machine knows that, too
	killed bool          // by us; under Machine.mu
	boot   bmc.Boot
}

// BMC is the machine's controller, for its faults and flags.
func (m *Machine) BMC() *bmc.BMC { return m.bmc }

// Wire takes the function by which firmware reads the boot flags.
func (m *Machine) Wire(takeBoot func() bmc.Boot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.take = takeBoot
}

// On reports whether the machine runs.
func (m *Machine) On() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.proc != nil
}

// Starts counts how often the machine's firmware has started.
func (m *Machine) Starts() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.starts
}

// Failure is why the machine's last start failed or why QEMU ended, in QEMU's own words. An IPMI controller can only
// answer with a completion code, so this is the place to look at. "" when nothing is wrong.
func (m *Machine) Failure() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failure
}

// Start presses the power button of a machine that is off.
func (m *Machine) Start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.proc != nil {
		return nil
	}
	return m.startLocked("power on")
}

func (m *Machine) startLocked(why string) error {
	if m.unplugged {
		return errors.New("the machine has no power: its plug is out")
	}
	err := m.bootLocked(why)
	m.failure = ""
	if err != nil {
		m.failLocked(err.Error())
	}
	return err
}

// failLocked keeps why QEMU does not run where people look: in the lab's status, its log and the machine's console.
func (m *Machine) failLocked(why string) {
	m.failure = why
	m.con.mark("%s: %s", m.Spec.Name, why)
	m.log.Error("machine does not run", "err", why)
}

// bootLocked is one start of QEMU.
func (m *Machine) bootLocked(why string) error {
	boot := m.take()
	mode := "bios"
	if m.Spec.Firmware == UEFI || boot.UEFI {
		mode = "uefi"
		if err := copyOnce(ovmfVars, m.files.vars); err != nil {
			return err
		}
	}
	device := cmp.Or(string(boot.Device), "default")
	m.con.mark("%s: %s, firmware %s, boot %s", m.Spec.Name, why, mode, device)

	var ours [2]net.Conn
	var theirs [2]*os.File
	closeAll := func() {
		for i := range ours {
			if ours[i] != nil {
				ours[i].Close()
			}
			if theirs[i] != nil {
				_ = theirs[i].Close()
			}
		}
	}
	for i := range ours {
		var err error
		if ours[i], theirs[i], err = socketpair(); err != nil {
			closeAll()
			return err
		}
	}
	p := &process{stderr: &lastBytes{}, ended: make(chan struct{}), gone: make(chan struct{}), boot: boot}
	f := m.files
	f.discs = m.drives.list()
	p.cmd = exec.Command("qemu-system-x86_64", qemuArgs(m.Spec, m.accel, boot, f, m.taps)...)
	p.cmd.ExtraFiles = theirs[:]
	p.cmd.Stdout, p.cmd.Stderr = p.stderr, p.stderr
	// A terminal's Ctrl-C goes to the lab, which then takes the machines down in order.
	p.cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if err := m.ns.start(p.cmd); err != nil {
		closeAll()
		return fmt.Errorf("start QEMU: %w", err)
	}
	for i, end := range theirs {
		_ = end.Close() // QEMU has it
		theirs[i] = nil
	}
	m.powered()
	drained := m.con.plug(ours[fdConsole-3])
	p.qmp = newQMP(ours[fdQMP-3])
	m.proc = p
	m.starts++
	m.watchers.Go(func() { m.watch(p, drained) })

	if err := p.qmp.hello(startLimit); err != nil {
		p.killed = true
		_ = p.cmd.Process.Kill() // it may have ended by itself; either way watch sees the end
		<-p.ended
		m.proc = nil // watch is still waiting to do that
		m.starts--
		if said := p.stderr.words(); said != "" {
			return fmt.Errorf("QEMU does not start (%v): %s", p.cmd.ProcessState, said)
		}
		return fmt.Errorf("QEMU does not start (%v) and says nothing: %w", p.cmd.ProcessState, err)
	}
	m.log.Debug("machine started", "why", why, "pid", p.cmd.Process.Pid, "firmware", mode, "boot", device)
	m.tell()
	return nil
}

func (m *Machine) tell() {
	if m.changed != nil {
		go m.changed()
	}
}

// watch waits for the end of a process, and starts the machine again when what ended it was a reset from inside: then,
// as on real hardware, firmware reads the boot flags anew.
func (m *Machine) watch(p *process, drained <-chan struct{}) {
	err := p.cmd.Wait()
	close(p.ended)
	<-p.qmp.ended
	<-drained
	reason := p.qmp.shutdownReason()
	m.mu.Lock()
	defer m.mu.Unlock()
	defer close(p.gone)
	if m.proc == p {
		m.proc = nil
	}
	m.tell()
	switch {
	case p.killed:
		m.con.mark("%s: power cut", m.Spec.Name)
	case reason == "guest-reset":
		_ = m.startLocked("reset by the machine") // its error is kept and logged
	case err != nil:
		m.failLocked(fmt.Sprintf("QEMU failed (%v): %s", err, p.stderr.words()))
	default:
		m.con.mark("%s: off (%s)", m.Spec.Name, reason)
		m.log.Debug("machine went off", "reason", reason)
	}
}

// Stop takes the power away at once and returns when the machine is off.
func (m *Machine) Stop() error {
	m.mu.Lock()
	p := m.proc
	if p == nil {
		m.mu.Unlock()
		return nil
	}
	p.killed = true
	_ = p.cmd.Process.Kill() // it may have ended just now
	m.mu.Unlock()
	<-p.gone
	return nil
}

// Reset restarts a machine that is on.
func (m *Machine) Reset() error {
	if !m.On() {
		return errors.New("the machine is off")
	}
	if err := m.Stop(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.proc != nil {
		return nil
	}
	return m.startLocked("reset")
}

// PressPower presses the power button of a machine that is on: its operating system is asked to shut down.
func (m *Machine) PressPower() error {
	m.mu.Lock()
	p := m.proc
	m.mu.Unlock()
	if p == nil {
		return nil
	}
	return p.qmp.execute("system_powerdown", 5*time.Second)
}

// Redfish is the controller's Redfish service, nil when it has none.
func (m *Machine) Redfish() *redfish.Service { return m.redfish }

// NMI interrupts the operating system of a machine that is on.
func (m *Machine) NMI() error {
	m.mu.Lock()
	p := m.proc
	m.mu.Unlock()
	if p == nil {
		return nil
	}
	return p.qmp.execute("inject-nmi", 5*time.Second)
}

// PullPlug cuts the power of machine and controller: the machine stops at once and the controller falls silent.
func (m *Machine) PullPlug() error {
	m.mu.Lock()
	m.unplugged = true
	m.mu.Unlock()
	m.bmc.SetFaults(bmc.Faults{Silent: true})
	return m.Stop()
}

// PlugIn gives the power back. The controller answers again, without faults, and the machine is off.
func (m *Machine) PlugIn() {
	m.mu.Lock()
	m.unplugged = false
	m.mu.Unlock()
	m.bmc.SetFaults(bmc.Faults{})
}

// Attach reads and writes the serial console, beside the log and any other attachment.
func (m *Machine) Attach() *Attachment { return m.con.attach() }

// Console attaches the controller's serial over LAN.
func (m *Machine) Console() (bmc.Console, error) { return m.con.attach(), nil }

// PID is that of the QEMU process, 0 when the machine is off.
func (m *Machine) PID() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.proc == nil {
		return 0
	}
	return m.proc.cmd.Process.Pid
}

// WaitOff waits until the machine is off.
func (m *Machine) WaitOff(ctx context.Context) error {
	for {
		m.mu.Lock()
		p := m.proc
		m.mu.Unlock()
		if p == nil {
			return nil
		}
		select {
		case <-p.gone:
		case <-ctx.Done():
			return fmt.Errorf("wait until %s is off: %w", m.Spec.Name, context.Cause(ctx))
		}
	}
}

// ConsoleSize is how long the console log is now, to look only at what comes after.
func (m *Machine) ConsoleSize() int64 {
	info, err := os.Stat(m.ConsoleLog)
	if err != nil {
		return 0
	}
	return info.Size()
}

// WaitConsole waits until text appears in the console log behind offset from.
func (m *Machine) WaitConsole(ctx context.Context, from int64, text string) error {
	a := m.con.attach() // before the file is read, so that nothing is missed in between
	defer a.Close()
	f, err := os.Open(m.ConsoleLog)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return err
	}
	old, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	if containsText(old, text) {
		return nil
	}
	// The end of the file and what the attachment got may overlap; a text across the border is found all the same.
	a.mu.Lock()
	a.buf = append(tail(old, len(text)), a.buf...)
	a.mu.Unlock()
	return a.waitFor(ctx, text)
}

// socketpair returns one end as a connection and the other to be inherited.
func socketpair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	own, theirs := os.NewFile(uintptr(fds[0]), "machine"), os.NewFile(uintptr(fds[1]), "machine")
	conn, err := net.FileConn(own)
	_ = own.Close() // the connection has one of its own
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	return conn, theirs, nil
}

// copyOnce copies a file unless the copy exists.
func copyOnce(from, to string) error {
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("read UEFI variables: %w (apt-get install ovmf)", err)
	}
	return os.WriteFile(to, data, 0o600)
}

// lastBytes keeps the end of what is written to it.
type lastBytes struct {
	mu  sync.Mutex
	buf []byte
}

func (l *lastBytes) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = tail(append(l.buf, p...), 4096)
	return len(p), nil
}

// words are the last three lines as one, fit for a log, a table and a terminal: a program's output is not to be trusted
// with these.
func (l *lastBytes) words() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return lastWords(string(l.buf))
}

func lastWords(said string) string {
	lines := slices.DeleteFunc(strings.Split(strings.ToValidUTF8(said, "?"), "\n"),
		func(s string) bool { return strings.TrimSpace(s) == "" })
	lines = lines[max(0, len(lines)-3):]
	for i, line := range lines {
		lines[i] = strings.TrimSpace(strings.Map(func(r rune) rune {
			if !unicode.IsPrint(r) {
				return ' '
			}
			return r
		}, line))
	}
	text := []rune(strings.Join(lines, "; "))
	return string(text[max(0, len(text)-600):])
}

func tail(b []byte, n int) []byte { return append([]byte(nil), b[max(0, len(b)-n):]...) }

func containsText(b []byte, text string) bool { return bytes.Contains(b, []byte(text)) }
