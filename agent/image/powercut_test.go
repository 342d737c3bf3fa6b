//go:build !race

package image

import (
	"bytes"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/images/fs/fat"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/test/kit"
)

// What reaches the disk, and in which order, when it ends in the middle: the race detector, under which the same
// pipeline runs in other tests, adds nothing to that.

// TestPowerCutAtAnyMomentOfADeployment is the promise that a machine never boots half a system: the whole way from a
// disk with an old system to the committed one, on a disk that may lose unflushed data in any combination.
func TestPowerCutAtAnyMomentOfADeployment(t *testing.T) {
	const size = 6 * mib
	old := gptImage(size, false)
	for _, c := range []struct {
		name string
		img  []byte
		spec fake.DiskSpec
		form string
	}{
		{"gpt", gptImage(4*mib, false), fake.DiskSpec{}, "raw.zst"},
		{"gpt with a partition inside the first MiB", gptImage(4*mib, true), fake.DiskSpec{}, "raw.zst"},
		{"gpt as large as the disk", gptImage(size, false), fake.DiskSpec{}, "raw.zst"},
		{"mbr", mbrImage(4 * mib), fake.DiskSpec{}, "raw.zst"},
		{"zeros written", gptImage(4*mib, false), fake.DiskSpec{NoPunch: true}, "raw.zst"},
		{"pieces out of order", gptImage(4*mib, false), fake.DiskSpec{}, "qcow2, zstd, out of order"},
		{"pieces out of order, zeros written", gptImage(4*mib, false), fake.DiskSpec{NoPunch: true},
			"qcow2, zstd, out of order"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.spec.Size, c.spec.Record = size, true
			b := newBench(t, c.spec)
			dev, err := b.m.OpenExclusive(t.Context(), "/dev/vda")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := dev.WriteAt(old, 0); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(dev.Sync(), dev.Close()); err != nil {
				t.Fatal(err)
			}
			before := len(b.disk.History())

			file := forms(t, c.img, c.form)[c.form]
			s := serve(t, file)
			if _, err := b.write(t.Context(),
				map[string]any{"image_source": s.URL, "image_os_hash_value": sha(file)}); err != nil {
				t.Fatal(err)
			}
			if len(c.img) < size {
				p, err := disk.PendingOf(b.facts)
				if err != nil {
					t.Fatal(err)
				}
				part, err := p.Reserve("config-2", mib, mib)
				if err != nil {
					t.Fatal(err)
				}
				if dev, err = p.Open(t.Context(), b.m); err != nil {
					t.Fatal(err)
				}
				if _, err := dev.WriteAt(bytes.Repeat([]byte("cfg!"), mib/4), part.Start); err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(dev.Sync(), dev.Close()); err != nil {
					t.Fatal(err)
				}
			}
			b.commit(t)
			installed := b.disk.Replay(b.disk.History()[:before]) // the old system

			states, olds, news := 0, 0, 0
			head := make([]byte, mib)
			for what, cut := range b.disk.PowerCuts(7) {
				if states++; states <= 5*before { // the old system is being installed
					continue
				}
				if _, err := cut.ReadAt(head, 0); err != nil {
					t.Fatal(err)
				}
				if !disk.HasTable(head, 512) && !soundBackupOn(cut, size) {
					continue
				}
				// With a table, the disk has the old system, untouched since all the old data is still there, or the
				// new one, complete except for the sectors of the table itself.
				skip := int64(1024)
				if head[510] == 0x55 && head[511] == 0xaa {
					skip = 0
				}
				switch {
				case cut.Same(b.disk, skip, size):
					news++
				case cut.Same(installed, mib, size-mib):
					olds++
				default:
					t.Fatalf("%s: the disk has a partition table (first bytes %x) and half a system", what,
						head[440:450])
				}
			}
			if olds == 0 || news == 0 || states < 50 {
				t.Errorf("%d states, %d with the old system, %d with the new one: the test proved nothing", states,
					olds, news)
			}
			t.Logf("%d states, %d with the old system, %d with the new one", states, olds, news)
		})
	}
}

// deployPartition does what the steps of a deployment do with a partition image.
func (b *bench) deployPartition(t *testing.T, img []byte, loader string, preserve bool) *disk.Committed {
	t.Helper()
	file := packed(t, img)
	s := serve(t, file)
	if _, err := b.write(t.Context(),
		map[string]any{"image_source": s.URL, "image_os_hash_value": sha(file), "image_type": "partition",
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

// touched returns the extents that operations changed, in order and without overlaps, so that a disk of GiB need not be
// compared as a whole.
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

// same reports whether two disks hold the same in extents, between from and to.
func same(a, b *fake.Disk, where []extent, from, to int64) bool {
	return !slices.ContainsFunc(where, func(e extent) bool { return !a.Same(b, max(e.from, from), min(e.to, to)) })
}

// TestPowerCutWithAPartitionImage: at any moment of two successive deployments, a disk with a table has the previous
// system, with all of its data, or the new one with all its parts: boot loader, swap, ephemeral partition, config drive
// and root. The content of the ephemeral partition survives the second deployment at every moment.
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
					t.Fatalf("%s: the disk has a partition table (first bytes %x) and half a system", what,
						head[440:450])
				}
			}
			if firsts == 0 || olds == 0 || news == 0 || states < 100 {
				t.Errorf("%d states, %d with the first system, %d with it before the second came, %d with the second: the test proved nothing", states, firsts, olds, news)
			}
			t.Logf("%d states of %d operations, %d with the first system, %d with it before the second came, %d with the second", states, len(history), firsts, olds, news)
		})
	}
}

// TestPowerCutWhileRebuilding: after a power cut at any time, the disk has its old system, untouched, or none; and the
// next attempt reuses the present data.
func TestPowerCutWhileRebuilding(t *testing.T) {
	const size = 14 * mib
	img := gptImage(size, false)
	newer, _ := change(img, 0.2, 4)
	for _, spec := range []fake.DiskSpec{{Size: size, Record: true}, {Size: size, Record: true, NoPunch: true}} {
		b := newBench(t, spec)
		dev, err := b.m.OpenExclusive(t.Context(), "/dev/vda")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := dev.WriteAt(img, 0); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(dev.Sync(), dev.Close()); err != nil {
			t.Fatal(err)
		}
		first := len(b.disk.History())
		p := publishImage(t, newer)
		args := func() map[string]any { return map[string]any{"image_source": p.url, "image_checksum": p.sum} }
		if _, err := b.write(t.Context(), args()); err != nil {
			t.Fatal(err)
		}
		b.commit(t)
		final, installed := b.contents(t), b.disk.Replay(b.disk.History()[:first])
		states, olds, news, retries := 0, 0, 0, 0
		rng := mathrand.New(mathrand.NewPCG(1, 1))
		head := make([]byte, mib)
		seldom := 12
		if !allCases {
			seldom = 40
		}
		for what, cut := range b.disk.PowerCuts(7) {
			if states++; states <= 5*first {
				continue
			}
			if _, err := cut.ReadAt(head, 0); err != nil {
				t.Fatal(err)
			}
			if disk.HasTable(head, 512) || soundBackupOn(cut, size) {
				skip := int64(1024)
				if head[510] == 0x55 && head[511] == 0xaa {
					skip = 0
				}
				switch {
				case cut.Same(b.disk, skip, size):
					news++
				case cut.Same(installed, mib, size-mib):
					olds++
				default:
					t.Fatalf("%s: the disk has a partition table and half a system", what)
				}
			}
			if rng.IntN(seldom) != 0 {
				continue
			}
			retries++
			got := make([]byte, size)
			if _, err := cut.ReadAt(got, 0); err != nil {
				t.Fatal(err)
			}
			again := newBench(t, fake.DiskSpec{Size: size})
			again.disk.Lay(got, 0)
			if _, err := again.write(t.Context(), args()); err != nil {
				t.Fatalf("%s: the next attempt: %v", what, err)
			}
			again.commit(t)
			again.mustHold(t, final)
		}
		if olds == 0 || news == 0 || retries < 5 {
			t.Errorf("%d states, %d with the old system, %d with the new one, %d tried again: the test proved nothing",
				states, olds, news, retries)
		}
		t.Logf("%d states, %d with the old system, %d with the new one, %d tried again", states, olds, news, retries)
	}
}

// TestWriterKilled kills the writing process at several moments, and lets another continue: data on the disk is not
// fetched again, although the second process has no record of the first one's progress.
func TestWriterKilled(t *testing.T) {
	chunks, moments := 80, []int64{3, 30, 50, 79}
	if !allCases {
		chunks, moments = 36, []int64{3, 30}
	}
	size := int64(chunks) * index.ChunkSize
	if url := os.Getenv("INGOT_TEST_PUBLISHED_URL"); url != "" { // the process that is killed
		m := newRealMachine(t, os.Getenv("INGOT_TEST_DISK"), size)
		_, err := deploy(t, m, map[string]any{"image_source": url, "allow_unverified": true})
		t.Fatalf("came to its end: %v", err)
	}
	img := make([]byte, size)
	r := mathrand.NewChaCha8([32]byte{6})
	for i := range chunks {
		for _, b := range []int{0, 20, 21, 63} {
			r.Read(img[i*index.ChunkSize+b*index.BlockSize:][:index.BlockSize])
		}
	}
	putMBR(img, len(img))
	p := publishImage(t, img)
	var objects atomic.Int64
	for _, at := range moments {
		path := kit.TempDisk(t, size)
		if err := dirty(path, size); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWriterKilled$", "-test.v")
		cmd.Env = append(os.Environ(), "INGOT_TEST_PUBLISHED_URL="+p.url, "INGOT_TEST_DISK="+path,
			"TMPDIR="+t.TempDir())
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		objects.Store(0)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		kill := func() {
			if objects.Add(1) >= at {
				cmd.Process.Kill()
			}
		}
		p.object.Store(&kill)
		if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("the process was not killed: %v\n%s", err, &out)
		}
		head := make([]byte, mib)
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.ReadAt(head, 0); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if at > 10 && disk.HasTable(head, 512) {
			t.Error("the disk looks bootable")
		}
		count := func() { objects.Add(1) }
		p.object.Store(&count)
		objects.Store(0)
		res, err := deploy(t, newRealMachine(t, path, size),
			map[string]any{"image_source": p.url, "image_checksum": p.sum})
		if err != nil {
			t.Fatal(err)
		}
		// What was fetched but not written yet: 8 on their way, 4 in other hands, and the list and chunk 0 were asked
		// for first. First chunk, last chunk and block list come again.
		if limit := int64(chunks) - max(0, at-16) + 3; objects.Load() > limit {
			t.Errorf("killed at object %d: %d objects were fetched the second time, want at most %d", at,
				objects.Load(), limit)
		}
		if off := fileDiffers(t, path, img, 0); off >= 0 {
			t.Errorf("killed at object %d: the disk is not the image, from byte %d on", at, off)
		}
		t.Logf("killed at object %d of %d: %d objects fetched the second time, %d bytes kept", at, chunks,
			objects.Load(), res.BytesKept)
	}
}
