package image

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/test/kit"
)

// realMachine lists a made-up disk and opens a real file or loop device for it.
type realMachine struct {
	root, path string
}

func newRealMachine(t testing.TB, path string, size int64) realMachine {
	m := fake.NewDisks(t.TempDir())
	m.Add(fake.DiskSpec{Name: "vda", Serial: "real-1", Size: size})
	return realMachine{m.Root(), path}
}

func (m realMachine) Root() string { return m.root }

func (m realMachine) Settle(context.Context) error { return nil }

func (m realMachine) OpenExclusive(ctx context.Context, _ string) (disk.Device, error) {
	d, err := linux.OpenExclusive(ctx, m.path)
	if err != nil {
		return nil, err
	}
	return numberless{d}, nil
}

// numberless hides the device number, which is not that of the made-up disk.
type numberless struct{ disk.Device }

func (numberless) Number() (uint32, uint32) { return 0, 0 }

func deploy(t testing.TB, m machine, args map[string]any) (*Result, error) {
	return deployPatiently(t, m, args, patient)
}

// deployPatiently writes an image and commits it.
func deployPatiently(t testing.TB, m machine, args map[string]any, wait fetch.Patience) (*Result, error) {
	args["root_device"] = map[string]any{"serial": "real-1"}
	raw, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	facts := &step.Facts{}
	r, err := write(t.Context(), m,
		&step.Call{Args: raw, Log: slog.New(slog.DiscardHandler), Facts: facts, Report: func(step.Progress) {}}, wait)
	if err != nil {
		return nil, err
	}
	_, err = disk.Commit(t.Context(), facts, m, nil)
	return r, err
}

// dirtyFile is a file full of 0xA5 on a real file system.
func dirtyFile(t testing.TB, size int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, bytes.Repeat([]byte{0xa5}, size), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestHolesReadZeroOnADirtyDevice goes through the kernel: direct I/O, holes punched into a loop device, and a file.
func TestHolesReadZeroOnADirtyDevice(t *testing.T) {
	img := gptImage(10*mib, false)
	file := packed(t, img)
	s := serve(t, file)
	for _, kind := range []string{"file", "loop", "loop with direct I/O"} {
		t.Run(kind, func(t *testing.T) {
			const size = 24 * mib
			path := dirtyFile(t, size)
			dev := path
			switch kind {
			case "loop":
				dev = kit.Loop(t, path)
			case "loop with direct I/O":
				dev = kit.Loop(t, path, "--direct-io=on")
			}
			r, err := deploy(t, newRealMachine(t, dev, size),
				map[string]any{"image_source": s.URL, "image_os_hash_value": sha(file), "verify": true})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("written %d, zero %d of %d", r.BytesWritten, r.BytesZero, r.VirtualSize)
			// All but the table, which was moved to the larger disk.
			if off := fileDiffers(t, dev, img[34*512:len(img)-34*512], 34*512); off >= 0 {
				t.Fatalf("from byte %d on the disk is not the image", 34*512+off)
			}
			f, err := os.Open(dev)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			head := make([]byte, mib)
			if _, err := f.ReadAt(head, 0); err != nil {
				t.Fatal(err)
			}
			if !disk.HasTable(head, 512) || !soundBackupOn(f, size) {
				t.Error("the disk has no sound table")
			}
		})
	}
}
