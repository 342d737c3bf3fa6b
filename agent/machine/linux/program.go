package linux

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// termGrace is how long a program may take after SIGTERM before it is killed.
	termGrace = 10 * time.Second
	// drainGrace limits the wait for output held open by a dead program's descendants.
	drainGrace = 5 * time.Second
	// maxLine bounds a line of a program's output; longer ones come in pieces.
	maxLine = 1 << 20
)

// RunProgram runs a program with only the given environment, in a process group of its own, feeds it stdin, and passes
// its output line by line to the functions, each called by one goroutine. When ctx ends the group gets SIGTERM, and ten
// seconds later SIGKILL; remaining processes of the group get SIGKILL when the program itself has ended. The status is
// the program's; an error means that it could not be run, or was ended by a signal.
func (Machine) RunProgram(ctx context.Context, path string, stdin []byte, env []string,
	stdout, stderr func(line []byte)) (status int, err error) {
	outR, outW, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("run %s: %w", path, err)
	}
	defer outR.Close()
	errR, errW, err := os.Pipe()
	if err != nil {
		_ = outW.Close()
		return 0, fmt.Errorf("run %s: %w", path, err)
	}
	defer errR.Close()
	// Not CommandContext: it would kill only the program and not its children.
	cmd := exec.Command(path)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = filepath.Dir(path), env, outW, errW
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	_ = outW.Close()
	_ = errW.Close()
	if err != nil {
		return 0, fmt.Errorf("run %s: %w", path, err)
	}
	group := -cmd.Process.Pid
	var wg sync.WaitGroup
	wg.Go(func() { lines(outR, stdout) })
	wg.Go(func() { lines(errR, stderr) })
	wg.Go(func() {
		_, _ = in.Write(stdin) // a program need not read it
		_ = in.Close()
	})

	// The group is killed before the program is waited for: until then its number can't be reused.
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
			if !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		_ = unix.Kill(group, unix.SIGTERM)
		select {
		case <-ended:
		case <-time.After(termGrace):
		}
	}
	_ = unix.Kill(group, unix.SIGKILL)
	<-ended
	err = cmd.Wait()
	// Processes that left the group may still hold the pipes.
	_ = outR.SetReadDeadline(time.Now().Add(drainGrace))
	_ = errR.SetReadDeadline(time.Now().Add(drainGrace))
	_ = in.Close()
	wg.Wait()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, ctx.Err()
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode(), ctx.Err()
	case ctx.Err() != nil:
		return 0, ctx.Err()
	}
	return 0, fmt.Errorf("run %s: %w", path, err)
}

// lines passes each line to f, without its end.
func lines(r io.Reader, f func([]byte)) {
	b := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := b.ReadSlice('\n')
		if line = bytes.TrimRight(line, "\r\n"); len(line) > 0 && f != nil {
			f(bytes.Clone(line))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}
