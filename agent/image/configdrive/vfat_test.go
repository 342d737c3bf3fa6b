package configdrive

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/fs/iso9660"
	"github.com/ingot-metal/ingot/proto/drive"
	"github.com/ingot-metal/ingot/test/kit"
)

// tenantFAT makes a config drive as a tenant's tools do.
func tenantFAT(t *testing.T, size int64, format ...string) []byte {
	t.Helper()
	kit.NeedPrograms(t, "mkfs.fat", "mmd", "mcopy")
	img := kit.TempDisk(t, size)
	kit.Run(t, "mkfs.fat", append(append([]string{"-n", "CONFIG-2"}, format...), img)...)
	kit.Run(t, "mmd", "-i", img, "::/openstack", "::/openstack/latest")
	for name, text := range wantFiles {
		src := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(src, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		kit.Run(t, "mcopy", "-i", img, src, "::/"+name)
	}
	b, err := os.ReadFile(img)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestFATMayBeHandedIn holds that a FAT goes onto the disk as it is where it can be mounted from, else its files on a
// new one.
func TestFATMayBeHandedIn(t *testing.T) {
	for _, c := range []struct {
		format []string
		size   int64
		sector int
		asIs   bool
	}{
		{[]string{"-F", "12"}, 2 * mib, 512, true},
		{[]string{"-F", "32"}, 40 * mib, 512, true}, // none is smaller
		{[]string{"-S", "4096"}, 2 * mib, 512, true},
		{[]string{"-S", "4096"}, 2 * mib, 4096, true},
		{[]string{"-F", "16", "-s", "1"}, 4 * mib, 4096, false},
	} {
		img := tenantFAT(t, c.size, c.format...)
		for how, given := range map[string][]byte{"plain": img, "gzip": zipped(img)} {
			got, format, err := Build(t.Context(), quoted(base64.StdEncoding.EncodeToString(given)), c.sector, noon,
				Servers{})
			if err != nil || format != "vfat" || bytes.Equal(got, img) != c.asIs {
				t.Errorf("%v, %s, on sectors of %d: %d bytes, %s, %v", c.format, how, c.sector, len(got), format, err)
				continue
			}
			path := saved(t, got)
			run(t, "fsck.fat", "-n", path)
			for name, want := range wantFiles {
				if out := run(t, "mtype", "-i", path, "::/"+name); out != want {
					t.Errorf("%v on sectors of %d: %s = %q", c.format, c.sector, name, out)
				}
			}
		}
	}
	img := tenantFAT(t, 2*mib, "-F", "12")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(img) }))
	defer srv.Close()
	if got, format, err := Build(t.Context(), quoted(srv.URL+"/fat"), 512, noon, Servers{}); err != nil ||
		format != "vfat" || !bytes.Equal(got, img) {
		t.Errorf("by URL: %d bytes, %s, %v", len(got), format, err)
	}
	if _, _, err := Build(t.Context(), quoted(base64.StdEncoding.EncodeToString(img[:mib])), 512, noon,
		Servers{}); err == nil {
		t.Error("a truncated FAT is accepted")
	}
}

// TestLimit holds that 64 MiB are accepted and one byte more is not, in every form, and that memory stays near the
// drive's size.
func TestLimit(t *testing.T) {
	iso := build(t, object, 512)
	b64 := base64.StdEncoding.EncodeToString
	image := func(size int) []byte {
		b := make([]byte, size)
		copy(b, iso)
		for i := len(iso); i+8 <= size; i += 16 << 10 { // so that gzip has something to do
			binary.LittleEndian.PutUint64(b[i:], uint64(i)*0x9e3779b97f4a7c15)
		}
		return b
	}
	var served []byte
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(served)))
		w.Write(served)
	}))
	defer srv.Close()
	for _, c := range []struct {
		size int
		ok   bool
	}{{MaxSize, true}, {MaxSize + 1, false}} {
		img := image(c.size)
		served = img
		for name, f := range map[string]struct {
			given func() string
			mib   uint64 // limit, in addition to the input
		}{
			"base64":         {func() string { return b64(img) }, 72},
			"gzip in base64": {func() string { return b64(zipped(img)) }, 72},
			"URL":            {func() string { return srv.URL }, 80},
		} {
			if !c.ok && name == "base64" {
				continue // it is decoded by the same code as gzip in it
			}
			raw := quoted(f.given())
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got, _, err := Build(t.Context(), raw, 512, noon, Servers{})
			runtime.ReadMemStats(&after)
			if (err == nil) != c.ok || c.ok && !bytes.Equal(got, img) {
				t.Errorf("%s, %d bytes: %d bytes, %v", name, c.size, len(got), err)
			}
			if !c.ok && (err == nil || !strings.Contains(err.Error(), "larger than 64 MiB")) {
				t.Errorf("%s, %d bytes: %v", name, c.size, err)
			}
			if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > f.mib {
				t.Errorf("%s, %d bytes: %d MiB of memory, want at most %d", name, c.size, took, f.mib)
			}
		}
	}
	// An object, of which the file system is made: the most user data that fits, and one sector more.
	room := MaxSize - len(build(t, `{"meta_data":{"uuid":"x"},"user_data":"x"}`, 512)) + iso9660.Sector
	for n, ok := range map[int]bool{room: true, room + 1: false} {
		raw := `{"meta_data":{"uuid":"x"},"user_data":"` + strings.Repeat("x", n) + `"}`
		got, _, err := Build(t.Context(), json.RawMessage(raw), 512, noon, Servers{})
		if (err == nil) != ok || ok && len(got) != MaxSize {
			t.Errorf("user data of %d bytes: %d bytes, %v", n, len(got), err)
		}
	}
}

// brought makes a disk after write_image of an image that has a partition for a config drive. at is in MiB; of the
// table entries are kinds.
func brought(t *testing.T, entries [4][3]uint32, ebrs map[uint32][2][3]uint32, drive []byte,
	at int64) (*fake.Disks, *fake.Disk, *step.Facts) {
	t.Helper()
	const size, image = 200 * mib, 100 * mib
	m := fake.NewDisks(t.TempDir())
	f := m.Add(fake.DiskSpec{Name: "vda", Serial: "s", Size: size})
	disks, err := disk.List(t.Context(), m.Root())
	if err != nil {
		t.Fatal(err)
	}
	table := func(b []byte, es [][3]uint32) {
		for i, e := range es {
			b[446+16*i+4] = byte(e[0])
			binary.LittleEndian.PutUint32(b[446+16*i+8:], e[1])
			binary.LittleEndian.PutUint32(b[446+16*i+12:], e[2])
		}
		b[510], b[511] = 0x55, 0xaa
	}
	head := make([]byte, mib)
	table(head, entries[:])
	for lba, e := range ebrs {
		b := make([]byte, 512)
		table(b, e[:])
		f.WriteAt(b, int64(lba)*512)
	}
	f.WriteAt(drive, at*mib)
	const tailOff = image - disk.TailSectors*512
	tail := bytes.Repeat([]byte{0x77}, image-tailOff)
	p, err := disk.NewPending(disks[0], head, tail, tailOff, image)
	if err != nil {
		t.Fatal(err)
	}
	facts := &step.Facts{}
	disk.SetPending(facts, p)
	return m, f, facts
}

// TestPartitionThatTheImageBrings holds that a partition whose file system is labelled config-2 is used, wherever it is
// in an MBR, that one that is too small is emptied, and that other labels don't matter.
func TestPartitionThatTheImageBrings(t *testing.T) {
	const s = 2048 // sectors in a MiB
	iso := build(t, `{"user_data": "old"}`, 512)
	fat := tenantFAT(t, 4*mib, "-F", "12")
	other := bytes.Clone(iso)
	copy(other[16*iso9660.Sector+40:], "config-x")
	args := `{"configdrive": ` + object + `}`
	for _, c := range []struct {
		name    string
		entries [4][3]uint32
		ebrs    map[uint32][2][3]uint32
		drive   []byte
		at      int64
		want    Result
		err     string
	}{
		{name: "primary, ISO", entries: [4][3]uint32{{0x83, s, 10 * s}, {0x83, 20 * s, 8 * s}}, drive: iso, at: 20,
			want: Result{Partition: 2, Start: 20 * mib}},
		{name: "primary, FAT", entries: [4][3]uint32{{0x83, s, 10 * s}, {0x83, 20 * s, 8 * s}}, drive: fat, at: 20,
			want: Result{Partition: 2, Start: 20 * mib}},
		{name: "at the image's end, whose last sectors are held back",
			entries: [4][3]uint32{{0x83, s, 10 * s}, {0x83, 90 * s, 10 * s}}, drive: iso, at: 90,
			want: Result{Partition: 2, Start: 90 * mib}},
		{name: "all four taken, one is it",
			entries: [4][3]uint32{{0x83, s, s}, {0x83, 2 * s, s}, {0x83, 3 * s, s}, {0x83, 20 * s, 8 * s}}, drive: iso,
			at: 20, want: Result{Partition: 4, Start: 20 * mib}},
		{name: "second logical",
			entries: [4][3]uint32{{0x83, s, s}, {0x83, 2 * s, s}, {0x83, 3 * s, s}, {0x0f, 10 * s, 40 * s}},
			ebrs: map[uint32][2][3]uint32{10 * s: {{0x83, s, 5 * s}, {0x05, 10 * s, 20 * s}},
				20 * s: {{0x83, s, 8 * s}}}, drive: iso, at: 21,
			want: Result{Partition: 6, Start: 21 * mib}},
		{name: "another label", entries: [4][3]uint32{{0x83, s, 10 * s}, {0x83, 20 * s, 8 * s}}, drive: other, at: 20,
			want: Result{Partition: 3, Start: 135 * mib}},
		{name: "too small", entries: [4][3]uint32{{0x83, s, 10 * s}, {0x83, 20 * s, 80}}, drive: iso, at: 20,
			want: Result{Partition: 3, Start: 135 * mib}},
		{name: "all four taken",
			entries: [4][3]uint32{{0x83, s, s}, {0x83, 2 * s, s}, {0x83, 3 * s, s}, {0x83, 20 * s, 8 * s}},
			drive:   other, at: 20, err: "all four primary partitions"},
		{name: "a chain that goes in a circle",
			entries: [4][3]uint32{{0x83, s, s}, {0x83, 2 * s, s}, {0x83, 3 * s, s}, {0x0f, 10 * s, 40 * s}},
			ebrs:    map[uint32][2][3]uint32{10 * s: {{0x83, s, 5 * s}, {0x05, 0, 20 * s}}}, drive: other, at: 11,
			err: "all four primary partitions"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, f, facts := brought(t, c.entries, c.ebrs, c.drive, c.at)
			var r Result
			for range 2 { // a step may be run twice
				out, err := WriteStep(m)(t.Context(), call(facts, args))
				if c.err != "" {
					if err == nil || !strings.Contains(err.Error(), c.err) || step.AsError(err).Remedy == "" {
						t.Errorf("%v, want %q", err, c.err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if r = out.Result.(Result); r.Partition != c.want.Partition || r.Start != c.want.Start {
					t.Fatalf("result = %+v, want %+v", r, c.want)
				}
			}
			if _, err := disk.Commit(t.Context(), facts, m, nil); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, r.Bytes)
			if _, err := f.ReadAt(got, r.Start); err != nil {
				t.Fatal(err)
			}
			if out := run(t, "isoinfo", "-R", "-x", "/openstack/latest/user_data", "-i",
				saved(t, got)); out != wantFiles["openstack/latest/user_data"] {
				t.Errorf("user_data on the disk = %q", out)
			}
			// There is no second one.
			head := make([]byte, 18*iso9660.Sector)
			if _, err := f.ReadAt(head, c.at*mib); err != nil {
				t.Fatal(err)
			}
			if r.Start != c.at*mib && iso9660.Is(head) &&
				string(head[16*iso9660.Sector+40:16*iso9660.Sector+48]) == Label {
				t.Error("the image's own config drive is still there")
			}
			// The part of the image's end that the drive did not need is unchanged.
			end := make([]byte, 512)
			if _, err := f.ReadAt(end, 100*mib-512); err != nil {
				t.Fatal(err)
			}
			if held := end[0] == 0x77; held != (c.at != 90) {
				t.Errorf("the image's last sector is its own: %v", held)
			}
		})
	}
}

// FuzzBuildFAT holds that no FAT that is handed in harms.
func FuzzBuildFAT(f *testing.F) {
	b, err := makeFAT(
		[]file{{Path: "openstack/latest/user_data", Data: []byte("x")}, {Path: "b", Data: make([]byte, 3000)}}, 512,
		noon)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		fs, err := readable(b)
		if err != nil || fs == nil {
			return
		}
		files, err := drive.FilesOf(fs)
		if err != nil {
			return
		}
		_, _ = makeFAT(files, 4096, noon)
	})
}
