package pid1

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const shellPath = "/bin/sh"

// shell offers a shell on every console if the boot parameters allow it. Otherwise the consoles take no input.
func shell(ctx context.Context, allowed bool, con *consoles, reap *reaper, log *slog.Logger) {
	if !allowed {
		return
	}
	if !exists(shellPath) {
		fmt.Fprintln(con,
			"ingot: ingot.shell=1 was given, but this ramdisk has no shell (build the profile that has one)")
		log.Warn("no shell in this ramdisk")
		return
	}
	log.Warn("a shell is offered on the consoles, as the boot parameters ask")
	for _, name := range con.names {
		// tty0 is the current virtual console; a session needs a real one.
		if strings.HasSuffix(name, "/tty0") {
			name = strings.TrimSuffix(name, "0") + "1"
		}
		go offerShell(ctx, name, reap, log)
	}
}

// offerShell runs a shell on tty, and another one when that has ended and Enter is pressed.
func offerShell(ctx context.Context, tty string, reap *reaper, log *slog.Logger) {
	for first := true; ctx.Err() == nil; first = false {
		if err := shellOn(ctx, tty, !first, reap); err != nil {
			log.Warn("no shell on this console", "tty", tty, "err", err)
			select {
			case <-time.After(5 * time.Second):
			case <-ctx.Done():
			}
		}
	}
}

// shellOn runs a shell on tty to its end, with ask set only after Enter.
func shellOn(ctx context.Context, tty string, ask bool, reap *reaper) error {
	f, err := os.OpenFile(tty, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if ask {
		fmt.Fprint(f, "\r\ningot: press Enter for a shell\r\n")
	}
	for b := [1]byte{}; ask && b[0] != '\r' && b[0] != '\n'; {
		if _, err := io.ReadFull(f, b[:]); err != nil {
			return fmt.Errorf("read %s: %w", tty, err)
		}
	}
	_, ended, err := reap.start([]string{shellPath}, &os.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []*os.File{f, f, f},
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0},
	})
	if err != nil {
		return err
	}
	select {
	case <-ended:
	case <-ctx.Done():
	}
	return nil
}
