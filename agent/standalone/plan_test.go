package standalone

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"aead.dev/minisign"

	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/gpt"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/images/oci"
	"github.com/ingot-metal/ingot/images/publish"
	"github.com/ingot-metal/ingot/test/kit"
)

func TestHolds(t *testing.T) {
	size := 8 * mib
	zeros := make([]byte, size)
	with := func(off int, s string) []byte {
		b := bytes.Clone(zeros)
		copy(b[off:], s)
		return b
	}
	for name, c := range map[string]struct {
		disk []byte
		want string
	}{
		"zeros":            {zeros, ""},
		"data":             {bytes.Repeat([]byte{0xa5}, size), "not known"},
		"an array":         {with(4096, "\xfc\x4e\x2b\xa9\x01"), "a member of a RAID array"},
		"a table's backup": {with(size-512, "EFI PART"), "not known"},
		"an MBR":           {mbrImage(size), "partition table (MBR)"},
		"a file system":    {with(0x438, "\x53\xef"), "file system"},
		"a qcow2 file":     {with(0, "QFI\xfb"), "qcow2"},
	} {
		o := Options{Image: "http://h/i", Unverified: true, Disk: writeFile(t, "disk", c.disk)}
		got, err := LookAt(t.Context(), o)
		if err != nil || (got.Holds == "") != (c.want == "") || !strings.Contains(got.Holds, c.want) {
			t.Errorf("%s: holds %q, %v; want %q", name, got.Holds, err, c.want)
		}
	}
}

var conductorWords = regexp.MustCompile(`image_[a-z]|instance_info|root_gb|allow_`)

func published(t *testing.T, dir, name string, img []byte) (file string, b []byte) {
	t.Helper()
	if _, err := publish.Image(t.Context(), images.Input{Stream: bytes.NewReader(img), Size: int64(len(img))},
		publish.Dir(dir), publish.Options{Name: name}); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(dir, name+".ingot")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return file, b
}

// TestExamineRefusesWhatWriteRefuses has both look at the same, and compares what they say.
func TestExamineRefusesWhatWriteRefuses(t *testing.T) {
	img := mbrImage(12 * mib)
	url := serve(t, img)
	dir := t.TempDir()
	pub, priv, err := minisign.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	stranger, _, err := minisign.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signed, b := published(t, dir, "signed", img)
	if err := os.WriteFile(signed+".minisig", minisign.Sign(priv, b), 0o600); err != nil {
		t.Fatal(err)
	}
	unsigned, _ := published(t, dir, "unsigned", img)
	// Published for sectors of 4096 bytes.
	coarse := make([]byte, 12*mib)
	table := gpt.New(4096, gpt.NewGUID())
	table.Set(gpt.Entry{Number: 1, Type: gpt.Linux, GUID: gpt.NewGUID(), First: 256, Last: 256 + 1023})
	table.Fit(12 * mib / 4096)
	table.Put(coarse[:mib])
	rand.Read(coarse[5*mib : 6*mib])
	large, largeIndex := published(t, t.TempDir(), "large", coarse)
	torn, tornIndex := published(t, t.TempDir(), "torn", img)
	if err := os.RemoveAll(filepath.Join(filepath.Dir(torn), "objects")); err != nil {
		t.Fatal(err)
	}
	kit.NeedPrograms(t, "mkfs.ext4")
	fs := writeFile(t, "root", make([]byte, 32*mib))
	kit.Run(t, "mkfs.ext4", "-q", fs)
	root, err := os.ReadFile(fs)
	if err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		name string
		o    Options
		want string // "": taken
	}{
		{"a partition image", Options{Image: fs, Digest: digest(root)}, ""},
		{"a signed image", Options{Image: signed, Keys: []string{pub.String()}}, ""},
		{"its digest", Options{Image: signed, Digest: digest(b)}, ""},
		{"a key, an image that can't be signed", Options{Image: url, Digest: digest(img), Keys: []string{pub.String()}},
			"not a published image"},
		{"another's key", Options{Image: signed, Keys: []string{stranger.String()}}, "sign"},
		{"no signature", Options{Image: unsigned, Keys: []string{pub.String()}}, "no signature"},
		{"a published image, wrong digest", Options{Image: signed, Digest: digest(nil)}, "digest is wrong"},
		{"another sector size", Options{Image: large, Digest: digest(largeIndex)}, "sectors of 4096"},
		{"no objects", Options{Image: torn, Digest: digest(tornIndex)}, "chunk 0"},
		{"a gone image", Options{Image: url + "?x", Mirrors: []string{"ftp://h/x"}, Digest: digest(img)},
			"not of a kind"},
		{"a checksum file that is none", Options{Image: url, Checksum: url}, "checksum file"},
		{"bad certificates", Options{Image: url, Digest: digest(img), CA: "none"}, "certificate"},
	} {
		disk := filepath.Join(t.TempDir(), "disk")
		if err := os.WriteFile(disk, []byte("untouched"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(disk, 1<<30); err != nil {
			t.Fatal(err)
		}
		c.o.Disk = disk
		p, err := Examine(t.Context(), c.o, nil)
		head := make([]byte, 9)
		if f, err := os.Open(disk); err != nil {
			t.Fatal(err)
		} else {
			f.ReadAt(head, 0)
			f.Close()
		}
		if string(head) != "untouched" {
			t.Errorf("%s: the disk was written", c.name)
		}
		if c.want == "" {
			if err != nil || p.Trust == "" || p.Table == "" {
				t.Errorf("%s: %+v, %v", c.name, p, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: examined: %v, want %q", c.name, err, c.want)
			continue
		}
		if _, werr := Write(t.Context(), c.o, nil, silent); werr == nil ||
			step.AsError(werr).Remedy != step.AsError(err).Remedy {
			t.Errorf("%s: Write says %v, Examine %v", c.name, werr, err)
		}
		if text := err.Error() + step.AsError(err).Remedy; conductorWords.MatchString(text) {
			t.Errorf("%s: this is not how the command's user calls it: %s", c.name, text)
		}
	}
}

func TestFaultsOfOptions(t *testing.T) {
	good := Options{Image: "http://h/image", Digest: digest(nil), Disk: "/dev/no-such-disk"}
	for name, c := range map[string]struct {
		change func(*Options)
		flag   string // that the remedy names
	}{
		"no image":          {func(o *Options) { o.Image = "" }, "--image"},
		"no digest":         {func(o *Options) { o.Digest = "" }, "--sha256"},
		"short digest":      {func(o *Options) { o.Digest = "sha512:ab" }, "--sha512"},
		"difference":        {func(o *Options) { o.Difference = "some" }, "--difference"},
		"key":               {func(o *Options) { o.Keys = []string{"abc"} }, ""},
		"mirrors of a file": {func(o *Options) { o.Image, o.Mirrors = "/x", []string{"http://h/x"} }, "--mirror"},
		"mirrors of a registry": {func(o *Options) { o.Image, o.Mirrors = "oci://h/a:1", []string{"http://h/x"} },
			"--mirror"},
		"checksums of a registry": {
			func(o *Options) { o.Image, o.Digest, o.Checksum = "oci://h/a:1", "", "http://h/x" }, "--image"},
		"a registry's tag":      {func(o *Options) { o.Image, o.Digest = "oci://h/a:1", "" }, "--sha256"},
		"a path of checksums":   {func(o *Options) { o.Digest, o.Checksum = "", "SHA256SUMS" }, "--checksum"},
		"a path of a signature": {func(o *Options) { o.Signature = "x.minisig" }, ".minisig"},
	} {
		o := good
		c.change(&o)
		// Before the disk, which is not there, is even looked for.
		_, err := LookAt(t.Context(), o)
		text := fmt.Sprint(err) + " " + step.AsError(err).Remedy
		if err == nil || strings.Contains(text, "no-such-disk") ||
			!strings.Contains(step.AsError(err).Remedy, c.flag) || step.AsError(err).Remedy == "" ||
			conductorWords.MatchString(text) {
			t.Errorf("%s: %s", name, text)
		}
	}
}

func TestExamineARegistry(t *testing.T) {
	kit.NeedPrograms(t, "docker-registry")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr, dir := l.Addr().String(), t.TempDir()
	l.Close()
	conf := writeFile(t, "config.yml",
		fmt.Appendf(nil,
			"version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q, secret: test}\n", dir, addr))
	cmd := exec.Command("docker-registry", "serve", conf)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	kit.Eventually(t, 2*time.Minute, "the registry answers", func() bool {
		r, err := http.Get("http://" + addr + "/v2/")
		if err != nil {
			return false
		}
		r.Body.Close()
		return true
	})
	objects := t.TempDir()
	_, b := published(t, objects, "image", mbrImage(12*mib))
	ref, err := oci.ParseReference("oci://" + addr + "/os/disk:1")
	if err != nil {
		t.Fatal(err)
	}
	pushed, err := oci.Push(t.Context(), ref,
		oci.Upload{Name: "disk", Index: b, Object: func(ctx context.Context, o index.Object) ([]byte, error) {
			return publish.Dir(objects).Object(ctx, o)
		}}, oci.Options{})
	if err != nil {
		t.Fatal(err)
	}
	path, _ := dirty(t, 40*mib, false)
	p, err := Examine(t.Context(), Options{Image: pushed.Ref.String(), Disk: path}, nil)
	if err != nil || p.VirtualSize != 12*mib || !strings.Contains(p.Text(), "the digest in its reference") {
		t.Errorf("an image by the digest in its reference: %+v, %v", p, err)
	}
	if _, err := Examine(t.Context(), Options{Image: "oci://" + addr + "/os/disk:1", Digest: digest(nil), Disk: path},
		nil); err == nil || !strings.Contains(err.Error(), "digest is wrong") {
		t.Errorf("a wrong digest: %v", err)
	}
}
