package images

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
)

// place puts extents together as a disk of the size that they say.
func place(e Extents) ([]byte, error) {
	disk := make([]byte, e.Size())
	buf := make([]byte, 1<<20)
	var sum int64
	for {
		x, err := e.Next(buf)
		if err == io.EOF && sum != e.Size() {
			return nil, errors.New("not every byte came")
		}
		if err == io.EOF {
			return disk, nil
		}
		if err != nil {
			return nil, err
		}
		sum += x.Len
		switch {
		case x.Decode != nil:
			if err := x.Decode(disk[x.Off : x.Off+x.Len]); err != nil {
				return nil, err
			}
		case x.Data != nil:
			copy(disk[x.Off:], x.Data)
		}
	}
}

// TestPackedQCow2: qcow2 in each compression gives the disk that it describes, by opening the packed file twice.
func TestPackedQCow2(t *testing.T) {
	kit.NeedPrograms(t, "qemu-img")
	dir := t.TempDir()
	img := disk(6 << 20)
	raw, file := filepath.Join(dir, "raw"), filepath.Join(dir, "qcow2")
	if err := os.WriteFile(raw, img, 0o600); err != nil {
		t.Fatal(err)
	}
	for i, args := range [][]string{{"-o", "cluster_size=4096"},
		{"-c", "-o", "compression_type=zstd,cluster_size=4096"}} {
		kit.Run(t, "qemu-img", append(append([]string{"convert", "-f", "raw", "-O", "qcow2"}, args...), raw, file)...)
		packed, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for k, command := range [][]string{
			{"cat"}, {"gzip", "-1c"}, {"xz", "-0", "-c"}, {"zstd", "-c"}, {"lz4", "-c"}, {"bzip2", "-1c"},
		} {
			if few() && i != k%2 {
				continue
			}
			v := variant{name: command[0], c: Compression(command[0]), file: tool(t, packed, command...)}
			if v.name == "cat" { // a plain file of which ranges can't be had
				v.c = Plain
			}
			opened := 0
			in := Input{Stream: bytes.NewReader(v.file), Size: int64(len(v.file)),
				Again: func() (io.ReadCloser, error) {
					opened++
					return io.NopCloser(bytes.NewReader(v.file)), nil
				}}
			e, info, err := Open(in, Limits{Size: 6 << 20})
			if err != nil {
				t.Errorf("%s: %v", v.name, err)
				continue
			}
			got, err := place(e)
			if err != nil || !bytes.Equal(got, img) || info.Format != QCow2 || info.Head != MBR ||
				info.Compression != v.c {
				t.Errorf("%s: %d bytes, %+v, %v", v.name, len(got), info.Format, err)
			}
			if opened != 1 || !info.Twice {
				t.Errorf("%s %d: opened %d times again, Twice is %v", v.name, i, opened, info.Twice)
			}
			e.Close()
		}
		gz := tool(t, packed, "gzip", "-c")
		var refused *Error
		_, _, err = Open(Input{Stream: bytes.NewReader(gz), Size: int64(len(gz))}, Limits{})
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), "qcow2 image inside gzip") {
			t.Errorf("without a second reading: %v", err)
		}
		// The second reading is of another file, of which the tables are taken.
		other := bytes.Clone(packed)
		for at := 1 << 20; at+4096 <= len(other); at += 4096 {
			if other[at] == 0x80 || other[at] == 0x40 { // flags of the first cluster in an L2 table
				other[at+6] ^= 0x10
			}
		}
		e, _, err := Open(Input{Stream: bytes.NewReader(gz), Size: -1, Again: func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(tool(t, other, "gzip", "-c"))), nil
		}}, Limits{})
		if err == nil {
			_, err = place(e)
			e.Close()
		}
		if !errors.As(err, &refused) {
			t.Errorf("a file that changed in between: %v", err)
		}
	}
}

// TestWhatADiskHolds: a format's disk is looked at as a raw one is.
func TestWhatADiskHolds(t *testing.T) {
	kit.NeedPrograms(t, "qemu-img")
	dir := t.TempDir()
	convert := func(disk []byte) []byte {
		raw, file := filepath.Join(dir, "raw"), filepath.Join(dir, "qcow2")
		if err := os.WriteFile(raw, disk, 0o600); err != nil {
			t.Fatal(err)
		}
		kit.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, file)
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	ext4 := make([]byte, 1<<20)
	copy(ext4[0x438:], "\x53\xef")
	page := make([]byte, 1<<20)
	copy(page, "<html>not found")
	for _, c := range []struct {
		name      string
		file      []byte
		partition bool
		want      string
	}{
		{"file system", convert(ext4), true, ""},
		{"page", convert(page), false, "holds no system: it is an HTML page"},
		{"zeros", convert(make([]byte, 1<<20)), false, "holds no system: it begins with zeros"},
		{"qcow2", convert(convert(disk(1 << 20))), false, "holds an image in qcow2 format"},
	} {
		_, info, err := Open(
			Input{Stream: bytes.NewReader(c.file), Size: int64(len(c.file)), At: bytes.NewReader(c.file)}, Limits{})
		if info.Partition != c.partition || (err == nil) != (c.want == "") || err != nil &&
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v", c.name, info, err)
		}
	}
}
