package vhd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/ingot-metal/ingot/test/kit"
)

const mib = 1 << 20

func qemu(t testing.TB, from, to string, b []byte, args ...string) []byte {
	t.Helper()
	kit.NeedPrograms(t, "qemu-img")
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	if err := os.WriteFile(in, b, 0o600); err != nil {
		t.Fatal(err)
	}
	kit.Run(t, "qemu-img", append(append([]string{"convert", "-f", from, "-O", to}, args...), in, out)...)
	got, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// disk has data in some of its blocks of 2 MiB.
func disk(size int, seed byte, chance float64) []byte {
	b := make([]byte, size)
	r := rand.New(rand.NewChaCha8([32]byte{seed}))
	for off := 0; off < size; off += 256 << 10 {
		if r.Float64() < chance {
			for i := range b[off:min(size, off+64<<10)] {
				b[off+i] = byte(r.Uint32())
			}
		}
	}
	return b
}

func read(r io.Reader, at io.ReaderAt, l Limits, bufSize int) ([]byte, error) {
	v, err := Open(r, at, l)
	if err != nil {
		return nil, err
	}
	out := make([]byte, v.Size())
	seen := make([]bool, (v.Size()+511)/512)
	buf := make([]byte, bufSize)
	for {
		x, err := v.Next(buf)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if x.Off < 0 || x.Len <= 0 || x.Off+x.Len > v.Size() || x.Off%512 != 0 || x.Data != nil &&
			int64(len(x.Data)) != x.Len {
			return nil, fmt.Errorf("extent at %d of %d bytes", x.Off, x.Len)
		}
		for s := x.Off / 512; s < (x.Off+x.Len+511)/512; s++ {
			if seen[s] {
				return nil, fmt.Errorf("sector %d came twice", s)
			}
			seen[s] = true
		}
		copy(out[x.Off:], x.Data)
	}
	for s, ok := range seen {
		if !ok {
			return nil, fmt.Errorf("sector %d did not come", s)
		}
	}
	if !bytes.Equal(v.Start(), out[:len(v.Start())]) {
		return nil, errors.New("the start is not the disk's")
	}
	return out, nil
}

// TestAsQEMU: what qemu-img makes is read as qemu-img reads it.
func TestAsQEMU(t *testing.T) {
	for i, size := range []int{mib, 2 * mib, 2*mib + 512, 7*mib + 4096, 33 * mib} {
		for j, chance := range []float64{0, 0.05, 0.3, 1} {
			for _, args := range [][]string{nil, {"-o", "force_size=on"}, {"-W", "-m", "8"}} {
				file := qemu(t, "raw", "vpc", disk(size, byte(8*i+j), chance), args...)
				want := qemu(t, "vpc", "raw", file)
				for _, buf := range []int{4096, 1 << 20, 3 << 20} {
					got, err := read(iotest.HalfReader(bytes.NewReader(file)), bytes.NewReader(file), Limits{}, buf)
					if err != nil || !bytes.Equal(got, want) {
						t.Fatalf("%d bytes, %v, %v: %d bytes, %v", size, chance, args, len(got), err)
					}
				}
			}
		}
	}
}

// resum makes the check sums whole after a change.
func resum(b []byte) []byte {
	binary.BigEndian.PutUint32(b[64:], sum(b[:512], 64))
	binary.BigEndian.PutUint32(b[512+36:], sum(b[512:1536], 36))
	copy(b[len(b)-512:], b[:512])
	return b
}

// swap puts the first two blocks of the file in each other's place.
func swap(file []byte) []byte {
	b := bytes.Clone(file)
	at := func(i int) []byte { return b[1536+4*i:][:4] }
	x, y := binary.BigEndian.Uint32(at(0)), binary.BigEndian.Uint32(at(1))
	binary.BigEndian.PutUint32(at(0), y)
	binary.BigEndian.PutUint32(at(1), x)
	copy(b[x*512:], file[y*512:][:512+blockSize])
	copy(b[y*512:], file[x*512:][:512+blockSize])
	return b
}

func TestBlocksInAnyOrder(t *testing.T) {
	file := qemu(t, "raw", "vpc", disk(9*mib, 1, 1))
	want := qemu(t, "vpc", "raw", file)
	other := swap(file)
	got, err := read(bytes.NewReader(other), bytes.NewReader(other), Limits{}, mib)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := read(bytes.NewReader(other), nil, Limits{}, mib); err == nil ||
		!strings.Contains(err.Error(), "beginning of the disk") {
		t.Errorf("without ranges: %v", err)
	}
	changed := bytes.Clone(other)
	changed[binary.BigEndian.Uint32(other[1536:])*512+512+70000] ^= 1
	if _, err := read(bytes.NewReader(other), bytes.NewReader(changed), Limits{}, mib); err == nil ||
		!strings.Contains(err.Error(), "another when it was read before") {
		t.Errorf("changed in between: %v", err)
	}
	// Sectors that the bitmap marks as unwritten are zeros, whatever their bytes.
	bits := bytes.Clone(file)
	bits[binary.BigEndian.Uint32(file[1536:])*512] &^= 0x40
	clear(want[512:1024])
	if got, err := read(bytes.NewReader(bits), nil, Limits{}, mib); err != nil || !bytes.Equal(got, want) {
		t.Errorf("bitmap: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	file := qemu(t, "raw", "vpc", disk(9*mib, 1, 1))
	with := func(f func(b []byte)) []byte {
		b := bytes.Clone(file)
		f(b)
		return resum(b)
	}
	put := func(off int, v uint32) []byte {
		return with(func(b []byte) { binary.BigEndian.PutUint32(b[off:], v) })
	}
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"nothing", nil, "truncated"},
		{"check sum", func() []byte { b := bytes.Clone(file); b[70]++; return b }(), "check sum of its header"},
		{"second check sum", func() []byte { b := bytes.Clone(file); b[600]++; return b }(),
			"check sum of its second header"},
		{"version", put(12, 2<<16), "version 2"},
		{"parent", put(60, 4), "parent disk"},
		{"kind", put(60, 9), "kind is 9"},
		{"size", put(48, 1<<20), "size of its disk"},
		{"two sizes", put(52, 4*mib), "two sizes"},
		{"blocks", put(512+32, 1<<20), "blocks of 1048576 bytes"},
		{"few blocks", put(512+28, 2), "table has 2 blocks"},
		{"table far away", put(512+16, 1), "its table is at byte"},
		{"table in its header", put(512+20, 512), "its table is at byte 512"},
		{"block in the table", put(1536, 3), "overlaps another part"},
		{"two blocks in one place", put(1536, binary.BigEndian.Uint32(file[1540:])), "overlaps another part"},
		{"blocks overlap", put(1536, binary.BigEndian.Uint32(file[1540:])-1), "overlaps another part"},
		{"block far away", put(1540, 0xfffffff0), "truncated"},
		{"footer differs", func() []byte { b := put(24, 5); b[24]++; resum(b)[24+len(b)-512]++; return b }(),
			"header and its footer differ"},
		{"something behind", append(bytes.Clone(file), 1), "data follows"},
	} {
		_, err := read(bytes.NewReader(c.file), bytes.NewReader(c.file), Limits{}, mib)
		var refused *Error
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), c.want) || refused.Remedy == "" {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if _, err := read(bytes.NewReader(file), nil, Limits{Size: 4 * mib}, mib); err == nil ||
		!strings.Contains(err.Error(), "larger than the disk") {
		t.Errorf("too large: %v", err)
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 60 {
		at := r.IntN(len(file))
		if _, err := read(bytes.NewReader(file[:at]), bytes.NewReader(file), Limits{}, mib); err == nil ||
			!strings.Contains(err.Error(), "truncated") {
			t.Errorf("cut at %d of %d: %v", at, len(file), err)
		}
	}
	gone := errors.New("connection reset")
	if _, err := read(io.MultiReader(bytes.NewReader(file[:3*mib]), iotest.ErrReader(gone)), nil, Limits{},
		mib); !errors.Is(err, gone) {
		t.Errorf("error of the stream below: %v", err)
	}
}

func FuzzOpen(f *testing.F) {
	for _, name := range []string{"one", "none"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= 2048 { // else the sums are all that is found
			b = resum(bytes.Clone(b))
		}
		if out, err := read(bytes.NewReader(b), bytes.NewReader(b), Limits{Size: 16 * mib}, mib); err == nil &&
			len(out) > 16*mib {
			t.Fatal(len(out))
		}
	})
}
