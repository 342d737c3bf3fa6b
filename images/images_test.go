package images

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"
)

// disk makes the beginning of a disk with an MBR, then noise and zeros.
func disk(size int) []byte {
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{1})
	for off := 0; off < size; off += 256 << 10 {
		r.Read(b[off:min(size, off+64<<10)])
	}
	clear(b[446:510])
	b[446+4] = 0x83
	b[510], b[511] = 0x55, 0xaa
	return b
}

func pack(t testing.TB, b []byte, opts ...zstd.EOption) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out, opts...)
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

func readAll(e Extents, bufSize int) ([]byte, error) {
	var out []byte
	buf := make([]byte, bufSize)
	for {
		x, err := e.Next(buf)
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		if x.Off != int64(len(out)) || x.Len != int64(len(x.Data)) {
			return out, fmt.Errorf("extent at %d of %d bytes, wanted one at %d", x.Off, x.Len, len(out))
		}
		out = append(out, x.Data...)
	}
}

func TestOpenReadsRawAndZstd(t *testing.T) {
	img := disk(1<<20 + 777)
	packed := pack(t, img)
	skippable := append([]byte("\x5e\x2a\x4d\x18\x04\x00\x00\x00abcd"), packed...)
	half := len(img) / 2
	frames := append(pack(t, img[:half]), pack(t, img[half:])...)
	for _, c := range []struct {
		name string
		file []byte
		comp Compression
		size int64
	}{
		{"raw", img, Plain, int64(len(img))},
		{"zstd", packed, Zstd, -1},
		{"zstd behind a skippable frame", skippable, Zstd, -1},
		{"zstd in two frames", frames, Zstd, -1},
	} {
		for _, r := range []io.Reader{
			bytes.NewReader(c.file), iotest.DataErrReader(iotest.HalfReader(bytes.NewReader(c.file)))} {
			e, info, err := Open(Input{Stream: r, Size: int64(len(c.file))}, Limits{Size: 2 << 20})
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if info.Compression != c.comp || info.Format != Raw || info.Head != MBR || e.Size() != c.size {
				t.Errorf("%s: %+v, size %d", c.name, info, e.Size())
			}
			got, err := readAll(e, 64<<10)
			if err != nil || !bytes.Equal(got, img) {
				t.Errorf("%s: read %d bytes, %v", c.name, len(got), err)
			}
			if _, err := e.Next(make([]byte, 10)); err != io.EOF {
				t.Errorf("%s: Next behind the end = %v", c.name, err)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestTruncationIsNeverAnEnd(t *testing.T) {
	img := disk(1 << 20)
	packed := pack(t, img)
	for _, cut := range []int{5, 100, len(packed) / 2, len(packed) - 5, len(packed) - 1} {
		e, _, err := Open(Input{Stream: bytes.NewReader(packed[:cut]), Size: -1}, Limits{})
		if err == nil {
			_, err = readAll(e, 64<<10)
			e.Close()
		}
		var refused *Error
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), "truncated") || refused.Remedy == "" {
			t.Errorf("zstd cut at %d of %d: %v", cut, len(packed), err)
		}
	}
	for _, at := range []int{300 << 10, 1<<20 + 4096} { // within the part that Open reads, and after it
		img := disk(2 << 20)
		cut := io.MultiReader(bytes.NewReader(img[:at]), iotest.ErrReader(io.ErrUnexpectedEOF))
		e, _, err := Open(Input{Stream: cut, Size: int64(len(img))}, Limits{})
		if err == nil {
			_, err = readAll(e, 64<<10)
		}
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("truncated after %d bytes", at)) {
			t.Errorf("raw cut off at %d: %v", at, err)
		}
	}
}

func TestFetchErrorsPassThroughTheDecoder(t *testing.T) {
	packed := pack(t, disk(1<<20))
	gone := errors.New("connection reset")
	e, _, err := Open(Input{Stream: io.MultiReader(bytes.NewReader(packed[:len(packed)/2]), iotest.ErrReader(gone)),
		Size: -1}, Limits{})
	if err == nil {
		_, err = readAll(e, 64<<10)
		e.Close()
	}
	if !errors.Is(err, gone) {
		t.Errorf("error of the stream below = %v", err)
	}
}

// TestOpenWaitsForNoMore: what Open refuses it refuses with the beginning, although the network has gone silent and the
// decoder could use more.
func TestOpenWaitsForNoMore(t *testing.T) {
	file := pack(t, append([]byte("QFI\xfb"), disk(4<<20)...))
	r, w := io.Pipe()
	go w.Write(file[:len(file)-100])
	_, _, err := Open(Input{Stream: r, Size: -1}, Limits{})
	if err == nil || !strings.Contains(err.Error(), "qcow2") {
		t.Errorf("Open = %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	img := disk(1 << 20)
	pad := func(s string) []byte { return append([]byte(s), make([]byte, 70<<10)...) }
	at := func(off int, s string) []byte {
		b := make([]byte, 70<<10)
		copy(b[off:], s)
		return b
	}
	damaged := pack(t, img)
	for i := range 40 {
		damaged[len(damaged)/2+i] ^= 0xff
	}
	dictionary := pad("\x04\x22\x4d\x18\x61\x40\x01\x00\x00\x00")
	dictionary[10] = byte(xxh32(dictionary[4:10]) >> 8)
	cases := []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "empty"},
		{"gzip header alone", pad("\x1f\x8b\x08"), "damaged"},
		{"xz header alone", pad("\xfd7zXZ\x00"), "damaged"},
		{"lz4 header alone", pad("\x04\x22\x4d\x18"), "damaged"},
		{"bzip2 header alone", pad("BZh91AY"), "damaged"},
		{"lz4 with a dictionary", dictionary, "dictionary"},
		{"zstd in zstd", pack(t, pack(t, img)), "packed twice, with zstd in zstd"},
		{"gzip in zstd", pack(t, pad("\x1f\x8b\x08")), "packed twice, with gzip in zstd"},
		{"qcow2", pad("QFI\xfb\x00\x00\x00\x03"), "tables of the qcow2 image"},
		{"qcow2 in zstd", pack(t, pad("QFI\xfb\x00\x00\x00\x03")), "qcow2 image inside zstd"},
		{"vhd", pad("conectix"), "vhd image is damaged"},
		{"vhdx", pad("vhdxfile"), "vhdx format"},
		{"vmdk", pad("KDMV"), "vmdk format"},
		{"vmdk descriptor", pad("# Disk DescriptorFile\nversion=1"), "vmdk format"},
		{"vdi", at(0x40, "\x7f\x10\xda\xbe"), "vdi format"},
		{"luks", pad("LUKS\xba\xbe"), "luks format"},
		{"iso", at(0x8001, "CD001"), "iso9660 format"},
		{"html", []byte("\n <!DOCTYPE html><title>404</title>"), "not an image: it is an HTML page"},
		{"xhtml", []byte("<?xml version=\"1.0\"?><!DOCTYPE html PUBLIC>"), "HTML page"},
		{"s3 error", []byte("<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code></Error>"), "XML document"},
		{"json", []byte(`{"error": "denied"}`), "JSON document"},
		{"text", []byte("Not found\nsorry"), `a text that begins with "Not found"`},
		{"tar", at(257, "ustar"), "tar archive"},
		{"zeros", make([]byte, 1<<20), "begins with zeros"},
		{"noise", bytes.Repeat([]byte{0xa5}, 1<<20), "no partition table"},
		{"damaged zstd", damaged, "damaged"},
		{"zstd with something behind", append(pack(t, img), "trailing"...), "damaged"},
		{"window", pack(t, bytes.Repeat(img, 2), zstd.WithWindowSize(64<<20), zstd.WithSingleSegment(false)),
			"window of 64 MiB"},
		{"larger than the disk", disk(9 << 20), "larger than the disk"},
		{"larger than the disk, zstd that says so", frameOf(t, 9<<20), "larger than the disk"},
		{"larger than the disk, zstd that does not", pack(t, disk(9<<20)), "larger than the disk"},
	}
	for _, c := range cases {
		e, _, err := Open(Input{Stream: bytes.NewReader(c.file), Size: int64(len(c.file))}, Limits{Size: 8 << 20})
		if err == nil {
			_, err = readAll(e, 64<<10)
			e.Close()
		}
		var refused *Error
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		} else if refused.Remedy == "" {
			t.Errorf("%s: no remedy", c.name)
		}
	}
}

// TestPartitionImages: a bare file system is read, and said to be one.
func TestPartitionImages(t *testing.T) {
	at := func(off int, s string) []byte {
		b := make([]byte, 128<<10)
		copy(b[off:], s)
		return b
	}
	for _, c := range []struct {
		name string
		disk []byte
	}{
		{"ext2, ext3 or ext4", at(0x438, "\x53\xef")},
		{"btrfs", at(0x10040, "_BHRfS_M")},
		{"FAT", at(82, "FAT32   \xfa\xfc the code goes on and on over the place of the table"+strings.Repeat("x", 400)+
			"\x55\xaa")},
	} {
		for _, file := range [][]byte{c.disk, pack(t, c.disk)} {
			got, info, err := unpack(bytes.NewReader(file), Limits{})
			if err != nil || !bytes.Equal(got, c.disk) || !info.Partition || info.Format != Raw ||
				!strings.Contains(string(info.Head), c.name) {
				t.Errorf("%s: %+v, %v", c.name, info, err)
			}
			var refused *Error
			if err := info.WholeDisk(); !errors.As(err, &refused) || !strings.Contains(err.Error(), c.name) ||
				refused.Remedy == "" {
				t.Errorf("%s as a whole disk: %v", c.name, err)
			}
		}
	}
	if _, info, err := unpack(bytes.NewReader(disk(1<<20)), Limits{}); err != nil || info.Partition ||
		info.WholeDisk() != nil {
		t.Errorf("a whole disk: %+v, %v", info, err)
	}
}

// frameOf compresses a disk into one frame with its content size.
func frameOf(t *testing.T, size int) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(disk(size), nil)
}

func TestDigests(t *testing.T) {
	a, b := strings.Repeat("a1", 32), strings.Repeat("b2", 32)
	long := strings.Repeat("c3", 64)
	cases := []struct{ name, text, file, want string }{
		{"gnu", a + "  disk.raw\n" + b + "  disk.raw.zst\n", "disk.raw.zst", "sha256:" + b},
		{"gnu binary, folders", a + " *./images/disk.raw\n", "disk.raw", "sha256:" + a},
		{"bsd", "SHA256 (disk.raw) = " + a + "\n", "disk.raw", "sha256:" + a},
		{"longer wins", "SHA256 (disk.raw) = " + a + "\nSHA512 (disk.raw) = " + long + "\n", "disk.raw",
			"sha512:" + long},
		{"signed text", "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n# disk.raw: 5 bytes\n" +
			strings.ToUpper(a) + "  disk.raw\n", "disk.raw", "sha256:" + a},
		{"alone", a + "\n", "any", "sha256:" + a},
		{"not named", a + "  other.raw\n", "disk.raw", ""},
		{"two digests", a + "  disk.raw\n" + b + "  disk.raw\n", "disk.raw", ""},
		{"two digests in other folders", a + "  old/disk.raw\n" + b + "  new/disk.raw\n", "disk.raw", ""},
		{"two digests in one folder", a + "  c/disk.raw\n" + b + "  ./c/disk.raw\n", "c/disk.raw", ""},
		{"exact after another folder's", b + "  old/disk.raw\n" + a + "  disk.raw\n", "disk.raw", "sha256:" + a},
		{"exact before another folder's", a + "  disk.raw\n" + b + "  old/disk.raw\n", "disk.raw", "sha256:" + a},
		{"folders of the URL", a + "  b/disk.raw\n" + b + "  c/disk.raw\n", "c/disk.raw", "sha256:" + b},
		{"more of the path", a + "  disk.raw\n" + b + "  c/disk.raw\n", "c/disk.raw", "sha256:" + b},
		{"most of the path, without being it", a + "  /srv/b/disk.raw\n" + b + "  /srv/c/disk.raw\n", "c/disk.raw",
			"sha256:" + b},
		{"a stronger one of another folder", "SHA512 (old/disk.raw) = " + long + "\n" + a + "  disk.raw\n", "disk.raw",
			"sha256:" + a},
		{"md5 of the file, better of another", strings.Repeat("a1", 16) + "  disk.raw\n" + a + "  old/disk.raw\n",
			"disk.raw", ""},
		{"html", "<html>not found</html>", "disk.raw", ""},
		{"md5", strings.Repeat("a1", 16) + "  disk.raw\n", "disk.raw", ""},
		{"empty", "", "disk.raw", ""},
	}
	for _, c := range cases {
		d, err := Sums{}.Find(c.text, "http://x/y/"+c.file)
		if d.String() != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %s, %v, want %s", c.name, d, err, c.want)
		}
	}
	for _, c := range []struct {
		name, text string
		how        Sums
		want       string
	}{
		{"b3sum by name", a + "  disk.raw\n", Sums{Name: "http://x/B3SUMS?x=y"}, "blake3:" + a},
		{"b3 file", a + "\n", Sums{Name: "disk.raw.b3"}, "blake3:" + a},
		{"b3 said", a + "  disk.raw\n", Sums{Algo: "blake3"}, "blake3:" + a},
		{"tagged", "BLAKE3 (disk.raw) = " + a + "\n", Sums{}, "blake3:" + a},
		{"openssl", "SHA2-512(disk.raw)= " + long + "\n", Sums{}, "sha512:" + long},
		{"said, but of another length", long + "  disk.raw\n", Sums{Algo: "blake3"}, "sha512:" + long},
		{"md5 beside better", strings.Repeat("a1", 16) + "  disk.raw\n" + a + "  disk.raw\n", Sums{}, "sha256:" + a},
		{"md5 allowed", "MD5 (disk.raw) = " + strings.Repeat("a1", 16) + "\n", Sums{Allow: []string{MD5}},
			"md5:" + strings.Repeat("a1", 16)},
		{"md5 allowed beside better", strings.Repeat("a1", 16) + "  disk.raw\n" + a + "  disk.raw\n",
			Sums{Allow: []string{MD5}}, "sha256:" + a},
		{"md5 not allowed", "MD5 (disk.raw) = " + strings.Repeat("a1", 16) + "\n", Sums{}, "not accepted"},
		{"sha1", strings.Repeat("a1", 20) + "  disk.raw\n", Sums{}, "SHA-1"},
		{"clear-signed, escaped", "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n- " + a +
			"\n-----BEGIN PGP SIGNATURE-----\n\n" + b + "\n", Sums{}, "sha256:" + a},
		{"digest in the signature", "-----BEGIN PGP SIGNATURE-----\n" + b + "  disk.raw\n", Sums{}, "no digest"},
	} {
		d, err := c.how.Find(c.text, "disk.raw")
		if d.String() != c.want && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %s, %v, want %s", c.name, d, err, c.want)
		}
	}
	for algo, want := range map[string]string{
		"md5":     "900150983cd24fb0d6963f7d28e17f72",
		"SHA-256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
		"blake3":  "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85",
		"sha512":  "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
	} {
		d, err := ParseDigest(algo, want, MD5)
		if err != nil {
			t.Fatal(err)
		}
		h := d.New()
		h.Write([]byte("abc"))
		if got := h.Sum(nil); !d.Matches(got) {
			t.Errorf("%s of abc is %x", algo, got)
		}
	}
	for _, bad := range [][2]string{{"md5", strings.Repeat("a", 32)}, {"sha256", "xyz"}, {"sha256", long}, {"", a}} {
		if _, err := ParseDigest(bad[0], bad[1]); err == nil {
			t.Errorf("ParseDigest(%q, %q) was accepted", bad[0], bad[1])
		}
	}
	for _, bad := range []string{"", strings.Repeat("a", 32), strings.Repeat("a", 40), "zz"} {
		if _, err := DigestOf(bad); err == nil {
			t.Errorf("DigestOf(%q) was accepted", bad)
		}
	}
	d, err := ParseDigest("SHA-256", a)
	if err != nil {
		t.Fatal(err)
	}
	h := d.New()
	if got := h.Sum(nil); d.Matches(got) || h.Size() != sha256.Size || !strings.Contains(d.Mismatch(got).Error(), a) {
		t.Errorf("mismatch: %v", d.Mismatch(got))
	}
}

func FuzzOpen(f *testing.F) {
	f.Add(disk(4096))
	f.Add(pack(f, disk(16<<10)))
	f.Add([]byte("\x28\xb5\x2f\xfd\x00\x00"))
	f.Add([]byte("\x50\x2a\x4d\x18\xff\xff\xff\xff"))
	f.Add([]byte("QFI\xfb\x00\x00\x00\x03"))
	packed, err := filepath.Glob("testdata/packed/*")
	packed = append(packed, "vhd/testdata/none", "vhd/testdata/one")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range packed {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		again := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(file)), nil }
		e, _, err := Open(Input{Stream: bytes.NewReader(file), Size: int64(len(file)), At: bytes.NewReader(file),
			Again: again}, Limits{Size: 1 << 20, Window: 8 << 20})
		if err != nil {
			return
		}
		defer e.Close()
		var end, sum int64
		buf := make([]byte, 64<<10)
		for {
			x, err := e.Next(buf)
			if err != nil {
				break
			}
			if x.Decode != nil {
				x.Decode(make([]byte, x.Len))
			}
			end, sum = max(end, x.Off+x.Len), sum+x.Len
			if x.Off < 0 || x.Len <= 0 || end > 1<<20 || sum > 1<<20 || x.Data != nil && int64(len(x.Data)) != x.Len {
				t.Fatalf("extent at %d of %d bytes, %d in all, from an image for a disk of 1 MiB", x.Off, x.Len, sum)
			}
		}
	})
}

func FuzzDetect(f *testing.F) {
	f.Add(disk(4096))
	f.Add([]byte("\xef\xbb\xbf <?xml version=\"1.0\"?><Error>"))
	f.Add([]byte("\x04\x22\x4d\x18\x61\x40\x01\x00\x00\x00"))
	f.Add(make([]byte, 512))
	f.Fuzz(func(t *testing.T, head []byte) {
		format, content := Detect(head)
		if format == "" || format == NotAnImage && (content == "" || content.remedy() == "") {
			t.Fatalf("%q, %q", format, content)
		}
		c := DetectCompression(head)
		unchecked(c, head)
		claimedSize(c, head)
	})
}

func FuzzParseSums(f *testing.F) {
	f.Add(strings.Repeat("a1", 32)+"  disk.raw\n", "disk.raw")
	f.Add("SHA512 (x) = "+strings.Repeat("c3", 64), "x")
	f.Add("-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n- "+strings.Repeat("a1", 32)+"\n", "x")
	f.Add("MD5(x)= "+strings.Repeat("c3", 16), "x")
	f.Fuzz(func(t *testing.T, text, file string) {
		for _, s := range []Sums{{}, {Name: file}, {Algo: file}, {Allow: []string{MD5}}} {
			d, err := s.Find(text, file)
			if err == nil && (rank(d.Algo) < 0 || d.New().Size() != len(d.Sum) || d.Algo == MD5 && s.Allow == nil) {
				t.Fatalf("%q and no error", d)
			}
		}
	})
}
