package inspect

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"

	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/test/kit"
)

const mib = 1 << 20

// sgdisk makes a disk with sgdisk, and some data on it.
func sgdisk(t testing.TB) []byte {
	kit.NeedPrograms(t, "sgdisk")
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, make([]byte, 16*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	kit.Run(t, "sgdisk", "-n", "1:2048:+4M", "-t", "1:ef00", "-c", "1:EFI", "-n", "2:0:0", "-t", "2:8300", "-c",
		"2:root", file)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	copy(b[6*mib:], bytes.Repeat([]byte("data"), 50000))
	return b
}

func look(t *testing.T, file []byte, o Options) *Report {
	t.Helper()
	r, err := Inspect(t.Context(),
		images.Input{Stream: bytes.NewReader(file), Size: int64(len(file)), At: bytes.NewReader(file),
			Again: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(file)), nil }}, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func pack(t testing.TB, b []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(b, nil)
}

// TestPipe: a qcow2 whose tables are out of reach is not called one that can't be deployed.
func TestPipe(t *testing.T) {
	file := qcow2(t, sgdisk(t), false)
	for _, b := range [][]byte{file, pack(t, file)} {
		r, err := Inspect(t.Context(), images.Input{Stream: bytes.NewReader(b), Size: -1}, Options{})
		var refused *images.Error
		if r != nil || !errors.As(err, &refused) || !strings.Contains(err.Error(), "can't be read before its data") {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

func TestInspect(t *testing.T) {
	disk := sgdisk(t)
	for _, c := range []struct {
		file []byte
		comp string
	}{{disk, ""}, {pack(t, disk), "zstd"}} {
		r := look(t, c.file, Options{Digests: []string{"sha256", "blake3"}})
		if !r.Deployable || r.Kind != "whole-disk" || r.Format != "raw" || r.Compression != c.comp ||
			r.VirtualSize != 16*mib || r.FileSize != int64(len(c.file)) {
			t.Errorf("%+v", r)
		}
		if want := fmt.Sprintf("%x", sha256.Sum256(c.file)); r.Digests["sha256"] != want || len(r.Digests) != 2 {
			t.Errorf("digests %v, want %s", r.Digests, want)
		}
		// The table and its backup in a block each, and 200000 bytes in four.
		if r.DataSize != 6*64<<10 || r.Extents != 3 {
			t.Errorf("%d bytes of data in %d pieces", r.DataSize, r.Extents)
		}
		if r.Table == nil || r.Table.Kind != "gpt" || r.Table.SectorSize != 512 || len(r.Table.Partitions) != 2 {
			t.Fatalf("table %+v", r.Table)
		}
		p := r.Table.Partitions
		if p[0] != (Partition{Number: 1, Start: mib, Size: 4 * mib, Type: "EFI system", Name: "EFI", ESP: true}) ||
			p[1].Name != "root" || p[1].Start != 5*mib {
			t.Errorf("partitions %+v", p)
		}
		if len(r.Notes) != 0 {
			t.Errorf("notes %q", r.Notes)
		}
	}
	if r := look(t, disk, Options{Quick: true}); !r.Deployable || r.Digests != nil || r.Table == nil ||
		r.VirtualSize != 16*mib {
		t.Errorf("quick: %+v", r)
	}
}

func TestRefusals(t *testing.T) {
	disk := sgdisk(t)
	damaged := pack(t, disk)
	damaged[len(damaged)-1] ^= 1
	header, entry, empty := bytes.Clone(disk), bytes.Clone(disk), bytes.Clone(disk[:mib])
	header[512+40] ^= 1
	entry[1024+16] ^= 1
	clear(empty[446:510])
	empty[446+4], empty[446+12] = 0x83, 1
	vhd := append(bytes.Clone(disk), append([]byte("conectix"), make([]byte, 504)...)...)
	for _, c := range []struct {
		name string
		file []byte
		o    Options
		want string
	}{
		{"page", []byte("<html>404"), Options{}, "HTML"},
		{"empty", nil, Options{}, "empty"},
		{"damaged", damaged, Options{}, "damaged"},
		{"cut off", disk[:8*mib], Options{}, "cut off"},
		{"cut off, quick", disk[:8*mib], Options{Quick: true}, "cut off"},
		{"packed, cut off before it was packed", pack(t, disk[:8*mib]), Options{}, "cut off"},
		{"too large", disk, Options{DiskSize: 8 * mib}, "larger than the disk"},
		{"header", header, Options{}, "header is damaged"},
		{"entries", entry, Options{}, "entries are damaged"},
		{"fixed vhd", vhd, Options{}, "vhd"},
		{"backing file", qcow2(t, disk, true), Options{}, "backing file"},
	} {
		r := look(t, c.file, c.o)
		if r.Deployable || !strings.Contains(r.Reason, c.want) || r.Remedy == "" {
			t.Errorf("%s: %+v", c.name, r)
		}
		if want := fmt.Sprintf("%x", sha256.Sum256(c.file)); !c.o.Quick && r.Digests["sha256"] != want {
			t.Errorf("%s: digest %v of a file that is refused, want %s", c.name, r.Digests, want)
		}
	}
	// What is not the image's fault is an error, not a verdict.
	gone := errors.New("connection reset")
	if r, err := Inspect(t.Context(),
		images.Input{Stream: io.MultiReader(bytes.NewReader(disk[:9*mib]), iotest.ErrReader(gone)), Size: -1},
		Options{}); !errors.Is(err, gone) {
		t.Errorf("%+v, %v", r, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Inspect(ctx, images.Input{Stream: bytes.NewReader(disk), Size: -1}, Options{}); !errors.Is(err,
		context.Canceled) {
		t.Error(err)
	}
}

func qcow2(t *testing.T, disk []byte, backing bool) []byte {
	kit.NeedPrograms(t, "qemu-img")
	dir := t.TempDir()
	raw, file := filepath.Join(dir, "raw"), filepath.Join(dir, "qcow2")
	if err := os.WriteFile(raw, disk, 0o600); err != nil {
		t.Fatal(err)
	}
	kit.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-c", raw, file)
	if backing {
		kit.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-b", file, "-F", "qcow2", raw)
		file = raw
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestOtherKinds(t *testing.T) {
	disk := sgdisk(t)
	r := look(t, qcow2(t, disk, false), Options{})
	if !r.Deployable || r.Format != "qcow2" || len(r.Details) != 1 ||
		!strings.Contains(r.Details[0], "clusters of 64 KiB") || r.VirtualSize != 16*mib || r.DataSize != 6*64<<10 {
		t.Errorf("qcow2: %+v", r)
	}
	ext4 := make([]byte, mib)
	copy(ext4[0x438:], "\x53\xef")
	if r := look(t, ext4, Options{}); !r.Deployable || r.Kind != "partition" ||
		!strings.Contains(strings.Join(r.Notes, ""), "needs a boot loader inside") ||
		strings.Contains(strings.Join(r.Notes, ""), "image_type") {
		t.Errorf("partition: %+v", r)
	}
	mbr := make([]byte, mib)
	mbr[446], mbr[450], mbr[455], mbr[459], mbr[510], mbr[511] = 0x80, 0x83, 1, 1, 0x55, 0xaa
	if r := look(t, mbr, Options{}); !r.Deployable || r.Table.Kind != "mbr" || !r.Table.Partitions[0].Active ||
		!strings.Contains(strings.Join(r.Notes, ""), "BIOS") {
		t.Errorf("mbr: %+v", r)
	}
	list := make([]byte, sha256.Size*64)
	list[0] = 1
	x := index.Index{Size: index.ChunkSize + 512, SHA256: sha256.Sum256(disk),
		Chunks: []index.Object{index.Of([]byte("a")), {}}, Lists: []index.Object{index.Of(list)}, Head: images.GPT,
		Source: "disk.raw"}
	b := x.Marshal()
	if r := look(t, b, Options{}); !r.Deployable || r.Kind != "published" || r.Published.Chunks != 2 ||
		r.Published.ZeroChunks != 1 || r.VirtualSize != x.Size {
		t.Errorf("published: %+v %+v", r, r.Published)
	}
	if r := look(t, b[:len(b)-3], Options{}); r.Deployable || r.Reason == "" {
		t.Errorf("index cut off: %+v", r)
	}
	if r := look(t, b, Options{DiskSize: mib}); r.Deployable {
		t.Errorf("published, too large: %+v", r)
	}
}

func FuzzTable(f *testing.F) {
	disk := make([]byte, 8192)
	disk[446+4], disk[510], disk[511] = 0x83, 0x55, 0xaa
	f.Add(disk, int64(8192))
	g := bytes.Clone(disk)
	copy(g[512:], "EFI PART\x00\x00\x01\x00\x5c")
	f.Add(g, int64(-1))
	f.Fuzz(func(t *testing.T, start []byte, size int64) {
		table, fault := readTable(start, size)
		if table == nil && fault == "" {
			t.Fatal("nothing was said")
		}
		if table == nil || fault != "" {
			return
		}
		for _, p := range table.Partitions {
			if p.Start < 0 || p.Size < 0 || size >= 0 && p.Start+p.Size > size {
				t.Fatalf("%+v on a disk of %d bytes", p, size)
			}
		}
	})
}
