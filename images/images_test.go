package images

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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
		for _, r := range []io.Reader{bytes.NewReader(c.file), iotest.DataErrReader(iotest.HalfReader(bytes.NewReader(c.file)))} {
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
	for _, at := range []int{300 << 10, 1<<20 + 4096} { // within what Open looks at, and behind it
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
	e, _, err := Open(Input{Stream: io.MultiReader(bytes.NewReader(packed[:len(packed)/2]), iotest.ErrReader(gone)), Size: -1}, Limits{})
	if err == nil {
		_, err = readAll(e, 64<<10)
		e.Close()
	}
	if !errors.Is(err, gone) {
		t.Errorf("error of the stream below = %v", err)
	}
}

// TestCancelFreesADecoderThatWaits: a decoder reads ahead of what Open looks at, from a network that may be silent.
func TestCancelFreesADecoderThatWaits(t *testing.T) {
	file := pack(t, append([]byte("QFI\xfb"), disk(4<<20)...))
	r, w := io.Pipe()
	go w.Write(file[:len(file)-100])
	_, _, err := Open(Input{Stream: r, Size: -1, Cancel: func() { r.CloseWithError(io.ErrClosedPipe) }}, Limits{})
	if err == nil || !strings.Contains(err.Error(), "qcow2") {
		t.Errorf("Open = %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	img := disk(1 << 20)
	var gz bytes.Buffer
	w := gzip.NewWriter(&gz)
	w.Write(img)
	w.Close()
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
	cases := []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "empty"},
		{"gzip", gz.Bytes(), "compressed with gzip"},
		{"xz", pad("\xfd7zXZ\x00"), "compressed with xz"},
		{"lz4", pad("\x04\x22\x4d\x18"), "compressed with lz4"},
		{"bzip2", pad("BZh91AY"), "compressed with bzip2"},
		{"qcow2", pad("QFI\xfb\x00\x00\x00\x03"), "qcow2 format"},
		{"qcow2 in zstd", pack(t, pad("QFI\xfb\x00\x00\x00\x03")), "qcow2 format"},
		{"vhd", pad("conectix"), "vhd format"},
		{"vhdx", pad("vhdxfile"), "vhdx format"},
		{"vmdk", pad("KDMV"), "vmdk format"},
		{"vmdk descriptor", pad("# Disk DescriptorFile\nversion=1"), "vmdk format"},
		{"vdi", at(0x40, "\x7f\x10\xda\xbe"), "vdi format"},
		{"luks", pad("LUKS\xba\xbe"), "luks format"},
		{"iso", at(0x8001, "CD001"), "iso9660 format"},
		{"ext4", at(0x438, "\x53\xef"), "bare file system"},
		{"btrfs", at(0x10040, "_BHRfS_M"), "bare file system"},
		{"fat with boot sector", at(82, "FAT32   \xfa\xfc the code goes on and on over the place of the table"+strings.Repeat("x", 400)+"\x55\xaa"), "bare file system"},
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
		{"window", pack(t, bytes.Repeat(img, 2), zstd.WithWindowSize(64<<20), zstd.WithSingleSegment(false)), "window of 64 MiB"},
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

// frameOf packs a disk into one frame that tells its size.
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
		{"longer wins", "SHA256 (disk.raw) = " + a + "\nSHA512 (disk.raw) = " + long + "\n", "disk.raw", "sha512:" + long},
		{"signed text", "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n# disk.raw: 5 bytes\n" + strings.ToUpper(a) + "  disk.raw\n", "disk.raw", "sha256:" + a},
		{"alone", a + "\n", "any", "sha256:" + a},
		{"not named", a + "  other.raw\n", "disk.raw", ""},
		{"two digests", a + "  disk.raw\n" + b + "  x/disk.raw\n", "disk.raw", ""},
		{"html", "<html>not found</html>", "disk.raw", ""},
		{"md5", strings.Repeat("a1", 16) + "  disk.raw\n", "disk.raw", ""},
		{"empty", "", "disk.raw", ""},
	}
	for _, c := range cases {
		d, err := ParseSums(c.text, "http://x/y/"+c.file)
		if d.String() != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %s, %v, want %s", c.name, d, err, c.want)
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
	f.Fuzz(func(t *testing.T, file []byte) {
		e, _, err := Open(Input{Stream: bytes.NewReader(file), Size: int64(len(file))}, Limits{Size: 1 << 20, Window: 1 << 20})
		if err != nil {
			return
		}
		defer e.Close()
		if got, err := readAll(e, 4096); err == nil && len(got) > 1<<20 {
			t.Fatalf("%d bytes from an image for a disk of 1 MiB", len(got))
		}
	})
}

func FuzzParseSums(f *testing.F) {
	f.Add(strings.Repeat("a1", 32)+"  disk.raw\n", "disk.raw")
	f.Add("SHA512 (x) = "+strings.Repeat("c3", 64), "x")
	f.Fuzz(func(t *testing.T, text, file string) {
		if d, err := ParseSums(text, file); err == nil && d.String() == "" {
			t.Fatal("no digest and no error")
		}
	})
}
