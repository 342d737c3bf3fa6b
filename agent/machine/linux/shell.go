package linux

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// shellPath is the ramdisk's shell; not every profile has one.
const shellPath = "/bin/sh"

// HasShell reports whether the ramdisk has a shell.
func (Machine) HasShell() bool {
	info, err := os.Stat(shellPath)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// Shell starts the shell, or a command in it, with only the given environment. It leads a session, and so a process
// group, of its own; with tty its input becomes that session's terminal. The files stay the caller's.
func (Machine) Shell(command string, env []string, stdin, stdout, stderr *os.File, tty bool) (*os.Process, error) {
	// the whole path: the ramdisk's shell is one of many commands in a program that checks its name
	argv := []string{shellPath}
	if command != "" {
		argv = append(argv, "-c", command)
	}
	p, err := os.StartProcess(shellPath, argv,
		&os.ProcAttr{Dir: "/", Env: env, Files: []*os.File{stdin, stdout, stderr},
			Sys: &unix.SysProcAttr{Setsid: true, Setctty: tty}})
	if err != nil {
		return nil, fmt.Errorf("start the shell: %w", err)
	}
	return p, nil
}

// SignalGroup sends a signal to all processes of the group that a shell leads. An empty group is not an error.
func (Machine) SignalGroup(leader int, sig unix.Signal) error {
	if err := unix.Kill(-leader, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process group %d: %w", leader, err)
	}
	return nil
}

// Terminal opens a pseudo terminal: the connection's end, and the programs' end.
func (m Machine) Terminal(cols, rows uint16) (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a terminal: %w", err)
	}
	defer func() {
		if err != nil {
			_ = master.Close()
		}
	}()
	var number int
	err = onFile(master, func(fd int) (err error) {
		if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		number, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("make a terminal: %w", err)
	}
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a terminal: %w", err)
	}
	if err = m.ResizeTerminal(master, cols, rows); err != nil {
		_ = slave.Close()
		return nil, nil, err
	}
	return master, slave, nil
}

// ResizeTerminal sets a terminal's size; zero is unknown.
func (Machine) ResizeTerminal(f *os.File, cols, rows uint16) error {
	err := onFile(f, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
	if err != nil {
		return fmt.Errorf("resize a terminal: %w", err)
	}
	return nil
}

// onFile calls f with a file's descriptor and keeps the file in the runtime's poller: with Fd its reads would block a
// thread, and Close would wait.
func onFile(file *os.File, f func(fd int) error) error {
	c, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = c.Control(func(fd uintptr) { inner = f(int(fd)) })
	return cmp.Or(err, inner)
}
