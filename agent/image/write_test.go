package image

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images"
)

const mib = 1 << 20

// allCases reports whether a test tries all its cases; see raceEnabled.
var allCases = !raceEnabled || os.Getenv("INGOT_FULL") != ""

// patient is for tests in which no mirror is given up, however slow the machine; hasty is for tests of giving up.
var patient = fetch.Patience{Start: 20 * time.Second, Outage: 20 * time.Second, Stall: 20 * time.Second,
	First: time.Millisecond, Longest: 20 * time.Millisecond, Restarts: 3}

var hasty = fetch.Patience{Start: 300 * time.Millisecond, Outage: 300 * time.Millisecond, Stall: 20 * time.Second,
	First: time.Millisecond, Longest: 20 * time.Millisecond, Restarts: 3}

// mbrImage makes a whole-disk image: one partition from 1 MiB to the end, data and holes of many sizes.
func mbrImage(size int) []byte {
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{7})
	for off := 0; off < size; {
		n := min(4096*(1+int(r.Uint64()%60)), size-off)
		r.Read(b[off : off+n])
		off += n + 4096*int(r.Uint64()%90)
	}
	putMBR(b, size)
	return b
}

// gptImage makes a whole-disk image with a GPT that begins at 1 MiB, or inside the first MiB when early.
func gptImage(size int, early bool) []byte { return gptImageFor(size, 512, early) }

func gptImageFor(size, sector int, early bool) []byte {
	b := mbrImage(size)
	le := binary.LittleEndian
	b[446+4] = 0xee
	le.PutUint32(b[446+8:], 1)
	table := (16384 + sector - 1) / sector // sectors of the entries
	clear(b[512 : (2+table)*sector])
	sectors := uint64(size / sector)
	first := uint64(mib / sector)
	if early {
		first = uint64(2 + table)
	}
	entries := b[2*sector : 2*sector+16384]
	copy(entries, "\xa2\xa0\xd0\xeb\xe5\xb9\x33\x44\x87\xc0\x68\xb6\xb7\x26\x99\xc7unique guid 0001")
	le.PutUint64(entries[32:], first)
	le.PutUint64(entries[40:], sectors-uint64(table)-3)
	header := func(at []byte, mine, other, entriesLBA uint64) {
		clear(at[:sector])
		copy(at, "EFI PART\x00\x00\x01\x00\x5c")
		le.PutUint64(at[24:], mine)
		le.PutUint64(at[32:], other)
		le.PutUint64(at[40:], uint64(2+table))
		le.PutUint64(at[48:], sectors-uint64(table)-2)
		copy(at[56:], "the disk's guid.")
		le.PutUint64(at[72:], entriesLBA)
		le.PutUint32(at[80:], 128)
		le.PutUint32(at[84:], 128)
		le.PutUint32(at[88:], crc32.ChecksumIEEE(entries))
		le.PutUint32(at[16:], crc32.ChecksumIEEE(at[:92]))
	}
	header(b[sector:], 1, sectors-1, 2)
	copy(b[size-(table+1)*sector:], entries)
	header(b[size-sector:], sectors-1, 1, sectors-uint64(table)-1)
	return b
}

func soundBackupOn(disk io.ReaderAt, size int64) bool {
	le := binary.LittleEndian
	h := make([]byte, 512)
	if _, err := disk.ReadAt(h, size-512); err != nil || !bytes.HasPrefix(h, []byte("EFI PART")) {
		return false
	}
	crc := le.Uint32(h[16:])
	clear(h[16:20])
	from := int64(le.Uint64(h[72:])) * 512
	entries := make([]byte, 16384)
	if _, err := disk.ReadAt(entries, max(0, from)); err != nil {
		return false
	}
	return crc32.ChecksumIEEE(h[:92]) == crc && crc32.ChecksumIEEE(entries) == le.Uint32(h[88:])
}

// putMBR puts a partition table with one partition at the head of an image of size bytes.
func putMBR(head []byte, size int) {
	clear(head[440:512])
	e := head[446:]
	e[4] = 0x83
	binary.LittleEndian.PutUint32(e[8:], 2048)
	binary.LittleEndian.PutUint32(e[12:], uint32(size/512-2048))
	head[510], head[511] = 0x55, 0xaa
}

func packed(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func sha(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// serve serves one file with a strong ETag and ranges, as static servers do.
func serve(t *testing.T, file []byte) *httptest.Server {
	return serveBy(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"v1"`)
		http.ServeContent(w, r, "image", time.Time{}, bytes.NewReader(file))
	})
}

func serveBy(t *testing.T, h http.HandlerFunc) *httptest.Server {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// bench is a machine with one disk of 0xA5, and what a step said.
type bench struct {
	m     *fake.Disks
	disk  *fake.Disk
	size  int64
	facts *step.Facts
	log   bytes.Buffer
	wait  fetch.Patience

	mu       sync.Mutex
	progress []step.Progress
}

func newBench(t *testing.T, s fake.DiskSpec) *bench {
	t.Helper()
	b := &bench{m: fake.NewDisks(t.TempDir()), facts: &step.Facts{}, size: s.Size, wait: patient}
	s.Name, s.Serial, s.Fill = "vda", "bench-1", 0xa5
	b.disk = b.m.Add(s)
	return b
}

func (b *bench) write(ctx context.Context, args map[string]any) (*Result, error) {
	if args["root_device"] == nil {
		args["root_device"] = map[string]any{"serial": "bench-1"} // test disks are smaller than 4 GiB
	}
	raw, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	c := &step.Call{Args: raw, Log: slog.New(slog.NewTextHandler(&b.log, nil)), Facts: b.facts,
		Report: func(p step.Progress) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.progress = append(b.progress, p)
		}}
	r, err := write(ctx, b.m, c, b.wait)
	return r, Explain(err)
}

func (b *bench) contents(t *testing.T) []byte {
	t.Helper()
	got := make([]byte, b.size)
	if _, err := b.disk.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	return got
}

func (b *bench) commit(t *testing.T) {
	t.Helper()
	if _, err := disk.Commit(t.Context(), b.facts, b.m, nil); err != nil {
		t.Fatal(err)
	}
}

// head is the first MiB of the disk.
func (b *bench) head(t *testing.T) []byte {
	t.Helper()
	got := make([]byte, mib)
	if _, err := b.disk.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	return got
}

// mustHold checks that the disk, dirty before, is the image byte for byte.
func (b *bench) mustHold(t *testing.T, img []byte) {
	t.Helper()
	b.mustHoldPart(t, img, 0, len(img))
}

// mustHoldPart checks the bytes between two offsets.
func (b *bench) mustHoldPart(t *testing.T, img []byte, from, to int) {
	t.Helper()
	if off := b.disk.Differs(img[from:to], int64(from)); off >= 0 {
		got, want := make([]byte, 8), img[from+int(off):]
		if _, err := b.disk.ReadAt(got, int64(from)+off); err != nil {
			t.Fatal(err)
		}
		t.Fatalf("byte %d and following: the disk is not the image (first bytes %x, want %x)",
			int64(from)+off, got, want[:min(8, len(want))])
	}
}

func TestWriteThenCommitGivesTheImage(t *testing.T) {
	img := mbrImage(9*mib + 1536)
	short := mbrImage(2 * mib)
	for _, c := range []struct {
		name string
		img  []byte
		zstd bool
		spec fake.DiskSpec
	}{
		{"raw", img, false, fake.DiskSpec{Size: 24 * mib}},
		{"raw, no holes on the device", img, false, fake.DiskSpec{Size: 24 * mib, NoPunch: true}},
		{"raw, a device that lies about holes", img, false, fake.DiskSpec{Size: 24 * mib, LyingPunch: true}},
		{"raw, disk as large as the image", img, false, fake.DiskSpec{Size: int64(len(img))}},
		{"zstd", img, true, fake.DiskSpec{Size: 24 * mib}},
		{"zstd, disk as large as the image", img, true, fake.DiskSpec{Size: int64(len(img))}},
		{"short raw", short, false, fake.DiskSpec{Size: 24 * mib}},
		{"short zstd", short, true, fake.DiskSpec{Size: 24 * mib}},
		{"barely more than the head, zstd", mbrImage(mib + 2048), true, fake.DiskSpec{Size: 24 * mib}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := c.img
			if c.zstd {
				file = packed(t, c.img)
			}
			s := serve(t, file)
			b := newBench(t, c.spec)
			r, err := b.write(t.Context(),
				map[string]any{"image_source": s.URL + "/image", "image_os_hash_algo": "sha256",
					"image_os_hash_value": sha(file), "verify": true})
			if err != nil {
				t.Fatal(err)
			}
			if disk.HasTable(b.head(t), 512) {
				t.Error("the disk has a partition table before the commit")
			}
			if r.VirtualSize != int64(len(c.img)) || r.BytesFetched != int64(len(file)) || r.SHA256 != sha(file) ||
				r.Disk.Serial != "bench-1" || r.Disk.Why == "" {
				t.Errorf("result = %+v", r)
			}
			all := r.VirtualSize - mib - disk.TailSectors*512 // the part that is not withheld
			if punches := r.BytesZero > 0 && r.BytesWritten < all; punches == (c.spec.NoPunch || c.spec.LyingPunch) &&
				len(c.img) == len(img) {
				t.Errorf("written %d, zero %d of %d", r.BytesWritten, r.BytesZero, r.VirtualSize)
			}
			b.commit(t)
			b.mustHold(t, c.img)
		})
	}
}

func TestSHA512AndChecksumFile(t *testing.T) {
	img := mbrImage(3 * mib)
	sum := sha512.Sum512(img)
	s := serveBy(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/sums" {
			fmt.Fprintf(w, "%s  other.raw\n%s  disk.raw\n", strings.Repeat("0", 64), sha(img))
			return
		}
		w.Write(img)
	})
	b := newBench(t, fake.DiskSpec{Size: 8 * mib})
	r, err := b.write(t.Context(),
		map[string]any{"image_source": s.URL + "/x/disk.raw", "image_os_hash_algo": "sha512",
			"image_os_hash_value": hex.EncodeToString(sum[:])})
	if err != nil || r.SHA256 != "" || !strings.HasPrefix(r.Digest, "sha512:") {
		t.Errorf("sha512: %+v, %v", r, err)
	}
	if r, err = b.write(t.Context(),
		map[string]any{"image_source": s.URL + "/x/disk.raw", "image_checksum": s.URL + "/sums"}); err != nil ||
		r.SHA256 != sha(img) {
		t.Errorf("checksum file: %+v, %v", r, err)
	}
	if r, err = b.write(t.Context(),
		map[string]any{"image_source": s.URL + "/x/disk.raw", "allow_unverified": true}); err != nil ||
		r.SHA256 != sha(img) {
		t.Errorf("without a digest: %+v, %v", r, err)
	}
	md := md5.Sum(img)
	b3 := images.Digest{Algo: images.BLAKE3}.New()
	b3.Write(img)
	for _, c := range []struct {
		args map[string]any
		want string
	}{
		{map[string]any{"image_os_hash_algo": "blake3", "image_os_hash_value": hex.EncodeToString(b3.Sum(nil))},
			"blake3:"},
		{map[string]any{"image_os_hash_algo": "md5", "image_os_hash_value": hex.EncodeToString(md[:]),
			"allow_md5": true}, "md5:"},
		{map[string]any{"image_checksum": hex.EncodeToString(md[:]), "allow_md5": true}, "md5:"},
		{map[string]any{"image_os_hash_algo": "sha256", "image_os_hash_value": s.URL + "/sums"}, "sha256:"},
	} {
		c.args["image_source"] = s.URL + "/x/disk.raw"
		if r, err := b.write(t.Context(), c.args); err != nil || !strings.HasPrefix(r.Digest, c.want) {
			t.Errorf("%v: %+v, %v", c.args, r, err)
		}
		delete(c.args, "allow_md5")
		if _, err := b.write(t.Context(), c.args); c.want == "md5:" &&
			(err == nil || !strings.Contains(err.Error(), "MD5")) {
			t.Errorf("%v: %v", c.args, err)
		}
	}
	if _, err = b.write(t.Context(),
		map[string]any{"image_source": s.URL + "/x/gone.raw", "image_checksum": s.URL + "/sums"}); err == nil ||
		!strings.Contains(err.Error(), "not gone.raw") {
		t.Errorf("not in the checksum file: %v", err)
	}
}

// TestFailuresNameCauseAndRemedy walks everything that can be wrong with an image, and holds that none of it leaves a
// bootable disk.
func TestFailuresNameCauseAndRemedy(t *testing.T) {
	img, old := mbrImage(5*mib), mbrImage(16*mib)
	zst := packed(t, img)
	refused := serve(t, nil)
	refused.Close()
	file := func(b []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(b)))
			w.Write(b)
		}
	}
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", code) }
	}
	cut := func(b []byte, n int) http.HandlerFunc { // claims all, sends n, and never does more
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"v1"`)
			if r.Header.Get("Range") != "" {
				panic(http.ErrAbortHandler)
			}
			w.Header().Set("Content-Length", fmt.Sprint(len(b)))
			w.Write(b[:n])
		}
	}
	cases := []struct {
		name    string
		h       http.HandlerFunc
		args    map[string]any
		want    []string
		touched bool // the disk's old table may be gone
	}{
		{"404", status(404), nil, []string{"404 Not Found", "/image"}, false},
		{"403", status(403), nil, []string{"403"}, false},
		{"500 all the time", status(500), nil, []string{"500"}, false},
		{"not reachable", nil, map[string]any{"image_source": refused.URL + "/image"},
			[]string{"not reachable", "connection refused"}, false},
		{"no such host", nil, map[string]any{"image_source": "http://no-such-host.invalid/image"},
			[]string{"not reachable"}, false},
		{"an HTML page", file([]byte("<!doctype html><h1>hello</h1>")), nil, []string{"not an image", "HTML"}, false},
		{"another format", file(append([]byte("QFI\xfb"), make([]byte, mib)...)), nil, []string{"qcow2"}, false},
		{"wrong digest", file(img), map[string]any{"image_os_hash_value": sha([]byte("x"))},
			[]string{"digest is wrong", sha(img)}, true},
		{"wrong digest, zstd", file(zst), map[string]any{"image_os_hash_value": sha(img)},
			[]string{"digest is wrong", sha(zst)}, true},
		{"truncated zstd", file(zst[:len(zst)/2]), nil, []string{"truncated"}, true},
		{"truncated raw", file(img[:3*mib]), nil, []string{"truncated", "partition 1 ends at"}, false},
		{"server gone in the middle", cut(img, 4*mib), nil, []string{"no new data for", "after 4194304 bytes"}, true},
		{"larger than the disk", file(mbrImage(17 * mib)), nil, []string{"larger than the disk", "17825792 bytes"},
			false},
		{"zstd larger than the disk", file(packed(t, append(mbrImage(9*mib), make([]byte, 9*mib)...))), nil,
			[]string{"larger than the disk"}, true},
		{"no partition table", file(bytes.Repeat([]byte("x\x00"), mib)), nil, []string{"not an image"}, false},
		{"empty", file(nil), nil, []string{"empty"}, false},
		{"content encoding", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			w.Write(img)
		}, nil, []string{"content encoding"}, false},
		{"redirects without end", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path+"x", http.StatusFound)
		}, nil, []string{"more than 5 redirects"}, false},
		{"no disk fits", file(img), map[string]any{"root_device": map[string]any{"serial": "other"}},
			[]string{"no disk fits the hints", "/dev/vda (serial is bench-1, wanted other)"}, false},
		{"no digest", file(img), map[string]any{"image_os_hash_value": ""}, []string{"no digest"}, false},
		{"md5", file(img), map[string]any{"image_os_hash_value": "", "image_checksum": strings.Repeat("a", 32)},
			[]string{"MD5"}, false},
		{"ftp", nil, map[string]any{"image_source": "ftp://host/image"}, []string{"not of a kind"}, false},
		{"no source", nil, map[string]any{"image_source": ""}, []string{"no image is given"}, false},
		{"unknown argument", file(img), map[string]any{"image_sauce": "x"}, []string{"image_sauce"}, false},
		{"bad CA", file(img), map[string]any{"image_ca": "nonsense"}, []string{"image_ca"}, false},
	}
	// Words of the remedies that people meet most often. The others have one, too.
	remedies := map[string]string{
		"truncated zstd": "is complete", "larger than the disk": "use a smaller image",
		"not reachable": "start the image's server", "404": "put the image there", "an HTML page": "check the URL",
		"no partition table": "check the URL", "wrong digest": "publish the file again",
		"no disk fits": "correct root_device",
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, fake.DiskSpec{Size: 16 * mib})
			b.disk.Lay(old, 0)
			args := map[string]any{"image_os_hash_algo": "sha256", "image_os_hash_value": sha(img)}
			if c.h != nil {
				args["image_source"] = serveBy(t, c.h).URL + "/image"
			}
			maps.Copy(args, c.args)
			if args["image_os_hash_value"] == "" {
				delete(args, "image_os_hash_algo")
			}
			b.wait = hasty
			_, err := b.write(t.Context(), args)
			b.wait = patient
			if err == nil {
				t.Fatal("no error")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q lacks %q", err, w)
				}
			}
			if r := step.AsError(err).Remedy; r == "" || !strings.Contains(r, remedies[c.name]) {
				t.Errorf("error %q has the remedy %q, want one with %q", err, r, remedies[c.name])
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q has more than one line", err)
			}
			var end [1]byte
			if _, err := b.disk.ReadAt(end[:], 16*mib-512); err != nil {
				t.Fatal(err)
			}
			switch {
			case !c.touched && b.disk.Differs(old, 0) >= 0:
				t.Error("the disk was touched before the fault could be known")
			case c.touched && (disk.HasTable(b.head(t), 512) || end[0] != 0):
				t.Error("the disk looks bootable")
			}
			if _, err := disk.Commit(t.Context(), b.facts, b.m, nil); err == nil {
				t.Error("a failed write could be committed")
			}

			// A following deployment works.
			if !allCases && !c.touched && c.name != "404" {
				return
			}
			good := serve(t, img)
			if _, err := b.write(t.Context(),
				map[string]any{"image_source": good.URL, "image_os_hash_value": sha(img)}); err != nil {
				t.Fatalf("the next deployment: %v", err)
			}
			b.commit(t)
			b.mustHold(t, img)
		})
	}
}

func TestBrokenConnectionResumes(t *testing.T) {
	img := mbrImage(8 * mib)
	for _, zst := range []bool{false, true} {
		file := img
		if zst {
			file = packed(t, img)
		}
		var requests atomic.Int32
		piece := len(file)/5 + 1
		s := serveBy(t, func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			w.Header().Set("ETag", `"v1"`)
			var from int
			if rng := r.Header.Get("Range"); rng != "" {
				if r.Header.Get("If-Range") != `"v1"` {
					t.Errorf("Range without If-Range")
				}
				fmt.Sscanf(rng, "bytes=%d-", &from)
				w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(file)-1, len(file)))
				w.Header().Set("Content-Length", fmt.Sprint(len(file)-from))
				w.WriteHeader(http.StatusPartialContent)
			} else {
				w.Header().Set("Content-Length", fmt.Sprint(len(file)))
			}
			w.Write(file[from:min(from+piece, len(file))])
			if from+piece < len(file) {
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			}
		})
		b := newBench(t, fake.DiskSpec{Size: 16 * mib})
		r, err := b.write(t.Context(), map[string]any{"image_source": s.URL, "image_os_hash_value": sha(file)})
		if err != nil {
			t.Fatal(err)
		}
		if r.Resumes < 3 || r.Restarts != 0 || r.BytesFetched != int64(len(file)) {
			t.Errorf("resumes %d, restarts %d, fetched %d, requests %d", r.Resumes, r.Restarts, r.BytesFetched,
				requests.Load())
		}
		b.commit(t)
		b.mustHold(t, img)
	}
}

func TestResumeWithoutHelpFromTheServer(t *testing.T) {
	img := mbrImage(8 * mib)
	changed := mbrImage(8*mib - 512)
	for _, c := range []struct {
		name     string
		serve    func(n int32, w http.ResponseWriter) (file []byte, cutAt int)
		want     []byte
		restarts int
		err      string
	}{
		{"no ETag: goes on, the digest decides", func(n int32, w http.ResponseWriter) ([]byte, int) {
			return img, map[bool]int{true: 3 * mib}[n == 1]
		}, img, 0, ""},
		{"weak ETag: goes on, the digest decides", func(n int32, w http.ResponseWriter) ([]byte, int) {
			w.Header().Set("ETag", `W/"v1"`)
			return img, map[bool]int{true: 3 * mib}[n == 1]
		}, img, 0, ""},
		{"same ETag but no ranges: skips what is known", func(n int32, w http.ResponseWriter) ([]byte, int) {
			w.Header().Set("ETag", `"v1"`)
			return img, map[bool]int{true: 3 * mib}[n == 1]
		}, img, 0, ""},
		{"the file was replaced: from the beginning", func(n int32, w http.ResponseWriter) ([]byte, int) {
			if n == 1 {
				w.Header().Set("ETag", `"v0"`)
				return img, 3 * mib
			}
			w.Header().Set("ETag", `"v1"`)
			return changed, 0
		}, changed, 1, ""},
		{"replaced again and again", func(n int32, w http.ResponseWriter) ([]byte, int) {
			w.Header().Set("ETag", fmt.Sprintf(`"v%d"`, n))
			return img, 2*mib + int(n)<<16
		}, img, 0, "started again 3 times"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var n atomic.Int32
			s := serveBy(t, func(w http.ResponseWriter, r *http.Request) {
				file, cutAt := c.serve(n.Add(1), w)
				w.Header().Set("Content-Length", fmt.Sprint(len(file)))
				if cutAt > 0 {
					w.Write(file[:cutAt])
					w.(http.Flusher).Flush()
					panic(http.ErrAbortHandler)
				}
				w.Write(file)
			})
			b := newBench(t, fake.DiskSpec{Size: 16 * mib})
			if c.err != "" {
				b.wait = hasty
			}
			r, err := b.write(t.Context(), map[string]any{"image_source": s.URL, "image_os_hash_value": sha(c.want)})
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error = %v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if r.Restarts != c.restarts || r.SHA256 != sha(c.want) {
				t.Errorf("restarts %d, want %d", r.Restarts, c.restarts)
			}
			b.commit(t)
			b.mustHold(t, c.want)
		})
	}
}

func TestSilentServerIsAskedAgain(t *testing.T) {
	img := mbrImage(4 * mib)
	var n atomic.Int32
	release := make(chan struct{})
	defer close(release)
	s := serveBy(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"v1"`)
		if n.Add(1) == 1 {
			w.Header().Set("Content-Length", fmt.Sprint(len(img)))
			w.Write(img[:2*mib])
			w.(http.Flusher).Flush()
			select { // says nothing more
			case <-r.Context().Done():
			case <-release:
			}
			return
		}
		http.ServeContent(w, r, "image", time.Time{}, bytes.NewReader(img))
	})
	b := newBench(t, fake.DiskSpec{Size: 8 * mib})
	b.wait.Stall = 500 * time.Millisecond
	r, err := b.write(t.Context(), map[string]any{"image_source": s.URL, "image_os_hash_value": sha(img)})
	if err != nil || r.Resumes == 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if !strings.Contains(b.log.String(), "no data for too long") {
		t.Errorf("the log does not say why: %s", b.log.String())
	}
}

func TestServerStartsLate(t *testing.T) {
	img := mbrImage(2 * mib)
	var n atomic.Int32
	s := serveBy(t, func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) < 4 {
			http.Error(w, "starting", http.StatusServiceUnavailable)
			return
		}
		w.Write(img)
	})
	b := newBench(t, fake.DiskSpec{Size: 8 * mib})
	if _, err := b.write(t.Context(),
		map[string]any{"image_source": s.URL, "image_os_hash_value": sha(img)}); err != nil {
		t.Fatal(err)
	}
}

// lateDisks is a machine whose drives are found when something else has happened.
type lateDisks struct {
	*fake.Disks
	settle func(context.Context) error
}

func (m lateDisks) Settle(ctx context.Context) error { return m.settle(ctx) }

// TestConnectsWhileDisksAreFound holds that the first request does not wait for the survey of the disks, and that
// nothing is left of it when no disk is found.
func TestConnectsWhileDisksAreFound(t *testing.T) {
	img := mbrImage(2 * mib)
	asked := make(chan struct{}, 8)
	s := serveBy(t, func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		http.ServeContent(w, r, "image", time.Time{}, bytes.NewReader(img))
	})
	b := newBench(t, fake.DiskSpec{Size: 8 * mib})
	m := lateDisks{b.m, func(ctx context.Context) error {
		select {
		case <-asked:
			return nil
		case <-time.After(20 * time.Second):
			t.Error("the server was not asked before the disks were known")
			return nil
		}
	}}
	run := func(ctx context.Context, serial string) error {
		_, err := write(ctx, m, &step.Call{Args: fmt.Appendf(nil,
			`{"image_source": %q, "image_os_hash_value": %q, "root_device": {"serial": %q}}`, s.URL, sha(img), serial),
			Log: slog.New(slog.DiscardHandler), Facts: b.facts, Report: func(step.Progress) {}}, patient)
		return err
	}
	if err := run(t.Context(), "bench-1"); err != nil {
		t.Fatal(err)
	}
	b.commit(t)
	b.mustHold(t, img)

	gone := make(chan struct{})
	hangUp := sync.OnceFunc(func() { close(gone) })
	s.Config.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done() // the client hangs up
		hangUp()
	})
	b.facts = &step.Facts{}
	ctx, cancel := context.WithCancel(t.Context())
	m.settle = func(context.Context) error {
		<-asked
		cancel()
		return ctx.Err()
	}
	if err := run(ctx, "bench-1"); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled write: %v", err)
	}
	select {
	case <-gone:
	case <-time.After(20 * time.Second):
		t.Error("the request is still there")
	}
}

func TestPasswordsStayOutOfLogAndErrors(t *testing.T) {
	img := mbrImage(2 * mib)
	s := serveBy(t, func(w http.ResponseWriter, r *http.Request) {
		if user, pass, _ := r.BasicAuth(); user != "rack" || pass != "hunter2" ||
			r.URL.Query().Get("sig") != "topsecret" {
			http.Error(w, "who are you", http.StatusUnauthorized)
			return
		}
		w.Write(img)
	})
	host := strings.TrimPrefix(s.URL, "http://")
	for _, c := range []struct{ url, err string }{
		{"http://rack:hunter2@" + host + "/image?sig=topsecret", ""},
		{"http://rack:hunter2@" + host + "/image?sig=topsecret-but-wrong", "401"},
		{"http://rack:hunter2@127.0.0.1:1/image?sig=topsecret", "not reachable"},
		{"http://rack:hunter2@bad host/?sig=topsecret", "can't be understood"},
	} {
		b := newBench(t, fake.DiskSpec{Size: 8 * mib})
		if c.err != "" {
			b.wait = hasty
		}
		_, err := b.write(t.Context(), map[string]any{"image_source": c.url, "image_os_hash_value": sha(img)})
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v", c.url, err)
		}
		said := b.log.String() + fmt.Sprint(err)
		if strings.Contains(said, "hunter2") || strings.Contains(said, "topsecret") {
			t.Errorf("a secret got out: %s", said)
		}
	}
}

func TestImageCA(t *testing.T) {
	img := mbrImage(2 * mib)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write(img) }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	b := newBench(t, fake.DiskSpec{Size: 8 * mib})
	if _, err := b.write(t.Context(),
		map[string]any{"image_source": s.URL, "image_os_hash_value": sha(img), "image_ca": ca}); err != nil {
		t.Errorf("with the CA: %v", err)
	}
	b.wait = hasty
	if _, err := b.write(t.Context(),
		map[string]any{"image_source": s.URL, "image_os_hash_value": sha(img)}); err == nil ||
		!strings.Contains(step.AsError(err).Remedy, "image_ca") {
		t.Errorf("without the CA: %v", err)
	}
}

func TestDiskFaultsFailTheStep(t *testing.T) {
	img := mbrImage(8 * mib)
	for _, kind := range []string{"write", "sync", "punch", "read"} {
		s := serve(t, img)
		b := newBench(t, fake.DiskSpec{Size: 16 * mib})
		b.disk.Fail(func(k string, off, n int64) error {
			if k == kind && (off > 5*mib || kind == "sync" || kind == "read" && off > 0) {
				return errors.New("medium error")
			}
			return nil
		})
		_, err := b.write(t.Context(),
			map[string]any{"image_source": s.URL, "image_os_hash_value": sha(img), "verify": true})
		if err == nil || !strings.Contains(err.Error(), "medium error") || !strings.Contains(err.Error(), "/dev/vda") ||
			step.AsError(err).Remedy == "" {
			t.Errorf("fault in %s: %v", kind, err)
		}
	}
}

func TestCancelStopsSoon(t *testing.T) {
	img := mbrImage(8 * mib)
	release := make(chan struct{})
	defer close(release)
	reached := make(chan struct{})
	s := serveBy(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(img)))
		w.Write(img[:4*mib])
		w.(http.Flusher).Flush()
		close(reached)
		<-release
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-reached
		cancel(errors.New("operator aborted"))
	}()
	b := newBench(t, fake.DiskSpec{Size: 16 * mib})
	began := time.Now()
	_, err := b.write(ctx, map[string]any{"image_source": s.URL, "image_os_hash_value": sha(img)})
	if err == nil || !strings.Contains(err.Error(), "operator aborted") || time.Since(began) > 30*time.Second {
		t.Errorf("after %s: %v", time.Since(began), err)
	}
	if disk.HasTable(b.head(t), 512) {
		t.Error("the disk looks bootable")
	}
}

func TestProgressRisesToTheTotal(t *testing.T) {
	img := mbrImage(8 * mib)
	s := serve(t, img)
	b := newBench(t, fake.DiskSpec{Size: 16 * mib})
	if _, err := b.write(t.Context(),
		map[string]any{"image_source": s.URL, "image_os_hash_value": sha(img), "verify": true}); err != nil {
		t.Fatal(err)
	}
	phases := map[string]step.Progress{}
	for _, p := range b.progress {
		if last := phases[p.Phase]; p.Bytes < last.Bytes {
			t.Errorf("progress fell from %+v to %+v", last, p)
		}
		phases[p.Phase] = p
	}
	if w := phases["write"]; w.Bytes != uint64(len(img)) || w.Total != uint64(len(img)) {
		t.Errorf("last progress of write = %+v", w)
	}
	if _, ok := phases["verify"]; !ok {
		t.Errorf("phases = %v", phases)
	}
}
