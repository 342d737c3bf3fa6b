package pid1

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// consoles writes to every console of the kernel, each at its own speed: a serial line without a reader, or stopped by
// flow control, must not stop the others, so each has a short queue and drops lines when that is full.
type consoles struct {
	names []string
	queue []chan output
}

// output is text for a console, or a request to say when all before it has left the machine.
type output struct {
	text []byte
	sent chan<- struct{} // nil: text
}

// openConsoles opens what /sys/class/tty/console/active lists (all console= of the command line), or /dev/console.
func openConsoles(root string) *consoles {
	c := &consoles{}
	active, _ := os.ReadFile(filepath.Join(root, "sys/class/tty/console/active"))
	for _, name := range strings.Fields(string(active)) {
		c.add(filepath.Join(root, "dev", name))
	}
	if len(c.queue) == 0 {
		c.add(filepath.Join(root, "dev/console"))
	}
	return c
}

func (c *consoles) add(path string) {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return
	}
	q := make(chan output, 64)
	c.names, c.queue = append(c.names, path), append(c.queue, q)
	go func() {
		for o := range q {
			if o.sent != nil {
				_ = unix.IoctlSetInt(int(f.Fd()), unix.TCSBRK, 1) // tcdrain: until the last byte is on the line
				o.sent <- struct{}{}
				continue
			}
			_, _ = f.Write(o.text) // a missing console must not stop the others
		}
	}()
}

// Write gives p to all consoles and never blocks or fails.
func (c *consoles) Write(p []byte) (int, error) {
	// Terminals in raw mode need the carriage return; in cooked mode an extra one is harmless.
	b := bytes.ReplaceAll(bytes.ReplaceAll(p, []byte("\r\n"), []byte("\n")), []byte("\n"), []byte("\r\n"))
	for _, q := range c.queue {
		select {
		case q <- output{text: b}:
		default:
		}
	}
	return len(p), nil
}

// drain waits until all consoles have sent what was written to them, for at most limit: the end of the machine takes
// what is still in a driver's buffer, and those last lines say why it ended.
func (c *consoles) drain(limit time.Duration) {
	end := time.After(limit)
	sent := make(chan struct{}, len(c.queue))
	for _, q := range c.queue {
		select {
		case q <- output{sent: sent}:
		case <-end:
			return
		}
	}
	for range c.queue {
		select {
		case <-sent:
		case <-end:
			return
		}
	}
}

// ringFile is a log file of bounded size: when full, it becomes file.1 and a new one begins.
type ringFile struct {
	path string
	max  int64

	mu   sync.Mutex
	f    *os.File
	size int64
}

func (r *ringFile) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.f != nil && r.size+int64(len(p)) > r.max {
		_ = r.f.Close() // a log that can't be written must not stop the machine
		r.f, r.size = nil, 0
		_ = os.Rename(r.path, r.path+".1")
	}
	if r.f == nil {
		f, err := os.OpenFile(r.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return len(p), nil // the log is lost, the machine goes on
		}
		r.f = f
	}
	n, _ := r.f.Write(p)
	r.size += int64(n)
	return len(p), nil
}

// tail keeps the last bytes written to it.
type tail struct {
	mu  sync.Mutex
	max int
	b   []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if n := len(t.b) - t.max; n > 0 {
		t.b = append(t.b[:0], t.b[n:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
