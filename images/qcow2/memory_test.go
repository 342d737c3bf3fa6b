//go:build !race

package qcow2

import (
	"encoding/binary"
	"errors"
	"io"
	"math/bits"
	"runtime"
	"strings"
	"testing"
	"time"
)

// vast is the tables of a full disk of 100 GiB in clusters of 64 KiB. All else in the file is zeros, and nothing is
// read of that.
type vast struct {
	entry func(i int) uint64 // of cluster i
}

const (
	vastBits     = 16
	vastClusters = 100 << 30 >> vastBits
	vastTables   = vastClusters * 8 >> vastBits
	vastL1       = 3 << vastBits
	vastL2       = 4 << vastBits
	vastData     = (4 + vastTables) << vastBits
	vastFile     = vastData + 110<<30
)

func (v vast) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	if off == 0 {
		h := hand(make([]byte, 112))
		copy(h, magic)
		h.features(0).u32(20, vastBits).u64(24, vastClusters<<vastBits).u32(36, vastTables).u64(40, vastL1).u64(48,
			1<<vastBits).u32(56, 1)
		copy(p, h)
	}
	for i := range p {
		at := off + int64(i)
		if at%8 != 0 || len(p)-i < 8 {
			continue
		}
		var e uint64
		switch {
		case at >= vastL1 && at < vastL1+vastTables*8:
			e = copiedFlag | vastL2 + uint64(at-vastL1)/8<<vastBits
		case at >= vastL2 && at < vastData:
			if n := int(at-vastL2) / 8; n >= startSize>>vastBits {
				e = v.entry(n)
			}
		}
		if e != 0 {
			binary.BigEndian.PutUint64(p[i:], e)
		}
	}
	return len(p), nil
}

func packedAt(off int, size int) uint64 {
	sectors := (off+size-1)/sector - off/sector
	return compressFlag | uint64(sectors)<<(62-(vastBits-8)) | uint64(off)
}

// TestMemoryOfTheMapping: what a full disk of 100 GiB takes. The whole agent has 64 MiB. The race detector, with which
// this takes ten times as long, has nothing to find: nothing runs beside it.
func TestMemoryOfTheMapping(t *testing.T) {
	const each = 20011 // bytes of a compressed cluster
	for _, c := range []struct {
		name  string
		entry func(i int) uint64
		most  int64 // MiB
	}{
		{"plain", func(i int) uint64 { return copiedFlag | vastData + uint64(i)<<vastBits }, 2},
		{"compressed in order", func(i int) uint64 { return packedAt(vastData+i*each, each) }, 8},
		{"compressed, two exchanged of eight", func(i int) uint64 {
			if i%8 >= 6 {
				i ^= 1
			}
			return packedAt(vastData+i*each, each)
		}, 17},
		{"plain in pieces of one or two clusters",
			func(i int) uint64 { return copiedFlag | vastData + uint64(i^i>>1&1)<<vastBits }, 22},
		{"plain in the worst order", func(i int) uint64 {
			return copiedFlag | vastData + uint64(vastClusters-1-i)<<vastBits
		}, -1},
		{"compressed in the worst order", func(i int) uint64 {
			return packedAt(vastData+int(bits.Reverse32(uint32(i))>>11)*each, each)
		}, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := vast{c.entry}
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			r, err := Open(nil, v, vastFile, Limits{})
			runtime.GC()
			runtime.ReadMemStats(&after)
			used := int64(after.HeapAlloc) - int64(before.HeapAlloc)
			t.Logf("%.1f MiB, %v, error %v", float64(used)/mib, time.Since(start).Round(time.Millisecond), err)
			if c.most < 0 {
				var e *Error
				if !errors.As(err, &e) || !strings.Contains(err.Error(), "too many pieces") {
					t.Errorf("error %v, want that there are too many pieces", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if used > (c.most+1)*mib { // 1 MiB is the disk's beginning
				t.Errorf("%d bytes, want at most %d MiB", used, c.most)
			}
			// The holes are the beginning, and nothing else.
			if e, err := r.Next(make([]byte, mib)); err != nil || e.Off != 0 || e.Len != startSize || e.Data != nil {
				t.Errorf("the first piece is %d bytes at %d, %v", e.Len, e.Off, err)
			}
			runtime.KeepAlive(r)
		})
	}
}

var _ io.ReaderAt = vast{}
