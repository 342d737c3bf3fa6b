package image

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"aead.dev/minisign"
	"github.com/klauspost/compress/zstd"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/images/publish"
	"github.com/ingot-metal/ingot/test/kit"
)

// published is an image in a folder that a web server serves.
type published struct {
	dir    string
	x      *index.Index
	sum    string // of the index
	url    string
	server *httptest.Server
	sent   atomic.Int64 // bytes of objects
	before func(w http.ResponseWriter, r *http.Request) bool
	lz4    bool
	// called for every requested object; may be changed while another process sends requests
	object atomic.Pointer[func()]
}

func publishImage(t testing.TB, img []byte) *published {
	t.Helper()
	p := &published{dir: t.TempDir()}
	p.serve(t)
	p.replace(t, img)
	return p
}

// replace publishes another image under the same name.
func (p *published) replace(t testing.TB, img []byte) {
	t.Helper()
	r, err := publish.Image(t.Context(), images.Input{Stream: bytes.NewReader(img), Size: int64(len(img))},
		publish.Dir(p.dir), publish.Options{Name: "disk", Level: 1, LZ4: p.lz4})
	if err != nil {
		t.Fatal(err)
	}
	p.x, p.sum = r.Index, fmt.Sprintf("%x", r.SHA256)
}

func (p *published) serve(t testing.TB) {
	files := http.FileServer(http.Dir(p.dir))
	p.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.before != nil && p.before(w, r) {
			return
		}
		if f := p.object.Load(); f != nil && strings.HasPrefix(r.URL.Path, "/objects/") {
			(*f)()
		}
		if st, err := os.Stat(filepath.Join(p.dir, filepath.FromSlash(r.URL.Path))); err == nil &&
			strings.HasPrefix(r.URL.Path, "/objects/") {
			p.sent.Add(st.Size())
		}
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(p.server.Close)
	p.url = p.server.URL + "/disk.ingot"
}

func TestPublishedImage(t *testing.T) {
	for _, size := range []int{4 * mib, 9*mib + 1536, 13 * mib} {
		img := mbrImage(size)
		p := publishImage(t, img)
		for _, spec := range []fake.DiskSpec{{Size: 24 * mib}, {Size: 24 * mib, NoPunch: true}, {Size: int64(size)}} {
			t.Run(fmt.Sprintf("%d onto %d", size, spec.Size), func(t *testing.T) {
				b := newBench(t, spec)
				r, err := b.write(t.Context(),
					map[string]any{"image_source": p.url, "image_os_hash_algo": "sha256", "image_os_hash_value": p.sum,
						"verify": true})
				if err != nil {
					t.Fatal(err)
				}
				if disk.HasTable(b.head(t), 512) {
					t.Error("the disk has a partition table before the commit")
				}
				if r.Format != "published" || r.VirtualSize != int64(size) || r.SHA256 != p.sum ||
					r.Digest != "sha256:"+p.sum || r.BytesFetched == 0 || r.Limit == "" {
					t.Errorf("result = %+v", r)
				}
				b.commit(t)
				b.mustHold(t, img)
				last := b.progress[len(b.progress)-1]
				if last.Phase != "verify" || last.Bytes != last.Total {
					t.Errorf("last progress = %+v", last)
				}
			})
		}
	}
}

// TestPublishedImageInLZ4: written, read back, and rebuilt with the next version, which is packed with zstd.
func TestPublishedImageInLZ4(t *testing.T) {
	img := mbrImage(9*mib + 1536)
	p := &published{dir: t.TempDir(), lz4: true}
	p.serve(t)
	p.replace(t, img)
	if !p.x.LZ4 {
		t.Fatal("the index does not say that there is lz4")
	}
	b := newBench(t, fake.DiskSpec{Size: 24 * mib})
	args := map[string]any{"image_source": p.url, "image_os_hash_algo": "sha256", "image_os_hash_value": p.sum,
		"verify": true}
	if _, err := b.write(t.Context(), args); err != nil {
		t.Fatal(err)
	}
	b.commit(t)
	b.mustHold(t, img)

	next := bytes.Clone(img)
	copy(next[5*mib:], "the next version")
	p.lz4 = false
	p.replace(t, next)
	args["image_os_hash_value"] = p.sum
	r, err := b.write(t.Context(), args)
	if err != nil {
		t.Fatal(err)
	}
	if r.BytesKept == 0 {
		t.Errorf("nothing was kept: %+v", r)
	}
	b.commit(t)
	b.mustHold(t, next)
}

// TestTrustInPublishedImages: an index is believed by what the node was given, and by nothing else; and nothing is
// touched before.
func TestTrustInPublishedImages(t *testing.T) {
	img, old := mbrImage(5*mib), mbrImage(16*mib)
	p := publishImage(t, img)
	b, err := os.ReadFile(filepath.Join(p.dir, "disk.ingot"))
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(p.dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	pub, priv, err := minisign.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, otherPriv, err := minisign.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&ec.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	cosign := string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	hash := sha256.Sum256(b)
	ecsig, err := ecdsa.SignASN1(rand.Reader, ec, hash[:])
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"mini", "cosign", "both", "wrong"} {
		if err := os.MkdirAll(filepath.Join(p.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		put(dir+"/disk.ingot", b)
		if err := os.Symlink("../objects", filepath.Join(p.dir, dir, "objects")); err != nil {
			t.Fatal(err)
		}
	}
	good, bad := minisign.Sign(priv, b), minisign.Sign(otherPriv, b)
	ecText := []byte(base64.StdEncoding.EncodeToString(ecsig))
	put("mini/disk.ingot.minisig", good)
	put("cosign/disk.ingot.sig", ecText)
	put("both/disk.ingot.minisig", bad)
	put("both/disk.ingot.sig", ecText)
	put("wrong/disk.ingot.minisig", bad)
	put("elsewhere", good)
	base := p.server.URL
	for _, c := range []struct {
		name string
		args map[string]any
		want string // "" for success
	}{
		{"minisign", map[string]any{"image_source": base + "/mini/disk.ingot", "image_keys": []string{pub.String()}},
			""},
		{"minisign, one key of two",
			map[string]any{"image_source": base + "/mini/disk.ingot", "image_keys": []string{cosign, pub.String()}},
			""},
		{"cosign", map[string]any{"image_source": base + "/cosign/disk.ingot", "image_keys": []string{cosign}}, ""},
		{"one good signature of two",
			map[string]any{"image_source": base + "/both/disk.ingot", "image_keys": []string{pub.String(), cosign}},
			""},
		{"signature elsewhere",
			map[string]any{"image_source": p.url, "image_keys": []string{pub.String()},
				"image_signature": base + "/elsewhere"}, ""},
		{"signature and digest",
			map[string]any{"image_source": base + "/mini/disk.ingot", "image_keys": []string{pub.String()},
				"image_checksum": p.sum}, ""},
		{"nothing, where that is allowed", map[string]any{"image_source": p.url, "allow_unverified": true}, ""},
		{"nothing", map[string]any{"image_source": p.url}, "no digest"},
		{"no signature", map[string]any{"image_source": p.url, "image_keys": []string{pub.String()}},
			"has no signature"},
		{"no signature, though the digest is right",
			map[string]any{"image_source": p.url, "image_keys": []string{pub.String()}, "image_checksum": p.sum},
			"has no signature"},
		{"no signature, though anything is allowed",
			map[string]any{"image_source": p.url, "image_keys": []string{pub.String()}, "allow_unverified": true},
			"has no signature"},
		{"signature of another key",
			map[string]any{"image_source": base + "/wrong/disk.ingot", "image_keys": []string{pub.String()}},
			"signature does not hold"},
		{"key of another kind",
			map[string]any{"image_source": base + "/mini/disk.ingot", "image_keys": []string{cosign}},
			"none of the trusted keys"},
		{"right signature, wrong digest",
			map[string]any{"image_source": base + "/mini/disk.ingot", "image_keys": []string{pub.String()},
				"image_checksum": strings.Repeat("ab", 32)}, "digest is wrong"},
		{"wrong digest", map[string]any{"image_source": p.url, "image_checksum": strings.Repeat("ab", 32)},
			"digest is wrong"},
		{"no key", map[string]any{"image_source": p.url, "image_keys": []string{"RWnonsense"}}, "image_keys"},
		{"unknown difference",
			map[string]any{"image_source": p.url, "image_checksum": p.sum, "image_difference": "perhaps"},
			"image_difference"},
		{"signature not there",
			map[string]any{"image_source": p.url, "image_keys": []string{pub.String()},
				"image_signature": base + "/gone"}, "404"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, fake.DiskSpec{Size: 16 * mib})
			b.disk.Lay(old, 0)
			_, err := b.write(t.Context(), c.args)
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				b.commit(t)
				b.mustHold(t, img)
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || step.AsError(err).Remedy == "" {
				t.Errorf("error = %v, want %q and a remedy", err, c.want)
			}
			if b.disk.Differs(old, 0) >= 0 {
				t.Error("the disk was touched")
			}
		})
	}
	t.Run("an image that can't be signed", func(t *testing.T) {
		s := serve(t, img)
		b := newBench(t, fake.DiskSpec{Size: 16 * mib})
		_, err := b.write(t.Context(),
			map[string]any{"image_source": s.URL, "image_keys": []string{pub.String()}, "image_checksum": sha(img)})
		if err == nil || !strings.Contains(err.Error(), "signed images only") {
			t.Errorf("error = %v", err)
		}
	})
}

// TestDamagedIndex: a change of any byte of the index is detected.
func TestDamagedIndex(t *testing.T) {
	img := mbrImage(5 * mib)
	p := publishImage(t, img)
	path := filepath.Join(p.dir, "disk.ingot")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		spoil func() []byte
		want  string
	}{
		{"cut", func() []byte { return good[:len(good)-10] }, "truncated"},
		{"a flipped bit", func() []byte { b := bytes.Clone(good); b[len(b)/2] ^= 1; return b },
			"its own checksum is wrong"},
		{"endless", func() []byte { return append(bytes.Clone(good), make([]byte, index.MaxIndex)...) }, "bytes"},
	} {
		if err := os.WriteFile(path, c.spoil(), 0o644); err != nil {
			t.Fatal(err)
		}
		b := newBench(t, fake.DiskSpec{Size: 16 * mib})
		b.wait = hasty
		if _, err := b.write(t.Context(),
			map[string]any{"image_source": p.url, "allow_unverified": true}); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error = %v, want %q", c.name, err, c.want)
		}
		if b.disk.Written() != 0 {
			t.Errorf("%s: the disk was touched", c.name)
		}
	}
}

// TestMirrorHasItWhole: a file that is damaged, truncated or different on one server is fetched from the other,
// whichever check detects it.
func TestMirrorHasItWhole(t *testing.T) {
	img := mbrImage(8 * mib)
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(img); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	good := packed.Bytes()
	damaged := bytes.Clone(good)
	copy(damaged[len(good)*3/4:], "XXXXXXXXXXXX")
	for name, bad := range map[string][]byte{"damaged": damaged, "cut off": good[:len(good)/2],
		"a page": []byte("<!DOCTYPE html><html>sign in</html>"), "nothing": {}} {
		t.Run(name, func(t *testing.T) {
			first, second := serve(t, bad), serve(t, good)
			b := newBench(t, fake.DiskSpec{Size: 64 * mib})
			args := map[string]any{"image_source": first.URL, "image_mirrors": []string{second.URL},
				"image_checksum": sha(good)}
			if _, err := b.write(t.Context(), args); err != nil {
				t.Fatal(err)
			}
			args["image_mirrors"] = []string{serve(t, bad).URL}
			if _, err := newBench(t, fake.DiskSpec{Size: 64 * mib}).write(t.Context(), args); err == nil {
				t.Error("written though no server has it whole")
			} else {
				t.Log(err)
			}
		})
	}
}

// TestMirrorHasThePublishedImage: the first server has another file, the second one the published image.
func TestMirrorHasThePublishedImage(t *testing.T) {
	img := mbrImage(5 * mib)
	p := publishImage(t, img)
	idx, err := os.ReadFile(filepath.Join(p.dir, "disk.ingot"))
	if err != nil {
		t.Fatal(err)
	}
	pub, priv, err := minisign.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.dir, "disk.ingot.minisig"), minisign.Sign(priv, idx), 0o644); err != nil {
		t.Fatal(err)
	}
	trust := map[string]map[string]any{
		"digest": {"image_checksum": p.sum}, "keys": {"image_keys": []string{pub.String()}},
		"both": {"image_checksum": p.sum, "image_keys": []string{pub.String()}},
	}
	for name, bad := range map[string][]byte{"a raw image": img, "nothing": {},
		"a page": []byte("<!DOCTYPE html><html>sign in</html>")} {
		for how, args := range trust {
			t.Run(name+", "+how, func(t *testing.T) {
				first := serveBy(t, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path != "/disk.ingot" {
						http.NotFound(w, r)
						return
					}
					w.Write(bad)
				})
				b := newBench(t, fake.DiskSpec{Size: 32 * mib})
				args := maps.Clone(args)
				args["image_source"], args["image_mirrors"] = first.URL+"/disk.ingot", []string{p.url}
				if _, err := b.write(t.Context(), args); err != nil {
					t.Fatal(err)
				}
				b.commit(t)
				b.mustHold(t, img)

				b = newBench(t, fake.DiskSpec{Size: 32 * mib})
				args["image_mirrors"] = []string{first.URL + "/disk.ingot"}
				if _, err := b.write(t.Context(), args); err == nil || step.AsError(Explain(err)).Remedy == "" {
					t.Errorf("without a published image: %v", err)
				}
				if how == "keys" && b.disk.Written() != 0 {
					t.Error("the disk was touched")
				}
			})
		}
	}
}

// TestMirrorsOfPublishedImages: each of the servers has some fault, and the image is there nevertheless.
func TestMirrorsOfPublishedImages(t *testing.T) {
	img := mbrImage(14 * mib)
	origin := publishImage(t, img)
	mirror := func(before func(w http.ResponseWriter, r *http.Request) bool) *published {
		m := &published{dir: origin.dir, before: before}
		m.serve(t)
		return m
	}
	object := func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/objects/") }
	var n atomic.Int64
	lies := func(w http.ResponseWriter, r *http.Request) bool { // every object damaged
		if !object(r) {
			return false
		}
		b, err := os.ReadFile(filepath.Join(origin.dir, filepath.FromSlash(r.URL.Path)))
		if err != nil {
			return false
		}
		b[len(b)/2] ^= 0x10
		w.Write(b)
		return true
	}
	short := func(w http.ResponseWriter, r *http.Request) bool { // breaks off in the middle
		if !object(r) || n.Add(1)%2 == 0 {
			return false
		}
		w.Header().Set("Content-Length", "100000")
		w.Write(make([]byte, 500))
		panic(http.ErrAbortHandler)
	}
	lacks := func(w http.ResponseWriter, r *http.Request) bool { // has the index alone
		if object(r) {
			http.Error(w, "no", http.StatusNotFound)
		}
		return object(r)
	}
	ill := func(w http.ResponseWriter, r *http.Request) bool {
		http.Error(w, "ill", http.StatusInternalServerError)
		return true
	}
	old := publishImage(t, mbrImage(4*mib)) // another image
	dead := mirror(nil)
	dead.server.Close()
	for _, c := range []struct {
		name    string
		mirrors []string
		want    string
	}{
		{"one lies", []string{mirror(lies).url, origin.url}, ""},
		{"one breaks off", []string{mirror(short).url, origin.url}, ""},
		{"one is not complete", []string{mirror(lacks).url, origin.url}, ""},
		{"one is ill", []string{mirror(ill).url, origin.url}, ""},
		{"one is dead", []string{origin.url, dead.url}, ""},
		{"one is behind", []string{old.url, origin.url}, ""},
		{"breaks off, alone", []string{mirror(short).url}, ""},
		{"all lie", []string{mirror(lies).url, mirror(lies).url}, "is damaged"},
		{"all are not complete", []string{mirror(lacks).url, mirror(lacks).url}, "404"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, fake.DiskSpec{Size: 32 * mib})
			if c.want != "" {
				b.wait = hasty
			}
			began := time.Now()
			_, err := b.write(t.Context(),
				map[string]any{"image_source": c.mirrors[0], "image_mirrors": c.mirrors[1:],
					"image_checksum": origin.sum})
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "chunk") ||
					!strings.Contains(step.AsError(err).Remedy, "publish") {
					t.Errorf("error = %v (%s), want %q, a chunk, and to publish again", err, step.AsError(err).Remedy,
						c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			b.commit(t)
			b.mustHold(t, img)
			t.Logf("took %s", time.Since(began).Round(time.Millisecond))
		})
	}
}

// change rewrites random blocks of an image, about a share of it.
func change(img []byte, share float64, seed uint64) (changed []byte, blocks int) {
	r := mathrand.New(mathrand.NewPCG(seed, 1))
	changed = bytes.Clone(img)
	for off := mib; off+index.BlockSize <= len(img)-mib; off += index.BlockSize {
		if r.Float64() < share {
			for i := range 100 {
				changed[off+i*613] ^= 0x5a
			}
			blocks++
		}
	}
	return changed, blocks
}

// TestRebuildByDifference: of an image of which a sixteenth changed, no more than that is written, and no chunk is
// fetched in vain.
func TestRebuildByDifference(t *testing.T) {
	size := 96 * mib
	if !allCases {
		size = 36 * mib
	}
	img := fullImage(size)
	newer, blocks := change(img, 0.06, 3)
	p, q := publishImage(t, img), publishImage(t, newer)
	for _, spec := range []fake.DiskSpec{{Size: 128 * mib}, {Size: 128 * mib, NoPunch: true}} {
		b := newBench(t, spec)
		if _, err := b.write(t.Context(), map[string]any{"image_source": p.url, "image_checksum": p.sum}); err != nil {
			t.Fatal(err)
		}
		b.commit(t)
		before := b.disk.Written()
		r, err := b.write(t.Context(), map[string]any{"image_source": q.url, "image_checksum": q.sum})
		if err != nil {
			t.Fatal(err)
		}
		wrote := b.disk.Written() - before - 2*disk.HeadSize // the old table, at both ends
		if limit := int64(float64(blocks*index.BlockSize) * 1.05); wrote > limit || r.BytesWritten > limit {
			t.Errorf("%d bytes were written, the result says %d; %d blocks of %d changed", wrote, r.BytesWritten,
				blocks, index.BlockSize)
		}
		var chunks int64
		for i := range q.x.Chunks {
			if i == 0 || i == len(q.x.Chunks)-1 ||
				!bytes.Equal(img[i*index.ChunkSize:(i+1)*index.ChunkSize],
					newer[i*index.ChunkSize:(i+1)*index.ChunkSize]) {
				chunks += q.x.Chunks[i].Len
			}
		}
		if want := chunks + q.x.Lists[0].Len + int64(len(q.x.Marshal())); r.BytesFetched > want {
			t.Errorf("%d bytes were fetched, %d of them are new", r.BytesFetched, want)
		}
		b.commit(t)
		b.mustHold(t, newer)
		t.Logf("%d of %d blocks changed: %d bytes written, %d of %d fetched", blocks, len(img)/index.BlockSize, wrote,
			r.BytesFetched, p.sent.Load())
	}
}

// fullImage has data in every block.
func fullImage(size int) []byte {
	b := make([]byte, size)
	r := mathrand.NewChaCha8([32]byte{5})
	for off := 0; off < size; off += 4096 {
		r.Read(b[off:min(off+1024, size)])
	}
	putMBR(b, size)
	return b
}

// TestCancelPublished: the end of the step's context ends everything.
func TestCancelPublished(t *testing.T) {
	img := fullImage(32 * mib)
	p := publishImage(t, img)
	ctx, cancel := context.WithCancelCause(t.Context())
	var n atomic.Int64
	release := make(chan struct{})
	defer close(release)
	p.before = func(w http.ResponseWriter, r *http.Request) bool {
		if n.Add(1) == 7 {
			cancel(errors.New("operator aborted"))
		}
		if n.Load() >= 7 {
			select {
			case <-r.Context().Done():
			case <-release:
			}
			return true
		}
		return false
	}
	b := newBench(t, fake.DiskSpec{Size: 64 * mib})
	began := time.Now()
	_, err := b.write(ctx, map[string]any{"image_source": p.url, "image_checksum": p.sum})
	if err == nil || !strings.Contains(err.Error(), "operator aborted") || time.Since(began) > 30*time.Second {
		t.Errorf("after %s: %v", time.Since(began), err)
	}
	if disk.HasTable(b.head(t), 512) {
		t.Error("the disk looks bootable")
	}
}

// dirty fills a file with 0xA5.
func dirty(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b := bytes.Repeat([]byte{0xa5}, mib)
	for off := int64(0); off < size; off += mib {
		if _, err := f.WriteAt(b, off); err != nil {
			return err
		}
	}
	return f.Close()
}

// fileDiffers compares a file or device, from off on, with bytes, and returns the offset in them of the first 64 KiB
// that are others, or -1.
func fileDiffers(t testing.TB, path string, want []byte, off int64) int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 64<<10)
	for at := 0; at < len(want); at += len(buf) {
		n := min(len(buf), len(want)-at)
		if _, err := f.ReadAt(buf[:n], off+int64(at)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(buf[:n], want[at:at+n]) {
			return at
		}
	}
	return -1
}

// TestMemoryOfPublishedImages writes incompressible chunks, the worst case, and then compares the same disk for
// changes, in a separate process whose peak is then read.
func TestMemoryOfPublishedImages(t *testing.T) {
	chunks := 192
	if raceEnabled {
		chunks = 12
	}
	size := int64(chunks) * index.ChunkSize
	if url := os.Getenv("INGOT_TEST_MEMORY_URL"); url != "" {
		debug.SetMemoryLimit(64 * mib) // what the agent sets on the smallest machine
		path := kit.TempDisk(t, size+16*mib)
		for _, version := range []string{"/1/disk.ingot", "/2/disk.ingot"} {
			r, err := deploy(t, newRealMachine(t, path, size+16*mib),
				map[string]any{"image_source": url + version, "allow_unverified": true})
			if err != nil {
				t.Fatal(err)
			}
			status, err := os.ReadFile("/proc/self/status")
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(status)) {
				if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
					fmt.Printf("peak %s after %d ms, %d bytes kept\n", strings.TrimSpace(v), r.TookMS, r.BytesKept)
				}
			}
		}
		return
	}
	objects := map[string][]byte{}
	add := func(raw []byte) index.Object {
		w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithZeroFrames(true),
			zstd.WithSingleSegment(true))
		if err != nil {
			t.Fatal(err)
		}
		stored := w.EncodeAll(raw, nil)
		o := index.Of(stored)
		objects["/"+o.Path()] = stored
		return o
	}
	r := mathrand.NewChaCha8([32]byte{8})
	first := make([]byte, index.ChunkSize)
	r.Read(first)
	putMBR(first, int(size))
	raw := [][]byte{first}
	for range 4 {
		b := make([]byte, index.ChunkSize)
		r.Read(b)
		raw = append(raw, b)
	}
	var stored []index.Object
	var sums [][]byte
	for _, b := range raw {
		stored = append(stored, add(b))
		var list []byte
		for at := 0; at < len(b); at += index.BlockSize {
			sum := index.SumBlock(b[at : at+index.BlockSize])
			list = append(list, sum[:]...)
		}
		sums = append(sums, list)
	}
	for version := 1; version <= 2; version++ { // in the second one every other chunk is another
		x := &index.Index{Size: size, Chunks: []index.Object{stored[0]}}
		list := bytes.Clone(sums[0])
		for i := 1; i < chunks; i++ {
			k := 1 + (i+i%2*version)%4
			x.Chunks = append(x.Chunks, stored[k])
			list = append(list, sums[k]...)
		}
		x.Lists = []index.Object{add(list)}
		objects[fmt.Sprintf("/%d/disk.ingot", version)] = x.Marshal()
	}
	s := serveBy(t, func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		if _, rest, ok := strings.Cut(path, "/objects/"); ok {
			path = "/objects/" + rest
		}
		w.Write(objects[path])
	})
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMemoryOfPublishedImages$", "-test.v")
	cmd.Env = append(os.Environ(), "INGOT_TEST_MEMORY_URL="+s.URL)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var peak, took, kept int
	for i, line := range strings.Split(string(out), "peak ")[1:] {
		if _, err := fmt.Sscanf(line, "%d kB after %d ms, %d bytes kept", &peak, &took, &kept); err != nil {
			t.Fatalf("%v in %q", err, out)
		}
		t.Logf("attempt %d: %d MiB in %d ms with a peak of %d MiB, %d MiB kept", i+1, size>>20, took, peak>>10,
			kept>>20)
	}
	if limit := 64 << 10; peak == 0 || peak > limit && !raceEnabled {
		t.Errorf("peak of %d kB, want at most %d", peak, limit)
	}
	if kept < int(size)/3 {
		t.Errorf("%d bytes kept: the test proved nothing about looking", kept)
	}
}
