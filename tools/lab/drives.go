package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/tools/lab/bmc"
	"github.com/ingot-metal/ingot/tools/lab/nbd"
)

// trayLimit is how long QEMU may take for one command. It waits for reads that are under way, and those end when a
// medium is closed.
const trayLimit = 15 * time.Second

// drives are the drives for discs that the machine's controller fills: always there, mostly empty. QEMU reads a disc
// from a socket of ours, and the controller reads it from wherever it is.
type drives struct {
	sockets []string // one for each drive

	changing sync.Mutex             // one change at a time
	discs    map[string]*nbd.Server // by socket; under Machine.mu
}

// disc is the name of a drive, and of the disc in it, in QEMU.
func disc(drive int) (device, node string) {
	return "cd" + strconv.Itoa(drive), "disc" + strconv.Itoa(drive)
}

// discFile is a drive on QEMU's command line.
type discFile struct {
	socket string
	full   bool
}

// list returns the drives as they are now. It is called with Machine.mu.
func (d *drives) list() (all []discFile) {
	for _, socket := range d.sockets {
		all = append(all, discFile{socket, d.discs[socket] != nil})
	}
	return all
}

// source is where QEMU reads the disc of a drive.
func source(drive int, socket string) options {
	_, node := disc(drive)
	return options{"driver": "nbd", "node-name": node, "read-only": true,
		"server": map[string]any{"type": "unix", "path": socket}}
}

// options are a command's arguments, or a device's options.
type options map[string]any

// line is options as QEMU's command line takes them.
func (o options) line() string {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err) // texts and truth values
	}
	return string(b)
}

// SetMedium changes the disc in a drive, at once when the machine runs, whether its system has locked the drive or not.
func (m *Machine) SetMedium(drive int, d bmc.Medium) error {
	if drive < 0 || drive >= len(m.drives.sockets) {
		return fmt.Errorf("the machine has no drive %d for discs", drive)
	}
	m.drives.changing.Lock()
	defer m.drives.changing.Unlock()
	socket := m.drives.sockets[drive]
	device, node := disc(drive)

	m.mu.Lock()
	old, p := m.drives.discs[socket], m.proc
	delete(m.drives.discs, socket)
	m.mu.Unlock()
	if old != nil {
		// A disc is out when we say so: with an error, too, nothing can be read from it.
		err := p.tray(device, command{"blockdev-remove-medium", options{"id": device}})
		if err == nil {
			err = p.tell(command{"blockdev-del", options{"node-name": node}})
		}
		if err := errors.Join(err, old.Close()); err != nil {
			return fmt.Errorf("empty drive %d: %w", drive, err)
		}
	}
	if d == nil {
		return nil
	}

	_ = os.Remove(socket) // of a lab that died
	ln, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("fill drive %d: %w", drive, err)
	}
	s := nbd.Serve(ln, d, func(format string, args ...any) { m.log.Warn(fmt.Sprintf(format, args...)) })
	m.mu.Lock()
	m.drives.discs[socket] = s
	p = m.proc
	m.mu.Unlock()
	err = p.tell(command{"blockdev-add", source(drive, socket)})
	if err == nil {
		err = p.tray(device, command{"blockdev-insert-medium",
			options{"id": device, "node-name": node}})
	}
	if err != nil {
		m.mu.Lock()
		delete(m.drives.discs, socket)
		m.mu.Unlock()
		return errors.Join(fmt.Errorf("fill drive %d: %w", drive, err), s.Close())
	}
	return nil
}

// command is one of QEMU's.
type command struct {
	name string
	args options
}

// tray opens the tray of a drive by force, for systems lock it, does what is to be done, and closes it.
func (p *process) tray(device string, do command) error {
	for _, c := range []command{{"blockdev-open-tray", options{"id": device, "force": true}}, do,
		{"blockdev-close-tray", options{"id": device}}} {
		if err := p.tell(c); err != nil {
			return err
		}
	}
	return nil
}

// tell gives a command to a process, if there is one. One that ends meanwhile is no error: the next starts with the
// discs that are in the drives then.
func (p *process) tell(c command) error {
	if p == nil {
		return nil
	}
	if err := p.qmp.run(c.name, c.args, trayLimit); !errors.Is(err, errQEMUGone) {
		return err
	}
	return nil
}

// closeDrives takes all discs out of a machine that is off for good.
func (m *Machine) closeDrives() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, s := range m.drives.discs {
		errs = append(errs, s.Close())
	}
	clear(m.drives.discs)
	return errors.Join(errs...)
}
