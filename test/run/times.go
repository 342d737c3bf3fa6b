package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// cost is the duration of a test, a package, a job or a phase.
type cost struct {
	name                    string
	wall, cpu, idle, stolen float64
}

// times is a record, summed up.
type times struct {
	phases, jobs    []cost
	packages, tests []cost // of the race group
	passed          int
}

func readTimes(path string) (*times, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: make test writes it", err)
	}
	defer f.Close()
	t := &times{}
	wall, cpu := map[string]float64{}, map[string]float64{}
	err = each(f, func(e event) {
		switch {
		case e.Action == "phase":
			t.phases = append(t.phases, cost{name: e.Name, wall: e.Elapsed, cpu: e.CPU, idle: e.Idle, stolen: e.Stolen})
		case e.Action == "job" && e.Package == "":
			t.jobs = append(t.jobs, cost{name: e.Name, wall: e.Elapsed, cpu: e.CPU})
		case e.Action == "job":
			t.jobs = append(t.jobs,
				cost{name: strings.TrimSuffix(short(e.Package)+":"+e.Name, ":"), wall: e.Elapsed, cpu: e.CPU})
		case e.Action == "cpu":
			cpu[short(e.Package)+" "+e.Test] = e.CPU
		case e.Action == "pass" && e.Test != "":
			t.passed++
			fallthrough
		case e.Action == "pass":
			if e.Name == "" && !strings.Contains(e.Test, "/") {
				wall[short(e.Package)+" "+e.Test] = e.Elapsed
			}
		}
	})
	for _, name := range slices.Sorted(maps.Keys(cpu)) { // jobs have none
		c := cost{name: strings.TrimSpace(name), wall: wall[name], cpu: cpu[name]}
		if strings.HasSuffix(name, " ") {
			t.packages = append(t.packages, c)
		} else {
			t.tests = append(t.tests, c)
		}
	}
	return t, err
}

// printTimes prints a record as tables in Markdown: phases, jobs and packages, and the tests of the race group that
// cost most.
func printTimes(out io.Writer, path string) error {
	t, err := readTimes(path)
	if err != nil {
		return err
	}
	byCPU := func(a, b cost) int { return cmp.Compare(b.cpu, a.cpu) }
	fmt.Fprintf(out,
		"Phases. Idle and stolen are seconds of all processors together; a second of one idle processor is 1.\n\n"+
			"| phase | wall, s | CPU, s | idle, s | stolen, s |\n|---|---:|---:|---:|---:|\n")
	for _, p := range t.phases {
		fmt.Fprintf(out, "| %s | %.0f | %.0f | %.0f | %.0f |\n", p.name, p.wall, p.cpu, p.idle, p.stolen)
	}
	// What go needs to build and link is the rest of the group's time.
	var tested float64
	for _, p := range t.packages {
		tested += p.cpu
	}
	for _, j := range t.jobs {
		if j.name == "race group" {
			fmt.Fprintf(out,
				"\nRace group: %.0f CPU s, of which %.0f build and link %d packages with the race detector.\n", j.cpu,
				j.cpu-tested, len(t.packages))
		}
	}
	section := func(title string, all []cost, most int) {
		slices.SortFunc(all, byCPU)
		fmt.Fprintf(out, "\n%s\n\n| | wall, s | CPU, s |\n|---|---:|---:|\n", title)
		var wall, cpu float64
		for i, c := range all {
			wall, cpu = wall+c.wall, cpu+c.cpu
			if i < most {
				fmt.Fprintf(out, "| %s | %.1f | %.1f |\n", c.name, c.wall, c.cpu)
			}
		}
		fmt.Fprintf(out, "| all %d | %.0f | %.0f |\n", len(all), wall, cpu)
	}
	section("Jobs: machines, what they need, and what is tested without the race detector", t.jobs, len(t.jobs))
	section("Packages of the race group", t.packages, 40)
	section("Tests of the race group", t.tests, 40)
	return nil
}

// apart is the duration in seconds from which a test is a job of its own.
const apart = 4

// updateCosts writes what jobs took, in CPU seconds or, for those that mostly wait, half of the wall time.
func updateCosts(record, path string) error {
	t, err := readTimes(record)
	if err != nil {
		return err
	}
	m := map[string]float64{}
	for _, j := range t.jobs {
		if c := max(j.cpu, j.wall/2); c >= apart && j.name != "race group" {
			m[j.name] = c
		}
	}
	for _, p := range t.packages { // for test/affected
		if c := max(p.cpu, p.wall/2); c >= apart {
			m["race:"+p.name] = c
		}
	}
	f, err := os.Open(record)
	if err != nil {
		return err
	}
	defer f.Close()
	err = each(f, func(e event) { // tests that ran with others of their package, and have grown
		if e.Name == "others" && e.Action == "pass" && e.Test != "" && !strings.Contains(e.Test, "/") &&
			e.Elapsed >= apart {
			m[short(e.Package)+":"+e.Test] = e.Elapsed
			if others := short(e.Package) + ":others"; m[others] > 0 {
				m[others] = max(m[others]-e.Elapsed, 1)
			}
		}
	})
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, name := range slices.SortedFunc(maps.Keys(m),
		func(a, b string) int { return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b)) }) {
		fmt.Fprintf(&b, "%.0f %s\n", m[name], name)
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}
