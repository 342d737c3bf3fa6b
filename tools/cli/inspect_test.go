package cli

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
)

// imageFiles makes a disk of 16 MiB with a partition, as files of several kinds in one folder.
func imageFiles(t *testing.T) string {
	kit.NeedPrograms(t, "qemu-img", "gzip")
	dir := t.TempDir()
	b := make([]byte, 16<<20)
	// 2048 sectors on, 65536 sectors less than there are
	b[446+4], b[446+9], b[446+14], b[510], b[511] = 0x83, 8, 1, 0x55, 0xaa
	b[446+13], b[446+14] = 0x40, 0
	for at := 1 << 20; at < len(b); at += 1 << 20 {
		copy(b[at:], bytes.Repeat([]byte{byte(at >> 20)}, 300000))
	}
	raw := filepath.Join(dir, "disk.raw")
	if err := os.WriteFile(raw, b, 0o600); err != nil {
		t.Fatal(err)
	}
	kit.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-o", "cluster_size=4096", raw,
		filepath.Join(dir, "disk.qcow2"))
	kit.Run(t, "gzip", "-1k", filepath.Join(dir, "disk.qcow2"))
	return dir
}

func TestInspectImage(t *testing.T) {
	dir := imageFiles(t)
	plain := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(plain.Close)
	var whole int
	noRanges := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		whole++
		b, err := os.ReadFile(filepath.Join(dir, filepath.Base(r.URL.Path)))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Write(b)
	}))
	t.Cleanup(noRanges.Close)
	u := &user{t: t}
	for _, base := range []string{dir, plain.URL, noRanges.URL} {
		for file, format := range map[string]string{"disk.raw": "raw", "disk.qcow2": "qcow2",
			"disk.qcow2.gz": "qcow2"} {
			out := u.ok("image", "inspect", base+"/"+file)
			for _, want := range []string{"can be deployed  yes", format, "16.0 MiB (16777216 bytes)", "sha256",
				"MBR, sectors of 512 bytes", "8.00 MiB at 1.00 MiB, Linux"} {
				if !strings.Contains(out, want) {
					t.Errorf("%s/%s: %q is not said:\n%s", base, file, want, out)
				}
			}
		}
	}
	var r struct {
		Deployable bool
		Kind       string
		Digests    map[string]string
		FileSize   int64 `json:"file_size"`
	}
	if err := json.Unmarshal(
		[]byte(u.ok("-o", "json", "image", "inspect", "--digest", "blake3", "--digest", "sha512",
			plain.URL+"/disk.raw")), &r); err != nil ||
		!r.Deployable || r.Kind != "whole-disk" || len(r.Digests["blake3"]) != 64 || len(r.Digests["sha512"]) != 128 ||
		r.FileSize != 16<<20 {
		t.Errorf("%+v, %v", r, err)
	}
	u.ok("image", "inspect", "--quick", dir+"/disk.qcow2")
	u.ok("image", "inspect", "--disk-size", "16M", dir+"/disk.qcow2")
	u.fails([]string{"image", "inspect", "--disk-size", "15M", dir + "/disk.qcow2"}, "can't be deployed",
		"larger than the disk", "What to do")
	u.fails([]string{"image", "inspect", "--disk-size", "big", dir + "/disk.qcow2"}, "not a size")
	u.fails([]string{"image", "inspect", "--digest", "crc", dir + "/disk.qcow2"}, "none of sha256")
	u.fails([]string{"image", "inspect", plain.URL + "/gone"}, "404")
	u.fails([]string{"image", "inspect", dir + "/gone"}, "no such file")
	u.fails([]string{"image", "inspect", dir}, "folder")
	u.fails([]string{"image", "inspect", "-"}, "can't be deployed", "empty")
	secret := strings.Replace(plain.URL, "http://", "http://user:secret@", 1)
	if _, _, err := u.run("image", "inspect", secret+"/gone?token=secret"); err == nil ||
		strings.Contains(Message(err), "secret") {
		t.Errorf("a password in the message: %v", err)
	}
	if out, _, err := u.run("-o", "json", "image", "inspect", "/etc/hostname"); err == nil ||
		!strings.Contains(out, `"deployable": false`) || !strings.Contains(out, `"remedy"`) {
		t.Errorf("%s, %v", out, err)
	}
}

// TestInspectCutConnection: a connection that ends early is no image that ends early.
func TestInspectCutConnection(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(imageFiles(t), "disk.raw"))
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "16777216")
		w.Write(b[:5<<20])
	}))
	t.Cleanup(s.Close)
	u := &user{t: t}
	u.fails([]string{"image", "inspect", s.URL + "/disk.raw"}, "cut off after 5242880 bytes")
}

func TestProgressLine(t *testing.T) {
	if got := progressLine(30<<20, 120<<20, 3*time.Second); got != " 25 %  30.0 MiB  10.0 MiB/s  9.0 s left" {
		t.Errorf("%q", got)
	}
	if got := progressLine(30<<20, -1, 3*time.Second); got != "30.0 MiB  10.0 MiB/s" {
		t.Errorf("%q", got)
	}
}

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{"": 0, "512": 512, "4K": 4096, "10G": 10 << 30, "10GiB": 10 << 30,
		"2T": 2 << 40} {
		if got, err := parseSize(s); got != want || err != nil {
			t.Errorf("parseSize(%q) = %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"G", "-1", "1.5G", "9999999999T", "x"} {
		if got, err := parseSize(s); err == nil {
			t.Errorf("parseSize(%q) = %d", s, got)
		}
	}
}
