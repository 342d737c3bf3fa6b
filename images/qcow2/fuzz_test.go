package qcow2

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
)

// A fuzzed image is rows of 32 bytes at places of a file: images are mostly zeros, and mutating those finds nothing.
const (
	fuzzRow  = 32
	fuzzFile = 256 << 10
)

func expand(rows []byte) []byte {
	var f []byte
	for ; len(rows) > 2; rows = rows[min(len(rows), 2+fuzzRow):] {
		at := int(binary.BigEndian.Uint16(rows)) * fuzzRow % fuzzFile
		n := at + fuzzRow
		if n > len(f) {
			f = append(f, make([]byte, n-len(f))...)
		}
		copy(f[at:], rows[2:min(len(rows), 2+fuzzRow)])
	}
	return f
}

func compact(f []byte) []byte {
	var out []byte
	f = f[:min(len(f), fuzzFile)]
	for at := 0; at < len(f); at += fuzzRow {
		row := make([]byte, fuzzRow)
		copy(row, f[at:])
		if at+fuzzRow >= len(f) || !bytes.Equal(row, make([]byte, fuzzRow)) {
			out = append(binary.BigEndian.AppendUint16(out, uint16(at/fuzzRow)), row...)
		}
	}
	return out
}

// watchedAt checks that no read is outside of the file, and that they are not too many.
type watchedAt struct {
	t    *testing.T
	file []byte
	size int64
	read int
}

func (w *watchedAt) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || w.size >= 0 && off+int64(len(p)) > (w.size+sector-1)&^(sector-1) {
		w.t.Errorf("asks for %d bytes at %d of %d", len(p), off, w.size)
	}
	n, err := bytes.NewReader(w.file).ReadAt(p, off)
	if w.read += n; w.read > 8*fuzzFile+firstRead {
		w.t.Errorf("asked for %d bytes of a file of %d", w.read, len(w.file))
	}
	return n, err
}

// FuzzOpen reads an image, and one that is changed while it is read. Whatever is read without an error must be all
// right.
func FuzzOpen(f *testing.F) {
	seeds := []hand{handmade(), handmade().features(dirtyBit),
		largeClusters().extended(0, copiedFlag|5<<14, 1|2<<32|1<<31).extended(2, 0, 1<<63)}
	text := bytes.Repeat([]byte("some text "), handCluster/10+1)[:handCluster]
	packed := deflated(f, text)
	z := handmade().features(compressionBit).packed(2, handData+handCluster+10, 0, zstded(f, text)).packed(3,
		handData+handCluster+100, 0, zstded(f, text))
	z[compressionAt] = 1
	seeds = append(seeds, handmade().packed(0, handData, 0, packed).packed(1, handData+len(packed), 0, packed),
		z.entry(1, 0))
	for _, s := range seeds {
		f.Add(compact(s), uint32(0), byte(0), false)
		f.Add(compact(s), uint32(handData+3), byte(9), true)
		f.Add(compact(s), uint32(handL2+3), byte(9), false)
	}
	files, err := filepath.Glob("testdata/*.qcow2")
	if err != nil || len(files) == 0 {
		f.Fatal("no images in testdata", err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(compact(b), uint32(1000), byte(3), true)
	}
	f.Fuzz(func(t *testing.T, rows []byte, at uint32, flip byte, known bool) {
		file := expand(rows)
		size := int64(-1)
		if known {
			size = int64(len(file))
		}
		read := func(stream, tables []byte, bufSize int) ([]byte, error) {
			r, err := Open(bytes.NewReader(stream), &watchedAt{t: t, file: tables, size: size}, size,
				Limits{Size: startSize + 256<<10, Memory: mib})
			if err != nil {
				return nil, err
			}
			defer r.Close()
			return readInto(r, bufSize)
		}
		disk, err := read(file, file, mib)
		if err == nil {
			again, err := read(file, file, 3*sector)
			if err != nil || !bytes.Equal(disk, again) {
				t.Fatalf("with a small buffer: %v, difference at %d", err, differ(disk, again))
			}
			if cut := int(at) % len(file); known {
				if _, err := read(file[:cut], file, mib); err == nil {
					t.Fatalf("cut off after %d bytes", cut)
				}
			}
		}
		if len(file) == 0 || flip == 0 {
			return
		}
		other := bytes.Clone(file)
		other[int(at)%len(file)] ^= flip
		if mixed, err := read(other, file, mib); err == nil {
			whole, err := read(other, other, mib)
			if err != nil || !bytes.Equal(mixed, whole) {
				t.Fatalf("tables of one image and data of another: %v, difference at %d", err, differ(mixed, whole))
			}
		}
	})
}
