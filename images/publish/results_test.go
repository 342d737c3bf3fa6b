package publish

import (
	"bytes"
	"testing"

	"github.com/ingot-metal/ingot/images/index"
)

// The disk's last chunk may be the last of a full list, and short: the list covers what the disk has.
func TestFullListOfAShortDisk(t *testing.T) {
	const short = index.ChunkSize - 1<<20
	for _, data := range []int{0, index.ListChunks - 1} {
		dir := Dir(t.TempDir())
		if err := dir.make("x"); err != nil {
			t.Fatal(err)
		}
		r := newResults(dir, Options{Name: "x", Level: 1, Workers: 1, Meter: new(Meter)},
			(index.ListChunks-1)*index.ChunkSize+short)
		want := map[int][]byte{}
		for i := range index.ListChunks {
			c := &chunk{i: i, n: index.ChunkSize}
			if i == index.ListChunks-1 {
				c.n = short
			}
			var o index.Object
			var sums []byte
			if i == data {
				sums = sumsOf(bytes.Repeat([]byte{7}, int(c.n)), c.n)
				o, want[i] = index.Of([]byte("chunk")), sums
			}
			if err := r.add(t.Context(), c, o, sums); err != nil {
				t.Fatal(err)
			}
		}
		x, err := r.index(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		stored, err := dir.Object(t.Context(), x.Lists[0])
		if err != nil {
			t.Fatal(err)
		}
		list, err := index.ParseBlocks(stored, x.ListBytes(0))
		if err != nil {
			t.Fatalf("data in chunk %d: %v", data, err)
		}
		if !bytes.Equal(list.Chunk(data), want[data]) {
			t.Errorf("data in chunk %d: other digests", data)
		}
	}
}
