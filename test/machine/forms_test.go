package machine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/images/build"
	"github.com/ingot-metal/ingot/test/kit"
)

// form is a way in which an image is published.
type form struct {
	name string
	make []string // command that makes $2 of the raw disk $1; nil: the raw disk itself
	file string   // what image_source names, when it is not $2
	slow bool     // to make: only with INGOT_FULL, and with smaller images in the tests of agent/image
}

var forms = []form{
	{name: "raw"},
	{name: "raw.gz", make: []string{"sh", "-c", `gzip -1 -c "$1" >"$2"`}},
	{name: "raw.xz", slow: true, make: []string{"sh", "-c", `xz -0 -T0 -c "$1" >"$2"`}},
	{name: "raw.zst", make: []string{"sh", "-c", `zstd -q -1 -f "$1" -o "$2"`}},
	{name: "raw.lz4", slow: true, make: []string{"sh", "-c", `lz4 -q -1 -f "$1" "$2"`}},
	{name: "raw.bz2", slow: true, make: []string{"sh", "-c", `bzip2 -1 -c "$1" >"$2"`}},
	{name: "qcow2", make: []string{"sh", "-c", `qemu-img convert -O qcow2 "$1" "$2"`}},
	{name: "qcow2, zlib", make: []string{"sh", "-c", `qemu-img convert -O qcow2 -c "$1" "$2"`}},
	{name: "qcow2, zstd", make: []string{"sh", "-c", `qemu-img convert -O qcow2 -c -W -o compression_type=zstd "$1" "$2"`}},
	{name: "qcow2.gz", slow: true, make: []string{"sh", "-c", `qemu-img convert -O qcow2 -c "$1" "$2.tmp" && gzip -1 -c "$2.tmp" >"$2"; rm "$2.tmp"`}},
	{name: "published", make: []string{"sh", "-c", `"$INGOT" image publish "$1" -o "$2.d" --name image && ln -s "$2.d/image.ingot" "$2"`}, file: ".d/image.ingot"},
}

// TestForms writes a Debian in every form, by ingot-agent write as a user calls it, over old data, with a config drive. What is then on
// the disk is compared with the raw image, and the disk boots: here some forms by each firmware and sector size, with INGOT_FULL all by all.
func TestForms(t *testing.T) {
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "mmdebstrap", "qemu-img", "qemu-system-x86_64", "losetup", "gzip", "xz", "zstd", "lz4", "bzip2", "sgdisk")
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(root, "build", "e2e")
	for program, pkg := range map[string]string{"ingot": "./tools/cmd/ingot", "ingot-agent": "./agent/cmd/ingot-agent"} {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(bin, program), pkg)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", program, err, out)
		}
	}
	t.Setenv("INGOT", filepath.Join(bin, "ingot"))
	full := os.Getenv("INGOT_FULL") != ""

	for _, disk := range []struct {
		sector    int
		out       string
		firmwares []string
		forms     []form
		boots     map[string]string // form → firmware that it boots by, when not all are tried
	}{
		{512, "debian", []string{"bios", "uefi"}, forms, map[string]string{"qcow2, zstd": "bios", "published": "uefi"}},
		// What a form means does not depend on sectors: those that reach the disk by other ways suffice.
		{4096, "debian-4096", []string{"uefi"}, []form{forms[0], forms[8], forms[10]}, map[string]string{"qcow2, zstd": "uefi"}},
	} {
		deb, err := build.Debian(t.Context(), build.Options{Out: filepath.Join(root, "build", "images", disk.out), Sector: disk.sector})
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		url := serveFolder(t, dir)
		for i, f := range disk.forms {
			if f.slow && !full {
				continue
			}
			t.Run(fmt.Sprintf("%d/%s", disk.sector, f.name), func(t *testing.T) {
				name := fmt.Sprintf("image%d", i)
				path := filepath.Join(dir, name)
				if f.make == nil {
					if err := os.Symlink(deb.Raw, path); err != nil {
						t.Fatal(err)
					}
				} else {
					kit.Run(t, f.make[0], append(f.make[1:], "sh", deb.Raw, path)...)
				}
				target := kit.TempDisk(t, deb.VirtualSize+200<<20)
				dirtyEnds(t, target)
				loop := kit.Loop(t, target, "--direct-io=on", "--sector-size", fmt.Sprint(disk.sector))
				sum := strings.Fields(kit.Run(t, "sha256sum", path))[0]
				out := kit.Run(t, filepath.Join(bin, "ingot-agent"), "write", "--image", url+"/"+name+f.file, "--sha256", sum, "--disk", loop, "--yes", "--json", "--quiet",
					"--configdrive", driveFor(t, "web-1"))
				var r struct {
					Table       string `json:"table"`
					VirtualSize int64  `json:"virtual_size"`
				}
				if err := json.Unmarshal([]byte(out), &r); err != nil || r.Table != "gpt" || r.VirtualSize != deb.VirtualSize {
					t.Errorf("ingot-agent write says %+v (%v)\n%s", r, err, out)
				}
				sameContent(t, deb.Raw, target, deb.VirtualSize)
				if disk.sector == 512 {
					if out := kit.Run(t, "sgdisk", "-v", target); !strings.Contains(out, "No problems found") {
						t.Errorf("sgdisk: %s", out)
					}
				}
				os.RemoveAll(path + ".d")
				os.Remove(path)
				for _, firmware := range disk.firmwares {
					if full || disk.boots[f.name] == firmware {
						bootsDebian(t, target, firmware == "uefi", disk.sector)
					}
				}
			})
		}
	}
}

// bootsDebian starts the disk and waits until the system has made its config drive's name its own.
func bootsDebian(t *testing.T, disk string, uefi bool, sector int) {
	t.Helper()
	args := []string{"-drive", "if=none,format=raw,cache=unsafe,id=d0,file=" + kit.Quote(disk),
		"-device", fmt.Sprintf("virtio-blk-pci,drive=d0,bootindex=1,logical_block_size=%d,physical_block_size=%d", sector, sector)}
	began := time.Now()
	kit.Boot(t, kit.VM{UEFI: uefi, MemoryMiB: 1024, Args: args, Until: `web-1 login:`, Timeout: 15 * time.Minute})
	t.Logf("login prompt after %v (UEFI %v, sectors of %d)", time.Since(began).Round(time.Second), uefi, sector)
}

// driveFor makes a file with a config drive object.
func driveFor(t *testing.T, hostname string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "drive.json")
	if err := os.WriteFile(path, []byte(`{"meta_data": {"hostname": "`+hostname+`", "name": "`+hostname+`"}, "user_data": "#cloud-config\nmanage_etc_hosts: true\n"}`), 0o600); err != nil {
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
