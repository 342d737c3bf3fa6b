package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/queue"
)

// suite is a package of the second group.
type suite struct {
	pkg   string
	apart bool     // tests that take long are jobs of their own, the others are one; false: the package is one job
	last  bool     // alone, after all others
	also  bool     // tested in the first group as well, with fewer cases (build tag race)
	needs []string // things of test/kit/made that all its tests need
}

// suites is the second group: what boots machines or runs large programs, what starts no goroutine, and what the race
// detector is too slow for in full.
var suites = []suite{
	{pkg: "test/e2e", apart: true, needs: []string{made.Programs, made.RamdiskLab, made.Tiny}},
	{pkg: "test/machine", apart: true, needs: []string{made.Programs, made.RamdiskLab, made.Tiny}},
	{pkg: "test/memory", apart: true, needs: []string{made.Programs}},
	{pkg: "test/compat", apart: true, needs: []string{made.Programs}},
	{pkg: "test/attack", needs: []string{made.Programs}},
	{pkg: "test/conformance", needs: []string{made.Programs}},
	{pkg: "test/metal3", needs: []string{made.Programs}},
	{pkg: "test/openstack", needs: []string{made.Programs, made.OpenStack}},
	{pkg: "test/openstack/demo", needs: []string{made.Programs}},
	{pkg: "test/openstack/underironic", needs: []string{made.Programs}},
	{pkg: "test/openstack/moving", needs: []string{made.Programs}},
	{pkg: "test/packages"},
	{pkg: "test/ui", needs: []string{made.Programs}},
	{pkg: "test/chaos", last: true, needs: []string{made.Programs}},
	{pkg: "tools/demo", apart: true, needs: []string{made.Programs, made.Debian}},
	{pkg: "tools/lab", apart: true},
	{pkg: "tools/cli", needs: []string{made.Programs}},
	{pkg: "tools/monitoring", needs: []string{made.Programs}},
	{pkg: "images/build", apart: true},
	{pkg: "initramfs/build", apart: true},

	{pkg: "images/fs/btrfs"}, {pkg: "images/fs/ext4"}, {pkg: "images/fs/fat"}, {pkg: "images/fs/xfs"},
	{pkg: "agent/boot"}, {pkg: "agent/image/configdrive"}, {pkg: "agent/disk"}, {pkg: "agent/image/inject"},
	{pkg: "agent/boot/kexec"}, {pkg: "images/qcow2/inflate"}, {pkg: "images/vhd"}, {pkg: "proto/drive"},
	{pkg: "conductor/app/doctor"}, {pkg: "test/affected"}, {pkg: "test/arch"},
	{pkg: "agent/disk/erase", also: true},
	{pkg: "agent/image", also: true, apart: true},
	{pkg: "conductor/app", also: true, needs: []string{made.Programs}},
	{pkg: "conductor/engine", also: true, apart: true},
	{pkg: "conductor/netboot", also: true, apart: true},
	{pkg: "images", also: true}, {pkg: "images/oci", also: true}, {pkg: "images/publish", also: true},
	{pkg: "images/qcow2", also: true},
}

// more lists the needs of single tests beyond those of their suite.
var more = map[string][]string{
	"test/e2e:TestServerProfile":             {made.RamdiskServer},
	"test/e2e:TestZeroRebootServer":          {made.RamdiskServer, made.TinyFull}, // and with INGOT_FULL made.DebianFull
	"test/e2e:TestLife":                      {made.RamdiskShell},
	"test/machine:TestAgentOnServer":         {made.RamdiskServer},
	"test/machine:TestExportedDiskIsWritten": {made.RamdiskFull, made.Tiny},
	"test/machine:TestWrittenWithOpenISCSI":  {made.RamdiskFull, made.Tiny},
	"test/machine:TestEveryBusInAMachine":    {made.RamdiskFull},
	"test/machine:TestEraseInMachine":        {made.RamdiskFull},
	"test/machine:TestInventoryInMachine":    {made.RamdiskFull},
	"test/machine:TestForms":                 {made.Tiny4096},
	"test/machine:TestPartitionImageBoots":   {made.Tiny4096},
	"images/build:TestDebian":                {made.Programs, made.Debian}, // which installs its packages
	"images/build:TestTiny":                  {made.Tiny},
}

// costsText holds what jobs are expected to take, in seconds, by package and test; `make test-times UPDATE=1` writes
// it. A test that is not there is run with the others of its package.
//
//go:embed costs.txt
var costsText string

func costs() map[string]float64 {
	m := map[string]float64{}
	sc := bufio.NewScanner(strings.NewReader(costsText))
	for sc.Scan() {
		var seconds float64
		var name string
		if n, _ := fmt.Sscanf(sc.Text(), "%f %s", &seconds, &name); n == 2 {
			m[name] = seconds
		}
	}
	return m
}

// alone splits off the jobs that are run after all others, which have made what they need.
func alone(jobs []queue.Job) (first, last []queue.Job) {
	for _, j := range jobs {
		pkg, _, _ := strings.Cut(j.Name, ":")
		if slices.ContainsFunc(suites, func(s suite) bool { return s.pkg == pkg && s.last }) {
			j.Needs = nil
			last = append(last, j)
		} else {
			first = append(first, j)
		}
	}
	return first, last
}

// machineJobs makes the jobs of the second group, with those that make what they need.
func (o options) machineJobs(ctx context.Context, dirs map[string]string, rec *recorder) ([]queue.Job, error) {
	var chosen []suite
	for _, s := range suites {
		names := []string{s.pkg}
		if s.apart { // package:Test names a test
			for name := range strings.SplitSeq(o.jobs, ",") {
				if strings.HasPrefix(name, s.pkg+":") {
					names = append(names, name)
				}
			}
		}
		if selected(o.jobs, names...) {
			chosen = append(chosen, s)
		}
	}
	if len(chosen) == 0 {
		return nil, nil
	}
	bins, err := o.compile(ctx, chosen)
	if err != nil {
		return nil, err
	}
	cost := costs()
	var jobs []queue.Job
	needed := map[string]bool{}
	add := func(s suite, name string, tests []string) {
		needs := slices.Clone(s.needs)
		seconds := 0.0
		for _, t := range tests {
			needs = append(needs, more[s.pkg+":"+t]...)
			seconds += cost[s.pkg+":"+t]
		}
		if tests == nil || seconds == 0 {
			seconds = cmp.Or(cost[s.pkg+":"+name], cost[s.pkg], 30)
		}
		for _, n := range needs {
			needed[n] = true
		}
		slices.Sort(needs)
		pkg := module + "/" + s.pkg
		jobs = append(jobs,
			queue.Job{Name: s.pkg + ":" + name, Cost: seconds, Needs: slices.Compact(needs),
				Run: func(ctx context.Context) error {
					return o.runJob(ctx, rec, pkg, name, dirs[pkg], bins[s.pkg], tests)
				}})
	}
	for _, s := range chosen {
		if !s.apart {
			add(s, "", nil)
			continue
		}
		tests, err := list(ctx, bins[s.pkg], dirs[module+"/"+s.pkg])
		if err != nil {
			return nil, fmt.Errorf("list the tests of %s: %w", s.pkg, err)
		}
		var rest []string
		for _, t := range tests {
			switch id := s.pkg + ":" + t; {
			case !selected(o.jobs, s.pkg, id):
			case cost[id] > 0:
				add(s, t, []string{t})
			default:
				rest = append(rest, t)
			}
		}
		if len(rest) > 0 {
			add(s, "others", rest)
		}
	}
	// A ramdisk holds the agent, which is one of the programs.
	for _, n := range made.Names() {
		if !needed[n] {
			continue
		}
		var needs []string
		if strings.HasPrefix(n, "ramdisk") {
			needs, needed[made.Programs] = []string{made.Programs}, true
		}
		jobs = append(jobs, o.makeJob(rec, n, cost[n], needs))
	}
	if needed[made.Programs] && !slices.ContainsFunc(jobs, func(j queue.Job) bool { return j.Name == made.Programs }) {
		jobs = append(jobs, o.makeJob(rec, made.Programs, cost[made.Programs], nil))
	}
	return jobs, nil
}

// makeJob returns a job that makes a thing, in a process of its own so that its processor time is known.
func (o options) makeJob(rec *recorder, name string, cost float64, needs []string) queue.Job {
	return queue.Job{Name: name, Cost: cost, Needs: needs, Run: func(ctx context.Context) error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		began := time.Now()
		cmd := exec.CommandContext(ctx, self, "-make", name)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = time.Minute
		out, err := cmd.CombinedOutput()
		rec.add(event{Action: "job", Name: name, Elapsed: time.Since(began).Seconds(), CPU: processorTime(cmd)})
		if err != nil {
			return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
		}
		return nil
	}}
}

// binFolder holds the test programs of the second group.
const binFolder = "build/test/bin"

// compile builds the test programs of suites, without the race detector and cgo, and gives their paths by package.
func (o options) compile(ctx context.Context, all []suite) (map[string]string, error) {
	bins := map[string]string{}
	// One call of go for all whose programs have different names.
	for left := slices.Clone(all); len(left) > 0; {
		var now, later []suite
		names := map[string]bool{}
		for _, s := range left {
			if base := filepath.Base(s.pkg); names[base] {
				later = append(later, s)
			} else {
				names[base] = true
				now = append(now, s)
			}
		}
		dir, err := filepath.Abs(filepath.Join(binFolder, fmt.Sprint(len(left))))
		if err != nil {
			return nil, err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		// trimpath: as programs, with which they share packages
		args := []string{"test", "-c", "-trimpath", "-vet=off", "-ldflags=-s -w",
			"-o", dir + "/"}
		for _, s := range now {
			args = append(args, "./"+s.pkg)
			bins[s.pkg] = filepath.Join(dir, filepath.Base(s.pkg)+".test")
		}
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", compilerGC)
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build the tests that boot machines: %w\n%s", err, out)
		}
		left = later
	}
	return bins, nil
}

var testName = regexp.MustCompile(`(?m)^(Test|Fuzz|Example)\w*$`)

func list(ctx context.Context, bin, dir string) ([]string, error) {
	cmd := exec.CommandContext(ctx, bin, "-test.list", ".")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return testName.FindAllString(string(out), -1), nil
}

// runJob runs tests of a package in a process of their own, all of them when none is named.
func (o options) runJob(ctx context.Context, rec *recorder, pkg, name, dir, bin string, tests []string) error {
	limit := "40m"
	if os.Getenv("INGOT_FULL") != "" { // with it, a package has several tests of many minutes
		limit = "90m"
	}
	args := []string{"tool", "test2json", "-t", "-p", pkg, bin, "-test.v=test2json", "-test.paniconexit0",
		"-test.timeout=" + limit}
	if tests != nil {
		args = append(args, "-test.run", "^("+strings.Join(tests, "|")+")$")
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "PWD="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	ran, over := 0, false
	err = each(out, func(e event) {
		e.Package, e.Name = cmp.Or(e.Package, pkg), name
		if e.Action == "pass" && e.Test != "" {
			ran++
		}
		over = over || e.Test == "" && (e.Action == "pass" || e.Action == "fail" || e.Action == "skip")
		rec.add(e)
	})
	wait := cmd.Wait()
	rec.add(event{Action: "job", Package: pkg, Name: name, Elapsed: time.Since(began).Seconds(),
		CPU: processorTime(cmd)})
	switch {
	case err != nil:
		return err
	case wait != nil || !over:
		return fmt.Errorf("its tests failed: %v", wait)
	case ran == 0:
		return fmt.Errorf("no test of it ran")
	}
	return nil
}
