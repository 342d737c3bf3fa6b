package standalone

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/image"
	"github.com/ingot-metal/ingot/agent/step"
)

// TestStoppedWhen stops a write in each of its phases: the reported state of the disk is true.
func TestStoppedWhen(t *testing.T) {
	img := mbrImage(12 * mib)
	for phase, want := range map[string]Left{"choose disk": Untouched, "connect": Untouched, "write": Broken,
		"flush": Broken, "commit": Broken} {
		path, file := dirty(t, 40*mib, false)
		ctx, cancel := context.WithCancel(t.Context())
		o := Options{Image: serve(t, img), Digest: digest(img), Disk: path}
		_, err := Write(ctx, o, nil, func(_ string, p step.Progress) {
			if p.Phase == phase {
				cancel()
			}
		})
		cancel()
		var f *Failure
		if !errors.As(err, &f) || f.Left != want || !errors.Is(err, context.Canceled) ||
			!strings.HasPrefix(f.State(), path) {
			t.Errorf("stopped at %q: %v (%+v), want %s", phase, err, f, want)
			continue
		}
		if same := changed(t, file) < 0; same != (want == Untouched) {
			t.Errorf("stopped at %q: the disk is the same: %v, told is %s", phase, same, f.State())
		}
	}
}

func TestFailedLeaves(t *testing.T) {
	img := mbrImage(4 * mib)
	for _, c := range []struct {
		digest string
		table  []byte
		want   Left
	}{{digest(nil), img, Broken}, {digest(make([]byte, len(img))), make([]byte, len(img)), Untouched}} {
		path, _ := dirty(t, 16*mib, false)
		_, err := Write(t.Context(), Options{Image: serve(t, c.table), Digest: c.digest, Disk: path}, nil, silent)
		var f *Failure
		if !errors.As(err, &f) || f.Left != c.want {
			t.Errorf("%v: left %+v, want %s", err, f, c.want)
		}
	}
}

// TestSeen does to a disk what a write does, step by step.
func TestSeen(t *testing.T) {
	path, _ := dirty(t, 16*mib, false)
	m, err := openMachine(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := m.OpenExclusive(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	one, zero := disk.Aligned(4096), disk.Aligned(4096)
	one[510] = 0x55
	write := func(b []byte, off int64) func() error {
		return func() error { _, err := dev.WriteAt(b, off); return err }
	}
	for i, c := range []struct {
		do   func() error
		want Left
		text string
	}{
		{func() error { _, err := dev.ReadAt(zero, 0); clear(zero); return err }, Untouched, "was not touched"},
		{write(zero, 0), Broken, "no partition table"},
		{write(one, 8192), Broken, "will not boot"},
		{dev.RereadPartitions, Broken, "will not boot"},
		{write(one, 0), Doubtful, "may boot or not"},
		{dev.RereadPartitions, Complete, "holds all of the image"},
	} {
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		f := Failure{Disk: path, Left: m.seen.left()}
		if f.Left != c.want || !strings.Contains(f.State(), c.text) {
			t.Errorf("after %d: %s (%s), want %s (%s)", i, f.Left, f.State(), c.want, c.text)
		}
	}
	m.seen.dry = true
	if _, err := dev.WriteAt(zero, 0); !errors.Is(err, errDry) {
		t.Errorf("a rehearsal wrote: %v", err)
	}
	if err := dev.Punch(0, 4096); !errors.Is(err, errDry) {
		t.Errorf("a rehearsal made a hole: %v", err)
	}
}

func TestZerosAreReportedAsZeros(t *testing.T) {
	r := &Result{Result: &image.Result{BytesZero: 31 * mib, BytesSkipped: 5 * mib, BytesKept: 3 * mib,
		BytesWritten: 40 * mib}}
	text := strings.Join(strings.Fields(r.Text()), " ")
	for _, want := range []string{"written 40.0 MiB", "zeros, not written 2.00 MiB", "kept 3.00 MiB"} {
		if !strings.Contains(text, want) {
			t.Errorf("told without %q: %s", want, text)
		}
	}
}
