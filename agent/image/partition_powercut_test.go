package image

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/fake"
	"github.com/ingot-metal/ingot/agent/fat"
)

// deployPartition does what the steps of a deployment do with a partition image.
func (b *bench) deployPartition(t *testing.T, img []byte, loader string, preserve bool) *disk.Committed {
	t.Helper()
	file := packed(t, img)
	s := serve(t, file)
	if _, err := b.write(t.Context(), map[string]any{"image_source": s.URL, "image_os_hash_value": sha(file), "image_type": "partition",
		"swap_mb": 8, "ephemeral_gb": 1, "preserve_ephemeral": preserve}); err != nil {
		t.Fatal(err)
	}
	p, err := disk.PendingOf(b.facts)
	if err != nil {
		t.Fatal(err)
	}
	drive, err := p.Reserve("config-2", mib, mib)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := p.Open(t.Context(), b.m)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dev.WriteAt(bytes.Repeat([]byte("cfg "+loader), mib/8)[:mib], drive.Start); err != nil {
		t.Fatal(err)
	}
	files := []fat.File{{Path: "EFI/BOOT/BOOTX64.EFI", Data: bytes.Repeat([]byte(loader), 10_000)}}
	if err := p.Division().PutESP(t.Context(), dev, files, "ESP", 0); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(dev.Sync(), dev.Close()); err != nil {
		t.Fatal(err)
	}
	var done *disk.Committed
	for range 2 { // the step may be run twice
		if done, err = disk.Commit(t.Context(), b.facts, b.m, nil); err != nil {
			t.Fatal(err)
		}
	}
	return done
}

type extent struct{ from, to int64 }

// touched is what operations changed, in order and without overlaps. A disk of GiB is compared in no other place.
func touched(ops []fake.Op) []extent {
	var all []extent
	for _, op := range ops {
		if op.Len > 0 {
			all = append(all, extent{op.Off, op.Off + op.Len})
		}
	}
	slices.SortFunc(all, func(a, b extent) int { return int(a.from - b.from) })
	var out []extent
	for _, e := range all {
		if n := len(out); n > 0 && e.from <= out[n-1].to {
			out[n-1].to = max(out[n-1].to, e.to)
			continue
		}
		out = append(out, e)
	}
	return out
}

// same tells whether two disks hold the same in extents, between from and to.
func same(a, b *fake.Disk, where []extent, from, to int64) bool {
	return !slices.ContainsFunc(where, func(e extent) bool { return !a.Same(b, max(e.from, from), min(e.to, to)) })
}

// TestPowerCutWithAPartitionImage: at any moment of two deployments, one behind the other, a disk with a table is the system from before,
// with all of its data, or the new one with everything in place: boot loader, swap, ephemeral partition, config drive and root. What is in the
// ephemeral partition outlives the second at every moment of it.
func TestPowerCutWithAPartitionImage(t *testing.T) {
	const size = (1 + 550 + 1024 + 8 + 64 + 24 + 1) * mib // in the order of disk.Division
	_, first := fsImage(t, 16*mib)
	_, second := fsImage(t, 20*mib)
	for _, s := range []fake.DiskSpec{{}, {NoPunch: true}} {
		t.Run(fmt.Sprintf("zeros written %v", s.NoPunch), func(t *testing.T) {
			s.Size, s.Record = size, true
			b := newUEFIBench(t, s)
			done := b.deployPartition(t, first, "first", false)
			i := slices.IndexFunc(done.Partitions, func(p disk.Partition) bool { return p.Name == disk.RoleEphemeral })
			if i < 0 || len(done.Partitions) != 5 {
				t.Fatalf("partitions: %+v", done.Partitions)
			}
			kept := done.Partitions[i]
			deployed := len(b.disk.History())
			dev, err := b.m.OpenExclusive(t.Context(), "/dev/vda")
			if err != nil {
				t.Fatal(err)
			}
			mine := []extent{{kept.Start, kept.Start + mib}} // its file system, and data of the first system's time
			for _, off := range []int64{200 * mib, 512 * mib, 1023 * mib} {
				if _, err := dev.WriteAt(bytes.Repeat([]byte("mine"), mib/4), kept.Start+off); err != nil {
					t.Fatal(err)
				}
				mine = append(mine, extent{kept.Start + off, kept.Start + off + mib})
			}
			if err := errors.Join(dev.Sync(), dev.Close()); err != nil {
				t.Fatal(err)
			}
			used := len(b.disk.History())
			b.deployPartition(t, second, "second", true)

			history := b.disk.History()
			fresh, old, where := b.disk.Replay(history[:deployed]), b.disk.Replay(history[:used]), touched(history)
			if !same(b.disk, old, where, kept.Start, kept.Start+kept.Size) {
				t.Error("the second deployment changed the ephemeral partition")
			}
			states, firsts, olds, news := 0, 0, 0, 0
			head := make([]byte, mib)
			for what, cut := range b.disk.PowerCuts(7) {
				if states++; !allCases && states%4 != 0 {
					continue
				}
				var n int
				if _, err := fmt.Sscanf(what, "power cut after operation %d", &n); err != nil {
					t.Fatal(err)
				}
				if n >= used && !same(cut, old, mine, 0, size) {
					t.Fatalf("%s: the ephemeral partition is not as it was", what)
				}
				if _, err := cut.ReadAt(head, 0); err != nil {
					t.Fatal(err)
				}
				if !disk.HasTable(head, 512) && !soundBackupOn(cut, size) {
					continue
				}
				skip := int64(1024) // the sectors of the table itself
				if head[510] == 0x55 && head[511] == 0xaa {
					skip = 0
				}
				switch {
				case n > deployed && n < used: // the first system is at work
				case n <= deployed && same(cut, fresh, where, skip, size):
					firsts++
				case n >= used && same(cut, b.disk, where, skip, size):
					news++
				case n >= used && same(cut, old, where, mib, size-mib):
					olds++
				default:
					t.Fatalf("%s: the disk has a partition table (first bytes %x) and half a system", what, head[440:450])
				}
			}
			if firsts == 0 || olds == 0 || news == 0 || states < 100 {
				t.Errorf("%d states, %d with the first system, %d with it before the second came, %d with the second: the test proved nothing", states, firsts, olds, news)
			}
			t.Logf("%d states of %d operations, %d with the first system, %d with it before the second came, %d with the second", states, len(history), firsts, olds, news)
		})
	}
}
