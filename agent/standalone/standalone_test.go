package standalone

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/publish"
	"github.com/ingot-metal/ingot/test/kit"
)

const mib = 1 << 20

// mbrImage is a disk with one partition, data and zeros in turn.
func mbrImage(size int) []byte {
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{7})
	for off := 0; off < size; off += 3 * mib {
		r.Read(b[off:min(size, off+mib)])
	}
	clear(b[440:510])
	b[446+4], b[446+9], b[446+13] = 0x83, 2048>>8, byte((size/512-2048)>>8)
	b[446+14] = byte((size/512 - 2048) >> 16)
	b[510], b[511] = 0x55, 0xaa
	return b
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func serve(t *testing.T, b []byte) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"v1"`)
		http.ServeContent(w, r, "image", time.Time{}, bytes.NewReader(b))
	}))
	t.Cleanup(s.Close)
	return s.URL + "/image"
}

// dirty makes a target full of old data: a file, or a loop device over one.
func dirty(t *testing.T, size int, loop bool) (path, file string) {
	file = kit.TempDisk(t, int64(size))
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := bytes.Repeat([]byte{0xa5}, mib)
	for off := 0; off < size; off += mib {
		if _, err := f.WriteAt(b[:min(mib, size-off)], int64(off)); err != nil {
			t.Fatal(err)
		}
	}
	if loop {
		kit.NeedRoot(t)
		return kit.Loop(t, file), file
	}
	return file, file
}

func silent(string, step.Progress) {}

func TestWrite(t *testing.T) {
	img := mbrImage(12 * mib)
	for _, loop := range []bool{false, true} {
		path, file := dirty(t, 84*mib, loop)
		var phases []string
		r, err := Write(t.Context(), Options{
			Image: serve(t, img), Digest: digest(img), Disk: path,
			ConfigDrive: []byte(`{"meta_data": {"hostname": "web-1"}}`), Verify: true,
		}, nil, func(_ string, p step.Progress) {
			if len(phases) == 0 || phases[len(phases)-1] != p.Phase {
				phases = append(phases, p.Phase)
			}
		})
		if err != nil {
			t.Fatalf("loop %v: %v", loop, err)
		}
		if r.Table != "mbr" || len(r.Partitions) != 2 || r.Disk.Name != path || !r.Verified || r.ConfigDrive == nil {
			t.Errorf("result %+v", r)
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		// But for the second partition, which the config drive brought into the table.
		if !bytes.Equal(got[512:12*mib], img[512:]) || !bytes.Equal(got[:462], img[:462]) {
			t.Errorf("loop %v: the disk is not the image", loop)
		}
		if !bytes.Contains(got[12*mib:], []byte("meta_data.json")) &&
			!bytes.Contains(got[12*mib:], []byte("META_DAT")) {
			t.Error("no config drive at the disk's end")
		}
		if text := r.Text(); !strings.Contains(text, path) || !strings.Contains(text, "12.0 MiB") {
			t.Errorf("told: %s", text)
		}
		if len(phases) < 3 {
			t.Errorf("phases reported: %q", phases)
		}
	}
}

// TestArgumentsOfTheStep writes as a deployment would: with its arguments and its words. They name no local file.
func TestArgumentsOfTheStep(t *testing.T) {
	img := mbrImage(12 * mib)
	at := serve(t, img)
	for _, c := range []struct{ name, args, refused, failed string }{
		{"the image", fmt.Sprintf(`{"image_source":%q,"image_os_hash_algo":"sha256","image_os_hash_value":%q,
			"image_type":"whole-disk","root_device":{"name":"/dev/of/another"}}`, at, digest(img)[7:]), "", ""},
		{"no digest", fmt.Sprintf(`{"image_source":%q}`, at), "", "image_os_hash_value"},
		{"another digest", fmt.Sprintf(`{"image_source":%q,"image_checksum":%q}`, at, strings.Repeat("0", 64)), "",
			"sha256"},
		{"a partition", fmt.Sprintf(`{"image_source":%q,"image_checksum":%q,"image_type":"partition"}`, at,
			digest(img)[7:]), "", "image_type"},
		{"a file", `{"image_source":"/etc/passwd","allow_unverified":true}`, `name "/etc/passwd"`, ""},
		{"a file in another spelling", fmt.Sprintf(`{"image_source":"/etc/passwd","Image_Source":%q}`, at),
			`name "/etc/passwd"`, ""},
		{"no image", `{}`, `name ""`, ""},
		{"a file as a mirror", fmt.Sprintf(`{"image_source":%q,"image_mirrors":["disk.raw"]}`, at), `"disk.raw"`, ""},
		{"a file as a signature", fmt.Sprintf(`{"image_source":%q,"image_signature":"s"}`, at), `"s"`, ""},
		{"no object", `[]`, "read the arguments", ""},
	} {
		o, err := FromStep([]byte(c.args))
		if (err != nil) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s: %v, want %q", c.name, err, c.refused)
		}
		if err != nil {
			continue
		}
		path, file := dirty(t, 84*mib, false)
		o.Disk = path
		_, err = Write(t.Context(), o, nil, silent)
		got, rerr := os.ReadFile(file)
		if rerr != nil {
			t.Fatal(rerr)
		}
		if text := fmt.Sprint(err, step.AsError(err).Remedy); c.failed != "" &&
			(err == nil || !strings.Contains(text, c.failed) || strings.Contains(text, "--sha256")) {
			t.Errorf("%s: %s, want %q", c.name, text, c.failed)
		}
		if c.failed == "" && (err != nil || !bytes.Equal(got[:12*mib], img)) {
			t.Errorf("%s: %v, or the disk is not the image", c.name, err)
		}
	}
}

// TestLocalImages writes images that are files of this machine: a plain one, and a published one, by the path of its
// index.
func TestLocalImages(t *testing.T) {
	img := mbrImage(12 * mib)
	dir := t.TempDir()
	raw := filepath.Join(dir, "image.raw")
	if err := os.WriteFile(raw, img, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(raw)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := publish.Image(t.Context(), images.Input{Stream: f, Size: int64(len(img))}, publish.Dir(dir),
		publish.Options{Name: "image"}); err != nil {
		t.Fatal(err)
	}
	index, err := os.ReadFile(filepath.Join(dir, "image.ingot"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ image, digest string }{
		{raw, digest(img)}, {"file://" + raw, digest(img)}, {filepath.Join(dir, "image.ingot"), digest(index)},
	} {
		path, file := dirty(t, 40*mib, false)
		o := Options{Image: c.image, Digest: c.digest, Disk: path, Trace: true}
		if _, err := Examine(t.Context(), o, nil); err != nil {
			t.Errorf("examine %s: %v", c.image, err)
		}
		r, err := Write(t.Context(), o, nil, silent)
		if err != nil {
			t.Errorf("write %s: %v", c.image, err)
			continue
		}
		if r.Trace.Image != strings.TrimPrefix(c.image, "file://") || strings.Contains(r.Trace.Words, "etwork") {
			t.Errorf("%s: the trace is of %s: %s", c.image, r.Trace.Image, r.Trace.Words)
		}
		got, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(got[:len(img)], img) {
			t.Errorf("%s: the disk is not the image (%v)", c.image, err)
		}
	}
	path, _ := dirty(t, 40*mib, false)
	if _, err := Write(t.Context(), Options{Image: filepath.Join(dir, "gone"), Digest: digest(img), Disk: path}, nil,
		silent); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("an image that is not there: %v", err)
	}
}

func TestRefused(t *testing.T) {
	img := mbrImage(4 * mib)
	path, file := dirty(t, 16*mib, false)
	url := serve(t, img)
	good := Options{Image: url, Digest: digest(img), Disk: path}
	for _, c := range []struct {
		name   string
		change func(*Options)
		want   string
		remedy string
	}{
		{"no disk", func(o *Options) { o.Disk = "" }, "no disk", "--disk"},
		{"no such disk", func(o *Options) { o.Disk = "/dev/no-such-disk" }, "there is no /dev/no-such-disk", "lsblk"},
		{"no such file", func(o *Options) { o.Disk = filepath.Join(t.TempDir(), "d") }, "there is no", "truncate"},
		{"a folder", func(o *Options) { o.Disk = t.TempDir() }, "neither a block device nor a plain file",
			"give --disk"},
		{"a character device", func(o *Options) { o.Disk = "/dev/null" }, "neither a block device nor a plain file",
			"give --disk"},
		{"digest without a kind", func(o *Options) { o.Digest = "abcd" }, "can't be understood", "sha256:HEX"},
		{"wrong digest", func(o *Options) { o.Digest = digest(nil) }, "digest is wrong", "check that the digest"},
		{"nothing to verify by", func(o *Options) { o.Digest = "" }, "no digest", ""},
		{"too small", func(o *Options) {
			o.Disk, _ = dirty(t, 4*mib-512*2, false)
		}, "larger than the disk", "larger disk"},
	} {
		o := good
		c.change(&o)
		_, err := Write(t.Context(), o, nil, silent)
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(step.AsError(err).Remedy, c.remedy) {
			t.Errorf("%s: %v (%s), want %q (%q)", c.name, err, step.AsError(err).Remedy, c.want, c.remedy)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(bytes.Trim(got[:512], "\x00")) != 0 {
		t.Error("after a wrong digest the disk looks bootable")
	}
}

func TestInUse(t *testing.T) {
	img := mbrImage(4 * mib)
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
	_, err = Write(t.Context(), Options{Image: serve(t, img), Digest: digest(img), Disk: path}, nil, silent)
	if err == nil || !strings.Contains(step.AsError(err).Remedy, "release it") {
		t.Errorf("a disk in use: %v (%s)", err, step.AsError(err).Remedy)
	}
}

func TestStopped(t *testing.T) {
	img := mbrImage(32 * mib)
	path, file := dirty(t, 40*mib, false)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := Write(ctx, Options{Image: serve(t, img), Digest: digest(img), Disk: path}, nil,
		func(_ string, p step.Progress) {
			if p.Phase == "write" {
				cancel()
			}
		})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("stopped: %v", err)
	}
	head := make([]byte, 512)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.ReadAt(head, 0); err != nil || bytes.HasSuffix(head, []byte{0x55, 0xaa}) {
		t.Errorf("a stopped write left a boot sector (%v)", err)
	}
}

func TestExamineWritesNothing(t *testing.T) {
	img := mbrImage(4 * mib)
	path := filepath.Join(t.TempDir(), "disk")
	before := append(mbrImage(8*mib), bytes.Repeat([]byte{0xa5}, 8*mib)...)
	if err := os.WriteFile(path, before, 0o600); err != nil {
		t.Fatal(err)
	}
	o := Options{Image: serve(t, img), Digest: digest(img), Disk: path, ConfigDrive: []byte(`{"meta_data": {}}`)}
	p, err := Examine(t.Context(), o, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"raw", "MBR", "4.00 MiB", digest(img), path, "a partition table (MBR)", "iso9660"} {
		if !strings.Contains(p.Text(), want) {
			t.Errorf("told without %q:\n%s", want, p.Text())
		}
	}
	after, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the disk was changed (%v)", err)
	}
	o.Image = serve(t, []byte("<html>404</html>"))
	if _, err := Examine(t.Context(), o, nil); err == nil || !strings.Contains(err.Error(), "HTML") {
		t.Errorf("a page for an image: %v", err)
	}
}

func TestReadConfigDrive(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct{ arg, want, fail string }{
		{"", "", ""},
		{"https://example.org/drive", `"https://example.org/drive"`, ""},
		{put("o.json", "\n {\"meta_data\": {}}\n"), `{"meta_data": {}}`, ""},
		{put("b64", "QUJD\nREVG\n"), `"QUJD\nREVG\n"`, ""},
		{put("iso", "\x00\x01\x02"), `"AAEC"`, ""},
		{put("bad.json", "{oops"), "", "not valid JSON"},
		{filepath.Join(dir, "gone"), "", "no such file"},
	} {
		got, err := ReadConfigDrive(c.arg)
		if string(got) != c.want || (err == nil) != (c.fail == "") || err != nil &&
			!strings.Contains(err.Error(), c.fail) {
			t.Errorf("ReadConfigDrive(%q) = %s, %v", c.arg, got, err)
		}
	}
}

func TestBar(t *testing.T) {
	var out strings.Builder
	now := time.Unix(0, 0)
	b := NewBar(&out, 100)
	b.now = func() time.Time { return now }
	b.Show("write_image", step.Progress{Phase: "write", Total: 1000 * mib})
	now = now.Add(10 * time.Second)
	b.Show("write_image",
		step.Progress{Phase: "write", Bytes: 250 * mib, Total: 1000 * mib, Rate: 25 * mib, Skipped: 512 * mib})
	b.Show("write_image", step.Progress{Phase: "write", Bytes: 250 * mib, Total: 1000 * mib}) // too soon
	b.Show("write_image", step.Progress{Phase: "flush"})
	b.End()
	lines := strings.Split(out.String(), "\n")
	want := " 25%  250 MiB of 1000 MiB  25.0 MiB/s  30s left  (512 MiB skipped)"
	if len(lines) != 3 || !strings.HasSuffix(lines[0], want) || !strings.Contains(lines[0], "writing [===") ||
		strings.Count(lines[0], "\r") != 2 {
		t.Errorf("on a terminal: %q", out.String())
	}
	for _, l := range strings.FieldsFunc(out.String(), func(r rune) bool { return r == '\r' || r == '\n' }) {
		if len(strings.TrimPrefix(l, "\x1b[K")) > 100 {
			t.Errorf("longer than the terminal is wide: %q", l)
		}
	}

	out.Reset()
	b = NewBar(&out, 0)
	for i := range uint64(101) {
		b.Show("write_image", step.Progress{Phase: "write", Bytes: i, Total: 100})
	}
	if n := strings.Count(out.String(), "\n"); n != 11 || strings.Contains(out.String(), "\r") {
		t.Errorf("not on a terminal, %d lines: %q", n, out.String())
	}
}
