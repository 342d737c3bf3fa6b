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

// DevicesFile is touched whenever a device has appeared, and LoadingFile exists while modules are being loaded.
// Together they show whether the machine has settled.
const (
	DevicesFile = "/run/ingot/devices"
	LoadingFile = "/run/ingot/loading"
)

// loads counts the modules being loaded, and maintains LoadingFile.
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
		touch(DevicesFile) // devices of the last driver may take a moment to appear
		_ = os.Remove(l.file)
	}
}

// noAlias lists modules that no modalias requests, and when they are useful.
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

// first reports whether a modalias is of a device that the agent needs before all others: a network interface, a bus
// that may lead to one, or a source of random numbers.
func first(modalias string) bool {
	const network, virtioNet, virtioRNG = "bc02", "virtio:d00000001v", "virtio:d00000004v"
	return strings.HasPrefix(modalias, "pci:") &&
		(strings.Contains(modalias, network) || strings.HasPrefix(modalias, "pci:v00001AF4")) ||
		strings.HasPrefix(modalias, virtioNet) || strings.HasPrefix(modalias, virtioRNG)
}

// coldplug loads the modules for the devices under root/sys/devices. Loading a bus driver adds more devices: those are
// announced by uevents, so the listener must be open before.
func coldplug(ctx context.Context, root string, m *Modules, log *slog.Logger) (loaded int) {
	aliases := map[string]bool{}
	err := filepath.WalkDir(filepath.Join(root, "sys/devices"), func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // the device has disappeared
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

// uevents is the kernel's stream of device events.
type uevents struct{ fd int }

func openUevents() (*uevents, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// Coldplug of a big machine causes thousands of events in a burst.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return &uevents{fd}, nil
}

// uevent is one event: ACTION, SUBSYSTEM, MODALIAS, DEVNAME, ...
type uevent map[string]string

func parseUevent(b []byte) uevent {
	u := uevent{}
	for s := range strings.SplitSeq(string(b), "\x00") {
		if k, v, ok := strings.Cut(s, "="); ok {
			u[k] = v
		}
	}
	return u
}

// watch loads modules for devices that appear. It ends only with the process: events come for the lifetime of the
// kernel.
func (u *uevents) watch(m *Modules, busy *loads, log *slog.Logger) {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := unix.Recvfrom(u.fd, buf, 0)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOBUFS) {
			continue // ENOBUFS: events were lost; later ones load the missing modules
		}
		if err != nil {
			log.Error("listen for devices", "err", err)
			return
		}
		// Only messages from the kernel (port 0) are accepted; any local process may send to the group.
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
				go func() { // a slow driver should not delay the next device
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
