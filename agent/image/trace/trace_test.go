package trace

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// line returns the line of a stage.
func (t *Trace) line(s Stage) Line {
	for _, l := range t.Stages {
		if l.Stage == s.String() {
			return l
		}
	}
	return Line{}
}

func TestShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New()
		tracks := []*Track{r.Track(UnpackPieces, ZeroTest, Write), r.Track(UnpackPieces, ZeroTest, Write)}
		for _, p := range []struct {
			took time.Duration
			on   Stage
		}{{100, Input}, {300, UnpackPieces}, {50, ZeroTest}, {450, Write}, {100, Output}} {
			time.Sleep(p.took * time.Millisecond)
			for _, track := range tracks {
				track.Spent(p.on)
			}
		}
		time.Sleep(time.Second)
		tr := r.Trace("", "")
		for s, want := range map[Stage][3]int{UnpackPieces: {15, 5, 30}, ZeroTest: {3, 20, 28}, Write: {23, 23, 5}} {
			if l := tr.line(s); l.Goroutines != 2 || [3]int{l.Busy, l.Input, l.Output} != want {
				t.Errorf("%s: %+v, want %v", s, l, want)
			}
		}
		worked, starved := r.Busy(UnpackPieces), r.Starved(Write)
		if tr.TookMS != 2000 || worked != 300*time.Millisecond || starved != 450*time.Millisecond {
			t.Errorf("took %d ms, %v busy, %v starved", tr.TookMS, worked, starved)
		}
	})
}

func TestIntervalsSpanSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New()
		track := r.Track(Digest)
		time.Sleep(5 * time.Millisecond)
		track.Spent(Input)
		time.Sleep(22 * time.Millisecond)
		track.Spent(Digest)
		time.Sleep(8 * time.Millisecond)
		got := r.Trace("", "").line(Digest).Slices
		want := [][3]uint8{{50, 50}, {100}, {70}, {}}
		if len(got) != 4 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] || got[3] != want[3] {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

// TestAnyLengthFits holds that a long write takes the memory of a short one, and that no time is lost when slices are
// merged.
func TestAnyLengthFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New()
		var tracks []*Track
		for s := Compare; s < Output; s++ {
			tracks = append(tracks, r.Track(s))
		}
		for i := range 20000 {
			time.Sleep(time.Second)
			for _, track := range tracks {
				if i%4 == 0 {
					track.Spent(Input)
				} else {
					track.Spent(track.stages[0])
				}
			}
		}
		tr := r.Trace("http://images/x", "disk")
		for _, l := range tr.Stages {
			if n := len(l.Slices); n > maxSlices || n < maxSlices/2 || l.Busy != 75 || l.Input != 25 || l.Output != 0 {
				t.Errorf("%s: %d slices, %+v", l.Stage, n, l)
			}
		}
		if b, err := json.Marshal(tr); err != nil || len(tr.Stages) != int(Output) || len(b) > 12<<10 {
			t.Errorf("%d bytes of JSON, %d stages, %v", len(b), len(tr.Stages), err)
		}
		time.Sleep(1000 * time.Hour)
		if n := len(r.Trace("", "").Stages[0].Slices); n > maxSlices {
			t.Errorf("%d slices after a long wait", n)
		}
	})
}

func TestManyGoroutines(t *testing.T) {
	r := New()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			track := r.Track(ZeroTest, Write)
			for range 2000 {
				track.Spent(ZeroTest)
				track.Spent(Write)
			}
		})
	}
	all.Go(func() {
		for range 100 {
			r.Trace("", "")
		}
	})
	all.Wait()
	zero, write := r.Trace("", "").line(ZeroTest), r.Trace("", "").line(Write)
	if zero.Goroutines != 8 || zero.Input != 0 || write.Output != 0 || r.Busy(ZeroTest) != r.Starved(Write) {
		t.Errorf("%+v, %+v", zero, write)
	}
}

func TestNilRecords(t *testing.T) {
	var r *Recorder
	track := r.Track(Write)
	track.Spent(Write)
	Of(t.Context()).Spent(Write)
	Of(track.In(t.Context())).Spent(Write)
	var c step.Clock
	r.Follow(&c, nil)
	c.Enter()
	c.Leave()
	if r.Busy(Write) != 0 || r.Trace("", "") != nil {
		t.Error("no recorder has recorded")
	}
}

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New()
		var c step.Clock
		r.Follow(&c, func() Stage { return Output })
		pass := func() { time.Sleep(time.Second) }
		pass()
		c.Enter()
		pass()
		c.Enter() // a second connection
		c.Leave()
		pass()
		c.Leave()
		pass()
		c.Enter()
		pass()
		c.Watch(nil)
		c.Leave()
		pass()
		if l := r.Trace("", "").line(Fetch); l.Goroutines != 1 || l.Busy != 50 || l.Output != 33 {
			t.Errorf("%+v", l)
		}
	})
}

// TestWords has writes that one resource limits, as shares of each stage.
func TestWords(t *testing.T) {
	for _, c := range []struct {
		name  string
		image string
		busy  map[Stage]int // percent
		limit string
		want  []string
	}{
		{"network", "http://x/i", map[Stage]int{Fetch: 97, Digest: 30, Write: 14}, "network",
			[]string{"The network limits: fetch was busy 97 %", "faster link",
				"The CPU (30 %) and the disk (14 %) are not"}},
		{"file", "/images/i", map[Stage]int{Fetch: 97, Digest: 30, Write: 14}, "file",
			[]string{"The reading of the image file limits", "faster place"}},
		{"file by URL", "file:///images/i", map[Stage]int{Fetch: 97, Digest: 30, Write: 14}, "file", nil},
		{"registry", "oci://x/i:1", map[Stage]int{Fetch: 97, Digest: 30, Write: 14}, "network", nil},
		{"digest", "http://x/i", map[Stage]int{Fetch: 40, Digest: 95, Write: 14}, "cpu",
			[]string{"The CPU limits: digest was busy 95 %", "published image"}},
		{"stream", "http://x/i", map[Stage]int{Fetch: 40, Digest: 30, UnpackStream: 98, Write: 14}, "cpu",
			[]string{"The CPU limits: unpack stream was", "qcow2 with zstd"}},
		{"pieces", "http://x/i", map[Stage]int{Fetch: 40, UnpackPieces: 80, ZeroTest: 5, Write: 10}, "cpu",
			[]string{"unpack pieces and zero test were busy 85 %", "more or faster cores"}},
		{"write", "http://x/i", map[Stage]int{Fetch: 40, Digest: 30, Write: 97}, "disk",
			[]string{"The disk limits", "97 %", "faster disk", "The network (40 %) and the CPU (30 %)"}},
		{"flush", "http://x/i", map[Stage]int{Fetch: 20, Write: 15, Flush: 75}, "disk",
			[]string{"The disk limits", "90 %"}},
		{"zeros at the end", "http://x/i", map[Stage]int{Fetch: 20, Zeros: 90, Write: 5}, "disk",
			[]string{"The disk limits", "95 %"}},
		{"compare", "http://x/i", map[Stage]int{Fetch: 20, Compare: 90, Write: 5}, "disk",
			[]string{"compare was busy 90 %"}},
		{"two are close", "http://x/i", map[Stage]int{Fetch: 92, Write: 95}, "disk",
			[]string{"But the network, with 92 %, is close", "The CPU (0 %) is not the limit"}},
		{"none", "http://x/i", map[Stage]int{Fetch: 30, Digest: 50, Write: 40}, "none",
			[]string{"Nothing limits alone: the CPU was busy 50 % of the time, the disk 40 %, the network 30 %"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := New()
			for s, share := range c.busy {
				track := r.Track(s)
				go func() {
					time.Sleep(time.Duration(share) * time.Millisecond)
					track.Spent(s)
				}()
			}
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			tr := r.Trace(c.image, "")
			if tr.Limit != c.limit {
				t.Errorf("%s: limit %s", c.name, tr.Limit)
			}
			for _, want := range c.want {
				if !strings.Contains(tr.Words, want) {
					t.Errorf("%s: %q lacks %q", c.name, tr.Words, want)
				}
			}
		})
	}
}

func TestTable(t *testing.T) {
	tr := &Trace{Words: "The disk limits.", Stages: []Line{{Stage: "fetch", Goroutines: 1, Busy: 20, Output: 80},
		{Stage: "write", Goroutines: 4, Busy: 97, Input: 3}}}
	var out bytes.Buffer
	if err := tr.Table(&out); err != nil {
		t.Fatal(err)
	}
	want := `STAGE  GOROUTINES  BUSY  WAITS FOR INPUT  WAITS FOR OUTPUT
fetch  1           20 %  0 %              80 %
write  4           97 %  3 %              0 %
The disk limits.
`
	if out.String() != want {
		t.Errorf("%s", out.String())
	}
}

// TestPageIsSelfContained holds that the page needs nothing from elsewhere, runs nothing, and shows names as text, also
// of a trace that came from elsewhere.
func TestPageIsSelfContained(t *testing.T) {
	const evil = `"><script>alert(1)</script><img src=x onerror=alert(1)>`
	tr := &Trace{Image: evil, Disk: evil, Words: evil, TookMS: 1 << 60, SliceMS: -5,
		Stages: []Line{{Stage: evil, Busy: 400, Slices: [][3]uint8{{255, 255, 255}, {10, 20, 30}, {}}},
			{Stage: "empty"}}}
	var out bytes.Buffer
	if err := tr.HTML(&out, []Fact{{evil, evil}}); err != nil {
		t.Fatal(err)
	}
	if bad := regexp.MustCompile(`(?i)<script|<img|<link|<iframe|@import|url\(|[\s"](src|href|on[a-z]+)\s*=\s*"|NaN|Inf`).
		FindString(out.String()); bad != "" {
		t.Errorf("the page has %q", bad)
	}
	if n := strings.Count(out.String(), "&lt;script&gt;"); n < 6 {
		t.Errorf("the names are shown %d times", n)
	}
}

func TestOutlines(t *testing.T) {
	tr := &Trace{TookMS: 40, SliceMS: 10}
	got := tr.areas([][3]uint8{{50, 50}, {100}, {50, 0, 50}, {}}, 0)
	want := [kinds]string{
		"M120 44 H120.0 V22.0 H300.0 V0.0 H480.0 V22.0 H660.0 V44.0 H120 Z",
		"M120 44 H120.0 V0.0 H480.0 V22.0 H660.0 V44.0 H660.0 V22.0 H480.0 V0.0 H300.0 V22.0 H120 Z",
		"M120 44 H120.0 V0.0 H660.0 V44.0 H660.0 V22.0 H480.0 V0.0 H120 Z",
	}
	if got != want {
		t.Errorf("\n%s", strings.Join(got[:], "\n"))
	}
}

// TestCores has beginnings of /proc/stat, by proc_stat(5).
func TestCores(t *testing.T) {
	const first = "cpu  100 10 50 800 20 5 15 0 70 3\ncpu0 1 2 3 4 5 6 7 8 9 10\n"
	before := parseCores([]byte(first))
	if want := (Cores{Worked: 180, All: 1000}); before != want {
		t.Errorf("%+v, want %+v", before, want)
	}
	for _, c := range []struct {
		stat  string
		share float64
		want  string
	}{
		{"cpu  150 10 50 840 30 5 15 0 120 3", 0.5, "in use 50 % of the time, by this and other programs."},
		{"cpu  190 10 50 800 25 5 15 5 0 0", 0.95, "have waited for a core"},
		{"cpu  100 10 50 800 20 5 15 0 70 3", 0, ""},
		{"cpu  10 1 5 80 2 0 1 0 7 0", 0, ""}, // it went back
		{"cpu  x", 0, ""},
		{"", 0, ""},
	} {
		share := parseCores([]byte(c.stat)).Since(before)
		if words := coresInWords(share); share != c.share || !strings.Contains(words, c.want) ||
			(words == "") != (c.want == "") {
			t.Errorf("%q: %v, %q", c.stat, share, words)
		}
	}
	if c := ReadCores(); c.Worked <= 0 || c.All < c.Worked {
		t.Errorf("this machine: %+v", c)
	}
}
