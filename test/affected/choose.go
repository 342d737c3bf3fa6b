package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// What a check may take, and what it takes besides tests (list packages, build test/run, vet, staticcheck).
const (
	leafBudget      = 3 * time.Minute
	budget          = 8 * time.Minute
	margin          = 0.9 // of the budget is planned with
	lintSeconds     = 15
	lintSecondsEach = 0.7 // for each package
	linkSeconds     = 4   // to compile and link the tests of a package with the race detector
	programsSeconds = 25  // to build the programs after a change; costs.txt has it from an empty build cache
	shortSeconds    = 3   // of what costs.txt does not name, because it takes less than test/run's jobs of their own
)

// input is all that a plan follows from.
type input struct {
	change
	graph
	suites     []suite
	costs      map[string]float64
	budget     time.Duration // 0: leafBudget or budget
	root       bool
	processors int
}

// Ranks of candidates. Those of the first two always run, at any cost.
const (
	itself  = iota // packages that changed, and tests that read what changed
	direct         // packages that import what changed
	machine        // machine tests that changed
	farther        // all other packages that the change can affect, the nearest first
	cases          // what the race detector is too slow for, of packages that did not change
	smokeTest
	specific // machine tests for what changed, those for least first
)

// candidate is a package or a job of the second group that the change can affect.
type candidate struct {
	name    string
	job     bool
	rank    int
	within  int // order in a rank
	seconds float64
	needs   []string
}

// choose makes the plan.
func choose(in input) *plan {
	p := &plan{generated: in.generated, root: in.root, budget: in.budget}
	far := in.affected(in.source, in.tests)
	p.linted = slices.Sorted(maps.Keys(far))
	if in.modules != "" {
		p.linted = []string{"all"}
		for name := range in.graph {
			if _, ok := far[name]; !ok {
				far[name] = 2
			}
		}
	}
	if p.budget == 0 {
		p.budget = budget
		if in.modules == "" && len(in.source) == 1 && len(in.tests) == 0 && isLeaf(in.graph, in.source[0]) {
			p.budget = leafBudget
		}
	}
	far["test/arch"] = 0 // it reads everything
	for test := range in.read {
		if pkg, _, _ := cutColon(test); !isMachineSuite(pkg) {
			far[pkg] = 0
		}
	}

	packages, untested := in.packages(far)
	jobs, idle := in.machineTests()
	overBudget, overRoot := p.fill(slices.Concat(packages, jobs), in)

	unaffected := 0
	for name := range in.graph {
		if _, ok := far[name]; !ok && in.isTested(name) {
			unaffected++
		}
	}
	if unaffected > 0 {
		p.leave(fmt.Sprintf("%d packages: they import nothing that changed", unaffected))
	}
	if untested > 0 {
		p.leave(fmt.Sprintf("%d packages that the change can affect have no tests, and are only linted", untested))
	}
	if len(overBudget) > 0 {
		p.leave("would pass the budget of "+seconds(p.budget.Seconds())+"; make test runs them", overBudget...)
	}
	if len(overRoot) > 0 {
		p.leave("machine tests need root", overRoot...)
	}
	if !in.root && p.tests() {
		p.leave("the race detector, and single tests that skip themselves: they need root, or what is not installed")
	}
	if len(idle) > 0 {
		p.leave("machine tests whose packages did not change, which are", idle...)
		p.left[len(p.left)-1].lines = true
	}
	if len(in.nothing) > 0 {
		p.leave("no test depends on", in.nothing...)
	}
	return p
}

// suite returns a package's suite, or nil.
func (in input) suite(pkg string) *suite {
	for i := range in.suites {
		if in.suites[i].Package == pkg {
			return &in.suites[i]
		}
	}
	return nil
}

// isTested reports whether a package has tests that the import graph decides on.
func (in input) isTested(name string) bool {
	return len(in.graph[name].tests) > 0 && !isMachineSuite(name)
}

// packages gives the candidates among the packages that are affected, and counts those that have no tests.
func (in input) packages(far map[string]int) (all []candidate, untested int) {
	for name, distance := range far {
		p := in.graph[name]
		switch {
		case p == nil || isMachineSuite(name):
			continue
		case !in.isTested(name):
			untested++
			continue
		}
		x := candidate{name: name, rank: farther, within: distance}
		if distance == 0 {
			x.rank = itself
		} else if slices.ContainsFunc(p.imports, func(i string) bool { return slices.Contains(in.source, i) }) {
			x.rank = direct
		}
		s := in.suite(name)
		if s == nil || s.Also {
			race := x
			race.seconds = cmp.Or(in.costs["race:"+name], shortSeconds) + linkSeconds
			all = append(all, race)
		}
		if s != nil {
			x.job, x.seconds, x.needs = true, in.jobSeconds(s, ""), s.Needs
			if s.Also && distance > 0 {
				x.rank = cases
			}
			all = append(all, x)
		}
	}
	return all, untested
}

// machineTests gives the candidates of the table, and its lines of which nothing changed.
func (in input) machineTests() (all []candidate, idle []string) {
	var lines []*line
	tests := map[*line][]string{} // of lines of which nothing changed
	for _, s := range in.suites {
		if !isMachineSuite(s.Package) {
			continue
		}
		every := in.helpers[s.Package]
		for _, f := range in.testFiles[s.Package] {
			tests, ok := s.files[f]
			every = every || ok && len(tests) == 0 // what tests share
		}
		for _, u := range unitsOf(s) {
			id := strings.TrimSuffix(s.Package+":"+u.test, ":")
			x := candidate{
				name: id, job: true, rank: specific, seconds: in.jobSeconds(&s, u.test),
				needs: slices.Concat(s.Needs, s.More[u.test]),
			}
			itself := func(file string) bool { return slices.Contains(in.testFiles[s.Package], file) }
			switch l := lineOf(s.Package, u.test); {
			case in.read[id] != "":
				x.rank = 0
			case every || slices.ContainsFunc(u.files, itself):
				x.rank = machine
			case l == nil:
				continue // TestMachinesAreTheTests finds those
			case id == smoke && (l.isFor(in.source) || in.modules != ""):
				x.rank = smokeTest
			case l.isFor(in.source):
				x.within = len(l.packages())
			default:
				if tests[l] == nil {
					lines = append(lines, l)
				}
				tests[l] = append(tests[l], id)
				continue
			}
			all = append(all, x)
		}
	}
	for _, l := range lines {
		name := l.test
		if len(tests[l]) == 1 {
			name = tests[l][0]
		}
		idle = append(idle, name+": "+l.on)
	}
	return all, idle
}

// fill chooses candidates until the budget is spent, and returns those left out, by reason: the budget, or missing
// root.
func (p *plan) fill(all []candidate, in input) (overBudget, overRoot []string) {
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.within, b.within),
			cmp.Compare(a.seconds, b.seconds), cmp.Compare(a.name, b.name))
	})
	lint := lintSeconds + lintSecondsEach*float64(len(p.linted))
	p.expected = lint
	var must float64
	for _, x := range all {
		if x.rank <= direct {
			must += x.seconds
		}
	}
	if in.budget == 0 && p.budget == leafBudget && lint+must/float64(in.processors) > margin*leafBudget.Seconds() {
		p.budget = budget // half of the conductor imports a package like conductor/node
	}
	made, chosen := map[string]bool{}, map[string][]string{}
	var sum float64
	for _, x := range all {
		suite, _, _ := cutColon(x.name)
		name := x.name
		if x.rank == cases {
			name += " (all cases)"
		}
		if x.job && isMachineSuite(suite) && !in.root {
			overRoot = append(overRoot, name)
			continue
		}
		var making float64
		needs := map[string]bool{}
		for _, n := range x.needs {
			needs[n] = true
			if strings.HasPrefix(n, "ramdisk") {
				needs["programs"] = true // the agent is in it
			}
		}
		for n := range needs {
			if made[n] {
				continue
			}
			if n == "programs" {
				making += min(in.costs[n], programsSeconds)
			} else {
				making += in.costs[n]
			}
		}
		took := lint + (sum+making+x.seconds)/float64(in.processors)
		took = max(took, lint+making+x.seconds) // what it needs goes before it
		if x.rank > direct && took > margin*p.budget.Seconds() {
			overBudget = append(overBudget, name)
			continue
		}
		p.expected = max(p.expected, took)
		sum += making + x.seconds
		maps.Copy(made, needs)
		if x.job {
			chosen[suite] = append(chosen[suite], x.name)
		} else {
			p.packages = append(p.packages, x.name)
		}
	}
	for _, s := range in.suites {
		names := chosen[s.Package]
		if n := len(unitsOf(s)); n > 1 && len(names) == n {
			names = []string{s.Package}
		}
		p.jobs = append(p.jobs, names...)
	}
	slices.Sort(p.packages)
	slices.Sort(p.jobs)
	return overBudget, overRoot
}

// unit is a test that can be run alone, or "" for all of a suite, with the files that it is in.
type unit struct {
	test  string
	files []string
}

func unitsOf(s suite) []unit {
	if !s.Apart {
		return []unit{{"", slices.Sorted(maps.Keys(s.files))}}
	}
	var all []unit
	for f, tests := range s.files {
		for _, t := range tests {
			all = append(all, unit{t, []string{f}})
		}
	}
	slices.SortFunc(all, func(a, b unit) int { return cmp.Compare(a.test, b.test) })
	return all
}

// jobSeconds is the expected duration of a test of a suite, or of all when none is named.
func (in input) jobSeconds(s *suite, test string) float64 {
	if test != "" {
		return cmp.Or(in.costs[s.Package+":"+test], shortSeconds)
	}
	sum := in.costs[s.Package]
	for name, c := range in.costs {
		if strings.HasPrefix(name, s.Package+":") {
			sum += c
		}
	}
	return cmp.Or(sum, shortSeconds)
}

// isLeaf reports whether a package with code imports no other of this module, and is tested by the import graph.
func isLeaf(g graph, name string) bool {
	p := g[name]
	return p != nil && p.hasSource && len(p.imports) == 0 && !isMachineSuite(name)
}
