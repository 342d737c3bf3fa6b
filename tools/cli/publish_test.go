package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/images/publish"
	"github.com/ingot-metal/ingot/test/kit"
)

// writeDisk makes a file with the contents of a disk: an MBR, noise, text and zeros.
func writeDisk(t *testing.T, path string, size int) []byte {
	t.Helper()
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{1}).Read(b[1<<20 : size/3])
	for i := size / 2; i < size*2/3; i += 16 {
		copy(b[i:], strconv.Itoa(i*i))
	}
	b[446+4], b[510], b[511] = 0x83, 0x55, 0xaa
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return b
}

// ingot runs a command line with an environment.
func ingot(t *testing.T, env map[string]string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	err = Run(t.Context(), args, strings.NewReader(""), &out, &errs, func(name string) string { return env[name] })
	return out.String(), errs.String(), err
}

func ok(t *testing.T, args ...string) string {
	t.Helper()
	out, errs, err := ingot(t, nil, args...)
	if err != nil {
		t.Fatalf("ingot %s: %s\n%s", strings.Join(args, " "), Message(err), errs)
	}
	return out
}

func fails(t *testing.T, want string, args ...string) string {
	t.Helper()
	_, _, err := ingot(t, nil, args...)
	if err == nil || !strings.Contains(Message(err), want) {
		t.Errorf("ingot %s: %v, want %q", strings.Join(args, " "), err, want)
		return ""
	}
	return Message(err)
}

// deployable wants a command among what publish prints that deploys the image.
func deployable(t *testing.T, out, image, sha256 string) {
	t.Helper()
	var got string
	c := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch {
			b, _ := io.ReadAll(r.Body)
			got = string(b)
			http.Error(w, "seen", http.StatusTeapot)
			return
		}
		fmt.Fprint(w, `{"name": "NODE", "provision_state": "available"}`)
	}))
	defer c.Close()
	_, line, _ := strings.Cut(out, "ingot node deploy ")
	line, _, _ = strings.Cut(line, "\n")
	_, _, err := ingot(t, map[string]string{"INGOT_ENDPOINT": c.URL}, strings.Fields("node deploy "+line)...)
	for _, want := range []string{`"value":"` + image + `"`, `"value":"sha256"`, `"value":"` + sha256 + `"`} {
		if !strings.Contains(got, want) {
			t.Errorf("ingot node deploy %s: %v; it sets %s, want %s", line, err, got, want)
		}
	}
}

// indexOf reads an index, and checks everything behind it.
func indexOf(t *testing.T, path string) *index.Index {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	x, err := index.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := publish.Verify(t.Context(), x, publish.Dir(filepath.Dir(path)), nil); err != nil {
		t.Fatal(err)
	}
	return x
}

func TestImagePublish(t *testing.T) {
	kit.NeedPrograms(t, "qemu-img", "zstd")
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	writeDisk(t, in("disk.raw"), 14<<20)
	kit.Run(t, "qemu-img", "convert", "-O", "qcow2", "-c", "-W", in("disk.raw"), in("disk.qcow2"))
	kit.Run(t, "zstd", "-q", in("disk.raw"))

	out := ok(t, "image", "publish", in("disk.raw"), "-o", in("raw"))
	for _, want := range []string{"image_source", "the URL of " + in("raw/disk.ingot"), "image_os_hash_value  ",
		"14.0 MiB in 4 chunks", "a disk with MBR"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	want := indexOf(t, in("raw/disk.ingot"))
	deployable(t, out, "https://SERVER/disk.ingot", fmt.Sprintf("%x", sum(want.Marshal())))
	for _, src := range []string{"disk.qcow2", "disk.raw.zst"} {
		var r published
		if err := json.Unmarshal(
			[]byte(ok(t, "image", "publish", in(src), "--out", in("other"), "--name", "n", "--output", "json")),
			&r); err != nil {
			t.Fatal(err)
		}
		x := indexOf(t, in("other/n.ingot"))
		if x.SHA256 != want.SHA256 || x.Source != src || r.DiskSHA != fmt.Sprintf("%x", want.SHA256) ||
			r.Size != 14<<20 || r.HashValue != fmt.Sprintf("%x", sum(x.Marshal())) || r.Index != in("other/n.ingot") {
			t.Errorf("%s: %+v", src, r)
		}
		for i := range x.Chunks {
			if x.Chunks[i] != want.Chunks[i] {
				t.Errorf("%s: chunk %d is another object than that of the raw image", src, i)
			}
		}
	}
	// The zstd program packs what the encoder that is built in can't, and better.
	ok(t, "image", "publish", in("disk.raw"), "-o", in("best"), "--level", "19", "-q")
	small, _ := indexOf(t, in("best/disk.ingot")).Stored()
	if large, _ := want.Stored(); small >= large {
		t.Errorf("%d bytes at level 19, %d at level 3", small, large)
	}

	// lz4 packs less.
	ok(t, "image", "publish", in("disk.raw"), "-o", in("fast"), "--compression", "lz4", "-q")
	ok(t, "image", "verify", in("fast/disk.ingot"))
	if x := indexOf(t, in("fast/disk.ingot")); !x.LZ4 || x.SHA256 != want.SHA256 {
		t.Errorf("published with lz4: %+v", x)
	}
	fails(t, "neither zstd nor lz4", "image", "publish", in("disk.raw"), "-o", dir, "--compression", "xz")
	fails(t, "lz4 has none", "image", "publish", in("disk.raw"), "-o", dir, "--compression", "lz4", "--level", "9")

	if out := ok(t, "image", "verify", in("raw/disk.ingot")); !strings.Contains(out, "is complete and right") {
		t.Errorf("verify: %s", out)
	}
	o := want.Chunks[1]
	if err := os.WriteFile(filepath.Join(in("raw"), filepath.FromSlash(o.Path())), make([]byte, o.Len),
		0o644); err != nil {
		t.Fatal(err)
	}
	fails(t, "chunk 1: object "+o.String()+" is damaged", "image", "verify", in("raw/disk.ingot"))

	fails(t, "say where to publish to", "image", "publish", in("disk.raw"))
	fails(t, "wants one image", "image", "publish", "-o", dir)
	fails(t, "--level 20", "image", "publish", in("disk.raw"), "-o", dir, "--level", "20")
	fails(t, "no such file", "image", "publish", in("nothing"), "-o", dir)
	fails(t, "is a folder", "image", "publish", dir, "-o", in("x"))
	fails(t, "--name", "image", "publish", "-", "-o", in("x"))
	fails(t, "is no reference", "image", "publish", in("disk.raw"), "-o", "oci://nothing")
	for _, place := range []string{"http://host/x", "https://host/x", "HTTP://host/x", "file:///x", "oci:/x",
		"s3://x/y"} {
		fails(t, "the folder that a web server serves", "image", "publish", in("disk.raw"), "-o", place)
	}
	if left, _ := filepath.Glob("*:"); left != nil {
		t.Errorf("made %v", left)
	}
	ok(t, "image", "publish", in("disk.raw"), "-o", in("with:colon"))
	fails(t, "not the index", "image", "verify", in("disk.raw"))
	if err := os.WriteFile(in("page.raw"), []byte("<html>"), 0o644); err != nil {
		t.Fatal(err)
	}
	// inspect and publish refuse the same disks, with the same words.
	cut, err := os.ReadFile(in("disk.raw"))
	if err != nil {
		t.Fatal(err)
	}
	cut[446+13] = 0xff // more sectors than there are
	if err := os.WriteFile(in("cut.raw"), cut, 0o644); err != nil {
		t.Fatal(err)
	}
	kit.Run(t, "qemu-img", "convert", "-O", "vpc", "-o", "subformat=fixed", in("disk.raw"), in("fixed.vhd"))
	for file, want := range map[string][2]string{
		"cut.raw":   {"the image is cut off", "heck that the image is complete"},
		"fixed.vhd": {"images in vhd format are not supported", "qemu-img convert -f vpc"},
	} {
		fails(t, want[0], "image", "inspect", in(file))
		if text := fails(t, want[0], "image", "publish", in(file), "-o", in("x")); !strings.Contains(text, want[1]) {
			t.Errorf("%s: %s", file, text)
		}
	}
	if text := fails(t, "HTML page", "image", "publish", in("page.raw"), "-o", in("x")); !strings.Contains(text, "\n") {
		t.Errorf("no advice: %s", text)
	}
}

func TestPublishSigned(t *testing.T) {
	kit.NeedPrograms(t, "minisign", "openssl")
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	writeDisk(t, in("disk.raw"), 6<<20)
	for _, n := range []string{"a", "b"} {
		kit.Run(t, "minisign", "-G", "-W", "-p", in(n+".pub"), "-s", in(n+".key"))
	}
	ok(t, "image", "publish", in("disk.raw"), "-o", in("out"), "--sign-key", in("a.key"), "--cosign-key",
		"../../images/publish/testdata/cosign.key", "--password-file", writeText(t, in("pw"), "test password\n"))
	for _, key := range []string{in("a.pub"), "../../images/publish/testdata/cosign.pub"} {
		if out := ok(t, "image", "verify", in("out/disk.ingot"), "--key", key); !strings.Contains(out,
			"signed by a key") {
			t.Error(out)
		}
	}
	fails(t, "signature", "image", "verify", in("out/disk.ingot"), "--key", in("b.pub"))
	fails(t, "has a password", "image", "publish", in("disk.raw"), "-o", in("out"), "--cosign-key",
		"../../images/publish/testdata/cosign.key")
	env := map[string]string{keyPassword: "test password"}
	if _, _, err := ingot(t, env, "image", "publish", in("disk.raw"), "-o", in("locked"), "--sign-key",
		"../../images/publish/testdata/minisign.key"); err != nil {
		t.Error(err)
	}
	ok(t, "image", "verify", in("locked/disk.ingot"), "--key", "../../images/publish/testdata/minisign.pub")
	env[keyPassword] = "wrong"
	if _, _, err := ingot(t, env, "image", "publish", in("disk.raw"), "-o", in("out"), "--cosign-key",
		"../../images/publish/testdata/cosign.key"); err == nil || !strings.Contains(err.Error(), "password is wrong") {
		t.Errorf("a wrong password: %v", err)
	}
	ok(t, "image", "publish", in("disk.raw"), "-o", in("plain"))
	fails(t, "is not signed", "image", "verify", in("plain/disk.ingot"), "--key", in("a.pub"))
}

func writeText(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestVerifyOnServer: where nodes fetch it from, not only where it was made.
func TestVerifyOnServer(t *testing.T) {
	kit.NeedPrograms(t, "minisign")
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	kit.Run(t, "minisign", "-G", "-W", "-p", in("a.pub"), "-s", in("a.key"))
	writeDisk(t, in("disk.raw"), 14<<20)
	ok(t, "image", "publish", in("disk.raw"), "-o", in("out"), "--sign-key", in("a.key"))
	ok(t, "image", "publish", in("disk.raw"), "-o", in("out"), "--name", "plain")
	files := http.FileServer(http.Dir(in("out")))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// As a store does whose URLs are signed.
		if user, pw, _ := r.BasicAuth(); user != "user" || pw != "secret" || r.URL.Query().Get("token") != "secret" {
			http.Error(w, "who are you", http.StatusForbidden)
			return
		}
		http.StripPrefix("/images", files).ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	base := strings.Replace(srv.URL, "http://", "http://user:secret@", 1) + "/images/"
	for _, args := range [][]string{{base + "disk.ingot?token=secret"},
		{base + "disk.ingot?token=secret", "--key", in("a.pub")}, {base + "plain.ingot?token=secret"}} {
		if out := ok(t, append([]string{"image", "verify"}, args...)...); !strings.Contains(out, srv.URL+"/images/") ||
			!strings.Contains(out, "is complete and right") || strings.Contains(out, "secret") {
			t.Errorf("%v: %s", args, out)
		}
	}
	fails(t, "plain.ingot is not signed", "image", "verify", base+"plain.ingot?token=secret", "--key", in("a.pub"))
	o := indexOf(t, in("out/disk.ingot")).Chunks[1]
	if err := os.Remove(filepath.Join(in("out"), filepath.FromSlash(o.Path()))); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		fails(t, "chunk 1: fetch "+srv.URL+"/images/"+o.Path()+": the server answers 404", "image", "verify",
			base+"disk.ingot?token=secret"),
		fails(t, "the server answers 403", "image", "verify", base+"disk.ingot?token=secretive"),
		fails(t, "the server answers 404", "image", "verify", base+"gone.ingot?token=secret"),
		fails(t, "not the index", "image", "verify", base+o.Path()[:len("objects/")]+"?token=secret"),
		fails(t, "not a URL", "image", "verify", "http://user:secret@h/%zz"),
	} {
		if strings.Contains(text, "secret") {
			t.Errorf("a password is in %q", text)
		}
	}
}

// TestPublishFromServer: a broken download is taken up again, and one that can't be is no image.
func TestPublishFromServer(t *testing.T) {
	kit.NeedPrograms(t, "qemu-img")
	dir := t.TempDir()
	raw, qcow2 := filepath.Join(dir, "disk.raw"), filepath.Join(dir, "disk.qcow2")
	img := writeDisk(t, raw, 24<<20)
	kit.Run(t, "qemu-img", "convert", "-O", "qcow2", "-c", raw, qcow2)
	packed, err := os.ReadFile(qcow2)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name         string
		file         []byte
		ranges, etag bool
		cuts         int32 // connections that break after 5 MiB
		changes      bool  // then
		want         string
	}{
		{name: "whole", file: img, ranges: true, etag: true},
		{name: "without ranges", file: img},
		{name: "cut three times", file: img, ranges: true, etag: true, cuts: 3},
		{name: "qcow2", file: packed, ranges: true, etag: true},
		{name: "cut without ranges", file: img, cuts: 1, want: "truncated"},
		{name: "changed when cut", file: img, ranges: true, etag: true, cuts: 1, changes: true,
			want: "was changed meanwhile"},
	} {
		var cut atomic.Int32
		cut.Store(c.cuts)
		etag := atomic.Pointer[string]{}
		tag := `"one"`
		etag.Store(&tag)
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if c.etag {
				w.Header().Set("ETag", *etag.Load())
			}
			if !c.ranges {
				w.Header().Set("Content-Length", strconv.Itoa(len(c.file)))
				if cut.Add(-1) >= 0 {
					w.Write(c.file[:5<<20])
					panic(http.ErrAbortHandler)
				}
				w.Write(c.file)
				return
			}
			var to http.ResponseWriter = w
			if cut.Add(-1) >= 0 {
				to = &cutting{w, 5 << 20, func() {
					if c.changes {
						other := `"two"`
						etag.Store(&other)
					}
				}}
			}
			http.ServeContent(to, r, "", time.Time{}, bytes.NewReader(c.file))
		}))
		url := strings.Replace(srv.URL, "http://", "http://user:secret@", 1) + "/disk.raw?token=secret"
		out := filepath.Join(t.TempDir(), "out")
		_, _, err := ingot(t, nil, "image", "publish", url, "-o", out)
		srv.Close()
		if c.want != "" {
			if err == nil || !strings.Contains(Message(err), c.want) || strings.Contains(Message(err), "secret") {
				t.Errorf("%s: %v, want %q", c.name, err, c.want)
			}
			if _, err := os.Stat(filepath.Join(out, "disk.ingot")); err == nil {
				t.Errorf("%s: there is an index", c.name)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		x := indexOf(t, filepath.Join(out, "disk.ingot"))
		if x.SHA256 != [32]byte(sum(img)) || x.Source != "disk.raw" {
			t.Errorf("%s: another disk, from %s", c.name, x.Source)
		}
	}
}

// cutting breaks a connection after some bytes.
type cutting struct {
	http.ResponseWriter
	left int
	then func()
}

func (c *cutting) Write(b []byte) (int, error) {
	if len(b) > c.left {
		c.then()
		panic(http.ErrAbortHandler)
	}
	c.left -= len(b)
	return c.ResponseWriter.Write(b)
}

// TestSourceChangesWhileItIsRead: an index of a mixture of two images is not left behind.
func TestSourceChangesWhileItIsRead(t *testing.T) {
	dir := t.TempDir()
	raw := filepath.Join(dir, "disk.raw")
	writeDisk(t, raw, 6<<20)
	p := &program{}
	s, err := p.openSource(context.Background(), raw)
	if err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(raw, later, later); err != nil {
		t.Fatal(err)
	}
	if err := s.changed(); err == nil || !strings.Contains(err.Error(), "was changed while it was read") {
		t.Errorf("close = %v", err)
	}
}

// TestPublishToRegistry: with the login that docker's configuration has.
func TestPublishToRegistry(t *testing.T) {
	addr := kit.Registry(t, "pw")
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	writeDisk(t, in("disk.raw"), 14<<20)
	ref := "oci://" + addr + "/images/disk:1"
	t.Setenv("DOCKER_CONFIG", in("docker"))
	fails(t, "requires a user and a password", "image", "publish", in("disk.raw"), "-o", ref)
	if err := os.Mkdir(in("docker"), 0o700); err != nil {
		t.Fatal(err)
	}
	writeText(t, in("docker/config.json"), fmt.Sprintf(`{"auths": {%q: {"auth": "cHViOnB3"}}}`, addr))
	var first, again published
	for _, r := range []*published{&first, &again} {
		if err := json.Unmarshal([]byte(ok(t, "image", "publish", in("disk.raw"), "-o", ref, "--output", "json")),
			r); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.HasPrefix(first.Source, ref+"@sha256:") || first.New == 0 || again.New != 0 ||
		again.Source != first.Source || first.Index != "" {
		t.Errorf("first %+v, then %+v", first, again)
	}
	for _, r := range []string{ref, first.Source} {
		if out := ok(t, "image", "verify", r); !strings.Contains(out, first.HashValue) {
			t.Error(out)
		}
	}
	deployable(t, ok(t, "image", "publish", in("disk.raw"), "-o", ref), first.Source, first.HashValue)
	fails(t, "does not have it", "image", "verify", "oci://"+addr+"/images/disk:2")
}
