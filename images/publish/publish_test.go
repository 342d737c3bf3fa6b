package publish

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/zeebo/blake3"

	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/images/inspect"
	"github.com/ingot-metal/ingot/test/kit"
)

const mib = 1 << 20

// disk makes the contents of a disk with an MBR: noise, text, and zeros short and long; two of its chunks are the same.
func disk(size int, seed byte) []byte {
	b := make([]byte, size)
	r := rand.New(rand.NewChaCha8([32]byte{seed}))
	for off := 0; off < size; {
		n := min(size-off, 1+r.IntN(3*mib))
		switch r.IntN(4) {
		case 0:
			rand.NewChaCha8([32]byte{byte(r.Uint32())}).Read(b[off : off+n])
		case 1:
			for i := off; i < off+n; i += 16 {
				copy(b[i:off+n], fmt.Sprintf("line %9d\n", i*i))
			}
		case 2:
			n = min(size-off, 9*mib)
		}
		off += n
	}
	if size >= 24*mib {
		copy(b[20*mib:24*mib], b[4*mib:8*mib])
	}
	clear(b[:512])
	b[446+4], b[510], b[511] = 0x83, 0x55, 0xaa
	return b
}

// referenceRead puts a published image together again by its specification in docs/reference/published-image-format.md,
// with nothing of this project.
func referenceRead(t *testing.T, dir, name string) []byte {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, name+".ingot"))
	must(err)
	le := binary.LittleEndian
	if string(b[:8]) != "\x89INGOT\r\n" || le.Uint32(b[8:]) != 2 {
		t.Fatal("not an index")
	}
	if sum := sha256.Sum256(b[:len(b)-32]); !bytes.Equal(sum[:], b[len(b)-32:]) {
		t.Fatal("wrong checksum of the index")
	}
	chunk, block, perList, size := int(le.Uint32(b[12:])), int(le.Uint32(b[16:])), int(le.Uint32(b[20:])),
		int(le.Uint64(b[32:]))
	diskSum := b[40:72]
	b = b[72:]
	for range 2 {
		b = b[4+le.Uint32(b):]
	}
	object := func(entry []byte) []byte {
		n := int(le.Uint32(entry[32:36]))
		if n == 0 {
			return nil
		}
		h := hex.EncodeToString(entry[:32])
		stored, err := os.ReadFile(filepath.Join(dir, "objects", h[:2], h))
		must(err)
		if sum := sha256.Sum256(stored); len(stored) != n || !bytes.Equal(sum[:], entry[:32]) {
			t.Fatalf("object %s is damaged", h)
		}
		if le.Uint32(stored) == 0x184d2204 {
			raw, err := io.ReadAll(lz4.NewReader(bytes.NewReader(stored)))
			must(err)
			return raw
		}
		z, err := zstd.NewReader(bytes.NewReader(stored))
		must(err)
		defer z.Close()
		raw, err := io.ReadAll(z)
		must(err)
		return raw
	}
	out := make([]byte, size)
	chunks := (size + chunk - 1) / chunk
	for i := range chunks {
		raw := object(b[36*i:])
		if raw != nil && len(raw) != min(chunk, size-i*chunk) {
			t.Fatalf("chunk %d has %d bytes", i, len(raw))
		}
		copy(out[i*chunk:], raw)
	}
	if sum := sha256.Sum256(out); !bytes.Equal(sum[:], diskSum) {
		t.Error("wrong digest of the disk")
	}
	for l := range (chunks + perList - 1) / perList {
		part := out[l*perList*chunk : min(size, (l+1)*perList*chunk)]
		sums := object(b[36*(chunks+l):])
		if want := (len(part) + block - 1) / block * 32; sums != nil && len(sums) != want {
			t.Fatalf("block list %d has %d bytes, want %d", l, len(sums), want)
		}
		for i := 0; i*block < len(part); i++ {
			data := part[i*block : min(len(part), (i+1)*block)]
			want := blake3.Sum256(data)
			if len(bytes.Trim(data, "\x00")) == 0 {
				want = [32]byte{}
			}
			var got [32]byte
			if sums != nil {
				copy(got[:], sums[32*i:])
			}
			if got != want {
				t.Fatalf("block %d of list %d has another digest", i, l)
			}
		}
	}
	return out
}

func input(b []byte) images.Input {
	return images.Input{Stream: bytes.NewReader(b), Size: int64(len(b))}
}

// few: only some of the exhaustive tests' cases.
func few() bool { return raceEnabled && os.Getenv("INGOT_FULL") == "" }

func publish(t testing.TB, img []byte, dir string, o Options) *Result {
	t.Helper()
	if o.Name == "" {
		o.Name = "test"
	}
	r, err := Image(t.Context(), input(img), Dir(dir), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// files is every file below a folder, with its contents.
func files(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		all[rel] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestPublishedIsWhatItWasMadeFrom(t *testing.T) {
	for _, size := range []int{512, 65536, 4*mib + 512, 9*mib + 777} {
		img := disk(size, byte(size))
		var packed bytes.Buffer
		w, err := zstd.NewWriter(&packed)
		if err != nil {
			t.Fatal(err)
		}
		w.Write(img)
		w.Close()
		var indices [][]byte
		for _, file := range [][]byte{img, packed.Bytes()} {
			dir := t.TempDir()
			r := publish(t, file, dir, Options{Source: "disk.raw"})
			if got := referenceRead(t, dir, "test"); !bytes.Equal(got, img) {
				t.Fatalf("%d bytes: not the same disk", size)
			}
			if err := Verify(t.Context(), r.Index, Dir(dir), nil); err != nil {
				t.Error(err)
			}
			b, err := os.ReadFile(r.Path)
			if err != nil || sha256.Sum256(b) != r.SHA256 {
				t.Errorf("digest of the index: %v", err)
			}
			if r.Index.Head != images.MBR || r.Index.Size != int64(size) {
				t.Errorf("%+v", r.Index)
			}
			indices = append(indices, b)
		}
		if !bytes.Equal(indices[0], indices[1]) {
			t.Error("raw and packed give different indices")
		}
	}
}

// fakeExtents gives pieces in the order of all.
type fakeExtents struct {
	size int64
	all  []images.Extent
	err  error
}

func (f *fakeExtents) Size() int64  { return f.size }
func (f *fakeExtents) Close() error { return nil }
func (f *fakeExtents) Next(buf []byte) (images.Extent, error) {
	if len(f.all) == 0 {
		if f.err != nil {
			return images.Extent{}, f.err
		}
		return images.Extent{}, io.EOF
	}
	e := f.all[0]
	f.all = f.all[1:]
	if e.Data != nil {
		e.Data = buf[:copy(buf, e.Data)]
	}
	return e, nil
}

// pieces cuts a disk up into data, packed data and holes.
func pieces(img []byte, r *rand.Rand) []images.Extent {
	var all []images.Extent
	for off := 0; off < len(img); {
		n := min(len(img)-off, 512*(1+r.IntN(2048)))
		x := images.Extent{Off: int64(off), Len: int64(n)}
		data := img[off : off+n]
		switch {
		case index.IsZero(data) && r.IntN(3) > 0:
		case r.IntN(2) == 0:
			x.Data = data
		default:
			x.Decode = func(dst []byte) error {
				if len(dst) != n {
					return fmt.Errorf("Decode into %d bytes, not %d", len(dst), n)
				}
				copy(dst, data)
				return nil
			}
		}
		all = append(all, x)
		off += n
	}
	return all
}

func TestPiecesInAnyOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	size := 50*mib + 512
	if few() {
		size = 26*mib + 512
	}
	img := disk(size, 9)
	var want []byte
	orders := map[string]func([]images.Extent){
		"in order":      func([]images.Extent) {},
		"backwards":     slices.Reverse[[]images.Extent],
		"shuffled":      func(a []images.Extent) { r.Shuffle(len(a), func(i, k int) { a[i], a[k] = a[k], a[i] }) },
		"first at last": func(a []images.Extent) { copy(a, append(a[1:], a[0])) },
		"a little wrong": func(a []images.Extent) {
			for i := 0; i+9 < len(a); i += 7 {
				a[i], a[i+9] = a[i+9], a[i]
			}
		},
	}
	for _, name := range []string{"in order", "backwards", "shuffled", "first at last", "a little wrong"} {
		all := pieces(img, r)
		orders[name](all)
		dir := t.TempDir()
		if err := Dir(dir).make("test"); err != nil {
			t.Fatal(err)
		}
		x, _, err := assemble(t.Context(), &fakeExtents{size: int64(len(img)), all: all}, Dir(dir),
			Options{Compress: encoder(1, 2), Workers: 1 + r.IntN(4), Meter: new(Meter), resident: 3})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		b := x.Marshal()
		if want == nil {
			want = b
			if x.SHA256 != sha256.Sum256(img) {
				t.Error("wrong digest of the disk")
			}
			if err := Dir(dir).finish("test", b, nil); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(referenceRead(t, dir, "test"), img) {
				t.Error("not the same disk")
			}
		}
		if !bytes.Equal(b, want) {
			t.Errorf("%s: another index", name)
		}
		for f := range files(t, dir) {
			if strings.Contains(f, ".ingot-") {
				t.Errorf("%s: %s is left", name, f)
			}
		}
	}
}

// TestBrokenReaders: a reader that breaks its promise makes an error, not a wrong image.
func TestBrokenReaders(t *testing.T) {
	data := bytes.Repeat([]byte{1}, mib)
	boom := errors.New("boom")
	for _, c := range []struct {
		name string
		size int64
		all  []images.Extent
		end  error
		want error
	}{
		{"a gap", 2 * mib, []images.Extent{{Off: 0, Len: mib, Data: data}}, nil, errGap},
		{"a chunk that never comes", 12 * mib, []images.Extent{{Off: 0, Len: 4 * mib}, {Off: 8 * mib, Len: 4 * mib}},
			nil, errGap},
		{"twice", 8 * mib,
			[]images.Extent{{Off: 0, Len: 4 * mib}, {Off: 0, Len: mib, Data: data}, {Off: 4 * mib, Len: 4 * mib}}, nil,
			errGap},
		{"overlap", 4 * mib, []images.Extent{{Off: 0, Len: 4*mib - 512}, {Off: 0, Len: mib, Data: data}}, nil, errGap},
		{"behind the end", mib, []images.Extent{{Off: 512, Len: mib}}, nil, errGap},
		{"negative", mib, []images.Extent{{Off: -512, Len: mib}}, nil, errGap},
		{"overflow", mib, []images.Extent{{Off: 512, Len: 1<<63 - 1}}, nil, errGap},
		{"empty", mib, []images.Extent{{Off: 0, Len: 0}}, nil, errGap},
		{"nothing", -1, nil, nil, errGap},
		{"out of order without a size", -1, []images.Extent{{Off: mib, Len: mib}}, nil, errGap},
		{"an error", mib, []images.Extent{{Off: 0, Len: 512}}, boom, boom},
		{"an error of a decoder", mib, []images.Extent{{Off: 0, Len: mib, Decode: func([]byte) error { return boom }}},
			nil, boom},
	} {
		dir := Dir(t.TempDir())
		if err := dir.make("test"); err != nil {
			t.Fatal(err)
		}
		_, _, err := assemble(t.Context(), &fakeExtents{c.size, c.all, c.end}, dir,
			Options{Compress: encoder(1, 1), Workers: 2, Meter: new(Meter)})
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	huge := &fakeExtents{size: -1, all: []images.Extent{{Off: 0, Len: index.MaxSize + 512}}}
	_, _, err := assemble(t.Context(), huge, Dir(t.TempDir()),
		Options{Compress: encoder(1, 1), Workers: 1, Meter: new(Meter)})
	var refused *images.Error
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "larger than 2048 GiB") {
		t.Errorf("too large: %v", err)
	}
}

// TestSameBytes: the published bytes depend only on the image and the options.
func TestSameBytes(t *testing.T) {
	img := disk(24*mib, 3)
	var want map[string]string
	workers := []int{1, 7, 2}
	if few() {
		workers = workers[:2]
	}
	for _, workers := range workers {
		dir := t.TempDir()
		publish(t, img, dir, Options{Workers: workers, Source: "x", Level: 7})
		got := files(t, dir)
		if want == nil {
			want = got
		}
		if len(got) != len(want) {
			t.Fatalf("%d files, then %d", len(want), len(got))
		}
		for name, b := range want {
			if got[name] != b {
				t.Errorf("%d workers: %s is different", workers, name)
			}
		}
	}
}

// TestLZ4: packed with lz4, an image says so, and the rest is as with zstd.
func TestLZ4(t *testing.T) {
	img := disk(9*mib+777, 5)
	var want map[string]string
	workers := []int{1, 3, 3}
	if few() {
		workers = workers[:2]
	}
	for _, workers := range workers {
		dir := t.TempDir()
		r := publish(t, img, dir, Options{Workers: workers, LZ4: true})
		if !r.Index.LZ4 {
			t.Error("the index does not say that there is lz4")
		}
		if got := referenceRead(t, dir, "test"); !bytes.Equal(got, img) {
			t.Fatal("not the same disk")
		}
		if err := Verify(t.Context(), r.Index, Dir(dir), nil); err != nil {
			t.Error(err)
		}
		lie := *r.Index
		lie.LZ4 = false
		if err := Verify(t.Context(), &lie, Dir(dir), nil); err == nil ||
			!strings.Contains(err.Error(), "packed with lz4") {
			t.Errorf("an index that hides lz4: %v", err)
		}
		got := files(t, dir)
		if want != nil && !maps.Equal(got, want) {
			t.Error("not the same bytes again")
		}
		want = got
	}
}

func TestOnlyChangesAreStored(t *testing.T) {
	img, dir := disk(13*mib, 3), t.TempDir()
	first := publish(t, img, dir, Options{})
	before := files(t, dir)
	if again := publish(t, img, dir, Options{}); again.New != 0 || again.Written != 0 || again.SHA256 != first.SHA256 {
		t.Errorf("published again: %d objects of %d bytes are new", again.New, again.Written)
	}
	img[9*mib]++
	img[9*mib+1]++
	second := publish(t, img, dir, Options{Name: "second"})
	if second.New != 2 { // a chunk and a list
		t.Errorf("after a change of one block %d objects are new", second.New)
	}
	after := files(t, dir)
	for name, b := range before {
		if after[name] != b {
			t.Errorf("%s was touched", name)
		}
	}
	if len(after) != len(before)+3 || !bytes.Equal(referenceRead(t, dir, "second"), img) {
		t.Errorf("%d files, then %d", len(before), len(after))
	}
	// An object that is damaged is no object that is there.
	path := filepath.Join(dir, filepath.FromSlash(second.Index.Chunks[0].Path()))
	if second.Index.Chunks[0].Len == 0 {
		t.Fatal("the first chunk has a partition table")
	}
	if err := os.WriteFile(path, []byte("damaged"), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := publish(t, img, dir, Options{Name: "second"}); r.New != 1 ||
		!bytes.Equal(referenceRead(t, dir, "second"), img) {
		t.Errorf("a damaged object was not mended: %d", r.New)
	}
}

func TestVerifyFindsEveryFault(t *testing.T) {
	img, dir := disk(9*mib, 4), t.TempDir()
	copy(img[4*mib:], "not the same as the chunk behind it")
	copy(img[8*mib:], "nor this")
	r := publish(t, img, dir, Options{})
	for name, good := range files(t, dir) {
		if !strings.HasPrefix(name, "objects") {
			continue
		}
		path := filepath.Join(dir, name)
		for _, change := range []func(b []byte) []byte{
			func(b []byte) []byte { b[0] ^= 1; return b },
			func(b []byte) []byte { b[len(b)/2] ^= 0x10; return b },
			func(b []byte) []byte { b[len(b)-1] ^= 0x80; return b },
			func(b []byte) []byte { return b[:len(b)-1] },
			func(b []byte) []byte { return append(b, 0) },
			func([]byte) []byte { return nil },
		} {
			if err := os.WriteFile(path, change([]byte(good)), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := Verify(t.Context(), r.Index, Dir(dir), nil); err == nil ||
				!strings.Contains(err.Error(), filepath.Base(name)) {
				t.Errorf("%s was changed: %v", name, err)
			}
		}
		os.Remove(path)
		if err := Verify(t.Context(), r.Index, Dir(dir), nil); err == nil || !strings.Contains(err.Error(), "missing") {
			t.Errorf("%s is missing: %v", name, err)
		}
		if err := os.WriteFile(path, []byte(good), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := Verify(t.Context(), r.Index, Dir(dir), nil); err != nil {
		t.Error(err)
	}
	// Indices that lie, with objects that are what they say.
	lie := *r.Index
	lie.SHA256[0]++
	if err := Verify(t.Context(), &lie, Dir(dir), nil); errors.As(err, new(*UnfitError)) {
		t.Errorf("what is wrong is called unfit: %v", err)
	}
	if err := Verify(t.Context(), &lie, Dir(dir), nil); err == nil ||
		!strings.Contains(err.Error(), "the disk's SHA-256") {
		t.Errorf("wrong digest of the disk: %v", err)
	}
	lie = *r.Index
	lie.Chunks = slices.Clone(lie.Chunks)
	lie.Chunks[0], lie.Chunks[1] = lie.Chunks[1], lie.Chunks[0]
	if err := Verify(t.Context(), &lie, Dir(dir), nil); err == nil ||
		!strings.Contains(err.Error(), "block list 0 says other digests of chunk 0") {
		t.Errorf("chunks in the wrong order: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Verify(ctx, r.Index, Dir(dir), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	img := disk(mib, 1)
	for _, c := range []struct {
		name string
		img  []byte
		o    Options
		want string
	}{
		{"a page", []byte("<html>404</html>"), Options{Name: "x"}, "HTML page"},
		{"a name with a folder", img, Options{Name: "../x"}, "can't be the name"},
		{"a name that is hidden", img, Options{Name: ".x"}, "can't be the name"},
		{"no name", img, Options{}, "can't be the name"},
		{"a level", img, Options{Name: "x", Level: 40}, "level 40"},
	} {
		dir := t.TempDir()
		_, err := Image(t.Context(), input(c.img), Dir(dir), c.o)
		var refused *images.Error
		if !errors.As(err, &refused) || refused.Remedy == "" || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if len(files(t, dir)) > 0 {
			t.Errorf("%s: files are left", c.name)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Image(ctx, input(img), Dir(t.TempDir()), Options{Name: "x"}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// TestUnfitDisks: a disk that agents would not deploy gets no index, from a plain file or a compressed one, whose size
// is known only at its end.
func TestUnfitDisks(t *testing.T) {
	kit.NeedPrograms(t, "sgdisk", "gzip")
	table := func(args ...string) []byte {
		file := filepath.Join(t.TempDir(), "disk")
		img := disk(16*mib, 3)
		clear(img[:mib]) // of the MBR, or sgdisk takes it over
		if err := os.WriteFile(file, img, 0o600); err != nil {
			t.Fatal(err)
		}
		kit.Run(t, "sgdisk", append(append([]string{"-o"}, args...), file)...)
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	gpt := table("-n", "1:2048:+4M", "-n", "2:0:0")
	footer := append([]byte("conectix"), make([]byte, 504)...)
	damaged := bytes.Clone(gpt)
	damaged[512+40] ^= 1
	protected := disk(mib, 1)
	protected[446+4] = 0xee
	for i, c := range []struct {
		name, want string
		img        []byte
	}{
		{"sound", "", gpt},
		{"fixed VHD", "images in vhd format", append(bytes.Clone(gpt), footer...)},
		{"fixed VHD within a chunk", "images in vhd format", append(disk(5*mib, 1), footer...)},
		{"cut off", "the image is cut off", gpt[:9*mib]},
		{"damaged header", "header is damaged", damaged},
		{"no partition", "no partition", table()},
		{"no GPT", "GPT that is not there", protected},
	} {
		file := filepath.Join(t.TempDir(), "disk")
		if err := os.WriteFile(file, c.img, 0o600); err != nil {
			t.Fatal(err)
		}
		kit.Run(t, "gzip", "-1", file)
		packed, err := os.ReadFile(file + ".gz")
		if err != nil {
			t.Fatal(err)
		}
		for k, b := range [][]byte{c.img, packed} {
			if few() && k != i%2 {
				continue
			}
			dir := t.TempDir()
			_, err := Image(t.Context(), input(b), Dir(dir), Options{Name: "test", Level: 1})
			seen, ierr := inspect.Inspect(t.Context(), input(b), inspect.Options{})
			if ierr != nil {
				t.Fatal(ierr)
			}
			if c.want == "" {
				if err != nil || !seen.Deployable {
					t.Errorf("%s: %v, %+v", c.name, err, seen)
				}
				continue
			}
			var refused *images.Error
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), c.want) || err.Error() != seen.Reason ||
				refused.Remedy != seen.Remedy {
				t.Errorf("%s: %v; inspect says %q, %q", c.name, err, seen.Reason, seen.Remedy)
			}
			if _, err := os.Stat(filepath.Join(dir, "test.ingot")); err == nil {
				t.Errorf("%s: there is an index", c.name)
			}
		}
		// Verify finds those that were published before this was looked at.
		dir := Dir(t.TempDir())
		if err := dir.make("test"); err != nil {
			t.Fatal(err)
		}
		e, info, err := images.Open(input(c.img), images.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		x, _, err := assemble(t.Context(), e, dir, Options{Compress: encoder(1, 1), Workers: 1, Meter: new(Meter)})
		if err != nil {
			t.Fatal(err)
		}
		x.Head = info.Head
		err = Verify(t.Context(), x, dir, nil)
		if unfit := new(UnfitError); (err == nil) != (c.want == "") || err != nil &&
			(!errors.As(err, &unfit) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("verify %s: %v", c.name, err)
		}
	}
	// A partition's file system has no table.
	ext4 := make([]byte, mib)
	copy(ext4[0x438:], "\x53\xef")
	dir := t.TempDir()
	if err := Verify(t.Context(), publish(t, ext4, dir, Options{}).Index, Dir(dir), nil); err != nil {
		t.Error(err)
	}
}

func TestNameOf(t *testing.T) {
	for in, want := range map[string]string{"/a/debian-12.qcow2": "debian-12", "disk.raw.zst": "disk",
		"http://x/y/a.b.img.gz": "a.b", ".raw": ".raw", "x": "x"} {
		if got := NameOf(in); got != want {
			t.Errorf("NameOf(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestClean(t *testing.T) {
	if got := clean("a\x1b\xffb" + strings.Repeat("é", 1000)); len(got) > 1024 || !strings.HasPrefix(got, "a??bé") ||
		strings.ContainsRune(got, '\ufffd') {
		t.Errorf("clean = %q", got)
	}
}
