package pid1

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestDrain fills a console that stands still: drain waits no longer than its limit for it, and returns at once when
// all has been read.
func TestDrain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ttyS0")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	line, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer line.Close()
	c := &consoles{}
	c.add(path)
	text := bytes.Repeat([]byte("x"), 100<<10) // a pipe holds 64 KiB
	_, _ = c.Write(text)
	_, _ = c.Write([]byte("the last line\n"))
	begin := time.Now()
	c.drain(50 * time.Millisecond)
	if took := time.Since(begin); took < 50*time.Millisecond {
		t.Errorf("a console that stands still was waited for only %v", took)
	}
	got := make([]byte, len(text)+len("the last line\r\n"))
	read := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(line, got)
		read <- err
	}()
	c.drain(time.Minute)
	if err := <-read; err != nil || !bytes.HasSuffix(got, []byte("the last line\r\n")) {
		t.Errorf("the console got %q (%v)", got[len(text):], err)
	}
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("the second drain took %v", took)
	}
}
