package trace

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Trace is the record of a write, for people and as JSON.
type Trace struct {
	Image   string `json:"image"` // name of its source, without secrets
	Disk    string `json:"disk"`
	TookMS  int64  `json:"took_ms"`
	SliceMS int64  `json:"slice_ms"`
	// Cores is the share of all cores' time in which they were in use, by any program, in percent; 0: not known.
	Cores  int    `json:"cores_percent"`
	Stages []Line `json:"stages"`
	// Limit is the cause of the waits: "network", "file" (the image is one of this machine), "cpu", "disk" or "none".
	Limit string `json:"limit"`
	Words string `json:"words"` // the same as sentences
}

// Line is one stage: shares of the write's time, in percent. What is missing from 100 is the time before its goroutines
// began and after they ended.
type Line struct {
	Stage      string     `json:"stage"`
	Goroutines int        `json:"goroutines"`
	Busy       int        `json:"busy_percent"`
	Input      int        `json:"input_percent"`
	Output     int        `json:"output_percent"`
	Slices     [][3]uint8 `json:"slices"` // the three shares in each slice of the time
}

// Trace returns the record of a write that ends now. image is the name of its source, without secrets.
func (r *Recorder) Trace(image, disk string) *Trace {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	took := max(time.Since(r.began), 1)
	for took > maxSlices*r.width {
		r.merge()
	}
	t := &Trace{Image: image, Disk: disk, TookMS: took.Milliseconds(), SliceMS: r.width.Milliseconds()}
	var shares [Output][kinds]float64
	for s, rec := range r.stages {
		if rec.goroutines == 0 {
			continue
		}
		worked := false
		l := Line{Stage: Stage(s).String(), Goroutines: rec.goroutines}
		var sum [kinds]time.Duration
		for i := 0; time.Duration(i)*r.width < took; i++ {
			of := time.Duration(rec.goroutines) * min(r.width, took-time.Duration(i)*r.width)
			var slice [3]uint8
			for kind, d := range rec.slices[i] {
				sum[kind] += d
				worked = worked || kind == busy && d > 0
				slice[kind] = uint8(percent(d, of))
			}
			l.Slices = append(l.Slices, slice)
		}
		of := time.Duration(rec.goroutines) * took
		for kind, d := range sum {
			shares[s][kind] = float64(d) / float64(of)
		}
		l.Busy, l.Input, l.Output = percent(sum[busy], of), percent(sum[input], of), percent(sum[output], of)
		if worked { // else the image has no need of it
			t.Stages = append(t.Stages, l)
		}
	}
	t.Limit, t.Words = judge(shares, strings.Contains(image, "://") && !strings.HasPrefix(image, "file:"))
	cores := r.Cores()
	t.Cores = int(100*cores + 0.5)
	t.Words += coresInWords(cores)
	return t
}

func percent(d, of time.Duration) int { return int(min((100*d+of/2)/of, 100)) }

// dominates is the share from which a resource limits the write, near the difference of one that is close to it.
const (
	dominates = 0.6
	near      = 0.1
)

// resource is something that an operator can make faster.
type resource struct {
	key, name string
	busy      float64
	did       string // the stages that were busy
	remedy    string
}

// judge finds what limits a write.
func judge(shares [Output][kinds]float64, remote bool) (limit, words string) {
	at := func(s Stage) float64 { return shares[s][busy] }
	source := resource{"file", "the reading of the image file", at(Fetch), "fetch was",
		"a faster place for the image file, or a smaller file"}
	if remote {
		source = resource{"network", "the network", at(Fetch), "fetch was",
			"a faster link or image server, or a smaller file"}
	}
	cpu := resource{"cpu", "the CPU", at(Digest), "digest was",
		"a faster core, or a published image, which all cores check"}
	if b := at(UnpackStream); b > cpu.busy {
		cpu = resource{"cpu", "the CPU", b, "unpack stream was",
			"a faster core, or an image that all cores unpack: a published one, or qcow2 with zstd inside"}
	}
	if b := at(UnpackPieces) + at(ZeroTest); b > cpu.busy {
		cpu = resource{"cpu", "the CPU", b, "unpack pieces and zero test were", "more or faster cores"}
	}
	// Zeros beside writes delay them at most.
	active := shares[Write][busy] + shares[Write][input] + shares[Write][output]
	disk := resource{"disk", "the disk", at(Write) + at(Flush) + min(at(Zeros), max(0, 1-active)),
		"write, zeros and flush were",
		"a faster disk, or less to write: a published image on a disk that holds part of it"}
	if b := at(Compare); b > disk.busy {
		disk = resource{"disk", "the disk", b, "compare was", "a faster disk, or image_difference never if little of the image is kept"}
	}
	first, second, third := source, cpu, disk
	for _, pair := range [][2]*resource{{&first, &second}, {&second, &third}, {&first, &second}} {
		if pair[0].busy < pair[1].busy {
			*pair[0], *pair[1] = *pair[1], *pair[0]
		}
	}
	share := func(r resource) string { return fmt.Sprintf("%d %%", int(100*min(r.busy, 1)+0.5)) }
	if first.busy < dominates {
		return "none", fmt.Sprintf(
			"Nothing limits alone: %s was busy %s of the time, %s %s, %s %s. The stages waited for each other in turn.",
			first.name, share(first), second.name, share(second), third.name, share(third))
	}
	words = fmt.Sprintf("%s limits: %s busy %s of the time. What would help: %s. ", capital(first.name), first.did,
		share(first), first.remedy)
	if first.busy-second.busy < near {
		return first.key, words + fmt.Sprintf("But %s, with %s, is close: alone that gains little. %s (%s) is not the limit.",
			second.name, share(second), capital(third.name), share(third))
	}
	return first.key, words + fmt.Sprintf("%s (%s) and %s (%s) are not the limit: faster ones would not help.",
		capital(second.name), share(second), third.name, share(third))
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// Table prints the stages and the sentences.
func (t *Trace) Table(w io.Writer) error {
	rows := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(rows, "STAGE\tGOROUTINES\tBUSY\tWAITS FOR INPUT\tWAITS FOR OUTPUT")
	for _, l := range t.Stages {
		fmt.Fprintf(rows, "%s\t%d\t%d %%\t%d %%\t%d %%\n", l.Stage, l.Goroutines, l.Busy, l.Input, l.Output)
	}
	if err := rows.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, t.Words)
	return err
}
