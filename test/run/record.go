package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const module = "github.com/ingot-metal/ingot"

// event is a line of the record: of `go test -json`, or one of these of our own.
//
//	cpu    CPU is the processor time of a test, or of a package without Test
//	phase  Name is a part of the run; Elapsed, CPU, Idle and Stolen are seconds
//	job    Name is a job of the queue; Elapsed and CPU are seconds
type event struct {
	Time       time.Time `json:",omitzero"`
	Action     string
	Package    string  `json:",omitempty"`
	Test       string  `json:",omitempty"`
	Output     string  `json:",omitempty"`
	ImportPath string  `json:",omitempty"`
	Elapsed    float64 `json:",omitempty"`

	Name   string  `json:",omitempty"`
	CPU    float64 `json:",omitempty"`
	Idle   float64 `json:",omitempty"` // of all processors together
	Stolen float64 `json:",omitempty"` // taken by other machines on the same host
}

// recorder writes the record, shows what fails as soon as it does, and counts. Its methods may be called side by side.
type recorder struct {
	mu   sync.Mutex
	file *bufio.Writer
	enc  *json.Encoder
	out  io.Writer

	text                    map[string]*strings.Builder // output per source and test
	passed, failed, skipped int
	took                    map[string]float64 // of tests, in seconds
	broken                  bool               // a package that did not build, or died outside a test
	err                     error              // the first of writing
}

func newRecorder(path string, out io.Writer) (*recorder, func() error, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, nil, err
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, nil, err
	}
	r := newCounter(out)
	r.file = bufio.NewWriter(f)
	r.enc = json.NewEncoder(r.file)
	return r, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		return cmp.Or(r.err, r.file.Flush(), f.Close())
	}, nil
}

// newCounter is a recorder without a file.
func newCounter(out io.Writer) *recorder {
	return &recorder{out: out, text: map[string]*strings.Builder{}, took: map[string]float64{}}
}

// short is a package's path within the module.
func short(pkg string) string { return strings.TrimPrefix(pkg, module+"/") }

// source names the process of an event's test: a package's, or that of one of its jobs.
func source(e event) string { return strings.TrimSpace(short(e.Package) + " " + e.Name) }

// unfinished shows what tests said that never ended, because their process died: the time was up, or it was killed.
func (r *recorder) unfinished(source string) {
	for _, key := range slices.Sorted(maps.Keys(r.text)) {
		if test, ok := strings.CutPrefix(key, source+"\x00"); ok {
			fmt.Fprintf(r.out, "UNFINISHED  %s %s\n%s", source, test, r.text[key])
			delete(r.text, key)
		}
	}
}

// add takes the next event. Those of one package come one after the other.
func (r *recorder) add(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.enc != nil {
		r.err = cmp.Or(r.err, r.enc.Encode(e))
	}
	key := source(e) + "\x00" + e.Test
	switch e.Action {
	case "output":
		if r.text[key] == nil {
			r.text[key] = &strings.Builder{}
		}
		r.text[key].WriteString(e.Output)
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "build-fail":
		r.broken = true
	case "pass":
		if e.Test != "" {
			r.passed++
			if !strings.Contains(e.Test, "/") {
				r.took[short(e.Package)+" "+e.Test] += e.Elapsed
			}
		} else if e.Elapsed >= 1 {
			fmt.Fprintf(r.out, "ok    %-45s %6.1f s\n", source(e), e.Elapsed)
		}
		delete(r.text, key)
	case "skip":
		if e.Test != "" {
			r.skipped++
			fmt.Fprintf(r.out, "SKIP  %s %s\n%s", short(e.Package), e.Test, r.text[key])
		}
		delete(r.text, key)
	case "fail":
		if e.Test != "" {
			r.failed++
		} else {
			r.broken = true
		}
		fmt.Fprintf(r.out, "FAIL  %s\n", strings.TrimSpace(source(e)+" "+e.Test))
		if b := r.text[key]; b != nil {
			fmt.Fprint(r.out, b)
		}
		delete(r.text, key)
		if e.Test == "" {
			r.unfinished(source(e))
		}
	}
}

// trouble records an error outside of the tests: a program that did not build, a job that could not run.
func (r *recorder) trouble(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = true
	fmt.Fprintf(r.out, "FAIL  %v\n", err)
}

// end prints the slowest tests and the count, and reports whether everything ran and passed.
func (r *recorder) end() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	slowest := slices.SortedFunc(maps.Keys(r.took), func(a, b string) int { return cmp.Compare(r.took[b], r.took[a]) })
	for _, key := range slowest[:min(len(slowest), 20)] {
		if r.took[key] < 1 {
			break
		}
		fmt.Fprintf(r.out, "slow  %6.1f s  %s\n", r.took[key], key)
	}
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
	return r.passed > 0 && r.failed == 0 && r.skipped == 0 && !r.broken
}

// each calls do for each line of `go test -json`; a line that is no event is given as output.
func each(in io.Reader, do func(event)) error {
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		var e event
		if json.Unmarshal(sc.Bytes(), &e) != nil || e.Action == "" {
			e = event{Action: "build-output", Output: sc.Text() + "\n"} // what go itself says
		}
		do(e)
	}
	return sc.Err()
}
