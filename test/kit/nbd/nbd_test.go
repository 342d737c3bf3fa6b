package nbd

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/test/kit"
)

func newDisk(t *testing.T) (*fake.Disk, fake.Device) {
	t.Helper()
	m := fake.NewDisks(t.TempDir())
	d := m.Add(fake.DiskSpec{Name: "vda", Serial: "s", Size: 16 << 20, Fill: 0xa5})
	dev, err := m.OpenExclusive(t.Context(), "/dev/vda")
	if err != nil {
		t.Fatal(err)
	}
	return d, dev
}

// TestQEMUReadsAndWrites: QEMU's own client is the judge of the protocol.
func TestQEMUReadsAndWrites(t *testing.T) {
	kit.NeedPrograms(t, "qemu-io", "qemu-img")
	d, dev := newDisk(t)
	uri := Serve(t, dev)
	if out := kit.Run(t, "qemu-img", "info", uri); !strings.Contains(out, "16 MiB (16777216 bytes)") {
		t.Fatalf("qemu-img info: %s", out)
	}
	kit.Run(t, "qemu-io", "-f", "raw", "-c", "read -P 0xa5 0 16M", "-c", "write -P 0x11 1M 2M", "-c", "write -z 4M 1M",
		"-c", "discard 6M 1M", "-c", "write -f -P 0x22 7M 4k", "-c", "flush", "-c", "read -P 0x11 1M 2M", "-c",
		"read -P 0 4M 1M", "-c", "read -P 0 6M 1M", uri)
	d.PowerCut(nil)
	got := make([]byte, 4096)
	if _, err := d.ReadAt(got, 7<<20); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{0x22}, 4096)) {
		t.Errorf("what was flushed is lost in a power cut: %x, %v", got[:8], err)
	}

	img := filepath.Join(t.TempDir(), "img")
	if err := os.WriteFile(img, bytes.Repeat([]byte("ingot!!\n"), 1<<18), 0o600); err != nil {
		t.Fatal(err)
	}
	kit.Run(t, "qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", img, uri)
	kit.Run(t, "qemu-io", "-f", "raw", "-c", "read 0 2M", uri)
	if _, err := d.ReadAt(got, 1<<20); err != nil || string(got[:8]) != "ingot!!\n" {
		t.Errorf("after qemu-img convert the disk has %q, %v", got[:8], err)
	}
}

func TestFaultsReachTheClient(t *testing.T) {
	kit.NeedPrograms(t, "qemu-io")
	d, dev := newDisk(t)
	uri := Serve(t, dev)
	for _, c := range []struct {
		kind, command, want string
		err                 error
	}{
		{"write", "write 1M 64k", "Input/output error", unix.EIO},
		{"write", "write 1M 64k", "No space left", unix.ENOSPC},
		{"read", "read 1M 64k", "Input/output error", errors.New("a fault without a number")},
		{"sync", "write -f 1M 64k", "", unix.EIO}, // qemu-io ends with a status, and without a word
	} {
		d.Fail(func(kind string, _, _ int64) error {
			if kind == c.kind {
				return c.err
			}
			return nil
		})
		out, err := exec.CommandContext(t.Context(), "qemu-io", "-f", "raw", "-c", c.command, uri).CombinedOutput()
		if err == nil && !strings.Contains(string(out), "error") && c.want == "" ||
			!strings.Contains(string(out), c.want) {
			t.Errorf("%s with %v: %v: %s", c.command, c.err, err, out)
		}
		d.Fail(nil)
	}
}
