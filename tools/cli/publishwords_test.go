package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/test/kit"
)

// TestImageWords: what is wrong is told in the words of the command line, not in those of a deployment or a server.
func TestImageWords(t *testing.T) {
	kit.NeedPrograms(t, "qemu-img", "minisign")
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, n := range []string{"a", "b"} {
		kit.Run(t, "minisign", "-G", "-W", "-p", in(n+".pub"), "-s", in(n+".key"))
	}
	img := writeDisk(t, in("my disk.raw"), 6<<20)
	if err := os.WriteFile(in("disk.raw"), img, 0o644); err != nil {
		t.Fatal(err)
	}
	kit.Run(t, "qemu-img", "convert", "-O", "qcow2", "-c", in("disk.raw"), in("disk.qcow2"))
	packed, err := os.ReadFile(in("disk.qcow2"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(in("cut.qcow2"), packed[:len(packed)/2], 0o644); err != nil {
		t.Fatal(err)
	}
	writeText(t, in("text"), "hello")
	writeText(t, in("empty"), "")
	ok(t, "image", "publish", in("disk.raw"), "-o", in("out"), "--sign-key", in("a.key"), "-q")
	if err := os.MkdirAll(in("taken/disk.ingot"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(in("nothing"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ line, says, advice string }{
		{"publish|my disk.raw|-o|x", `"my disk" can't be the name`, "--name NAME"},
		{"publish|disk.raw|-o|taken", "taken/disk.ingot is a folder", "--name NAME"},
		{"publish|disk.raw|-o|text", "not a directory", "-o FOLDER"},
		{"publish|text|-o|x", "not an image", "Give the file of a whole-disk image."},
		{"publish|empty|-o|x", "the image is empty", "See where it comes from."},
		{"publish|cut.qcow2|-o|x", "truncated", "Check that the file is complete."},
		{"inspect|cut.qcow2", "truncated", "What to do: check that the file is complete."},
		{"publish|out/disk.ingot|-o|x", "published", "Use it as it is"},
		{"publish|disk.raw|-o|oci://127.0.0.1:1/x@sha256:" + strings.Repeat("ab", 32), "has a digest",
			"Leave the digest out."},
		{"publish|oci://h/x:1|-o|x", "published already", "ingot image verify oci://h/x:1"},
		{"publish|ftp://h/x|-o|x", "neither a file nor an http or https URL", ""},
		{"inspect|ftp://h/x", "neither a file nor an http or https URL", ""},
		{"verify|ftp://h/x", "neither a file nor an http or https URL nor oci://", ""},
		{"verify|oci://u:p@h/x:1", "can't hold a password", "docker login"},
		{"verify|disk.raw", "not the index", "Give the NAME.ingot of a published image"},
		{"verify|out", "is a folder", "/out/disk.ingot"},
		{"verify|nothing", "no published image in it", "NAME.ingot"},
		{"verify|out/disk.ingot|--key|b.pub", "signature does not hold", "--sign-key"},
		{"verify|out/disk.ingot|--key|gone.pub", "neither a public key nor a file with one", "RW"},
		{"verify|out/disk.ingot|--key|a.key", "a.key: read the trusted key", "RW"},
	} {
		args := []string{"image"}
		for i, a := range strings.Split(c.line, "|") {
			if i > 0 && !strings.HasPrefix(a, "-") && !strings.Contains(a, "://") {
				a = in(a)
			}
			args = append(args, a)
		}
		text := fails(t, c.says, args...)
		said, advice, _ := strings.Cut(text, "\n")
		if !strings.Contains(advice, c.advice) {
			t.Errorf("%s: %s, want %q as advice", c.line, text, c.advice)
		}
		for _, word := range []string{"image_", "server", "URL:"} {
			if strings.Contains(said+advice, word) {
				t.Errorf("%s: %q is in: %s", c.line, word, text)
			}
		}
	}
	if _, err := os.Stat(in("x")); err == nil {
		t.Error("what is refused made a folder")
	}

	// A signature that goes is told of.
	if out := ok(t, "image", "publish", in("disk.raw"), "-o", in("out"), "--sign-key", in("a.key")); !strings.Contains(
		out, "signed               yes\n") {
		t.Errorf("signed: %s", out)
	}
	if out := ok(t, "image", "publish", in("disk.raw"), "-o", in("out"), "--compression", "lz4"); !strings.Contains(out,
		"the signature of the image that was there is removed") {
		t.Errorf("signed no more: %s", out)
	}
	if out := ok(t, "image", "publish", in("disk.raw"), "-o", in("out")); !strings.Contains(out,
		"signed               no\n") {
		t.Errorf("not signed: %s", out)
	}

	// What is damaged can be mended, and it is said how.
	o := indexOf(t, in("out/disk.ingot")).Chunks[0]
	if err := os.Remove(filepath.Join(in("out"), filepath.FromSlash(o.Path()))); err != nil {
		t.Fatal(err)
	}
	for place, advice := range map[string]string{in("out/disk.ingot"): "Publish the image into that folder again",
		serve(t, in("out")) + "/disk.ingot": "ingot image verify FOLDER/disk.ingot"} {
		if text := fails(t, "is damaged or not complete", "image", "verify", place); !strings.Contains(text, advice) {
			t.Errorf("%s: %s", place, text)
		}
	}
}

func serve(t *testing.T, dir string) string {
	srv := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(srv.Close)
	return srv.URL
}

// TestVerifyUnfit: an image that is right, byte by byte, is not called damaged because no agent would deploy it.
func TestVerifyUnfit(t *testing.T) {
	dir := t.TempDir()
	img := make([]byte, 1<<20)
	copy(img[0x438:], "\x53\xef")
	if err := os.WriteFile(filepath.Join(dir, "fs.raw"), img, 0o644); err != nil {
		t.Fatal(err)
	}
	ok(t, "image", "publish", filepath.Join(dir, "fs.raw"), "-o", dir)
	file := filepath.Join(dir, "fs.ingot")
	x := indexOf(t, file)
	x.Head = images.MBR // as one that was published before publishing looked at tables
	if err := os.WriteFile(file, x.Marshal(), 0o644); err != nil {
		t.Fatal(err)
	}
	if text := fails(t, "fs.ingot is whole and undamaged, but no agent would deploy it: ", "image", "verify",
		file); strings.Contains(text, "damaged or") || !strings.Contains(text, "\n") {
		t.Error(text)
	}
}

// TestStandardInput: a file behind "<" is a file, of whatever format. A pipe is read once.
func TestStandardInput(t *testing.T) {
	kit.NeedPrograms(t, "qemu-img")
	dir := t.TempDir()
	raw, qcow2 := filepath.Join(dir, "disk.raw"), filepath.Join(dir, "disk.qcow2")
	img := writeDisk(t, raw, 6<<20)
	kit.Run(t, "qemu-img", "convert", "-O", "qcow2", "-c", raw, qcow2)
	run := func(stdin io.Reader, args ...string) error {
		return Run(t.Context(), append([]string{"image"}, args...), stdin, io.Discard, io.Discard,
			func(string) string { return "" })
	}
	f, err := os.Open(qcow2)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out")
	if err := run(f, "publish", "-", "--name", "file", "-o", out); err != nil {
		t.Error(Message(err))
	}
	if x := indexOf(t, filepath.Join(out, "file.ingot")); x.SHA256 != [32]byte(sum(img)) {
		t.Error("another disk")
	}
	packed, err := os.ReadFile(qcow2)
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"publish", "-", "--name", "pipe", "-o", out}, {"inspect", "-"}} {
		err := run(io.MultiReader(bytes.NewReader(packed)), args...)
		if err == nil || !strings.Contains(Message(err), "Save it as a file and give that, instead of a pipe.") ||
			strings.Contains(Message(err), "can't be deployed") {
			t.Errorf("%v: %v", args, err)
		}
	}
	if err := run(bytes.NewReader(img), "publish", "-", "--name", "raw", "-o", out); err != nil {
		t.Error(Message(err))
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if err := run(nil, "inspect", fmt.Sprintf("/dev/fd/%d", r.Fd())); err == nil ||
		!strings.Contains(Message(err), "is a pipe\nGive -") {
		t.Errorf("the name of a pipe: %v", err)
	}
}

// TestUnstored: who has no room, or may not write, is told what to do.
func TestUnstored(t *testing.T) {
	dir := publishOptions{out: "/srv/images"}
	remote := publishOptions{out: "oci://h/x:1"}
	for _, c := range []struct {
		err  error
		o    publishOptions
		want string
	}{
		{syscall.ENOSPC, dir, "what is stored already is used"}, {syscall.EDQUOT, dir, "Make room"},
		{syscall.EROFS, dir, "-o FOLDER"}, {syscall.EACCES, dir, "-o FOLDER"}, {syscall.ENOSPC, remote, "TMPDIR"},
		{syscall.EACCES, remote, "TMPDIR"},
	} {
		err := unstored(fmt.Errorf("publish x: %w", &os.PathError{Op: "write", Path: "y", Err: c.err}), c.o)
		if text := Message(remedied(err)); !errors.Is(err, c.err) || !strings.Contains(text, c.want) {
			t.Errorf("%v, %s: %s", c.err, c.o.out, text)
		}
	}
	if err := errors.New("something else"); !errors.Is(unstored(err, dir), err) {
		t.Error("advice about something else")
	}
}

// TestRegistryIsAskedFirst: a registry that refuses the push is found before the image is read, and a killed
// publication leaves nothing behind.
func TestRegistryIsAskedFirst(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	writeText(t, in("text"), "what would be refused later")
	fails(t, "connection refused", "image", "publish", in("text"), "-o", "oci://127.0.0.1:1/x:1")

	addr := kit.Registry(t, "")
	t.Setenv("DOCKER_CONFIG", in("docker"))
	writeDisk(t, in("disk.raw"), 6<<20)
	old := time.Now().Add(-time.Hour)
	for _, name := range []string{"ingot-publish-killed", "ingot-publish-alive", "ingot-publish-new", "somebody-else"} {
		if err := os.MkdirAll(in("tmp/"+name+"/image/objects"), 0o700); err != nil {
			t.Fatal(err)
		}
		if name != "ingot-publish-new" {
			if err := os.Chtimes(in("tmp/"+name), old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	alive, err := lockFolder(in("tmp/ingot-publish-alive"))
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Close()
	if _, errs, err := ingot(t, map[string]string{"TMPDIR": in("tmp")}, "image", "publish", in("disk.raw"), "-o",
		"oci://"+addr+"/x:1"); err != nil {
		t.Fatal(Message(err), errs)
	}
	left, err := os.ReadDir(in("tmp"))
	var names []string
	for _, e := range left {
		names = append(names, e.Name())
	}
	if want := "ingot-publish-alive ingot-publish-new somebody-else"; err != nil || strings.Join(names, " ") != want {
		t.Errorf("left are %v, want %s; %v", names, want, err)
	}
}

// TestChangedSourceReplacesNothing: an image that changes while it is read leaves the published one of its name as it
// was.
func TestChangedSourceReplacesNothing(t *testing.T) {
	kit.NeedPrograms(t, "zstd")
	zstd, err := exec.LookPath("zstd")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	writeDisk(t, in("disk.raw"), 6<<20)
	ok(t, "image", "publish", in("disk.raw"), "-o", in("out"), "-q")
	before, err := os.ReadFile(in("out/disk.ingot"))
	if err != nil {
		t.Fatal(err)
	}
	// Chunks are packed while the image is read.
	if err := os.MkdirAll(in("bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\ntouch -d 2001-01-01 '%s'\nexec '%s' \"$@\"\n", in("disk.raw"), zstd)
	if err := os.WriteFile(in("bin/zstd"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", in("bin")+":"+os.Getenv("PATH"))
	fails(t, "disk.raw was changed while it was read", "image", "publish", in("disk.raw"), "-o", in("out"), "--level",
		"12", "-q")
	if after, err := os.ReadFile(in("out/disk.ingot")); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the index was replaced, or removed: %v", err)
	}
}
