package pid1

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Config of the first process.
type Config struct {
	Version string
	Worker  []string // program and arguments of the worker; empty means this program with "worker"
}

// drainMax is how long the end waits for the consoles: two screens of text take 0.3 s on a slow serial line, and a line
// that is stopped by flow control takes forever.
const drainMax = 500 * time.Millisecond

// Run is the first process. It returns only if the kernel refuses to end the machine on request.
func Run(cfg Config) error {
	mountErr := mountAll(earlyMounts)
	linkAll()
	con := openConsoles("/")
	if err := os.MkdirAll(filepath.Dir(LogFile), 0o700); err != nil {
		fmt.Fprintln(con, "ingot:", err)
	}
	options := readCmdline()
	logTo := io.Writer(&ringFile{path: LogFile, max: 2 << 20})
	level := slog.LevelInfo
	if options["ingot.debug"] == "1" {
		logTo, level = io.MultiWriter(logTo, con), slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(logTo, &slog.HandlerOptions{Level: level}))
	fmt.Fprintf(con, "ingot: agent %s, kernel up for %s\n", cfg.Version, uptime())
	if mountErr != nil {
		log.Error("some file systems are missing", "err", mountErr)
	}
	_ = os.Setenv("PATH", "/bin:/sbin:/usr/bin:/usr/sbin")
	_ = os.Setenv("HOME", "/")
	_ = os.Setenv("TERM", "linux")

	ctx, stop := context.WithCancel(context.Background())
	reap := newReaper()
	go reap.run(context.Background()) // to the very end, to reap the worker

	// Drivers of storage controllers may take half a minute. The worker does not wait for them: it uses the network as
	// soon as it appears, and steps that need disks wait until the machine has settled.
	plugged := make(chan struct{})
	busy := &loads{file: LoadingFile}
	busy.begin()
	go func() {
		defer close(plugged)
		defer busy.end()
		survive(log, func() { devices(ctx, busy, log, con) })
		for _, m := range lateMounts {
			if !exists(m.where) {
				continue
			}
			if err := m.do(); err != nil {
				log.Warn(m.without, "err", err)
			}
		}
	}()
	entropy(plugged, randomReady, seedRandom, log, con)

	ends := make(chan ending, 4)
	go survive(log, func() { watchKeys(ends, log) })
	shell(ctx, options["ingot.shell"] == "1", con, reap, log)

	argv := cfg.Worker
	if len(argv) == 0 {
		argv = []string{"/proc/self/exe", "worker"}
	}
	w := &worker{argv: argv, status: con, log: logTo, own: log, reaper: reap, env: []string{"GOTRACEBACK=all"}}
	done := make(chan struct{})
	go func() { w.keep(ctx); close(done) }()

	e := <-ends
	fmt.Fprintf(con, "ingot: %s: %s\n", e.why, e.what)
	log.Warn("the machine ends", "cause", e.why, "action", e.what)
	stop()
	<-done
	unmountDisks()
	unix.Sync()
	con.drain(drainMax)
	err := unix.Reboot(e.how)
	if e.how == unix.LINUX_REBOOT_CMD_KEXEC {
		fmt.Fprintf(con, "ingot: %s: %v; restart\n", e.what, err)
		err = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	}
	// The kernel panics when the first process ends, so it continues even now.
	fmt.Fprintf(con, "ingot: %s: %v\n", e.what, err)
	return fmt.Errorf("%s: %w", e.what, err)
}

// survive runs a part of the first process and recovers its panics, which would otherwise panic the kernel.
func survive(log *slog.Logger, f func()) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("a part of the first process broke down", "err", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	f()
}

// ending is a request from the console, the BMC or the worker to end this boot.
type ending struct {
	why, what string
	how       int
}

// watchKeys waits for Ctrl-Alt-Del and the power button. Both shut the machine down in good order: the worker is
// stopped, its writes are flushed. A disk that was being written does not boot afterwards; the conductor handles that.
// The worker's requests take the same path: to power off (SIGUSR1), to restart (SIGHUP), and to jump into a kernel that
// it has loaded (SIGUSR2), so that nothing runs any more at the jump; if the jump fails, the firmware starts.
func watchKeys(ends chan<- ending, log *slog.Logger) {
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF) // from now on a signal to this process, not a reset
	sig := make(chan os.Signal, 1)
	signal.Notify(sig, unix.SIGINT, unix.SIGTERM, unix.SIGPWR, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGHUP)
	button := make(chan struct{}, 1)
	go func() {
		survive(log, func() {
			if err := powerButton(button); err != nil {
				log.Debug("the power button is not watched", "err", err)
			}
		})
	}()
	for {
		select {
		case s := <-sig:
			switch s {
			case unix.SIGINT:
				ends <- ending{"Ctrl-Alt-Del", "restart", unix.LINUX_REBOOT_CMD_RESTART}
			case unix.SIGUSR1:
				ends <- ending{"the agent", "power off", unix.LINUX_REBOOT_CMD_POWER_OFF}
			case unix.SIGHUP:
				ends <- ending{"the agent", "restart", unix.LINUX_REBOOT_CMD_RESTART}
			case unix.SIGUSR2:
				ends <- ending{"the agent", "jump into the loaded kernel", unix.LINUX_REBOOT_CMD_KEXEC}
			default:
				ends <- ending{s.String(), "power off", unix.LINUX_REBOOT_CMD_POWER_OFF}
			}
		case <-button:
			ends <- ending{"power button", "power off", unix.LINUX_REBOOT_CMD_POWER_OFF}
		}
	}
}

func devices(ctx context.Context, busy *loads, log *slog.Logger, con io.Writer) {
	begin := time.Now()
	m, err := OpenModules("/")
	if err != nil {
		log.Error("no modules can be loaded", "err", err)
		fmt.Fprintln(con, "ingot: no modules can be loaded:", err)
		return
	}
	touch(DevicesFile)
	u, err := openUevents()
	if err != nil {
		log.Error("devices that appear late will have no driver", "err", err)
	} else {
		go survive(log, func() { u.watch(m, busy, log) })
	}
	n := coldplug(ctx, "/", m, log)
	touch(DevicesFile)
	log.Info("devices found", "modules", n, "took", time.Since(begin).Round(time.Millisecond))
}

// How long the kernel may take to get random numbers by itself: in all, and after the drivers are loaded.
const (
	entropyMax   = 1500 * time.Millisecond
	entropyAfter = 300 * time.Millisecond
)

// entropy ensures that random numbers don't block. The kernel gets a moment first: a virtio-rng needs one after its
// driver was loaded.
func entropy(plugged <-chan struct{}, ready func() bool, seed func() (string, error), log *slog.Logger, con io.Writer) {
	for deadline := time.Now().Add(entropyMax); !ready(); {
		select {
		case <-plugged:
			plugged = nil
			if d := time.Now().Add(entropyAfter); d.Before(deadline) {
				deadline = d
			}
			continue
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().Before(deadline) {
			continue
		}
		source, err := seed()
		if err != nil {
			log.Error("random numbers may take minutes", "err", err)
			fmt.Fprintln(con, "ingot: random numbers may take minutes:", err)
			return
		}
		log.Warn("this machine has no random number generator that the kernel trusts; seeded it", "from", source)
		fmt.Fprintln(con, "ingot: random numbers seeded from", source)
		return
	}
}

// readCmdline returns the key=value words of the kernel's command line.
func readCmdline() map[string]string {
	b, _ := os.ReadFile("/proc/cmdline")
	out := map[string]string{}
	for _, w := range strings.Fields(string(b)) {
		k, v, _ := strings.Cut(w, "=")
		out[k] = v
	}
	return out
}

func uptime() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano()).Round(time.Millisecond)
}
