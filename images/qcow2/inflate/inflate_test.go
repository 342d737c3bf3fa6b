package inflate

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
)

// deflateWith packs with the encoder of the standard library.
func deflateWith(t testing.TB, b []byte, level int, flush int) []byte {
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, level)
	if err != nil {
		t.Fatal(err)
	}
	for len(b) > 0 {
		n := len(b)
		if flush > 0 {
			n = min(n, flush)
		}
		w.Write(b[:n])
		if b = b[n:]; flush > 0 {
			w.Flush()
		}
	}
	w.Close()
	return out.Bytes()
}

// sample is noise, text and runs, in pieces of many sizes.
func sample(size int64, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, 0, size)
	for int64(len(b)) < size {
		switch n := 1 + r.IntN(3000); r.IntN(4) {
		case 0:
			for range n {
				b = append(b, byte(r.Uint32()))
			}
		case 1:
			for range n {
				b = append(b, "the quick brown fox jumps over the lazy dog "[r.IntN(44)])
			}
		case 2:
			b = append(b, bytes.Repeat([]byte{byte(n)}, n)...)
		case 3:
			for i := range n / 20 {
				b = fmt.Appendf(b, "line %d of %d\n", i, n)
			}
		}
	}
	return b[:size]
}

func TestInflate(t *testing.T) {
	var d Decoder
	r := rand.New(rand.NewPCG(1, 2))
	for _, size := range []int{1, 2, 100, 511, 512, 4096, 65536, 300 << 10} {
		for seed := range 5 {
			b := sample(int64(size), uint64(seed))
			switch seed {
			case 1:
				clear(b)
			case 2:
				for i := range b {
					b[i] = byte(r.NormFloat64() * 20)
				}
			}
			for level := -2; level <= 9; level++ {
				for _, flush := range []int{0, 1000} {
					packed := deflateWith(t, b, level, flush)
					dst := bytes.Repeat([]byte{0xa5}, size)
					if err := d.Decode(dst, append(packed, "behind"...)); err != nil || !bytes.Equal(dst, b) {
						t.Fatalf("%d bytes, seed %d, level %d, flush %d: %v", size, seed, level, flush, err)
					}
					if err := d.Decode(dst, packed); err != nil || !bytes.Equal(dst, b) {
						t.Fatalf("%d bytes, seed %d, level %d, flush %d, nothing behind: %v", size, seed, level, flush,
							err)
					}
					if err := d.Decode(dst, packed[:r.IntN(len(packed))]); err == nil {
						t.Fatalf("%d bytes, seed %d, level %d, flush %d: cut off and no error", size, seed, level,
							flush)
					}
					if err := d.Decode(dst[:size-1], packed); err == nil {
						t.Fatalf("%d bytes, seed %d, level %d, flush %d: too much and no error", size, seed, level,
							flush)
					}
					if err := d.Decode(make([]byte, size+1), packed); err == nil {
						t.Fatalf("%d bytes, seed %d, level %d, flush %d: too little and no error", size, seed, level,
							flush)
					}
				}
			}
		}
	}
}

// FuzzInflate compares with the standard library: the same bytes, and an error where it has one.
func FuzzInflate(f *testing.F) {
	for level := -2; level <= 9; level++ {
		f.Add(deflateWith(f, sample(3000, uint64(level+2)), level, 0), uint16(3000))
		f.Add(deflateWith(f, sample(3000, uint64(level+2)), level, 500), uint16(3000))
	}
	f.Add([]byte{0x4b, 0x04, 0x00}, uint16(1))       // fixed codes
	f.Add([]byte{1, 1, 0, 0xfe, 0xff, 7}, uint16(1)) // stored
	f.Fuzz(func(t *testing.T, packed []byte, size uint16) {
		dst := make([]byte, int(size)+64)
		for i := range dst {
			dst[i] = 0xa5
		}
		var d Decoder
		err := d.Decode(dst[:size:size], packed)
		for i, c := range dst[size:] {
			if c != 0xa5 {
				t.Fatalf("writes %d bytes behind the end", i+1)
			}
		}
		want, wantErr := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(packed)), int64(size)+1))
		if wantErr == nil && len(want) != int(size) {
			wantErr = fmt.Errorf("%d bytes", len(want))
		}
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%v, and the standard library %v", err, wantErr)
		}
		if err == nil && !bytes.Equal(want, dst[:size]) {
			t.Fatal("not the bytes of the standard library")
		}
	})
}
