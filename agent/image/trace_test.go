package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"hash"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ingot-metal/ingot/agent/image/trace"
	"github.com/ingot-metal/ingot/agent/machine/fake"
)

// lineOf returns the line of a stage, which must be there with shares of no more than 100 % together.
func lineOf(t *testing.T, tr *trace.Trace, s trace.Stage) trace.Line {
	t.Helper()
	for _, l := range tr.Stages {
		if l.Stage == s.String() {
			if l.Busy+l.Input+l.Output > 101 { // rounded
				t.Errorf("%+v is more than the time", l)
			}
			return l
		}
	}
	t.Fatalf("no stage %s in %+v", s, tr.Stages)
	return trace.Line{}
}

// TestTrace writes images over a link and onto a disk of which one is slow. What a processor has to do for these images
// is a small part of that time also on a busy machine.
func TestTrace(t *testing.T) {
	const pause = 30 * time.Millisecond // for each MiB
	img := make([]byte, 24*mib)
	for i := range img {
		img[i] = byte(i>>16) + 1
	}
	putMBR(img, len(img))
	p := publishImage(t, img)
	slowLink := func(w http.ResponseWriter, r *http.Request) {
		for part := range slices.Chunk(img, mib) {
			time.Sleep(pause)
			if _, err := w.Write(part); err != nil {
				return
			}
		}
	}
	fastLink := func(w http.ResponseWriter, r *http.Request) { w.Write(img) }
	slowDisk := func(kind string, _, n int64) error {
		if kind == "write" {
			time.Sleep(pause * time.Duration(n) / mib)
		}
		return nil
	}
	for _, c := range []struct {
		name  string
		link  http.HandlerFunc // nil: the published image
		disk  func(kind string, off, n int64) error
		limit string // "": not known, as unpacking takes as long
	}{
		{"a slow link", slowLink, nil, "network"},
		{"a slow disk", fastLink, slowDisk, "disk"},
		{"a slow disk, a published image", nil, slowDisk, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			url, sum := p.url, p.sum
			stages := []trace.Stage{trace.Fetch, trace.Digest, trace.UnpackPieces, trace.ZeroTest, trace.Write,
				trace.Flush}
			if c.link != nil {
				url, sum = serveBy(t, c.link).URL+"/disk.raw", sha(img)
				stages[2] = trace.UnpackStream
			}
			b := newBench(t, fake.DiskSpec{Size: 32 * mib})
			b.disk.Fail(c.disk)
			r, err := b.write(t.Context(), map[string]any{"image_source": strings.Replace(url, "//", "//me:secret@", 1),
				"image_os_hash_algo": "sha256", "image_os_hash_value": sum, "trace": true})
			if err != nil {
				t.Fatal(err)
			}
			if c.limit != "" && !raceEnabled && r.Trace.Limit != c.limit {
				t.Errorf("limit %q: %s\n%+v", r.Trace.Limit, r.Trace.Words, r.Trace.Stages)
			}
			for _, s := range stages {
				lineOf(t, r.Trace, s)
			}
			if l := lineOf(t, r.Trace, trace.Write); l.Busy+l.Input < 50 || l.Output != 0 {
				t.Errorf("%+v", l)
			}
			fetch, digest := lineOf(t, r.Trace, trace.Fetch), lineOf(t, r.Trace, trace.Digest)
			switch c.limit {
			case "network":
				if fetch.Busy < fetch.Output || digest.Input < digest.Output {
					t.Errorf("%+v, %+v", fetch, digest)
				}
			case "disk":
				if fetch.Output == 0 || digest.Output == 0 {
					t.Errorf("%+v, %+v", fetch, digest)
				}
			}
			var page bytes.Buffer
			if err := r.Picture(&page); err != nil {
				t.Fatal(err)
			}
			for name, text := range map[string]string{"page": page.String(), "log": b.log.String()} {
				if !strings.Contains(text, r.Trace.Words) || strings.Contains(text, "secret") {
					t.Errorf("the %s: %s", name, text)
				}
			}
		})
	}
}

// TestTraceOfOneChunk has a published image whose first chunk, which is fetched before the disk is touched, is all.
func TestTraceOfOneChunk(t *testing.T) {
	img := mbrImage(3 * mib)
	p := publishImage(t, img)
	b := newBench(t, fake.DiskSpec{Size: 8 * mib})
	b.disk.Fail(func(kind string, _, _ int64) error {
		if kind == "write" {
			time.Sleep(20 * time.Millisecond)
		}
		return nil
	})
	r, err := b.write(t.Context(), map[string]any{"image_source": p.url, "image_os_hash_algo": "sha256",
		"image_os_hash_value": p.sum, "trace": true})
	if err != nil {
		t.Fatal(err)
	}
	if l := lineOf(t, r.Trace, trace.Write); l.Busy == 0 {
		t.Errorf("%+v", l)
	}
}

func TestNoTraceUnlessWanted(t *testing.T) {
	img := mbrImage(2 * mib)
	b := newBench(t, fake.DiskSpec{Size: 8 * mib})
	r, err := b.write(t.Context(), map[string]any{"image_source": serve(t, img).URL, "image_os_hash_value": sha(img),
		"image_os_hash_algo": "sha256"})
	if err != nil || r.Trace != nil || strings.Contains(b.log.String(), "stage of the write") {
		t.Errorf("%+v, %v", r, err)
	}
}

// pacedFile is a file of pieces that take a while each, and pacedHash a digest that takes a while for each.
type pacedFile struct {
	pause time.Duration
	left  int
}

func (f *pacedFile) Next(context.Context) ([]byte, error) {
	if f.left == 0 {
		return nil, io.EOF
	}
	f.left--
	time.Sleep(f.pause)
	return make([]byte, 1000), nil
}

func (*pacedFile) Free([]byte) {}

type pacedHash struct {
	hash.Hash
	pause time.Duration
}

func (h pacedHash) Write(p []byte) (int, error) {
	time.Sleep(h.pause)
	return h.Hash.Write(p)
}

// TestTraceOfAFlow has a fetch, a digest and a decoder that take 10 ms for a piece, or 30.
func TestTraceOfAFlow(t *testing.T) {
	const fast, slow = 10 * time.Millisecond, 30 * time.Millisecond
	for _, c := range []struct {
		name                  string
		fetch, digest, unpack time.Duration
		limit                 string
	}{
		{"digest", fast, slow, fast, "cpu"},
		{"unpack", fast, fast, slow, "cpu"},
		{"fetch", slow, fast, fast, "none"}, // who fetches has no track of its own here
	} {
		synctest.Test(t, func(t *testing.T) {
			rec := trace.New()
			f := startFlow(t.Context(), &pacedFile{c.fetch, 40}, pacedHash{sha256.New(), c.digest}, rec)
			buf := make([]byte, 1000)
			for {
				if _, err := io.ReadFull(f, buf); err != nil {
					break
				}
				time.Sleep(c.unpack)
			}
			f.close()
			tr := rec.Trace("http://x", "")
			digest, unpack := lineOf(t, tr, trace.Digest), lineOf(t, tr, trace.UnpackStream)
			if tr.Limit != c.limit {
				t.Errorf("%s: limit %s, %+v", c.name, tr.Limit, tr.Stages)
			}
			var ok bool
			switch c.name {
			case "digest":
				ok = digest.Busy > 65 && digest.Input > 20 && digest.Output == 0 && unpack.Input > 65
			case "unpack":
				ok = digest.Output > 20 && unpack.Busy > 85 && unpack.Output == 0
			case "fetch":
				ok = digest.Input > 65 && digest.Output == 0 && unpack.Input > 65
			}
			if !ok {
				t.Errorf("%s: %+v", c.name, tr.Stages)
			}
		})
	}
}
