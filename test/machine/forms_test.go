package machine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// form is a way in which an image is published.
type form struct {
	name string
	make []string // command that makes $2 of the raw disk $1; nil: the raw disk itself
	file string   // what image_source names, when it is not $2
	far  bool     // made of an image with data beyond 512 MiB, for which a qcow2 has a second table
	slow bool     // to unpack: what it means does not depend on sectors, so that those of 512 bytes suffice
}

var forms = []form{
	{name: "raw"},
	{name: "raw.gz", make: []string{"sh", "-c", `gzip -1 -c "$1" >"$2"`}},
	{name: "raw.xz", slow: true, make: []string{"sh", "-c", `xz -0 -T0 -c "$1" >"$2"`}},
	{name: "raw.zst", make: []string{"sh", "-c", `zstd -q -1 -f "$1" -o "$2"`}},
	{name: "raw.lz4", make: []string{"sh", "-c", `lz4 -q -1 -f "$1" "$2"`}},
	{name: "raw.bz2", slow: true, make: []string{"sh", "-c", `bzip2 -1 -c "$1" >"$2"`}},
	{name: "qcow2", make: []string{"sh", "-c", `qemu-img convert -O qcow2 "$1" "$2"`}, far: true},
	{name: "qcow2, zlib", make: []string{"sh", "-c", `qemu-img convert -O qcow2 -c "$1" "$2"`}},
	{name: "qcow2, zstd",
		make: []string{"sh", "-c", `qemu-img convert -O qcow2 -c -W -o compression_type=zstd "$1" "$2"`}, far: true},
	{name: "qcow2.gz",
		make: []string{"sh", "-c",
			`qemu-img convert -O qcow2 -c "$1" "$2.tmp" && gzip -1 -c "$2.tmp" >"$2"; rm "$2.tmp"`}},
	{name: "published",
		make: []string{"sh", "-c",
			`"$INGOT" image publish "$1" -o "$2.d" --name image && ln -s "$2.d/image.ingot" "$2"`},
		file: ".d/image.ingot"},
}

// system is the system that is written in every form.
type system struct {
	raw    func(far bool) string
	sector int
	until  string                        // what it prints once it has made its config drive's name its own
	memory int                           // MiB that it needs
	boots  func(form string) (by []bool) // the firmwares that it is started by, true for UEFI
}

// TestForms writes the tiny system, followed by more data and holes, in every form onto disks with sectors of 512 and
// of 4096 bytes, with ingot-agent write as a user calls it, over old data, with a config drive. The disk is compared
// with the raw image, and the forms with different code paths boot. With INGOT_FULL a Debian is written, too, and all
// of its disks boot; else TestDebian covers one (images/build).
func TestForms(t *testing.T) {
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "qemu-img", "qemu-system-x86_64", "losetup", "gzip", "xz", "zstd", "lz4", "bzip2", "sgdisk",
		"sfdisk")
	t.Setenv("INGOT", made.Program(t, "ingot"))
	images := map[int][]string{512: {made.Tiny, made.Debian}, 4096: {made.Tiny4096, made.Debian4096}}
	for _, sector := range []int{512, 4096} {
		tiny := made.Image(t, images[sector][0]).Raw
		more := map[bool]string{false: withMore(t, tiny, sector, 144<<20), true: withMore(t, tiny, sector, 528<<20)}
		writeForms(t, fmt.Sprint(sector),
			system{raw: func(far bool) string { return more[far] }, sector: sector, memory: 512,
				until: `INGOT-TINY .*host=web-1 `, boots: func(form string) []bool {
					if by, ok := map[string]bool{"512 qcow2, zstd": false, "512 published": true,
						"4096 qcow2, zstd": true}[fmt.Sprint(sector, " ", form)]; ok {
						return []bool{by}
					}
					return nil
				}})
		if os.Getenv("INGOT_FULL") != "" {
			debian := made.Image(t, images[sector][1]).Raw
			writeForms(t, fmt.Sprintf("%d, Debian", sector),
				system{raw: func(bool) string { return debian }, sector: sector, memory: 1024,
					until: `web-1 login:`, boots: func(string) []bool {
						return map[int][]bool{512: {false, true}, 4096: {true}}[sector]
					}})
		}
	}
}

// withMore returns a larger copy of an image, of size bytes, with a further partition of scattered data.
func withMore(t *testing.T, raw string, sector int, size int64) string {
	t.Helper()
	larger := kit.TempDisk(t, size)
	kit.Run(t, "dd", "if="+raw, "of="+larger, "bs=1M", "conv=sparse,notrunc", "status=none")
	loop := kit.Loop(t, larger, "--sector-size", fmt.Sprint(sector))
	kit.Run(t, "sfdisk", "--quiet", "--no-reread", "--no-tell-kernel", "--relocate", "gpt-bak-std", loop)
	kit.Run(t, "sh", "-c", `echo 'name=more' | sfdisk --quiet --no-reread --no-tell-kernel --append "$0"`, loop)
	f, err := os.OpenFile(loop, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	random := rand.New(rand.NewChaCha8([32]byte{}))
	for _, off := range []int64{100 << 20, 110<<20 + 512, size - 18<<20, size - 14<<20 + 4096} {
		data := make([]byte, 3<<20+512)
		for i := range data {
			data[i] = byte(random.Uint32() >> (i >> 15 & 31)) // more and more alike
		}
		if _, err := f.WriteAt(data, off); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	return larger
}

// writeForms writes a system in every form.
func writeForms(t *testing.T, name string, s system) {
	dir := t.TempDir()
	url := serveFolder(t, dir)
	for i, f := range forms {
		if f.slow && s.sector != 512 && os.Getenv("INGOT_FULL") == "" {
			continue
		}
		t.Run(name+"/"+f.name, func(t *testing.T) {
			file := fmt.Sprintf("image%d", i)
			path := filepath.Join(dir, file)
			raw := s.raw(f.far)
			st, err := os.Stat(raw)
			if err != nil {
				t.Fatal(err)
			}
			size := st.Size()
			if f.make == nil {
				if err := os.Symlink(raw, path); err != nil {
					t.Fatal(err)
				}
			} else {
				kit.Run(t, f.make[0], append(f.make[1:], "sh", raw, path)...)
			}
			target := kit.TempDisk(t, size+200<<20)
			dirtyEnds(t, target)
			loop := kit.Loop(t, target, "--direct-io=on", "--sector-size", fmt.Sprint(s.sector))
			sum := strings.Fields(kit.Run(t, "sha256sum", path))[0]
			out := kit.Run(t, made.Program(t, "ingot-agent"), "write", "--image", url+"/"+file+f.file, "--sha256", sum,
				"--disk", loop, "--yes", "--json", "--quiet", "--configdrive", driveFor(t, "web-1"))
			var r struct {
				Table       string `json:"table"`
				VirtualSize int64  `json:"virtual_size"`
			}
			if err := json.Unmarshal([]byte(out), &r); err != nil || r.Table != "gpt" || r.VirtualSize != size {
				t.Errorf("ingot-agent write says %+v (%v)\n%s", r, err, out)
			}
			sameContent(t, raw, target, size)
			if s.sector == 512 {
				if out := kit.Run(t, "sgdisk", "-v", target); !strings.Contains(out, "No problems found") {
					t.Errorf("sgdisk: %s", out)
				}
			}
			os.RemoveAll(path + ".d")
			os.Remove(path)
			for _, uefi := range s.boots(f.name) {
				began := time.Now()
				kit.Boot(t, kit.VM{UEFI: uefi, MemoryMiB: s.memory, Disks: []string{target}, Sector: s.sector,
					Until: s.until, Timeout: 15 * time.Minute})
				t.Logf("it is up after %v (UEFI %v, sectors of %d)", time.Since(began).Round(time.Second), uefi,
					s.sector)
			}
		})
	}
}

// driveFor makes a file with a config drive object.
func driveFor(t *testing.T, hostname string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "drive.json")
	if err := os.WriteFile(path,
		[]byte(`{"meta_data": {"hostname": "`+hostname+`", "name": "`+hostname+
			`"}, "user_data": "#cloud-config\nmanage_etc_hosts: true\n"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// serveFolder serves files by a web server as people have them.
func serveFolder(t *testing.T, dir string) string {
	t.Helper()
	s := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(s.Close)
	return s.URL
}

// dirtyEnds leaves old data on a disk: where tables are, and where the image has holes.
func dirtyEnds(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	dirt := bytes.Repeat([]byte{0xa5}, 1<<20)
	for off := int64(0); off+int64(len(dirt)) <= st.Size(); off += 16 << 20 {
		if _, err := f.WriteAt(dirt, off); err != nil {
			t.Fatal(err)
		}
	}
}

// sameContent compares a disk with the raw image, but for the ends, where the table is.
func sameContent(t *testing.T, raw, disk string, size int64) {
	t.Helper()
	a, err := os.Open(raw)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := os.Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	const piece, ends = 4 << 20, 64 << 10
	want, got := make([]byte, piece), make([]byte, piece)
	for off := int64(ends); off < size-ends; off += piece {
		n := min(piece, size-ends-off)
		if _, err := a.ReadAt(want[:n], off); err != nil && err != io.EOF {
			t.Fatal(err)
		}
		if _, err := b.ReadAt(got[:n], off); err != nil && err != io.EOF {
			t.Fatal(err)
		}
		if !bytes.Equal(want[:n], got[:n]) {
			t.Fatalf("the disk differs from the image between byte %d and %d", off, off+n)
		}
	}
}
