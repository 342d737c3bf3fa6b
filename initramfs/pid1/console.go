package pid1

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// consoles writes to every console of the kernel, each at its own speed: a serial line without a reader, or stopped by
// flow control, must not stop the others, so each has a short queue and drops lines when that is full.
type consoles struct {
	names []string
	queue []chan []byte
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
	q := make(chan []byte, 64)
	c.names, c.queue = append(c.names, path), append(c.queue, q)
	go func() {
		for b := range q {
			_, _ = f.Write(b) // a missing console must not stop the others
		}
	}()
}

// Write gives p to all consoles and never blocks or fails.
func (c *consoles) Write(p []byte) (int, error) {
	// Terminals in raw mode need the carriage return; in cooked mode an extra one is harmless.
	b := bytes.ReplaceAll(bytes.ReplaceAll(p, []byte("\r\n"), []byte("\n")), []byte("\n"), []byte("\r\n"))
	for _, q := range c.queue {
		select {
		case q <- b:
		default:
		}
	}
	return len(p), nil
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
