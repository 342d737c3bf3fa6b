package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// hertz is the unit of processor times in /proc, fixed for all programs on Linux.
const hertz = 100

// machineTimes is the time of all processors together since they started, in seconds.
type machineTimes struct{ busy, idle, stolen float64 }

func readMachineTimes() (machineTimes, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return machineTimes{}, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	var v [8]float64 // user, nice, system, idle, iowait, irq, softirq, steal
	for i, f := range strings.Fields(line)[1:] {
		if i < len(v) {
			v[i], _ = strconv.ParseFloat(f, 64)
		}
	}
	return machineTimes{(v[0] + v[1] + v[2] + v[5] + v[6]) / hertz, (v[3] + v[4]) / hertz, v[7] / hertz}, nil
}

func (m machineTimes) since(before machineTimes) machineTimes {
	return machineTimes{m.busy - before.busy, m.idle - before.idle, m.stolen - before.stolen}
}

// processSeconds is the processor time of a process and of its children that have ended; false when it is gone.
func processSeconds(pid int) (float64, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	_, rest, ok := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 15 {
		return 0, false
	}
	var sum float64
	for _, f := range fields[11:15] { // utime, stime, cutime, cstime
		n, _ := strconv.ParseFloat(f, 64)
		sum += n
	}
	return sum / hertz, true
}

// testProcess finds the process of a package's test binary by the folder that it runs in; 0 when there is none.
func testProcess(dir string) int {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0
	}
	for _, p := range all {
		if cwd, err := os.Readlink(filepath.Join(p, "cwd")); err != nil || cwd != dir {
			continue
		}
		exe, err := os.Readlink(filepath.Join(p, "exe"))
		if err == nil && strings.HasSuffix(strings.TrimSuffix(exe, " (deleted)"), ".test") &&
			strings.Contains(exe, "/go-build") {
			pid, _ := strconv.Atoi(filepath.Base(p))
			return pid
		}
	}
	return 0
}
