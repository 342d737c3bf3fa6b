package pid1

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// DevicesFile is touched whenever a device has appeared: who wants to know whether the machine has settled looks at its time.
const DevicesFile = "/run/ingot/devices"

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

// coldplug loads what the devices under root/sys/devices ask for. Loading a bus driver brings up more devices: those are announced by
// uevents, so the listener must be open before.
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
	for a := range aliases {
		for _, n := range m.Match(a) {
			names[n] = true
		}
	}
	var eg errgroup.Group
	eg.SetLimit(8) // drivers mostly wait for their hardware
	for n := range names {
		eg.Go(func() error {
			report(log, n, m.Load(n))
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

// watch loads modules for devices that appear. It ends only with the process: the kernel goes on announcing as long as it lives.
func (u *uevents) watch(m *Modules, log *slog.Logger) {
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
				go func() { // a driver may take its time; the next device should not wait for it
					report(log, name, m.Load(name))
					if name == "ipmi_si" && m.Has("ipmi_devintf") {
						report(log, "ipmi_devintf", m.Load("ipmi_devintf"))
					}
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
		f.Close()
	}
}
