package pid1

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// DevicesFile is touched whenever a device has appeared, and LoadingFile is there while modules are being loaded: who
// wants to know whether the machine has settled looks at both.
const (
	DevicesFile = "/run/ingot/devices"
	LoadingFile = "/run/ingot/loading"
)

// loads counts the modules that are being loaded, and keeps LoadingFile.
type loads struct {
	mu   sync.Mutex
	n    int
	file string
}

func (l *loads) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n++; l.n == 1 {
		touch(l.file)
	}
}

func (l *loads) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n--; l.n == 0 {
		touch(DevicesFile) // what the last driver found may take a moment to appear
		_ = os.Remove(l.file)
	}
}

// noAlias lists modules that are worth having but that no modalias asks for, and when.
func noAlias(m *Modules) (names []string) {
	if m.Has("ipmi_devintf") && exists("/sys/bus/platform/drivers/ipmi_si") {
		names = append(names, "ipmi_devintf")
	}
	if exists(efiFirmware) {
		names = append(names, "efivarfs")
	}
	return append(names, "af_packet", "button")
}

func exists(file string) bool { _, err := os.Stat(file); return err == nil }

// first tells whether a modalias is of a device that the agent waits for before all others: a network interface, a bus
// on which there may be one, or a source of random numbers.
func first(modalias string) bool {
	const network, virtioNet, virtioRNG = "bc02", "virtio:d00000001v", "virtio:d00000004v"
	return strings.HasPrefix(modalias, "pci:") &&
		(strings.Contains(modalias, network) || strings.HasPrefix(modalias, "pci:v00001AF4")) ||
		strings.HasPrefix(modalias, virtioNet) || strings.HasPrefix(modalias, virtioRNG)
}

// coldplug loads what the devices under root/sys/devices ask for. Loading a bus driver brings up more devices: those
// are announced by uevents, so the listener must be open before.
func coldplug(ctx context.Context, root string, m *Modules, log *slog.Logger) (loaded int) {
	aliases := map[string]bool{}
	err := filepath.WalkDir(filepath.Join(root, "sys/devices"), func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // a device that went away meanwhile
		}
		if d.Name() == "modalias" {
			if b, err := os.ReadFile(p); err == nil {
				aliases[strings.TrimSpace(string(b))] = true
			}
		}
		return ctx.Err()
	})
	if err != nil {
		log.Warn("look for devices", "err", err)
	}
	names := map[string]bool{}
	var order []string
	for _, early := range []bool{true, false} {
		for a := range aliases {
			if first(a) != early {
				continue
			}
			for _, n := range m.Match(a) {
				if !names[n] {
					names[n], order = true, append(order, n)
				}
			}
		}
	}
	var eg errgroup.Group
	eg.SetLimit(8) // drivers mostly wait for their hardware
	for _, n := range order {
		eg.Go(func() error {
			survive(log, func() { report(log, n, m.Load(n)) })
			return nil
		})
	}
	_ = eg.Wait()
	for _, n := range noAlias(m) {
		if m.Has(n) {
			report(log, n, m.Load(n))
		}
	}
	return len(names)
}

func report(log *slog.Logger, module string, err error) {
	switch {
	case err == nil:
		log.Debug("module loaded", "module", module)
	case errors.Is(err, unix.ENODEV):
		log.Debug("module found no device", "module", module)
	default:
		log.Warn("module not loaded", "module", module, "err", err)
	}
}

// uevents is the kernel's announcements of devices.
type uevents struct{ fd int }

func openUevents() (*uevents, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// Coldplug of a big machine announces thousands of devices in a burst.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return &uevents{fd}, nil
}

// uevent is one announcement: ACTION, SUBSYSTEM, MODALIAS, DEVNAME, ...
type uevent map[string]string

func parseUevent(b []byte) uevent {
	u := uevent{}
	for _, s := range strings.Split(string(b), "\x00") {
		if k, v, ok := strings.Cut(s, "="); ok {
			u[k] = v
		}
	}
	return u
}

// watch loads modules for devices that appear. It ends only with the process: the kernel goes on announcing as long as
// it lives.
func (u *uevents) watch(m *Modules, busy *loads, log *slog.Logger) {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := unix.Recvfrom(u.fd, buf, 0)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOBUFS) {
			continue // ENOBUFS: announcements were lost; what they would have loaded is found by the next ones
		}
		if err != nil {
			log.Error("listen for devices", "err", err)
			return
		}
		// Only the kernel (port 0) is believed; any local process may send to the group.
		if nl, ok := from.(*unix.SockaddrNetlink); !ok || nl.Pid != 0 {
			continue
		}
		e := parseUevent(buf[:n])
		if e["ACTION"] != "add" && e["ACTION"] != "bind" {
			continue
		}
		switch e["SUBSYSTEM"] {
		case "block", "net", "nvme", "scsi", "ipmi", "virtio", "pci":
			touch(DevicesFile)
		}
		if e["ACTION"] == "add" && e["MODALIAS"] != "" {
			for _, name := range m.Match(e["MODALIAS"]) {
				busy.begin()
				go func() { // a driver may take its time; the next device should not wait for it
					defer busy.end()
					survive(log, func() {
						report(log, name, m.Load(name))
						if name == "ipmi_si" && m.Has("ipmi_devintf") {
							report(log, "ipmi_devintf", m.Load("ipmi_devintf"))
						}
					})
				}()
			}
		}
	}
}

func touch(file string) {
	now := time.Now()
	if os.Chtimes(file, now, now) == nil {
		return
	}
	if f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o644); err == nil {
		_ = f.Close()
	}
}
