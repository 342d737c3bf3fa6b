package bootiso

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/u-root/u-root/pkg/cpio"

	"github.com/ingot-metal/ingot/images/fs/fat"
	"github.com/ingot-metal/ingot/images/fs/iso9660"
	"github.com/ingot-metal/ingot/test/kit"
)

// noise are bytes that repeat nowhere.
func noise(n int, seed byte) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// parts are files whose sizes are no multiples of a sector.
func parts(t testing.TB) (p Parts, kernel, initramfs []byte) {
	t.Helper()
	kernel, initramfs = noise(300_001, 1), noise(900_003, 2)
	file := func(name string, b []byte) File {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return File{Size: int64(len(b)), Open: func() (Content, error) { return os.Open(path) }}
	}
	return Parts{Kernel: file("kernel", kernel), Initramfs: file("initramfs", initramfs), Loaders: map[string][]byte{
		"shimx64.efi": noise(100_000, 3), "grubx64.efi": noise(400_000, 4), "isolinux.bin": noise(38_912, 5),
		"ldlinux.c32": noise(119_524, 6)}, Time: time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)}, kernel, initramfs
}

func imageOf(t testing.TB, tpl *Template, n Node) *Reader {
	t.Helper()
	img, err := tpl.Image(n)
	if err != nil {
		t.Fatal(err)
	}
	r, err := img.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func TestImage(t *testing.T) {
	p, kernel, initramfs := parts(t)
	tpl, err := New(p)
	if err != nil {
		t.Fatal(err)
	}
	mine := Node{CommandLine: "console=ttyS0 a.b=1", Params: "ingot.token=secret", NetworkData: []byte(`{"links":[]}`)}
	r := imageOf(t, tpl, mine)
	whole, err := io.ReadAll(r)
	if err != nil || int64(len(whole)) != tpl.size {
		t.Fatalf("%d bytes, %v, want %d", len(whole), err, tpl.size)
	}
	iso, err := iso9660.Open(bytes.NewReader(whole))
	if err != nil {
		t.Fatal(err)
	}
	get := func(name string) []byte {
		b, err := fs.ReadFile(iso, name)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if !bytes.Equal(get("boot/vmlinuz"), kernel) || !bytes.Equal(get("boot/initrd"), initramfs) {
		t.Error("kernel or ramdisk differ")
	}
	for _, name := range []string{"boot/grub/grub.cfg", "isolinux/isolinux.cfg"} {
		text := string(get(name))
		if !strings.Contains(text, mine.CommandLine+"\n") || strings.Contains(text, "secret") ||
			len(text) != configSize || !strings.HasSuffix(text, "\n\n\n") || strings.Contains(text, "\x00") {
			t.Errorf("%s = %q", name, text)
		}
	}
	got := map[string]string{}
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(get("boot/node"))))
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range records {
		if rec.Mode&cpio.S_IFMT == cpio.S_IFREG {
			b, err := io.ReadAll(io.NewSectionReader(rec, 0, int64(rec.FileSize)))
			if err != nil || rec.Mode&0o077 != 0 {
				t.Errorf("%s: %v, mode %o", rec.Name, err, rec.Mode)
			}
			got[rec.Name] = string(b)
		}
	}
	if len(got) != 2 || got["etc/ingot/params"] != "ingot.token=secret\n" ||
		got["etc/ingot/network_data.json"] != `{"links":[]}` {
		t.Errorf("the segment has %q", got)
	}
	esp := get("efi.img")
	f, err := fat.Open(bytes.NewReader(esp), int64(len(esp)))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]byte{"EFI/BOOT/BOOTX64.EFI": p.Loaders["shimx64.efi"],
		"EFI/BOOT/grubx64.efi": p.Loaders["grubx64.efi"]} {
		if b, err := fs.ReadFile(f, name); err != nil || !bytes.Equal(b, want) {
			t.Errorf("%s has %d bytes, %v", name, len(b), err)
		}
	}

	// Each way to read gives the same bytes of a range.
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		off := rnd.Int64N(tpl.size)
		n := min(rnd.Int64N(1<<uint(rnd.IntN(19)))+1, tpl.size-off)
		b := make([]byte, n)
		if k, err := r.ReadAt(b, off); int64(k) != n || err != nil || !bytes.Equal(b, whole[off:off+n]) {
			t.Fatalf("ReadAt %d+%d = %d, %v", off, n, k, err)
		}
		var out bytes.Buffer
		if _, err := r.Seek(off, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if k, err := r.CopyTo(&out, n); k != n || err != nil || !bytes.Equal(out.Bytes(), whole[off:off+n]) {
			t.Fatalf("CopyTo %d+%d = %d, %v", off, n, k, err)
		}
	}
	// Another machine's image differs in its own extents only.
	other, err := io.ReadAll(imageOf(t, tpl, Node{CommandLine: "console=ttyS0 a.b=2", Params: "ingot.token=other"}))
	if err != nil || len(other) != len(whole) || bytes.Contains(other, []byte("secret")) {
		t.Errorf("another machine's image: %d bytes, %v", len(other), err)
	}
	for _, e := range tpl.extents {
		if e.data != nil || e.slot < len(tpl.files) {
			if !bytes.Equal(other[e.off:e.off+e.size], whole[e.off:e.off+e.size]) {
				t.Errorf("the images differ in the shared extent at %d", e.off)
			}
		}
	}
}

// A thousand images cost some megabytes.
func TestMemory(t *testing.T) {
	p, _, _ := parts(t)
	tpl, err := New(p)
	if err != nil {
		t.Fatal(err)
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	var all []*Image
	for i := range 1000 {
		img, err := tpl.Image(Node{CommandLine: "console=ttyS0", NetworkData: bytes.Repeat([]byte(" "), 2000),
			Params: fmt.Sprintf("ingot.token=%x", sha256.Sum256([]byte{byte(i)}))})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, img)
	}
	if used := heap() - before; used > 10<<20 {
		t.Errorf("%d images take %d bytes", len(all), used)
	}
	runtime.KeepAlive(all)
}

func TestRefuses(t *testing.T) {
	p, _, _ := parts(t)
	tpl, err := New(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		node Node
		want string
	}{
		{Node{CommandLine: "a\n}\nset root=(hd0)"}, "characters"},
		{Node{CommandLine: "a;b"}, "characters"},
		{Node{CommandLine: "$a"}, "characters"},
		{Node{CommandLine: strings.Repeat("a", configSize)}, "no room"},
		{Node{NetworkData: make([]byte, segmentSize)}, "network_data"},
	} {
		if _, err := tpl.Image(tt.node); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.30q: %v, want %q", tt.node.CommandLine, err, tt.want)
		}
	}
	delete(p.Loaders, "grubx64.efi")
	if _, err := New(p); err == nil || !strings.Contains(err.Error(), "grubx64.efi") {
		t.Errorf("without GRUB: %v", err)
	}
}

// A shared file that became shorter ends the reading with an error, not with other bytes.
func TestCutFile(t *testing.T) {
	p, kernel, _ := parts(t)
	p.Kernel.Size = int64(len(kernel)) + 5000
	tpl, err := New(p)
	if err != nil {
		t.Fatal(err)
	}
	r := imageOf(t, tpl, Node{})
	if _, err := io.ReadAll(r); err == nil {
		t.Error("reading a kernel that is cut short: no error")
	}
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if _, err := r.CopyTo(io.Discard, tpl.size); err == nil {
		t.Error("copying a kernel that is cut short: no error")
	}
}

// TestCatalog has an independent reader look at the boot catalog.
func TestCatalog(t *testing.T) {
	kit.NeedPrograms(t, "isoinfo")
	p, _, _ := parts(t)
	tpl, err := New(p)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "x.iso")
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := imageOf(t, tpl, Node{})
	if _, err := r.CopyTo(f, tpl.size); err != nil {
		t.Fatal(err)
	}
	text := kit.Run(t, "isoinfo", "-d", "-i", out)
	for _, want := range []string{"Volume id: INGOT", "Eltorito validation header", "Arch 0 (x86)", "Boot media 0 (No Emulation Boot)"} {
		if !strings.Contains(text, want) {
			t.Errorf("isoinfo does not say %q:\n%s", want, text)
		}
	}
}
