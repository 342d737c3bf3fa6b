// Package linux is the agent's access to the kernel: the only place of the agent for mounts, ioctls, the clock and the
// end of a boot.
//
// Each package that needs the machine declares a small interface for it; Machine implements all of them.
// agent/machine/fake does the same in memory.
package linux

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/u-root/u-root/pkg/efivarfs"
	"golang.org/x/sys/unix"
)

// Machine is the machine that the agent runs on.
type Machine struct {
	// Devices is a file that the first process touches whenever a device has appeared, Loading one that exists while it
	// loads modules; empty outside the ramdisk.
	Devices, Loading string
}

// Root is the directory that contains sys, proc and dev.
func (Machine) Root() string { return "/" }

// OpenExclusive opens a disk unless it is open exclusively elsewhere or mounted.
func (Machine) OpenExclusive(ctx context.Context, path string) (Device, error) {
	return OpenExclusive(ctx, path)
}

// Addresses returns an interface's addresses.
func (Machine) Addresses(ifname string) ([]netip.Prefix, error) {
	i, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, err
	}
	list, err := i.Addrs()
	if err != nil {
		return nil, err
	}
	var out []netip.Prefix
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p)
		}
	}
	return out, nil
}

// SetClock sets the system's clock. The hardware clock is left to the installed system.
func (Machine) SetClock(t time.Time) error {
	ts := unix.NsecToTimespec(t.UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		return fmt.Errorf("set the clock: %w", err)
	}
	return nil
}

// SetHostname sets the kernel's host name.
func (Machine) SetHostname(name string) error {
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	return nil
}

// KernelLog returns the kernel's log.
func (Machine) KernelLog() ([]byte, error) {
	const readAll, sizeBuffer = 3, 10 // syslog(2)
	n, err := unix.Klogctl(sizeBuffer, nil)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's log: %w", err)
	}
	buf := make([]byte, n)
	n, err = unix.Klogctl(readAll, buf)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's log: %w", err)
	}
	return buf[:n], nil
}

// Sync flushes everything that was written.
func (Machine) Sync() { unix.Sync() }

// End flushes and unmounts everything it can and ends this boot: "reboot", "off", or "kexec" into the kernel of
// LoadKernel, and if that is impossible a reboot. It returns only if that failed, or after the first process has taken
// over. A disk that does not flush until ctx ends is left as it is, instead of waiting forever.
func (m Machine) End(ctx context.Context, how string) error {
	way, ok := map[string]struct {
		command int
		ask     unix.Signal // to the first process
	}{
		"reboot": {unix.LINUX_REBOOT_CMD_RESTART, unix.SIGHUP},
		"off":    {unix.LINUX_REBOOT_CMD_POWER_OFF, unix.SIGUSR1},
		"kexec":  {unix.LINUX_REBOOT_CMD_KEXEC, unix.SIGUSR2},
	}[how]
	if !ok {
		return fmt.Errorf("end this boot: no such way: %q", how)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		unix.Sync()
		unmountDisks()
		unix.Sync()
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	if m.Devices != "" && firstProcessEnds(ctx, way.ask) {
		return nil
	}
	err := unix.Reboot(way.command)
	if err != nil && how == "kexec" {
		err = errors.Join(err, unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART))
	}
	if err != nil {
		return fmt.Errorf("end this boot (%s): %w", how, err)
	}
	return nil
}

// firstProcessEnds asks the ramdisk's first process to end this boot, which it does after everything else has ended and
// the consoles have shown the last lines; true once it has begun to end this process.
func firstProcessEnds(ctx context.Context, ask unix.Signal) bool {
	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, unix.SIGTERM)
	defer signal.Stop(stopped)
	if err := unix.Kill(1, ask); err != nil {
		return false
	}
	select {
	case <-stopped:
		return true
	case <-ctx.Done():
		return false
	}
}

// unmountDisks unmounts everything on a block device, last mounted first.
func unmountDisks() {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return
	}
	for _, line := range slices.Backward(strings.Split(string(b), "\n")) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[0], "/dev/") {
			_ = unix.Unmount(f[1], 0)
		}
	}
}

// Times of Settle.
const (
	settleQuiet = 500 * time.Millisecond // without a new device for this long, the drivers have settled
	settleDisk  = 10 * time.Second       // how long to wait for the first disk
	settleMax   = time.Minute            // some RAID controllers take longer than half of that to come up
)

// Settle waits until no device has appeared for a moment and a disk exists, for a limited time. Outside the ramdisk it
// returns at once.
func (m Machine) Settle(ctx context.Context) error {
	if m.Devices == "" {
		return nil
	}
	begin := time.Now()
	tick := time.Tick(50 * time.Millisecond)
	for time.Since(begin) < settleMax {
		quiet := true
		if fi, err := os.Stat(m.Devices); err == nil {
			// The wall clock on both sides; a clock that was just set by years counts as quiet, which is true by then.
			quiet = time.Since(fi.ModTime()).Abs() > settleQuiet
		}
		if _, err := os.Stat(m.Loading); err == nil {
			quiet = false
		}
		disks, _ := filepath.Glob("/sys/block/*/device")
		if quiet && (len(disks) > 0 || time.Since(begin) > settleDisk) {
			return nil
		}
		select {
		case <-tick:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return errors.New("devices keep appearing")
}

// settleLinks is how long links may negotiate: gigabit copper takes two to four seconds after it is enabled.
const settleLinks = 5 * time.Second

// SettleLinks waits until every enabled Ethernet link has a carrier, for a limited time: ports without a cable are
// common. Outside the ramdisk it returns at once.
func (m Machine) SettleLinks(ctx context.Context) error {
	if m.Devices == "" {
		return nil
	}
	limit := time.After(settleLinks)
	tick := time.Tick(50 * time.Millisecond)
	for {
		devices, _ := filepath.Glob("/sys/class/net/*/device")
		waiting := false
		for _, d := range devices {
			carrier, err := os.ReadFile(filepath.Join(filepath.Dir(d), "carrier"))
			// an error means: not enabled yet
			waiting = waiting || err != nil || strings.TrimSpace(string(carrier)) != "1"
		}
		if !waiting {
			return nil
		}
		select {
		case <-tick:
		case <-limit:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Variables returns the firmware's variables. errors.Is(err, efivarfs.ErrNoFS): the kernel has none.
func (Machine) Variables() (efivarfs.EFIVar, error) { return efivarfs.New() }
