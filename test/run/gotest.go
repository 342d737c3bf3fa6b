package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// unwatched are packages without race detection: SQLite and the C library beneath it, which are C translated to Go,
// with a heap outside of Go's that the detector does not see; and Blowfish, for bcrypt, which starts no goroutine. With
// detection they are three times as slow and more, and so is everything with a store or a password. The driver of
// SQLite is checked.
var unwatched = []string{
	"-gcflags=modernc.org/sqlite/lib=-race=false", "-gcflags=modernc.org/libc=-race=false",
	"-gcflags=golang.org/x/crypto/blowfish=-race=false",
}

// compilerGC has the compiler collect its garbage less often: a fifth less processor time.
const compilerGC = "GOGC=400"

// packages lists all packages of the module with the folders they lie in.
func packages(ctx context.Context) (map[string]string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-f", "{{.ImportPath}} {{.Dir}}", "./...")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages: %w: %s", err, &errs)
	}
	dirs := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if pkg, dir, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			dirs[pkg] = dir
		}
	}
	return dirs, nil
}

// goTest tests packages under the race detector. leave is called for each place that is not needed any more, once all
// packages have been started. It returns the processor seconds of all of it, building included.
func (o options) goTest(ctx context.Context, dirs map[string]string, pkgs []string, rec *recorder, places int,
	leave func()) (float64, error) {
	args := slices.Concat([]string{"test", "-json", "-race", "-vet=off", "-p", fmt.Sprint(places), "-timeout", "40m",
		"-ldflags=-s -w"}, unwatched, pkgs)
	cmd := exec.CommandContext(ctx, "go", args...)
	// Without the first each of a hundred programs of the race detector waits a second at its end, for reports of
	// others. Without the second the detector maps its memory for each large buffer anew, and the kernel spends longer
	// on that than the tests take.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "GORACE=atexit_sleep_ms=20 clear_shadow_mmap_threshold=268435456",
		compilerGC)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	w := &watcher{dirs: dirs, running: map[string]*running{}, used: map[string]float64{}}
	stop := make(chan struct{})
	var ticking sync.WaitGroup
	ticking.Go(func() { w.tick(stop) })
	started, ended, free := 0, 0, 0
	err = each(out, func(e event) {
		switch {
		case e.Action == "start":
			started++
		case e.Test == "" && (e.Action == "pass" || e.Action == "fail" || e.Action == "skip"):
			ended++
		}
		for _, c := range w.see(e) {
			rec.add(c)
		}
		rec.add(e)
		for ; started == len(pkgs) && free < places-(started-ended); free++ {
			leave()
		}
	})
	close(stop)
	ticking.Wait()
	for ; free < places; free++ {
		leave()
	}
	// Its exit status says no more than the events do, unless there were none.
	wait := cmd.Wait()
	if err == nil && wait != nil && started == 0 {
		err = wait
	}
	return processorTime(cmd), err
}

// processorTime is that of a command that has ended, and of all its descendants that were waited for.
func processorTime(cmd *exec.Cmd) float64 {
	if cmd.ProcessState == nil {
		return 0
	}
	return (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
}

// watcher attributes processor time to tests: what a package's process used between two events belongs to the tests
// that ran meanwhile, in equal parts.
type watcher struct {
	mu      sync.Mutex
	dirs    map[string]string
	running map[string]*running // by package
	used    map[string]float64  // by package and test
}

type running struct {
	pid   int
	last  float64 // processor seconds of the process when it was last looked at
	all   float64
	tests []string // top-level tests that run
	since time.Time
}

// tick looks at the processes so often that little is missed of what one does before it ends.
func (w *watcher) tick(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(250 * time.Millisecond):
		}
		w.mu.Lock()
		for pkg := range w.running {
			w.look(pkg)
		}
		w.mu.Unlock()
	}
}

func (w *watcher) look(pkg string) {
	r := w.running[pkg]
	if r.pid == 0 {
		if r.pid = testProcess(w.dirs[pkg]); r.pid == 0 {
			return
		}
	}
	now, ok := processSeconds(r.pid)
	if !ok || now < r.last {
		return
	}
	for _, t := range r.tests {
		w.used[pkg+" "+t] += (now - r.last) / float64(len(r.tests))
	}
	r.all, r.last = now, now
}

// see takes an event and returns events with the processor time of what it ends.
func (w *watcher) see(e event) []event {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.Action == "start" {
		w.running[e.Package] = &running{since: time.Now()}
	}
	r := w.running[e.Package]
	if r == nil || strings.Contains(e.Test, "/") || e.Action == "output" {
		return nil
	}
	w.look(e.Package)
	over := e.Action == "pass" || e.Action == "fail" || e.Action == "skip"
	switch {
	case e.Test == "" && over:
		delete(w.running, e.Package)
		return []event{{Action: "cpu", Package: e.Package, CPU: r.all}}
	case e.Test == "":
	case e.Action == "run" || e.Action == "cont":
		r.tests = append(r.tests, e.Test)
	case e.Action == "pause" || over:
		r.tests = slices.DeleteFunc(r.tests, func(t string) bool { return t == e.Test })
		if over {
			key := e.Package + " " + e.Test
			return []event{{Action: "cpu", Package: e.Package, Test: e.Test, CPU: w.used[key]}}
		}
	}
	return nil
}
