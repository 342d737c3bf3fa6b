package image

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/test/kit"
)

// memoryLimitOfTest is what the whole agent may take, with its program, the kernel's memory for it, and whatever of the page cache is its own.
const memoryLimitOfTest = 64 * mib

// cgroup makes a control group with a limit of memory, of either version, and gives the file that a process joins it by.
func cgroup(t *testing.T, limit int) string {
	t.Helper()
	kit.NeedRoot(t)
	name := fmt.Sprintf("ingot-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	for _, v := range []struct{ root, limit, swap string }{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"},
		{"/sys/fs/cgroup", "memory.max", "memory.swap.max"},
	} {
		if v.limit == "memory.max" {
			// The controller may have to be handed on to groups below the root first.
			os.WriteFile(filepath.Join(v.root, "cgroup.subtree_control"), []byte("+memory"), 0o644)
		}
		dir := filepath.Join(v.root, name)
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		if os.WriteFile(filepath.Join(dir, v.limit), []byte(fmt.Sprint(limit)), 0o644) != nil {
			os.Remove(dir)
			continue
		}
		os.WriteFile(filepath.Join(dir, v.swap), []byte(map[bool]string{true: fmt.Sprint(limit), false: "0"}[v.limit == "memory.limit_in_bytes"]), 0o644)
		t.Cleanup(func() {
			kit.Eventually(t, 10*time.Second, "the control group is empty", func() bool { return os.Remove(dir) == nil })
		})
		return filepath.Join(dir, "cgroup.procs")
	}
	t.Fatal("no control group of memory can be made here, neither of version 1 nor of version 2")
	return ""
}

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
	w, err := zstd.NewWriter(&out, zstd.WithWindowSize(window), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
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
			out.Write([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, 15 << 3}) // no size, no check sum, the same window: RFC 8878, 3.1.1.1
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

// packWide packs a file as zstd --long=25 does.
func packWide(t *testing.T, from, to string) {
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
	w, err := zstd.NewWriter(out, zstd.WithWindowSize(32*mib), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
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

// publish writes the objects of a published image and gives its index. Its sum over the whole disk is left out, which takes a minute for
// 100 GiB of zeros and which no agent looks at.
func (s *sparseSource) publish(t *testing.T, dir, name string) {
	t.Helper()
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true))
	if err != nil {
		t.Fatal(err)
	}
	put := func(raw []byte) index.Object {
		stored := w.EncodeAll(raw, nil)
		o := index.Of(stored)
		path := filepath.Join(dir, filepath.FromSlash(o.Path()))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, stored, 0o600); err != nil {
			t.Fatal(err)
		}
		return o
	}
	x := &index.Index{Size: s.size, Chunks: make([]index.Object, s.size/index.ChunkSize)}
	x.Lists = make([]index.Object, (len(x.Chunks)+index.ListChunks-1)/index.ListChunks)
	lists := map[int64][]byte{}
	for i, off := range s.parts {
		data := s.at(i)
		for at := int64(0); at < partSize; at += index.ChunkSize {
			n := (off + at) / index.ChunkSize
			chunk := data[at : at+index.ChunkSize]
			x.Chunks[n] = put(chunk)
			list := lists[n/index.ListChunks]
			if list == nil {
				chunks := min(int64(len(x.Chunks))-n/index.ListChunks*index.ListChunks, index.ListChunks)
				list = make([]byte, chunks*index.ChunkSize/index.BlockSize*32)
				lists[n/index.ListChunks] = list
			}
			for b := int64(0); b < index.ChunkSize; b += index.BlockSize {
				sum := index.SumBlock(chunk[b : b+index.BlockSize])
				copy(list[(n%index.ListChunks*index.ChunkSize+b)/index.BlockSize*32:], sum[:])
			}
		}
	}
	for i, list := range lists {
		x.Lists[i] = put(list)
	}
	if err := os.WriteFile(filepath.Join(dir, name+index.Suffix), x.Marshal(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestTheAgentFitsIn64MiB runs the real program in a control group of 64 MiB, which the kernel ends it for passing, on images of 1 GiB and of
// 100 GiB in the forms that take most memory.
func TestTheAgentFitsIn64MiB(t *testing.T) {
	kit.NeedPrograms(t, "go", "qemu-img", "xz")
	group := cgroup(t, memoryLimitOfTest)
	dir := t.TempDir()
	agent := filepath.Join(dir, "ingot-agent")
	t.Setenv("CGO_ENABLED", "0")
	kit.Run(t, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", agent, "../cmd/ingot-agent")
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
		{"100GiB", 100 << 30, 3, []string{".zst", ".qcow2", ".qcow2.zst", index.Suffix}}, // tables between the data
		{"96MiB", 96 * mib, 2, []string{".xz", ".qcow2.xz", ".qcow2.zst"}},               // far more than what they look back on
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
			case ".qcow2.xz":
				kit.Run(t, "qemu-img", "convert", "-O", "qcow2", raw, plain)
				kit.Run(t, "xz", "--lzma2=preset=0,dict=32MiB", plain)
				if err := os.Rename(plain+".xz", path); err != nil {
					t.Fatal(err)
				}
			case ".qcow2.zst":
				kit.Run(t, "qemu-img", "convert", "-O", "qcow2", raw, plain)
				packWide(t, plain, path)
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
				cmd := exec.CommandContext(ctx, "sh", "-c", `echo $$ > "$0" && exec "$@"`, group, agent, "write", "--image", s.URL+"/"+c.name+form,
					"--disk", disk, "--allow-unverified", "--yes", "--quiet", "--json")
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
						peak = max(peak, highWater(cmd.Process.Pid, agent))
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
				t.Logf("%s%s in %s: peak of %d MiB, %d MiB written", c.name, form, time.Since(began).Round(10*time.Millisecond), peak>>10, r.Written>>20)
				if peak == 0 || peak > memoryLimitOfTest>>10 {
					t.Errorf("peak of %d kB", peak)
				}
				src.mustBeOn(t, disk)
			})
		}
	}
}

// highWater is the peak of a process's resident memory in KiB, once it runs the program.
func highWater(pid int, program string) int {
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || exe != program {
		return 0
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(status, []byte("VmHWM:"))
	peak := 0
	fmt.Sscan(string(rest), &peak)
	return peak
}

// mustBeOn compares what was written, and looks at how much of a disk that was all holes is data now.
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
