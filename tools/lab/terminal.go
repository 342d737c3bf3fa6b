package lab

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// escape ends a console session: Ctrl-], as in telnet and virsh.
const escape = 0x1d

// Terminal connects this program's terminal to the serial console of a machine of the lab of that name, until the
// person types Ctrl-], the lab goes down or ctx ends.
func Terminal(ctx context.Context, name, node string, in *os.File, out io.Writer) error {
	con, err := DialConsole(ctx, name, node)
	if err != nil {
		return err
	}
	defer con.Close()
	stop := context.AfterFunc(ctx, func() { con.Close() })
	defer stop()
	fmt.Fprintf(out, "Console of %s; Ctrl-] leaves it.\r\n", node)
	if fd := int(in.Fd()); term.IsTerminal(fd) {
		old, err := term.MakeRaw(fd)
		if err != nil {
			return fmt.Errorf("set the terminal up: %w", err)
		}
		defer func() {
			_ = term.Restore(fd, old) // nothing can be done about it
			fmt.Fprint(out, "\r\n")
		}()
	}
	// The reader of the keyboard can't be stopped; it ends with the program at the latest.
	left := make(chan error, 1)
	go func() {
		buf := make([]byte, 256)
		for {
			n, err := in.Read(buf)
			for i, b := range buf[:n] {
				if b == escape {
					_, _ = con.Write(buf[:i])
					left <- nil
					con.Close()
					return
				}
			}
			if _, werr := con.Write(buf[:n]); err != nil || werr != nil {
				return
			}
		}
	}()
	_, err = io.Copy(out, con)
	select {
	case <-left:
		return nil
	default:
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
