package image

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/fs/fat"
	"github.com/ingot-metal/ingot/test/kit"
)

// fsImage makes the image of a file system with data and holes in it.
func fsImage(t *testing.T, size int64) (string, []byte) {
	t.Helper()
	kit.NeedPrograms(t, "mke2fs")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "data"), mbrImage(7*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	path := kit.TempDisk(t, size)
	kit.Run(t, "mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-L", "root", "-d", dir, path)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, b
}

func newUEFIBench(t *testing.T, s fake.DiskSpec) *bench {
	t.Helper()
	b := newBench(t, s)
	if err := os.MkdirAll(filepath.Join(b.m.Root(), "sys/firmware/efi"), 0o755); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) at(t *testing.T, off, n int64) []byte {
	t.Helper()
	got := make([]byte, n)
	if _, err := b.disk.ReadAt(got, off); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestPartitionImage writes the image of a file system onto dirty disks, in every form, and holds that the root
// partition equals the image, that the layout is the requested one, and that there is no table before the commit.
func TestPartitionImage(t *testing.T) {
	path, img := fsImage(t, 24*mib)
	p := publishImage(t, img)
	qcow := filepath.Join(t.TempDir(), "x.qcow2")
	kit.NeedPrograms(t, "qemu-img")
	kit.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-c", path, qcow)
	packedImage, err := os.ReadFile(qcow)
	if err != nil {
		t.Fatal(err)
	}
	odd := append(bytes.Clone(img), "not a whole sector"...)
	for _, c := range []struct {
		name   string
		file   []byte // nil: the published one
		img    []byte
		sector int
	}{
		{"raw", img, img, 512}, {"zstd, sectors of 4096", packed(t, img), img, 4096}, {"qcow2", packedImage, img, 512},
		{"published", nil, img, 512}, {"not whole sectors", odd, odd, 4096},
		{"not whole sectors, zstd", packed(t, odd), odd, 512},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newUEFIBench(t, fake.DiskSpec{Size: 3 << 30, SectorSize: c.sector})
			args := map[string]any{"image_source": p.url, "image_os_hash_algo": "sha256", "image_os_hash_value": p.sum,
				"verify": true, "image_type": "partition", "root_gb": 1, "swap_mb": 64}
			if c.file != nil {
				args["image_source"], args["image_os_hash_value"] = serve(t, c.file).URL+"/image", sha(c.file)
			}
			r, err := b.write(t.Context(), args)
			if err != nil {
				t.Fatal(err)
			}
			if r.VirtualSize != int64(len(c.img)) || !r.Verified {
				t.Errorf("result = %+v", r)
			}
			if disk.HasTable(b.at(t, 0, mib), c.sector) {
				t.Error("the disk has a partition table before the commit")
			}
			pending, err := disk.PendingOf(b.facts)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := disk.Commit(t.Context(), b.facts, b.m, nil); err == nil ||
				!strings.Contains(err.Error(), "nothing would boot") {
				t.Errorf("a commit without a boot loader: %v", err)
			}
			dev, err := pending.Open(t.Context(), b.m)
			if err != nil {
				t.Fatal(err)
			}
			if err := pending.Division().PutESP(t.Context(), dev,
				[]fat.File{{Path: "EFI/BOOT/BOOTX64.EFI", Data: []byte("x")}}, "ESP", 0); err != nil {
				t.Fatal(err)
			}
			if err := dev.Close(); err != nil {
				t.Fatal(err)
			}
			done, err := disk.Commit(t.Context(), b.facts, b.m, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(done.Partitions) != 3 || done.Partitions[1].Name != disk.RoleSwap ||
				done.Partitions[2].Size != 1<<30 {
				t.Fatalf("partitions: %+v", done.Partitions)
			}
			if b.disk.Differs(c.img, done.Partitions[2].Start) >= 0 {
				t.Error("the root partition is not the image")
			}
		})
	}
}

// TestPartitionImageRefused holds the errors, and that the disk was not touched.
func TestPartitionImageRefused(t *testing.T) {
	_, img := fsImage(t, 24*mib)
	whole := mbrImage(3 * mib)
	s, w := serve(t, img), serve(t, whole)
	for _, c := range []struct {
		name string
		bios bool
		args map[string]any
		want string
	}{
		{"by BIOS", true, map[string]any{"image_source": s.URL}, "boots by BIOS"},
		{"whole-disk was asked for", false, map[string]any{"image_source": s.URL, "image_type": "whole-disk"},
			"not of a whole disk"},
		{"partition was asked for", false, map[string]any{"image_source": w.URL, "image_type": "partition"},
			"image_type is partition, but the image holds"},
		{"another type", false, map[string]any{"image_source": s.URL, "image_type": "tape"}, `"tape"`},
		{"no room", false, map[string]any{"image_source": s.URL, "root_gb": 5}, "no room"},
		{"format", false, map[string]any{"image_source": s.URL, "ephemeral_gb": 1, "ephemeral_format": "ntfs"}, "ntfs"},
	} {
		b := newBench(t, fake.DiskSpec{Size: 3 << 30})
		if !c.bios {
			b = newUEFIBench(t, fake.DiskSpec{Size: 3 << 30})
		}
		c.args["allow_unverified"] = true
		_, err := b.write(t.Context(), c.args)
		if err == nil || !strings.Contains(err.Error(), c.want) || step.AsError(err).Remedy == "" {
			t.Errorf("%s: %v, want %q and a remedy", c.name, err, c.want)
		}
		if got := b.at(t, 0, 512); got[0] != 0xa5 {
			t.Errorf("%s: the disk was touched", c.name)
		}
	}
}

// TestPartitionImageRebuiltByDifference: that the disk holds the image already is found where the image is, in its root
// partition.
func TestPartitionImageRebuiltByDifference(t *testing.T) {
	_, img := fsImage(t, 24*mib)
	p := publishImage(t, img)
	b := newUEFIBench(t, fake.DiskSpec{Size: 3 << 30})
	args := map[string]any{"image_source": p.url, "image_os_hash_value": p.sum, "root_gb": 1}
	first, err := b.write(t.Context(), args)
	if err != nil {
		t.Fatal(err)
	}
	again, err := b.write(t.Context(), args)
	if err != nil {
		t.Fatal(err)
	}
	if first.BytesKept != 0 || again.BytesKept < 6*mib || again.BytesFetched > first.BytesFetched/2 {
		t.Errorf("kept %d, then %d; fetched %d, then %d", first.BytesKept, again.BytesKept, first.BytesFetched,
			again.BytesFetched)
	}
	pending, err := disk.PendingOf(b.facts)
	if err != nil {
		t.Fatal(err)
	}
	root, _ := pending.Division().Partition(disk.RoleRoot)
	if b.disk.Differs(img, root.Start) >= 0 {
		t.Error("the root partition is not the image")
	}
}
