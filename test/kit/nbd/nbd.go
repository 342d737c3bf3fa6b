// Package nbd serves a disk of a test's own to QEMU: with it a disk that fails, lies, or loses unflushed data is behind
// a real driver in a real machine.
package nbd

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/ingot-metal/ingot/tools/lab/nbd"
)

// Serve serves a disk on a Unix socket until the test ends. QEMU takes the URI as a file.
func Serve(t testing.TB, d nbd.Disk) (uri string) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "nbd"))
	if err != nil {
		t.Fatal(err)
	}
	s := nbd.Serve(l, d, t.Logf)
	t.Cleanup(func() { _ = s.Close() }) // the socket's folder goes next
	return s.URI()
}
