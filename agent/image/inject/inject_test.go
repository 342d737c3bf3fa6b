package inject

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/test/kit"
)

const mib = 1 << 20

// system is a whole-disk image with a table that sfdisk makes of a script, and file systems at bytes.
func system(t *testing.T, size int64, script string, parts map[int64]string) []byte {
	t.Helper()
	kit.NeedPrograms(t, "sfdisk")
	img := kit.TempDisk(t, size)
	c := exec.Command("sfdisk", "-q", "--no-reread", img)
	c.Stdin = strings.NewReader(script)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("sfdisk: %v: %s", err, out)
	}
	b, err := os.ReadFile(img)
	if err != nil {
		t.Fatal(err)
	}
	for at, file := range parts {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		copy(b[at:], content)
	}
	return b
}

// gpt4096 gives an image a GPT for sectors of 4096 bytes with one partition, which sfdisk makes for disks alone.
func gpt4096(img []byte, start, sectors uint64) {
	le := binary.LittleEndian
	last := uint64(len(img)/4096) - 1
	clear(img[:6*4096])
	img[446+4], img[510], img[511] = 0xee, 0x55, 0xaa
	le.PutUint32(img[446+8:], 1)
	le.PutUint32(img[446+12:], uint32(last))
	entries := img[2*4096 : 6*4096]
	copy(entries, "\xa2\xa0\xd0\xeb\xe5\xb9\x33\x44\x87\xc0\x68\xb6\xb7\x26\x99\xc7an identity of 16")
	le.PutUint64(entries[32:], start)
	le.PutUint64(entries[40:], start+sectors-1)
	header := func(mine, other, at uint64) []byte {
		h := make([]byte, 4096)
		copy(h, "EFI PART\x00\x00\x01\x00\x5c")
		for k, v := range []uint64{mine, other, 6, last - 5} {
			le.PutUint64(h[24+8*k:], v)
		}
		copy(h[56:], "a disk's identity")
		le.PutUint64(h[72:], at)
		le.PutUint32(h[80:], 128)
		le.PutUint32(h[84:], 128)
		le.PutUint32(h[88:], crc32.ChecksumIEEE(entries))
		le.PutUint32(h[16:], crc32.ChecksumIEEE(h[:92]))
		return h
	}
	copy(img[4096:], header(1, last, 2))
	copy(img[(last-4)*4096:], entries)
	copy(img[last*4096:], header(last, 1, last-4))
}

// root is an ext4 file system with some of a system in it.
func root(t *testing.T, size int64, args ...string) string {
	t.Helper()
	kit.NeedPrograms(t, "mke2fs", "e2fsck", "debugfs")
	dir := t.TempDir()
	for name, text := range map[string]string{
		"etc/passwd": "root:x:0:0::/root:/bin/sh\nalice:x:1007:1008::/home/alice:/bin/sh\n",
		"etc/group":  "root:x:0:\nwheel:x:70010:alice\n", "etc/hostname": "image\n", "usr/bin/sh": "",
		"etc/selinux/config": "# comment\nSELINUX=enforcing\n"} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("usr/bin", filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	img := kit.TempDisk(t, size)
	kit.Run(t, "mke2fs",
		append(append([]string{"-q", "-F", "-t", "ext4", "-L", "cloudimg-rootfs", "-U",
			"11111111-2222-3333-4444-555555555555", "-d", dir}, args...), img)...)
	return img
}

func esp(t *testing.T, size int64, args ...string) string {
	t.Helper()
	kit.NeedPrograms(t, "mkfs.fat", "mmd", "fsck.fat", "mtype")
	img := kit.TempDisk(t, size)
	kit.Run(t, "mkfs.fat", append(append([]string{"-n", "UEFI", "-i", "1234abcd"}, args...), img)...)
	kit.Run(t, "mmd", "-i", img, "::/EFI")
	return img
}

// world is a machine with one disk, onto which an image was written.
type world struct {
	m     *fake.Disks
	d     *fake.Disk
	facts *step.Facts
	size  int64
}

func written(t *testing.T, img []byte, sector int) *world {
	t.Helper()
	w := &world{m: fake.NewDisks(t.TempDir()), facts: &step.Facts{}, size: int64(len(img)) + 4*mib}
	w.d = w.m.Add(fake.DiskSpec{Name: "vda", Serial: "test-1", Size: w.size, SectorSize: sector})
	disks, err := disk.List(t.Context(), w.m.Root())
	if err != nil {
		t.Fatal(err)
	}
	dev, _, err := disk.OpenVerified(t.Context(), w.m, disks[0].Identity())
	if err != nil {
		t.Fatal(err)
	}
	if err := disk.Wipe(t.Context(), dev); err != nil {
		t.Fatal(err)
	}
	tail := (len(img) - disk.TailSectors*sector) / sector * sector
	if _, err := dev.WriteAt(img[disk.HeadSize:tail], disk.HeadSize); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(dev.Sync(), dev.Close()); err != nil {
		t.Fatal(err)
	}
	p, err := disk.NewPending(disks[0], img[:disk.HeadSize], img[tail:], int64(tail), int64(len(img)))
	if err != nil {
		t.Fatal(err)
	}
	disk.SetPending(w.facts, p)
	return w
}

// inject runs the step.
func (w *world) inject(t *testing.T, args map[string]any) (Result, error) {
	t.Helper()
	b, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	w.facts.Set(step.Node{}, "node-1")
	out, err := Step(w.m)(t.Context(),
		&step.Call{Args: b, Log: slog.New(slog.DiscardHandler), Facts: w.facts, Report: func(step.Progress) {}})
	r, _ := out.Result.(Result)
	return r, err
}

// part commits the disk, and gives a part of it as a file.
func (w *world) part(t *testing.T, at, size int64) string {
	t.Helper()
	if _, err := disk.Commit(t.Context(), w.facts, w.m, nil); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, w.size)
	if _, err := w.d.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "part")
	if err := os.WriteFile(path, b[at:at+size], 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

type object = map[string]any

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

const gptScript = "label: gpt\nstart=2048, size=8192, type=U, name=esp\nstart=10240, size=2048, name=data\nstart=12288, size=12288, name=root\n"

// TestInject puts files of every kind into a system's partitions: found by path, number, label, UUID and name.
func TestInject(t *testing.T) {
	xfs := filepath.Join(t.TempDir(), "xfs")
	if err := os.WriteFile(xfs, []byte("XFSB"), 0o600); err != nil {
		t.Fatal(err)
	}
	img := system(t, 14*mib, gptScript, map[int64]string{mib: esp(t, 4*mib), 5 * mib: xfs, 6 * mib: root(t, 6*mib)})
	tries := 0
	srv := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if tries++; tries == 1 {
			rw.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if r.URL.Path != "/files/node-1" {
			rw.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = rw.Write([]byte("from a server"))
	}))
	defer srv.Close()
	w := written(t, img, 512)
	url := srv.URL + "/files/{node[uuid]}"
	r, err := w.inject(t, object{"verify_ca": false, "files": []object{
		{"path": "/etc/hostname", "content": b64("injected\n")},
		{"path": "/etc/app/secret", "content": b64("s3cret\n"), "mode": 384, "dirmode": "0750", "owner": "alice",
			"group": "wheel"},
		{"path": "/bin/tool", "content": url, "sha256": fmt.Sprintf("%x", sha256.Sum256([]byte("from a server"))),
			"mode": "0755", "owner": 5, "group": 6},
		{"path": "/EFI/ingot/Mark.txt", "content": b64("on the ESP")},
		{"path": "/top", "partition": 3, "content": ""},
		{"path": "/by-label", "partition": "cloudimg-rootfs", "content": b64("1")},
		{"path": "/by-uuid", "partition": "/dev/disk/by-uuid/11111111-2222-3333-4444-555555555555",
			"content": b64("2")},
		{"path": "/by-name", "partition": "root", "content": b64("3")},
		{"path": "/by-device", "partition": "/dev/vda3", "content": b64("4")},
		{"path": "/by-serial", "partition": "1234-abcd", "content": b64("5")},
		{"path": "/etc/group-", "deleted": true},
		{"path": "/etc/app/secret", "content": b64("again\n")},
		{"path": "/etc/selinux/config", "deleted": true},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var what []string
	for _, f := range r.Files {
		what = append(what, fmt.Sprintf("%d %s %s", f.Partition, f.FileSystem, f.What))
	}
	want := []string{"3 ext4 replaced", "3 ext4 made", "3 ext4 made", "1 vfat made", "3 ext4 made", "3 ext4 made",
		"3 ext4 made", "3 ext4 made", "3 ext4 made", "1 vfat made", "3 ext4 absent", "3 ext4 replaced",
		"3 ext4 deleted"}
	if !slices.Equal(what, want) || r.Unlabelled != 7 {
		t.Errorf("the result is %q, %d without label, want %q, 7", what, r.Unlabelled, want)
	}
	part := w.part(t, 6*mib, 6*mib)
	kit.Run(t, "e2fsck", "-f", "-n", part)
	for name, want := range map[string]string{"/etc/hostname": "injected\n", "/etc/app/secret": "again\n",
		"/usr/bin/tool": "from a server", "/by-label": "1", "/by-uuid": "2", "/by-name": "3", "/by-device": "4"} {
		got := filepath.Join(t.TempDir(), "f")
		kit.Run(t, "debugfs", "-R", "dump "+name+" "+got, part)
		if b, err := os.ReadFile(got); err != nil || string(b) != want {
			t.Errorf("%s has %q, %v, want %q", name, b, err, want)
		}
	}
	for name, want := range map[string][]string{"/etc/app/secret": {"Mode:  0600", "User:  1007", "Group: 70010"},
		"/etc/app": {"Mode:  0750", "User:     0"}, "/usr/bin/tool": {"Mode:  0755", "User:     5", "Group:     6"}} {
		out := kit.Run(t, "debugfs", "-R", "stat "+name, part)
		for _, s := range want {
			if !strings.Contains(out, s) {
				t.Errorf("%s has no %q: %s", name, s, out)
			}
		}
	}
	fat := filepath.Join(t.TempDir(), "esp")
	b, err := os.ReadFile(w.part(t, mib, 4*mib))
	if err != nil || os.WriteFile(fat, b, 0o600) != nil {
		t.Fatal(err)
	}
	kit.Run(t, "fsck.fat", "-n", fat)
	if got := kit.Run(t, "mtype", "-i", fat, "::/efi/INGOT/mark.TXT"); got != "on the ESP" {
		t.Errorf("on the ESP is %q", got)
	}
}

// TestHeldBack puts files into a partition that begins within the first MiB and ends with the image: its withheld parts
// are changed, too, and the disk has no table before the commit.
func TestHeldBack(t *testing.T) {
	for _, c := range []struct {
		sector int
		fs     []string
	}{{512, []string{"-b", "1024"}}, {512, []string{"-b", "4096"}}, {512, nil}, {4096, []string{"-b", "1024"}}} {
		t.Run(fmt.Sprint(c.sector, c.fs), func(t *testing.T) {
			start, size, end := int64(63*512), int64(4*mib), int64(0)
			// such disks have a GPT, which is held back by itself; here writes are smaller than sectors
			if c.sector == 4096 {
				start, end = mib, mib
			}
			file := ""
			if c.fs == nil {
				file = esp(t, size)
			} else {
				file = root(t, size, append(c.fs, "-O", "^has_journal,^resize_inode", "-N", "128")...)
			}
			img := system(t, start+size+end, "label: dos\nstart=63, size=8192, type=83\n",
				map[int64]string{start: file})
			if c.sector == 4096 {
				gpt4096(img, 256, 1024)
			}
			w := written(t, img, c.sector)
			big := bytes.Repeat([]byte("0123456789abcdef"), 3*mib/16)
			if c.fs != nil {
				big = big[:3*mib-100]
			}
			files := []object{{"path": "/big", "partition": 1, "content": base64.StdEncoding.EncodeToString(big)}}
			for k := range 30 {
				files = append(files,
					object{"path": fmt.Sprintf("/d/%d", k), "partition": "1", "content": b64(fmt.Sprint(k))})
			}
			if _, err := w.inject(t, object{"files": files}); err != nil {
				t.Fatal(err)
			}
			head := make([]byte, mib)
			if _, err := w.d.ReadAt(head, 0); err != nil || !bytes.Equal(head, make([]byte, mib)) {
				t.Errorf("something is in the first MiB before the commit, %v", err)
			}
			part := w.part(t, start, size)
			got := filepath.Join(t.TempDir(), "f")
			if c.fs != nil {
				kit.Run(t, "e2fsck", "-f", "-n", part)
				kit.Run(t, "debugfs", "-R", "dump /big "+got, part)
			} else {
				kit.Run(t, "fsck.fat", "-n", part)
				kit.Run(t, "mcopy", "-i", part, "::/big", got)
			}
			if b, err := os.ReadFile(got); err != nil || !bytes.Equal(b, big) {
				t.Errorf("the large file has %d bytes, %v", len(b), err)
			}
		})
	}
}

// TestNothingHalf holds that a fault in any file leaves the image as it is, on all partitions.
func TestNothingHalf(t *testing.T) {
	xfs := filepath.Join(t.TempDir(), "xfs")
	if err := os.WriteFile(xfs, []byte("XFSB"), 0o600); err != nil {
		t.Fatal(err)
	}
	img := system(t, 14*mib, gptScript, map[int64]string{mib: esp(t, 4*mib), 5 * mib: xfs, 6 * mib: root(t, 6*mib)})
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	good := object{"path": "/etc/hostname", "content": b64("x")}
	w := written(t, img, 512)
	before := make([]byte, w.size)
	if _, err := w.d.ReadAt(before, 0); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file object
		word string
	}{
		{object{"path": "/x", "partition": 2, "content": ""}, "an XFS file system can't be changed"},
		{object{"path": "/nothing/x", "content": ""}, "no partition of the image has a folder /nothing"},
		{object{"path": "/x", "partition": "home", "content": ""}, `no partition "home"`},
		{object{"path": "/etc/large", "content": base64.StdEncoding.EncodeToString(make([]byte, 6*mib))}, "no room"},
		{object{"path": "/EFI/large", "content": base64.StdEncoding.EncodeToString(make([]byte, 5*mib))}, "no room"},
		{object{"path": "/EFI/x", "content": "", "mode": 420}, "neither mode nor owner"},
		{object{"path": "/etc/x", "content": "", "owner": "bob"}, "knows no bob"},
		{object{"path": "/etc/x", "content": "", "sha256": strings.Repeat("0", 64)}, "SHA-256"},
		{object{"path": "/etc/x", "url": srv.URL + "/none?secret=1"}, "404"},
		{object{"path": "/etc/x", "url": srv.URL + "/{ports[0]}"}, "placeholder"},
		{object{"path": "/etc/passwd/x", "content": ""}, "no folder"},
		{object{"path": "/etc", "partition": 3, "content": ""}, "no regular file"},
	} {
		_, err := w.inject(t, object{"files": []object{good, c.file}})
		if err == nil || !strings.Contains(err.Error(), c.word) || strings.Contains(err.Error(), "secret=") {
			t.Errorf("%v: %v, want %q", c.file["path"], err, c.word)
			continue
		}
		if step.AsError(err).Remedy == "" {
			t.Errorf("%v: no remedy for %v", c.file["path"], err)
		}
		if off := w.d.Differs(before, 0); off >= 0 {
			t.Errorf("%v: the disk was changed at byte %d", c.file["path"], off)
		}
	}
	_ = w.part(t, 6*mib, 6*mib)
	if _, err := w.inject(t, object{"files": []object{good}}); err == nil ||
		!strings.Contains(err.Error(), "committed already") {
		t.Errorf("after the commit: %v", err)
	}
	if r, err := w.inject(t, object{}); err != nil || len(r.Files) != 0 {
		t.Errorf("without files: %v, %v", r, err)
	}
}

// TestArguments holds that invalid arguments are refused before any download, with each fault named.
func TestArguments(t *testing.T) {
	for raw, word := range map[string]string{
		`{}`:                                                         "not a list",
		`[{"path":"/etc/x"}]`:                                        "one of content, url and deleted",
		`[{"content":""}]`:                                           "no path",
		`[{"path":"/x","content":""}]`:                               "needs partition",
		`[{"path":"/etc/../x/y","content":""}]`:                      "has '..'",
		`[{"path":"/etc/x/","content":""}]`:                          "folder",
		`[{"path":"/etc/x","content":"%%"}]`:                         "base64",
		`[{"path":"/etc/x","content":"ftp://x/y"}]`:                  "http or https",
		`[{"path":"/etc/x","content":"","deleted":true}]`:            "one of",
		`[{"path":"/etc/x","content":"","mode":"0999"}]`:             "mode",
		`[{"path":"/etc/x","content":"","mode":4096}]`:               "mode",
		`[{"path":"/etc/x","content":"","dirmode":-1}]`:              "dirmode",
		`[{"path":"/etc/x","content":"","owner":[]}]`:                "owner",
		`[{"path":"/etc/x","content":"","group":"a:b"}]`:             "group",
		`[{"path":"/etc/x","content":"","partition":1.5}]`:           "partition",
		`[{"path":"/etc/x","content":"","sha256":"ab"}]`:             "sha256",
		`[{"path":"/etc/x","content":"","nonsense":1}]`:              "nonsense",
		`[{"path":"/a/b","content":""},{"path":"/b"},{"deleted":1}]`: "file 2 (\"/b\"): a file in the root folder needs partition; file 3",
	} {
		if _, err := parse(json.RawMessage(raw)); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v, want %q", raw, err, word)
		}
	}
	files, err := parse(
		json.RawMessage(
			`[{"path":"etc/x","content":"aGVs\nbG8=","mode":420,"dirmode":"0o755","owner":0,"partition":2}]`))
	if err != nil || string(files[0].data) != "hello" || *files[0].mode != 0o644 || *files[0].dirMode != 0o755 ||
		files[0].owner.id != 0 || files[0].partition != "2" {
		t.Errorf("parse = %+v, %v", files[0], err)
	}
}
