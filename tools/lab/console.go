package lab

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// backlog is how much a console attachment may lag behind before it loses the oldest output.
const backlog = 256 << 10

// console is a machine's serial port over all its starts: everything the machine prints goes to the log file and to
// the attached clients, and what they type goes to the machine. It is always drained, so that a machine never waits for
// a reader.
type console struct {
	mu       sync.Mutex
	log      *os.File
	line     net.Conn // to QEMU; nil when the machine is off
	attached map[*Attachment]bool
}

func openConsole(path string) (*console, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open console log: %w", err)
	}
	return &console{log: f, attached: map[*Attachment]bool{}}, nil
}

// plug connects the serial port of a new QEMU process and returns a channel that is closed when all it had to say was
// read.
func (c *console) plug(line net.Conn) <-chan struct{} {
	c.mu.Lock()
	c.line = line
	c.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer line.Close()
		buf := make([]byte, 32<<10)
		for {
			n, err := line.Read(buf)
			c.say(buf[:n])
			if err != nil {
				break
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.line == line {
			c.line = nil
		}
	}()
	return done
}

// mark writes a line of the lab's own, which separates the starts of a machine in its log.
func (c *console) mark(format string, a ...any) {
	c.say([]byte(fmt.Sprintf("\r\n=== lab %s: %s ===\r\n", time.Now().UTC().Format("2006-01-02T15:04:05.000Z"),
		fmt.Sprintf(format, a...))))
}

func (c *console) say(p []byte) {
	if len(p) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// A full disk must not stop the machine; the attached still see the output.
	_, _ = c.log.Write(p)
	for a := range c.attached {
		a.feed(p)
	}
}

func (c *console) attach() *Attachment {
	a := &Attachment{c: c}
	a.more = sync.NewCond(&a.mu)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attached[a] = true
	return a
}

func (c *console) close() error {
	c.mu.Lock()
	all := slices.Collect(maps.Keys(c.attached))
	c.mu.Unlock()
	for _, a := range all {
		a.Close()
	}
	return c.log.Close()
}

// Attachment is one reader and writer of a machine's serial console, from the moment it was made.
type Attachment struct {
	c    *console
	mu   sync.Mutex
	more *sync.Cond
	buf  []byte
	gone bool
}

func (a *Attachment) feed(p []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.buf = append(a.buf, p...)
	if over := len(a.buf) - backlog; over > 0 {
		a.buf = a.buf[over:]
	}
	a.more.Broadcast()
}

// ReadAvailable copies what has come and never waits.
func (a *Attachment) ReadAvailable(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.buf) == 0 && a.gone {
		return 0, io.EOF
	}
	n := copy(p, a.buf)
	a.buf = a.buf[n:]
	return n, nil
}

// Read waits for output of the machine. It ends with io.EOF after Close.
func (a *Attachment) Read(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.buf) == 0 {
		if a.gone {
			return 0, io.EOF
		}
		a.more.Wait()
	}
	n := copy(p, a.buf)
	a.buf = a.buf[n:]
	return n, nil
}

// Write types. What is typed at a machine that is off is lost, as it is on a real serial port.
func (a *Attachment) Write(p []byte) (int, error) {
	a.c.mu.Lock()
	line := a.c.line
	a.c.mu.Unlock()
	if line == nil {
		return len(p), nil
	}
	if err := line.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return len(p), nil // the machine went off just now
	}
	n, err := line.Write(p)
	if err != nil && n < len(p) {
		return len(p), nil // off, or it does not listen: a serial line drops what is not read
	}
	return n, nil
}

// Close detaches.
func (a *Attachment) Close() error {
	a.c.mu.Lock()
	delete(a.c.attached, a)
	a.c.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone = true
	a.more.Broadcast()
	return nil
}

// waitFor reads until text has appeared.
func (a *Attachment) waitFor(ctx context.Context, text string) error {
	stop := context.AfterFunc(ctx, func() { a.Close() })
	defer stop()
	var seen []byte
	buf := make([]byte, 4096)
	for {
		n, err := a.Read(buf)
		seen = append(seen, buf[:n]...)
		if containsText(seen, text) {
			return nil
		}
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return fmt.Errorf("wait for %q on the console: %w; last: %q", text, err, tail(seen, 300))
		}
		if keep := len(text) + 8192; len(seen) > 4*keep {
			seen = seen[len(seen)-keep:]
		}
	}
}
