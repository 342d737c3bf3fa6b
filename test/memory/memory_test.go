// Package memory runs agents as processes of their own, alone and in a swarm, with no more memory than one may take.
// Needs root.
//
// It is apart from agent/image because that is tested under the race detector, which does nothing for another process
// and makes the images that it is to write, of hundreds of MiB, several times as slowly.
package memory

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/pubimage"
)

const mib = 1 << 20

// limit bounds the memory of the whole agent: its program, the kernel's memory for it, and its part of the page cache.
const (
	limit   = 64 * mib
	further = 48 * mib // where the write may use as much more
)

// sparseSource is the contents of a large disk, of which most is zeros: data in a few places.
type sparseSource struct {
	size  int64
	parts []int64 // where data begins, each of partSize
	part  []byte
}

const partSize = 32 * mib

func newSparseSource(size int64, parts int) *sparseSource {
	s := &sparseSource{size: size, part: make([]byte, partSize)}
	r := rand.NewChaCha8([32]byte{3})
	for off := 0; off < partSize; off += 4096 { // of each page a half that packs
		r.Read(s.part[off : off+2048])
	}
	for i := range int64(parts) {
		s.parts = append(s.parts, i*(size/int64(parts))/partSize*partSize)
	}
	return s
}

// at is the data that begins at the i-th place.
func (s *sparseSource) at(i int) []byte {
	b := bytes.Clone(s.part)
	binary.LittleEndian.PutUint64(b[4096:], uint64(i)+1)
	if i == 0 {
		clear(b[:512])
		putMBR(b, 64*mib)
	}
	return b
}

// putMBR puts a partition table with one partition at the head of an image of size bytes.
func putMBR(head []byte, size int) {
	e := head[446:]
	e[4] = 0x83
	binary.LittleEndian.PutUint32(e[8:], 2048)
	binary.LittleEndian.PutUint32(e[12:], uint32(size/512-2048))
	head[510], head[511] = 0x55, 0xaa
}

// raw writes a sparse file.
func (s *sparseSource) raw(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(s.size); err != nil {
		t.Fatal(err)
	}
	for i, off := range s.parts {
		if _, err := f.WriteAt(s.at(i), off); err != nil {
			t.Fatal(err)
		}
	}
}

// zst writes one frame for data and one for zeros in turn, with a window of 32 MiB, the largest that is accepted.
func (s *sparseSource) zst(t *testing.T, path string) {
	t.Helper()
	const window = 32 * mib
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out, zstd.WithWindowSize(window), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	for i, off := range s.parts {
		w.Reset(&out)
		// More than the window, so that all of it is in use.
		if _, err := w.Write(s.at(i)); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		end := s.size
		if i+1 < len(s.parts) {
			end = s.parts[i+1]
		}
		gap := end - off - partSize
		if first := min(gap, 8*mib); first > 0 { // zeros in the same frame, as an encoder makes them
			if _, err := w.Write(make([]byte, first)); err != nil {
				t.Fatal(err)
			}
			gap -= first
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if gap > 0 {
			// no size, no check sum, the same window: RFC 8878, 3.1.1.1
			out.Write([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, 15 << 3})
			for gap > 0 {
				n := min(gap, 128<<10)
				gap -= n
				h := uint32(n)<<3 | 1<<1
				if gap == 0 {
					h |= 1
				}
				out.Write([]byte{byte(h), byte(h >> 8), byte(h >> 16), 0})
			}
		}
	}
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// packWide packs a file as zstd does with a window of so many bytes.
func packWide(t *testing.T, from, to string, window int) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	w, err := zstd.NewWriter(out, zstd.WithWindowSize(window), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(w, in); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// packFrames packs a file in frames of 8 MiB, which all cores unpack, and its second half in one frame with a window of
// 32 MiB, for which the rest must go.
func packFrames(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	w, err := zstd.NewWriter(nil, zstd.WithWindowSize(32*mib), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	for chunk := range slices.Chunk(in[:len(in)/2], 8*mib) {
		out = w.EncodeAll(chunk, out)
	}
	if err := os.WriteFile(to, w.EncodeAll(in[len(in)/2:], out), 0o600); err != nil {
		t.Fatal(err)
	}
}

// publish writes the objects of a published image and gives its index. Its sum over the whole disk is left out, which
// takes a minute for 100 GiB of zeros and which no agent looks at.
func (s *sparseSource) publish(t *testing.T, dir, name string) {
	t.Helper()
	_, err := pubimage.Write(dir, name, s.size, func(chunk int) []byte {
		off := int64(chunk) * index.ChunkSize
		for i, at := range s.parts {
			if at <= off && off < at+partSize {
				return s.at(i)[off-at:][:index.ChunkSize]
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestTheAgentFitsIn64MiB runs the real program in a control group of 64 MiB, which the kernel ends it for passing, on
// images of 1 GiB and of 100 GiB in the forms that take most memory.
func TestTheAgentFitsIn64MiB(t *testing.T) {
	kit.NeedPrograms(t, "qemu-img", "xz")
	group, large := kit.MemoryGroup(t, limit), kit.MemoryGroup(t, limit+further)
	dir := t.TempDir()
	agent := made.Program(t, "ingot-agent")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"v1"`)
		http.ServeFile(w, r, filepath.Join(dir, filepath.Clean("/"+r.URL.Path)))
	}))
	defer s.Close()

	for _, c := range []struct {
		name  string
		size  int64
		parts int
		forms []string
	}{
		{"1GiB", 1 << 30, 6, []string{".zst", ".qcow2", index.Suffix}},
		// tables between the data
		{"100GiB", 100 << 30, 3, []string{".zst", ".qcow2", ".qcow2.zst", index.Suffix}},
		// far more than what they look back on
		{"96MiB", 96 * mib, 2, []string{".xz", ".blocks.xz", ".qcow2.xz", ".qcow2.zst", ".16.zst", ".qcow2.16.zst",
			".frames.zst", ".qcow2.frames.zst", ".more.zst"}},
	} {
		src := newSparseSource(c.size, c.parts)
		raw, plain := filepath.Join(dir, "raw"), filepath.Join(dir, "plain.qcow2")
		src.raw(t, raw)
		for _, form := range c.forms {
			path := filepath.Join(dir, c.name+form)
			switch form {
			case ".zst":
				src.zst(t, path)
			case ".qcow2":
				kit.Run(t, "qemu-img", "convert", "-c", "-o", "compression_type=zstd", "-O", "qcow2", raw, path)
			case index.Suffix:
				src.publish(t, dir, c.name)
			case ".xz":
				kit.Run(t, "xz", "-k", "--lzma2=preset=0,dict=32MiB", raw)
				if err := os.Rename(raw+".xz", path); err != nil {
					t.Fatal(err)
				}
			case ".blocks.xz": // the largest of which several are unpacked at once
				kit.Run(t, "xz", "-k", "-T2", "-3", raw)
				if err := os.Rename(raw+".xz", path); err != nil {
					t.Fatal(err)
				}
			case ".qcow2.xz":
				kit.Run(t, "qemu-img", "convert", "-O", "qcow2", raw, plain)
				kit.Run(t, "xz", "--lzma2=preset=0,dict=32MiB", plain)
				if err := os.Rename(plain+".xz", path); err != nil {
					t.Fatal(err)
				}
			case ".qcow2.zst":
				kit.Run(t, "qemu-img", "convert", "-O", "qcow2", raw, plain)
				packWide(t, plain, path, 32*mib)
			case ".16.zst": // the largest window that leaves room for large buffers
				packWide(t, raw, path, 16*mib)
			case ".qcow2.16.zst":
				kit.Run(t, "qemu-img", "convert", "-O", "qcow2", raw, plain)
				packWide(t, plain, path, 16*mib)
			case ".frames.zst", ".more.zst":
				packFrames(t, raw, path)
			case ".qcow2.frames.zst":
				kit.Run(t, "qemu-img", "convert", "-O", "qcow2", raw, plain)
				packFrames(t, plain, path)
			}
		}
		if err := os.Remove(filepath.Join(dir, "raw")); err != nil {
			t.Fatal(err)
		}
		for _, form := range c.forms {
			t.Run(c.name+form, func(t *testing.T) {
				disk := kit.TempDisk(t, c.size+64*mib)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				group, most, args := group, limit, []string{"--memory", "48"}
				if form == ".more.zst" {
					group, most, args[1] = large, limit+further, strconv.Itoa(48+further/mib)
				}
				cmd := group.Command(ctx, agent, append([]string{"write", "--image", s.URL + "/" + c.name + form,
					"--disk", disk, "--allow-unverified", "--yes", "--quiet", "--json"}, args...)...)
				var out, errs bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &errs
				began := time.Now()
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, 1)
				go func() { ended <- cmd.Wait() }()
				// The high-water mark that rusage knows is that of the process before it became the agent.
				peak, err := 0, error(nil)
				for running := true; running; {
					select {
					case err = <-ended:
						running = false
					case <-time.After(10 * time.Millisecond):
						peak = max(peak, kit.HighWater(cmd.Process.Pid, agent))
					}
				}
				if err != nil {
					t.Fatalf("after a peak of %d MiB: %v: %s", peak>>10, err, &errs)
				}
				var r struct {
					Written int64 `json:"bytes_written"`
				}
				if err := json.Unmarshal(out.Bytes(), &r); err != nil {
					t.Fatalf("%v: %s", err, &out)
				}
				t.Logf("%s%s in %s: peak of %d MiB, %d MiB written", c.name, form,
					time.Since(began).Round(10*time.Millisecond), peak>>10, r.Written>>20)
				if peak == 0 || peak > most>>10 {
					t.Errorf("peak of %d kB", peak)
				}
				src.mustBeOn(t, disk)
			})
		}
	}
}

// mustBeOn compares the written data, and checks how much of a disk that was all holes is data now.
func (s *sparseSource) mustBeOn(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := make([]byte, partSize)
	for i, off := range s.parts {
		if _, err := io.ReadFull(io.NewSectionReader(f, off, partSize), got); err != nil {
			t.Fatal(err)
		}
		want := s.at(i)
		if i == 0 { // the table is as large as the disk now
			copy(got[:512], want[:512])
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("the data at byte %d is not the image's", off)
		}
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if data := int64(len(s.parts)) * partSize; st.Blocks*512 > data+data/50+4*mib {
		t.Errorf("%d MiB landed on the disk of %d MiB that are not zero", st.Blocks>>11, data>>20)
	}
}
