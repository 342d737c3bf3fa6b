package linux

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/test/kit"
)

func tempDisk(t *testing.T, size int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, bytes.Repeat([]byte{0xa5}, size), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPlainFileReadsWhatWasWritten(t *testing.T) {
	d, err := OpenExclusive(t.Context(), tempDisk(t, 4<<20))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	// One byte off: the memory direct I/O can't take, longer than one bounce buffer.
	mem := make([]byte, 2<<20+513)[1:]
	for i := range mem {
		mem[i] = byte(i % 251)
	}
	mem = mem[:2<<20+512]
	if _, err := d.WriteAt(mem, 4096); err != nil {
		t.Fatal(err)
	}
	if err := d.Sync(); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(mem)+1)[1:]
	if _, err := d.ReadAt(got, 4096); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, mem) {
		t.Error("read back something else than was written")
	}
	if _, err := d.WriteAt(make([]byte, 4096), d.Size()-512); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("write past the end: %v, want ENOSPC", err)
	}
}

func TestSecondExclusiveOpenIsBusy(t *testing.T) {
	path := tempDisk(t, 1<<20)
	d, err := OpenExclusive(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenExclusive(t.Context(), path); !errors.Is(err, unix.EBUSY) {
		t.Errorf("second open: %v, want EBUSY", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d, err = OpenExclusive(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
}

func TestPunchedRangeReadsZero(t *testing.T) {
	d, err := OpenExclusive(t.Context(), tempDisk(t, 2<<20))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Punch(64<<10, 1<<20); err != nil {
		if errors.Is(err, errors.ErrUnsupported) {
			t.Logf("this file system punches no holes: %v", err)
			return
		}
		t.Fatal(err)
	}
	got := make([]byte, 1<<20)
	if _, err := d.ReadAt(got, 64<<10); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, make([]byte, len(got))) {
		t.Error("the hole does not read as zero")
	}
}

func TestOpenRefusesWhatIsNoDisk(t *testing.T) {
	if _, err := OpenExclusive(t.Context(), t.TempDir()); err == nil {
		t.Error("a folder was opened as a disk")
	}
	if _, err := OpenExclusive(t.Context(), "/dev/null"); err == nil {
		t.Error("a character device was opened as a disk")
	}
}

func TestWriteProtection(t *testing.T) {
	kit.NeedRoot(t)
	file := tempDisk(t, 1<<20)
	for path, want := range map[string]bool{file: false, kit.Loop(t, file): false,
		kit.Loop(t, file, "--read-only"): true} {
		d, err := OpenExclusive(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := d.(*device).ReadOnly(); err != nil || got != want {
			t.Errorf("%s: read-only %v, %v, want %v", path, got, err, want)
		}
		d.Close()
	}
}

// TestUnsupportedRelease: a device that can't punch or discard is told from one that fails.
func TestUnsupportedRelease(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	d := &device{f: null, path: os.DevNull, block: true}
	defer d.Close()
	if err := d.Punch(0, 512); !errors.Is(err, errors.ErrUnsupported) { // the kernel says ENODEV
		t.Errorf("Punch = %v, want ErrUnsupported", err)
	}
	if err := d.Discard(0, 512); !errors.Is(err, errors.ErrUnsupported) { // ENOTTY
		t.Errorf("Discard = %v, want ErrUnsupported", err)
	}
	for lacking, fault := range map[unix.Errno]unix.Errno{unix.ENOTTY: unix.ENODEV, unix.ENODEV: unix.ENOTTY} {
		err := d.release("test", lacking, func() error { return fault })
		if !errors.Is(err, fault) || errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v of a call that lacks support by %v = %v", fault, lacking, err)
		}
	}
}
