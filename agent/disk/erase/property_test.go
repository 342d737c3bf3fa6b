package erase

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/test/kit"
)

// sparse is a disk of any size in memory: pages that are not zero.
type sparse struct {
	size, sector int64
	pages        map[int64]*[4096]byte
}

func newSparse(size, sector int64) *sparse {
	return &sparse{size: size, sector: sector, pages: map[int64]*[4096]byte{}}
}

var noBytes [4096]byte

func (s *sparse) ReadAt(p []byte, off int64) (int, error) {
	n := 0
	for n < len(p) {
		at := off + int64(n)
		if at >= s.size {
			return n, io.EOF
		}
		part := p[n:min(int64(len(p)), int64(n)+4096-at%4096, int64(n)+s.size-at)]
		pg := s.pages[at/4096]
		if pg == nil {
			pg = &noBytes
		}
		n += copy(part, pg[at%4096:])
	}
	return n, nil
}

func (s *sparse) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 || off+int64(len(p)) > s.size {
		return 0, fmt.Errorf("%d bytes at %d of a disk of %d", len(p), off, s.size)
	}
	for n := 0; n < len(p); {
		at := off + int64(n)
		in := at % 4096
		part := p[n:min(len(p), n+int(4096-in))]
		pg := s.pages[at/4096]
		switch isZero := bytes.Equal(part, noBytes[:len(part)]); {
		case isZero && len(part) == 4096:
			delete(s.pages, at/4096)
		case isZero && pg == nil:
		default:
			if pg == nil {
				pg = new([4096]byte)
				s.pages[at/4096] = pg
			}
			copy(pg[in:], part)
		}
		n += len(part)
	}
	return len(p), nil
}

func (s *sparse) Size() int64              { return s.size }
func (s *sparse) SectorSize() int          { return int(s.sector) }
func (s *sparse) Number() (uint32, uint32) { return 0, 0 }
func (s *sparse) Punch(int64, int64) error { return errors.ErrUnsupported }
func (s *sparse) Sync() error              { return nil }
func (s *sparse) RereadPartitions() error  { return nil }
func (s *sparse) Close() error             { return nil }

// blank reports whether a range holds only zeros.
func (s *sparse) blank(off, n int64) bool {
	for page, b := range s.pages {
		from, to := max(page*4096, off), min(page*4096+4096, off+n)
		if from < to && !zero(b[from-page*4096:to-page*4096]) {
			return false
		}
	}
	return true
}

// save writes a range of it as a sparse file.
func (s *sparse) save(t testing.TB, file string, off, n int64) {
	t.Helper()
	f, err := os.Create(file)
	if err == nil {
		defer f.Close()
		err = f.Truncate(n)
	}
	if err != nil {
		t.Error(err)
		return
	}
	for page, b := range s.pages {
		from, to := max(page*4096, off), min(page*4096+4096, off+n)
		if from < to && !zero(b[:]) {
			if _, err := f.WriteAt(b[from-page*4096:to-page*4096], from-off); err != nil {
				t.Error(err)
			}
		}
	}
}

// window is a region of a disk, to write into.
type window struct {
	w      io.WriterAt
	off, n int64
}

func (w window) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 || off >= w.n {
		return len(p), nil
	}
	if n := w.n - off; n < int64(len(p)) {
		p = p[:n]
	}
	if len(p) == 0 {
		return 0, nil
	}
	return w.w.WriteAt(p, w.off+off)
}

// found asks libblkid, by both of its programs, which of the files hold something, and gives what it says of each.
func found(t testing.TB, files []string) map[string]string {
	t.Helper()
	out := map[string]string{}
	note := func(text string, name func(line string) string) {
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" {
				out[name(line)] += line + "\n"
			}
		}
	}
	b, err := exec.Command("wipefs",
		append([]string{"--no-act", "--noheadings", "--output", "DEVICE,OFFSET,TYPE"}, files...)...).Output()
	if err != nil {
		t.Errorf("wipefs: %v\n%s", err, b)
		return nil
	}
	dir := filepath.Dir(files[0])
	note(string(b), func(line string) string { return strings.Fields(line)[0] })
	// It ends with 2 when it found nothing, with 8 where one file holds several things at once.
	b, err = exec.Command("blkid", append([]string{"--probe"}, files...)...).CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil &&
		(!errors.As(err, &exit) || exit.ExitCode() != 2 && exit.ExitCode() != 8) {
		t.Errorf("blkid: %v\n%s", err, b)
	}
	note(string(b), func(line string) string {
		for _, f := range strings.Fields(line) {
			if f, _, _ = strings.Cut(f, ":"); strings.HasPrefix(f, dir) {
				return filepath.Base(f)
			}
		}
		return line
	})
	return out
}

// TestSignatures holds the catalogue of the property test to the truth: libblkid finds each of them, and none once it
// is erased.
func TestSignatures(t *testing.T) {
	kit.NeedPrograms(t, "wipefs", "blkid")
	dir := t.TempDir()
	var before, after []string
	all := signatures(t)
	for i, k := range all {
		s := newSparse(k.least+12345*512, 512)
		k.put(window{s, 0, s.size}, s.size)
		name := filepath.Join(dir, fmt.Sprintf("before-%03d", i))
		s.save(t, name, 0, s.size)
		before = append(before, name)
		if err := wipe(t.Context(), s, []region{{0, s.size, "", 0}}, func(int64, int64) {}); err != nil {
			t.Fatal(err)
		}
		name = filepath.Join(dir, fmt.Sprintf("after-%03d", i))
		s.save(t, name, 0, s.size)
		after = append(after, name)
	}
	got := found(t, before)
	for i, k := range all {
		if got[filepath.Base(before[i])] == "" {
			t.Errorf("libblkid does not find %s: the test would prove nothing", k.name)
		}
	}
	for f, what := range found(t, after) {
		t.Errorf("%s: %s", f, what)
	}
}

// layout is one random disk.
type layout struct {
	disk  *sparse
	parts []region
	what  []string // its content, for messages
}

func randomLayout(rng *rand.Rand, kinds []known) layout {
	sector := []int64{512, 512, 4096}[rng.IntN(3)]
	sizes := []int64{4, 16, 64, 500, 3000, 300 << 10, 2 << 20}
	size := (sizes[rng.IntN(len(sizes))] << 20) * (1000 + rng.Int64N(1000)) / 1000 / sector * sector
	l := layout{disk: newSparse(size, sector)}
	note := func(format string, args ...any) { l.what = append(l.what, fmt.Sprintf(format, args...)) }
	note("%d bytes, sectors of %d", size, sector)
	scatter := func(r region, most int) {
		for range rng.IntN(most + 1) {
			k := kinds[rng.IntN(len(kinds))]
			if r.n >= k.least && (!k.whole || r.off == 0) {
				k.put(window{l.disk, r.off, r.n}, r.n)
				note("%s in %d+%d", k.name, r.off, r.n)
			}
		}
	}
	// place divides a region, in sectors from its start.
	place := func(sectors uint64) (parts []part) {
		at := uint64(1<<20) / uint64(sector)
		end := sectors - at
		for n := 1 + rng.IntN(5); n > 0 && at+64 < end; n-- {
			left := end - at
			size := 1 + rng.Uint64N(left)
			if rng.IntN(3) == 0 {
				size = min(left, 1+rng.Uint64N(1<<12))
			}
			parts = append(parts, part{byte(rng.IntN(2)) * 0x83, at, size})
			at += size
			if rng.IntN(2) == 0 {
				at += rng.Uint64N(5000)
			}
		}
		return parts
	}
	within := func(base int64, parts []part) (out []region) {
		for _, p := range parts {
			out = append(out, region{off: base + int64(p.start)*sector, n: int64(p.n) * sector})
		}
		return out
	}
	scatter(region{n: size}, 3)
	parts := place(uint64(size / sector))
	if len(parts) > 0 {
		kind := rng.IntN(6)
		if size/sector >= 1<<32 && kind > 3 {
			kind = 1 // more than an MBR can say
		}
		switch kind {
		case 0: // none
		case 1, 2, 3:
			putGPT(l.disk, size, sector, parts...)
			l.parts = within(0, parts)
			note("GPT of %d partitions", len(parts))
			if kind == 2 {
				put(l.disk, []byte("damage"), sector+40)
				note("primary header damaged")
			} else if kind == 3 {
				put(l.disk, []byte("damage"), size-sector)
				note("backup header gone")
			}
		case 4:
			parts = parts[:min(len(parts), 4)]
			putMBR(l.disk, 0, parts...)
			l.parts = within(0, parts)
			note("MBR of %d partitions", len(parts))
		case 5: // two primary and the others logical
			p := parts[:min(len(parts), 2)]
			l.parts = within(0, p)
			base := p[len(p)-1].start + p[len(p)-1].n + 10
			if room := uint64(size/sector) - base; base < uint64(size/sector) && room > 1<<14 {
				putMBR(l.disk, 0, append(slices.Clone(p), part{0x0f, base, room})...)
				half := room/2 - 100
				putMBR(l.disk, int64(base)*sector, part{0, 63, half - 100}, part{5, half, room - half - 200})
				putMBR(l.disk, int64(base+half)*sector, part{0, 63, room - half - 400})
				l.parts = append(l.parts, within(int64(base)*sector, []part{{0, 63, half - 100}})...)
				l.parts = append(l.parts, within(int64(base+half)*sector, []part{{0, 63, room - half - 400}})...)
			} else {
				putMBR(l.disk, 0, p...)
			}
			note("MBR of %d partitions, logical ones too", len(l.parts))
		}
	}
	// Remains of older times come before the tables: what a table says of an older one's partitions is lost when it is
	// written over.
	for _, p := range slices.Clone(l.parts) {
		scatter(p, 2)
		if rng.IntN(5) == 0 && p.n > 32<<20 { // the disk of a virtual machine
			inner := place(uint64(p.n / sector))
			putGPT(window{l.disk, p.off, p.n}, p.n, sector, inner...)
			for _, r := range within(p.off, inner) {
				scatter(r, 2)
				l.parts = append(l.parts, r)
			}
			note("a GPT of %d partitions in %d+%d", len(inner), p.off, p.n)
		}
	}
	return l
}

// TestNoSignatureIsLeft wipes ten thousand random disks: libblkid finds nothing any more, neither on them nor in what
// were their partitions.
func TestNoSignatureIsLeft(t *testing.T) {
	kit.NeedPrograms(t, "wipefs", "blkid")
	count, batch := 10_000, 250
	if raceEnabled {
		count, batch = 60, 30 // that is the other half of the test suite, where time is short
	}
	kinds := signatures(t)
	// much garbage, small heap: half of the time went into collecting it
	defer debug.SetGCPercent(debug.SetGCPercent(800))
	var nonempty atomic.Int64
	numbers := make(chan int)
	var work sync.WaitGroup
	for range 2 {
		dir := t.TempDir()
		work.Go(func() {
			for n := range numbers {
				nonempty.Add(wipeMany(t, dir, n, batch, kinds))
			}
		})
	}
	for n := range count / batch {
		numbers <- n
	}
	close(numbers)
	work.Wait()
	if n := int(nonempty.Load()); n < count/2 {
		t.Errorf("only %d of %d disks held anything", n, count)
	}
}

// wipeMany wipes count random disks, and returns how many of them held anything.
func wipeMany(t *testing.T, dir string, seed, count int, kinds []known) (nonempty int64) {
	rng := rand.New(rand.NewPCG(uint64(seed), 2026))
	var files []string
	texts := map[string]string{}
	for i := range count {
		l := randomLayout(rng, kinds)
		if len(l.disk.pages) > 0 {
			nonempty++
		}
		all, err := regions(l.disk, dir, disk.Disk{Name: "/dev/none"})
		if err == nil {
			err = wipe(t.Context(), l.disk, all, func(int64, int64) {})
		}
		if err != nil {
			t.Errorf("disk %d of batch %d: %v (%s)", i, seed, err, strings.Join(l.what, "; "))
			return nonempty
		}
		// Whatever is new on the disk begins where a partition began, or ends where one ended.
		for j, v := range append([]region{{n: l.disk.size}}, l.parts...) {
			if j > 0 && i%4 != 0 { // a quarter of them is looked at in full
				break
			}
			if l.disk.blank(v.off, v.n) { // libblkid finds nothing in zeros
				continue
			}
			file := filepath.Join(dir, fmt.Sprintf("%05d-%03d-%d", seed, i, j))
			l.disk.save(t, file, v.off, v.n)
			files = append(files, file)
			texts[filepath.Base(file)] = strings.Join(l.what, "; ")
		}
	}
	for f, what := range found(t, files) {
		t.Errorf("%s: %s(%s)", f, what, texts[f])
	}
	for _, f := range files {
		if err := os.Remove(f); err != nil {
			t.Error(err)
		}
	}
	return nonempty
}

// FuzzRegions: with any content of the tables the search ends, and finds nothing outside of the disk.
func FuzzRegions(f *testing.F) {
	seed := newSparse(8<<20, 512)
	putGPT(seed, seed.size, 512, part{0, 2048, 4096}, part{0, 8192, 2048})
	head, tail := make([]byte, 20<<10), make([]byte, 20<<10)
	_, _ = seed.ReadAt(head, 0)
	_, _ = seed.ReadAt(tail, seed.size-int64(len(tail)))
	f.Add(head, tail, false)
	putMBR(seed, 0, part{0, 2048, 4096}, part{5, 8192, 8000})
	_, _ = seed.ReadAt(head, 0)
	f.Add(head[:512], []byte{}, true)
	f.Fuzz(func(t *testing.T, head, tail []byte, large bool) {
		s := newSparse(8<<20, map[bool]int64{false: 512, true: 4096}[large])
		put(s, head[:min(len(head), 1<<20)], 0)
		tail = tail[:min(len(tail), 1<<20)]
		put(s, tail, s.size-int64(len(tail)))
		all, err := regions(s, "/nowhere", disk.Disk{Name: "/dev/none"})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			if r.off < 0 || r.n <= 0 || r.off+r.n > s.size || r.off%s.sector != 0 || r.n%s.sector != 0 {
				t.Errorf("region %+v", r)
			}
		}
		if len(all) > maxRegions+1 {
			t.Errorf("%d regions", len(all))
		}
	})
}
