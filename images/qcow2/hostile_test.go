package qcow2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"
)

// The handmade image: clusters of 4 KiB, one after the other: header, table and block of reference counts, L1, L2, four
// of data. The disk has 64 KiB and a sector; data is at 0, 4 KiB, 32 KiB and in its last sector.
const (
	handCluster = 4096
	handL1      = 3 * handCluster
	handL2      = 4 * handCluster
	handData    = 5 * handCluster
	handSize    = 64*kib + sector
	handFile    = 9 * handCluster
)

type hand []byte

func (h hand) u32(off int, v uint32) hand { binary.BigEndian.PutUint32(h[off:], v); return h }
func (h hand) u64(off int, v uint64) hand { binary.BigEndian.PutUint64(h[off:], v); return h }

// entry sets an entry of the L2 table.
func (h hand) entry(i int, v uint64) hand { return h.u64(handL2+i*8, v) }

// features turns it into version 3.
func (h hand) features(bits uint64) hand {
	return h.u32(4, 3).u64(72, bits).u32(96, 4).u32(100, 112)
}

// packed makes entry i a compressed cluster: these bytes, at this offset, in so many sectors beyond the first.
func (h hand) packed(i int, at int, more uint64, b []byte) hand {
	copy(h[at:], b)
	return h.entry(i, compressFlag|more<<58|uint64(at))
}

// extended doubles the entries of the L2 table.
func (h hand) extended(i int, e, bits uint64) hand {
	h.features(extendedBit).u32(20, 14)
	return h.u64(4<<14+i*16, e).u64(4<<14+i*16+8, bits)
}

func handmade() hand {
	h := make(hand, handFile)
	copy(h, magic)
	h.u32(4, 2).u32(20, 12).u64(24, handSize).u32(36, 1).u64(40, handL1).u64(48, handCluster).u32(56, 1)
	h.u64(handCluster, 2*handCluster).u64(handL1, copiedFlag|handL2)
	for i, at := range []int{0, 1, 8, 16} {
		off := handData + i*handCluster
		h.entry(at, copiedFlag|uint64(off))
		for j := range handCluster {
			h[off+j] = byte(i+1) + byte(j>>5)
		}
	}
	return h
}

// largeClusters is an image with subclusters, in clusters of 16 KiB.
func largeClusters() hand {
	h := make(hand, 9<<14)
	copy(h, magic)
	h.features(extendedBit).u32(20, 14).u64(24, handSize).u32(36, 1).u64(40, 3<<14).u64(48, 1<<14).u32(56, 1)
	h.u64(1<<14, 2<<14).u64(3<<14, copiedFlag|4<<14)
	return h
}

func deflated(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, 6)
	if err != nil {
		t.Fatal(err)
	}
	w.Write(b)
	w.Close()
	return out.Bytes()
}

func zstded(t testing.TB, b []byte, opts ...zstd.EOption) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil, opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(b, nil)
}

// extension appends an extension to the header.
func (h hand) extension(kind uint32, b []byte) hand {
	at := 72
	if binary.BigEndian.Uint32(h[4:]) == 3 {
		at = 112
	}
	h.u32(at, kind).u32(at+4, uint32(len(b)))
	copy(h[at+8:], b)
	return h
}

func TestHostile(t *testing.T) {
	text := bytes.Repeat([]byte("some text "), handCluster/10+1)[:handCluster]
	names := make([]byte, 96)
	names[49] = 40
	copy(names[50:], "teleport\n")
	for _, c := range []struct {
		name string
		file hand
		want string // part of the error; and of its remedy, after a bar
	}{
		{"magic", handmade().u32(0, 0), "does not begin as a qcow2"},
		{"version 1", handmade().u32(4, 1), "version 1|qemu-img convert"},
		{"version 4", handmade().u32(4, 4), "version 4|qemu-img convert"},
		{"tiny clusters", handmade().u32(20, 8), "clusters are said to be of 2^8"},
		{"huge clusters", handmade().u32(20, 22), "clusters are said to be of 2^22"},
		{"clusters beyond all", handmade().u32(20, 1<<31), "clusters are said to be of 2^2147483648"},
		{"backing file", extend(handmade().u64(8, 200).u32(16, 6), 200, "/a/\nbc"),
			`difference to a backing file, "/a/\nbc"|qemu-img convert`},
		{"backing file nowhere", handmade().u64(8, 1<<63).u32(16, 6), "difference to a backing file|qemu-img convert"},
		{"backing file with a long name", handmade().u64(8, 200).u32(16, 1<<31), "difference to a backing file"},
		{"AES", handmade().u32(32, 1), "encrypted with AES|decrypt"},
		{"LUKS", handmade().u32(32, 2), "encrypted with LUKS|decrypt"},
		{"other encryption", handmade().u32(32, 3), "encrypted with method 3"},
		{"keys", handmade().extension(extCrypt, make([]byte, 16)), "keys of an encrypted image"},
		{"corrupt", handmade().features(corruptBit), "marked as corrupt|qemu-img check"},
		{"data file", handmade().features(dataFileBit), "in another file"},
		{"name of a data file", handmade().features(0).extension(extDataFile, []byte("x.raw")), "in another file"},
		{"unknown feature", handmade().features(1 << 40), "not known: bit 40"},
		{"unknown features with names", handmade().features(1<<40|1<<63).extension(extFeatures, names),
			`not known: "teleport\n", bit 63`},
		{"header length", handmade().features(0).u32(100, 100), "header is said to have 100 bytes"},
		{"header length, odd", handmade().features(0).u32(100, 107), "header is said to have 107 bytes"},
		{"header length, all", handmade().features(0).u32(100, 1<<31), "header is said to have 2147483648 bytes"},
		{"extension too long", handmade().extension(7, nil).u32(76, 5000), "extension of 5000 bytes"},
		{"extension of all memory", handmade().extension(7, nil).u32(76, 1<<32-1), "extension of 4294967295 bytes"},
		{"compression without bit", extend(handmade().features(0), compressionAt, "\x01"), "contradicts itself"},
		{"compression without type", handmade().features(compressionBit), "contradicts itself"},
		{"compression without field", handmade().features(compressionBit).u32(100, 104), "contradicts itself"},
		{"compression unknown", extend(handmade().features(compressionBit), compressionAt, "\x02"), "type 2"},
		{"subclusters in small clusters", handmade().features(extendedBit), "subclusters in clusters of 4096"},
		{"reference counts", handmade().features(0).u32(96, 7), "reference counts are said to have 2^7 bits"},
		{"no reference counts", handmade().u32(56, 0), "no table of reference counts"},
		{"too many reference counts", handmade().u32(56, 2049), "2049 clusters"},
		{"reference counts unaligned", handmade().u64(48, 1000), "reference counts is said to be at byte 1000"},
		{"reference counts outside", handmade().u64(48, 1<<40), "ends before its table of reference counts"},
		{"block of reference counts unaligned", handmade().u64(handCluster, 513), "names byte 513"},
		{"block of reference counts outside", handmade().u64(handCluster, 1<<30),
			"a block of reference counts should be at byte"},
		{"block of reference counts is data", handmade().u64(handCluster, handData),
			"used twice, for a block of reference counts and for data"},
		{"snapshots", handmade().u32(60, 1<<16+1).u64(64, handCluster), "65537 snapshots"},
		{"snapshots outside", handmade().u32(60, 1).u64(64, 1<<30), "ends before its list of snapshots"},
		{"snapshots in data", handmade().u32(60, 1).u64(64, handData),
			"used twice, for the list of snapshots and for data"},
		{"no disk", handmade().u64(24, 0), "empty disk"},
		{"odd disk", handmade().u64(24, handSize+1), "no multiple of 512"},
		{"disk larger than allowed", handmade().u64(24, 1<<30+512),
			"larger than the disk: 1073742336 bytes|larger disk"},
		{"negative disk", handmade().u64(24, 1<<63), "said to have 9223372036854775808 bytes"},
		{"L1 too small", handmade().u64(24, 3<<20), "L1 table has 1 entries"},
		{"L1 absurd", handmade().u32(36, 1<<32-1), "said to have 4294967295 entries"},
		{"L1 unaligned", handmade().u64(40, handL1+8), "L1 table is said to be at byte"},
		{"L1 at the beginning", handmade().u64(40, 0), "names an L2 table at byte"},
		{"L1 outside", handmade().u64(40, 1<<30), "ends before its L1 table"},
		{"L1 beyond all", handmade().u64(40, 1<<63), "L1 table is said to be at byte"},
		{"L1 entry unaligned", handmade().u64(handL1, copiedFlag|handL2+512), "names an L2 table at byte"},
		{"L1 entry with reserved bits", handmade().u64(handL1, copiedFlag|handL2|1), "names an L2 table at byte"},
		{"L1 entry with high bits", handmade().u64(handL1, handL2|1<<56), "names an L2 table at byte"},
		{"L1 entry without offset", handmade().u64(handL1, copiedFlag), "names an L2 table at byte 0"},
		{"L1 entry outside", handmade().u64(handL1, copiedFlag|handFile),
			"an L2 table should be at byte 36864|complete"},
		{"L1 entry far outside", handmade().u64(handL1, copiedFlag|1<<49), "an L2 table should be at byte"},
		{"L1 entry is L1", handmade().u64(handL1, copiedFlag|handL1),
			"used twice, for the L1 table and for an L2 table"},
		{"L1 entry beyond all", handmade().u64(handL1, copiedFlag|1<<55), "names an L2 table"},
		{"L1 entries name one L2", handmade().u64(24, 3<<20).u32(36, 2).u64(handL1+8, copiedFlag|handL2),
			"two entries of its L1 table, 0 and 1"},
		{"L2 is data", handmade().entry(0, copiedFlag|handL2), "used twice, for an L2 table and for data"},
		{"L1 is data", handmade().entry(0, copiedFlag|handL1), "used twice, for the L1 table and for data"},
		{"header is data", handmade().features(0).packed(0, 512, 0, nil), "used twice, for the header and for data"},
		{"reference counts are data", handmade().entry(0, copiedFlag|handCluster),
			"used twice, for the table of reference counts and for data"},
		{"L2 is reference counts", handmade().u64(handL1, copiedFlag|2*handCluster), "used twice, for "},
		{"data twice", handmade().entry(1, copiedFlag|handData), "used twice, for data and for data"},
		{"entry unaligned", handmade().entry(0, copiedFlag|handData+512),
			"entry of an L2 table for byte 0 of the disk"},
		{"entry with reserved bits", handmade().entry(1, copiedFlag|handData|2),
			"entry of an L2 table for byte 4096 of the disk"},
		{"entry with high bits", handmade().entry(0, handData|1<<56), "entry of an L2 table for byte 0"},
		{"entry without offset", handmade().entry(0, copiedFlag), "entry of an L2 table for byte 0"},
		{"entry outside", handmade().entry(0, copiedFlag|handFile), "data should be at byte 36864"},
		{"entry far outside", handmade().entry(0, 1<<50), "entry of an L2 table for byte 0"},
		{"zeros in version 2", handmade().entry(0, zeroFlag), "entry of an L2 table for byte 0"},
		{"compressed and copied", handmade().entry(0, copiedFlag|compressFlag|handData),
			"entry of an L2 table for byte 0"},
		{"compressed outside", handmade().packed(0, 0, 0, nil).entry(0, compressFlag|handFile),
			"data should be at byte 36864"},
		{"compressed beyond all", handmade().entry(0, compressFlag|1<<57), "entry of an L2 table for byte 0"},
		{"compressed at 0", handmade().entry(0, compressFlag), "entry of an L2 table for byte 0"},
		{"compressed over the end", handmade().entry(0, compressFlag|7<<58|(handFile-sector)),
			"data should be at byte"},
		{"compressed twice", handmade().packed(0, handData, 0, deflated(t, text)).entry(1, compressFlag|handData),
			"used twice, for data and for data"},
		{"compressed within another",
			handmade().packed(0, handData, 3, deflated(t, text)).entry(1, compressFlag|1<<58|(handData+600)),
			"used twice, for data and for data"},
		{"compressed in plain", handmade().packed(1, handData+100, 0, deflated(t, text)),
			"used twice, for data and for data"},
		{"plain in compressed", handmade().packed(2, handData-1, 1, deflated(t, text)), "used twice, for "},
		{"subcluster is data and zeros", largeClusters().extended(0, copiedFlag|5<<14, 1|1<<32),
			"that they are data and zeros"},
		{"subcluster without offset", largeClusters().extended(0, 0, 1), "entry of an L2 table for byte 0"},
		{"zero flag with subclusters", largeClusters().extended(0, copiedFlag|5<<14|1, 1),
			"entry of an L2 table for byte 0"},
		{"compressed with subclusters allocated", largeClusters().extended(0, compressFlag|5<<14, 1),
			"entry of an L2 table for byte 0"},
		{"subclusters of one cluster twice",
			largeClusters().extended(0, copiedFlag|5<<14, 1).extended(1, copiedFlag|5<<14, 2),
			"used twice, for data and for data"},
		{"subclusters of one cluster, neighbours on the disk",
			largeClusters().extended(0, copiedFlag|5<<14, 1<<31).extended(1, copiedFlag|5<<14, 1),
			"used twice, for data and for data"},
		{"empty file", hand{}, "does not begin as"},
		{"half a header", handmade()[:60], "truncated: it ends within its header|complete"},
		{"version 3 in half a header", handmade().features(0)[:100], "ends within its header"},
	} {
		t.Run(c.name, func(t *testing.T) {
			want, remedy, _ := strings.Cut(c.want, "|")
			for _, size := range []int64{int64(len(c.file)), -1} {
				r, err := Open(bytes.NewReader(c.file), bytes.NewReader(c.file), size, Limits{Size: 1 << 30})
				var e *Error
				switch {
				case size < 0 && err == nil:
					// Without the file's size the end of it has to come first.
					if _, err = readInto(r, mib); err == nil {
						t.Error("read to its end when the file's size is not known")
					}
				case err == nil:
					t.Errorf("opened, want an error with %q", want)
				case !errors.As(err, &e):
					t.Errorf("%v has no remedy", err)
				case size >= 0 && (!strings.Contains(err.Error(), want) || !strings.Contains(e.Remedy, remedy)):
					t.Errorf("error %q, remedy %q; want %q, %q", err, e.Remedy, want, remedy)
				case strings.Contains(err.Error(), "\n"):
					t.Errorf("%q has two lines", err)
				}
			}
		})
	}
}

func extend(h hand, at int, s string) hand { copy(h[at:], s); return h }

// TestCompressedClusters: a compressed cluster is exactly one cluster, or an error.
func TestCompressedClusters(t *testing.T) {
	text := bytes.Repeat([]byte("some text "), 2*handCluster/10+1)
	one := text[:handCluster]
	bomb := make([]byte, 64<<20)
	withoutSize := func(b []byte) []byte {
		var out bytes.Buffer
		w, err := zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range [][]byte{b[:100], b[100:]} {
			w.Write(p)
			w.Flush()
		}
		w.Close()
		return out.Bytes()
	}
	for _, c := range []struct {
		name string
		zstd bool
		form []byte
		want string
	}{
		{"deflate", false, deflated(t, one), ""},
		{"deflate and something behind it", false, append(deflated(t, one), "more"...), ""},
		{"deflate of too little", false, deflated(t, one[1:]), "does not unpack to 4096 bytes"},
		{"deflate of nothing", false, deflated(t, nil), "does not unpack to 4096 bytes"},
		{"deflate of too much", false, deflated(t, text[:handCluster+1]), "does not unpack to 4096 bytes"},
		{"deflate bomb", false, deflated(t, bomb)[:2*handCluster], "does not unpack to 4096 bytes"},
		{"deflate cut off", false, deflated(t, one)[:20], "does not unpack to 4096 bytes"},
		{"deflate of a bad kind", false, []byte{7, 7, 7}, "does not unpack to 4096 bytes"},
		{"zeros for deflate", false, nil, "does not unpack to 4096 bytes"},
		{"zstd", true, zstded(t, one), ""},
		{"zstd with check sum", true, zstded(t, one, zstd.WithEncoderCRC(true)), ""},
		{"zstd without size", true, withoutSize(one), ""},
		{"zstd and something behind it", true, append(zstded(t, one), "more"...), ""},
		{"zstd and another frame", true, append(zstded(t, one), zstded(t, one)...), ""},
		{"zstd of too little", true, zstded(t, one[1:]), "does not unpack to 4096 bytes"},
		{"zstd of nothing", true, zstded(t, nil, zstd.WithZeroFrames(true)), "does not unpack to 4096 bytes"},
		{"zstd of too much", true, zstded(t, text[:handCluster+1]), "does not unpack to 4096 bytes"},
		{"zstd of too much, without size", true, withoutSize(text[:handCluster+1]), "does not unpack to 4096 bytes"},
		{"zstd bomb", true, zstded(t, bomb), "does not unpack to 4096 bytes"},
		{"zstd bomb without size", true, withoutSize(bomb), "does not unpack to 4096 bytes"},
		{"zstd cut off", true, zstded(t, one)[:20], "does not unpack to 4096 bytes"},
		{"zstd skippable", true, append([]byte("\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"), zstded(t, one)...),
			"does not unpack to 4096 bytes"},
		{"zstd with a dictionary", true, append([]byte("\x28\xb5\x2f\xfd\x61\x07\x00\x0f"), zstded(t, one)[6:]...),
			"does not unpack to 4096 bytes"},
		{"zeros for zstd", true, nil, "does not unpack to 4096 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := handmade()
			if c.zstd {
				h.features(compressionBit)
				h[compressionAt] = 1
			}
			form := c.form[:min(len(c.form), 2*handCluster)]
			h = append(h, make(hand, 4*handCluster)...)
			// Far on the disk, so that it is not unpacked for Start already.
			h.u64(24, 2*mib-sector)
			h.packed(300, handFile+77, uint64(max(1, len(form)+77)-1)/sector, form)
			got, err := readFile(h, h, int64(len(h)), mib)
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got[300*handCluster:][:handCluster], one) {
					t.Error("not what was compressed")
				}
				return
			}
			var e *Error
			if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// TestMemoryLimit: an image in too many pieces is refused, not read with more memory.
func TestMemoryLimit(t *testing.T) {
	h := handmade()
	if _, err := Open(bytes.NewReader(h), bytes.NewReader(h), -1, Limits{Memory: 100 << 10}); err != nil {
		t.Errorf("a small image: %v", err)
	}
	_, err := Open(bytes.NewReader(h), bytes.NewReader(h), -1, Limits{Memory: 10 << 10})
	var e *Error
	if !errors.As(err, &e) || !strings.Contains(err.Error(), "too many pieces") ||
		!strings.Contains(e.Remedy, "cluster_size") {
		t.Errorf("error %v", err)
	}
}

// TestErrorsOfBelowPass: what the network says is said as it is.
func TestErrorsOfBelowPass(t *testing.T) {
	gone := errors.New("gone")
	h := handmade()
	if _, err := Open(bytes.NewReader(h), failingAt{}, handFile, Limits{}); !errors.Is(err, errFailing) {
		t.Errorf("Open with a failing ReaderAt = %v", err)
	}
	for _, n := range []int{0, 100, handL1 + 3, handL2, handData + 5, handFile - 1} {
		r, err := Open(io.MultiReader(bytes.NewReader(h[:n]), iotest.ErrReader(gone)), bytes.NewReader(h), handFile,
			Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := readInto(r, mib); !errors.Is(err, gone) {
			t.Errorf("the stream fails after %d bytes: %v", n, err)
		}
		if _, err := r.Next(make([]byte, mib)); !errors.Is(err, gone) {
			t.Errorf("Next after that = %v", err)
		}
	}
	// A connection that was cut is no end, even where the file has nothing any more that is of use.
	r, err := Open(io.MultiReader(bytes.NewReader(h), iotest.ErrReader(io.ErrUnexpectedEOF)), bytes.NewReader(h), -1,
		Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readInto(r, mib); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut off at the end: %v", err)
	}
}

var errFailing = errors.New("failing")

type failingAt struct{}

func (failingAt) ReadAt([]byte, int64) (int, error) { return 0, errFailing }

// TestLongerFile: a file that continues after its end is another file.
func TestLongerFile(t *testing.T) {
	h := handmade()
	if _, err := readFile(append(bytes.Clone(h), 0), h, handFile, mib); !errors.Is(err, ErrChanged) {
		t.Errorf("a longer file: %v", err)
	}
	longer := append(bytes.Clone(h), make([]byte, 1000)...)
	if got, err := readFile(longer, longer, -1, 4096); err != nil || len(got) != handSize {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
