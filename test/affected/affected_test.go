package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ingot-metal/ingot/test/kit"
)

// small is a module: agent imports agent/inventory, which imports agent/inventory/smbios; conductor/... does likewise.
func small() graph {
	g := graph{}
	add := func(name string, imports, testImports []string, tests ...string) {
		g[name] = &pkg{name: name, imports: imports, testImports: testImports, tests: tests, hasSource: true}
	}
	add("agent/inventory/smbios", nil, nil, "smbios_test.go")
	add("agent/inventory", []string{"agent/inventory/smbios"}, []string{"test/kit"}, "inventory_test.go")
	add("agent", []string{"agent/inventory"}, nil, "agent_test.go")
	add("conductor/node", nil, nil, "state_test.go")
	add("conductor/agents", []string{"conductor/node"}, []string{"agent/inventory"}, "agents_test.go")
	add("conductor/app", []string{"conductor/agents"}, nil, "app_test.go")
	add("conductor/cmd/ingotd", []string{"conductor/app"}, nil)
	add("images/vhd", nil, nil, "vhd_test.go")
	add("images/qcow2", []string{"images/vhd"}, nil, "qcow2_test.go")
	add("conductor/store", nil, nil, "store_test.go")
	add("test/kit", nil, nil, "kit_test.go")
	add("test/arch", nil, []string{"agent"}, "arch_test.go")
	add("test/e2e", nil, []string{"test/kit"}, "deploy_test.go", "rig_test.go")
	add("test/machine", nil, []string{"conductor/node"}, "forms_test.go", "inventory_test.go")
	g["conductor/store"].embeds = []string{"migrations/1.sql"}
	return g
}

func smallSuites() []suite {
	return []suite{
		{Package: "test/e2e", Apart: true, Needs: []string{"programs", "ramdisk-lab"},
			files: map[string][]string{
				"deploy_test.go": {"TestBIOS", "TestUEFI"}, "pool_test.go": {"TestPool"}, "rig_test.go": nil,
			}},
		{Package: "test/machine", Apart: true, Needs: []string{"programs", "ramdisk-lab"},
			files: map[string][]string{
				"forms_test.go": {"TestForms"}, "inventory_test.go": {"TestInventoryInMachine"},
			}},
		{Package: "images/vhd", files: map[string][]string{"vhd_test.go": {"TestVHD"}}},
		{Package: "images/qcow2", Also: true, files: map[string][]string{"qcow2_test.go": {"TestQcow2"}}},
	}
}

func TestAffectedFollowsImports(t *testing.T) {
	for _, c := range []struct {
		name          string
		source, tests []string
		want          map[string]int
	}{
		{"a leaf", []string{"agent/inventory/smbios"}, nil,
			map[string]int{"agent/inventory/smbios": 0, "agent/inventory": 1, "agent": 2, "conductor/agents": 2,
				"test/arch": 3}},
		{"what only tests import goes no further", []string{"test/kit"}, nil,
			map[string]int{"test/kit": 0, "agent/inventory": 1, "test/e2e": 1}},
		{"tests affect nothing else", nil, []string{"agent/inventory/smbios"},
			map[string]int{"agent/inventory/smbios": 0}},
		{"the nearer of two ways", []string{"agent/inventory", "conductor/node"}, nil,
			map[string]int{
				"agent/inventory": 0, "agent": 1, "conductor/node": 0, "conductor/agents": 1, "conductor/app": 2,
				"conductor/cmd/ingotd": 3, "test/arch": 2, "test/machine": 1,
			}},
		{"a package that was deleted", []string{"images/gone"}, nil, map[string]int{}},
		{"nothing", nil, nil, map[string]int{}},
	} {
		if diff := cmp.Diff(c.want, small().affected(c.source, c.tests)); diff != "" {
			t.Errorf("%s: -want +got\n%s", c.name, diff)
		}
	}
	g := small()
	g["images/qcow2"].imports = []string{"images/gone"}
	if diff := cmp.Diff(map[string]int{"images/qcow2": 1}, g.affected([]string{"images/gone"}, nil)); diff != "" {
		t.Errorf("what still imports a deleted package: -want +got\n%s", diff)
	}
}

func TestFilesBelongToPackages(t *testing.T) {
	for _, c := range []struct {
		file string
		want change
	}{
		{"agent/inventory/smbios/describe.go", change{source: []string{"agent/inventory/smbios"}}},
		{"agent/inventory/smbios/smbios_test.go", change{
			tests:     []string{"agent/inventory/smbios"},
			testFiles: map[string][]string{"agent/inventory/smbios": {"smbios_test.go"}},
		}},
		{"agent/inventory/smbios/testdata/dell.bin", change{tests: []string{"agent/inventory/smbios"}}},
		{"agent/inventory/smbios/testdata/vm/main.go", change{tests: []string{"agent/inventory/smbios"}}},
		{"agent/inventory/smbios/README.md", change{tests: []string{"agent/inventory/smbios"}}},
		{"agent/inventory/smbios/tables.txt", change{source: []string{"agent/inventory/smbios"}}},
		{"conductor/store/migrations/1.sql", change{source: []string{"conductor/store"}}},
		{"conductor/store/migrations/2.sql", change{source: []string{"conductor/store"}}}, // deleted: embedded no more
		{"images/gone/gone.go", change{source: []string{"images/gone"}}},
		{"images/gone/gone_test.go", change{
			tests: []string{"images/gone"}, testFiles: map[string][]string{"images/gone": {"gone_test.go"}},
		}},
		{"images/vhd/gone/testdata/x", change{tests: []string{"images/vhd"}}},
		{"go.sum", change{modules: "go.sum", generated: true}},
		{"proto/agentv1/agent.proto", change{generated: true}},
		{"proto/agentv1/agent.pb.go", change{source: []string{"proto/agentv1"}, generated: true}},
		{"tools/generate.sh", change{generated: true}},
		{"docs/reference/states.md", change{read: map[string]string{"conductor/node": "docs/reference/states.md"}}},
		{"docs/new.md", change{nothing: []string{"docs/new.md"}}},
		{"README.md", change{read: map[string]string{"test/compat:TestShellBlocks": "README.md"}}},
		{"initramfs/shell/go.mod", change{
			read: map[string]string{"initramfs/build:TestShellModule": "initramfs/shell/go.mod"},
		}},
		{"initramfs/shell/main.go", change{
			read: map[string]string{"initramfs/build:TestShellModule": "initramfs/shell/main.go"},
		}},
		{"Makefile", change{nothing: []string{"Makefile"}}},
		{".ci/run", change{nothing: []string{".ci/run"}}},
		{"tools/deps.sh", change{nothing: []string{"tools/deps.sh"}}},
	} {
		g := small()
		if c.file == "proto/agentv1/agent.pb.go" {
			g["proto/agentv1"] = &pkg{name: "proto/agentv1"}
		}
		got := classify([]string{c.file}, g)
		got.helpers = nil
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(change{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: -want +got\n%s", c.file, diff)
		}
	}
	got := classify([]string{"agent/agent.go", "agent/agent_test.go", "agent/inventory/smbios/smbios_test.go"}, small())
	if !slices.Equal(got.source, []string{"agent"}) || !slices.Equal(got.tests, []string{"agent/inventory/smbios"}) {
		t.Errorf("code and tests of one package, tests of another = %+v", got)
	}
}

// costsOfAll makes every machine test and some packages long.
var costsOfAll = map[string]float64{
	"test/e2e:TestBIOS": 160, "test/e2e:TestUEFI": 100,
	"test/machine:TestForms": 300, "test/machine:TestInventoryInMachine": 60,
	"programs": 20, "ramdisk-lab": 10, "race:agent": 20, "race:conductor/app": 200,
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		name           string
		files          []string
		budget         time.Duration
		costs          map[string]float64 // besides costsOfAll
		user           bool
		packages, jobs []string
		want           []string // in the output
		not            []string
	}{
		{
			name: "a leaf", files: []string{"agent/inventory/smbios/describe.go"},
			packages: []string{"agent", "agent/inventory", "agent/inventory/smbios", "conductor/agents", "test/arch"},
			jobs:     []string{"test/machine:TestInventoryInMachine"},
			want: []string{
				"3 min 0 s allowed", "6 packages: they import nothing that changed",
				"would pass the budget of 3 min 0 s; make test runs them",
				"    test/e2e:TestBIOS\n", "    test/machine:TestForms: agent/image/chunked",
			},
		},
		{
			name: "a leaf with more time", files: []string{"agent/inventory/smbios/describe.go"},
			budget:   10 * time.Minute,
			packages: []string{"agent", "agent/inventory", "agent/inventory/smbios", "conductor/agents", "test/arch"},
			jobs:     []string{"test/e2e:TestBIOS", "test/machine:TestInventoryInMachine"},
			not:      []string{"would pass"},
		},
		{
			name: "not a leaf", files: []string{"agent/agent.go"},
			packages: []string{"agent", "test/arch"},
			jobs:     []string{"test/e2e:TestBIOS"},
			want:     []string{"8 min 0 s allowed"},
		},
		{
			name:  "the nearest is run whatever it takes, the farther is not",
			files: []string{"conductor/node/state.go"}, budget: time.Minute,
			packages: []string{"conductor/agents", "conductor/node", "test/arch"},
			want: []string{
				"would pass the budget of 1 min 0 s; make test runs them:\n    conductor/app, test/e2e:TestBIOS\n",
			},
		},
		{
			name: "a leaf that much imports", files: []string{"images/vhd/vhd.go"},
			costs:    map[string]float64{"race:images/qcow2": 400},
			packages: []string{"images/qcow2", "test/arch"},
			jobs:     []string{"images/qcow2", "images/vhd", "test/machine:TestForms"},
			want:     []string{"8 min 0 s allowed"},
		},
		{
			name: "only tests", files: []string{"agent/inventory/smbios/smbios_test.go"},
			packages: []string{"agent/inventory/smbios", "test/arch"},
			want:     []string{"test/e2e:TestBIOS: agent/..."},
		},
		{
			name: "a machine test", files: []string{"test/e2e/pool_test.go"},
			packages: []string{"test/arch"}, jobs: []string{"test/e2e:TestPool"},
			want: []string{"test/e2e:TestUEFI: "},
		},
		{
			name: "what all tests of a suite use", files: []string{"test/e2e/rig_test.go", "test/e2e/pool_test.go"},
			packages: []string{"test/arch"}, jobs: []string{"test/e2e"},
		},
		{
			name: "a package of the second group", files: []string{"images/vhd/vhd.go"},
			costs:    map[string]float64{"images/qcow2": 300},
			packages: []string{"images/qcow2", "test/arch"}, jobs: []string{"images/vhd"},
			want: []string{"make test runs them:\n    images/qcow2 (all cases), test/machine:TestForms\n"},
		},
		{
			name: "a package of both groups", files: []string{"images/qcow2/qcow2.go"},
			packages: []string{"images/qcow2", "test/arch"}, jobs: []string{"images/qcow2", "test/machine:TestForms"},
			not: []string{"all cases"},
		},
		{
			name: "no root", files: []string{"images/qcow2/qcow2.go"}, user: true,
			packages: []string{"images/qcow2", "test/arch"}, jobs: []string{"images/qcow2"},
			want: []string{
				"machine tests need root:\n    test/machine:TestForms\n",
				"the race detector, and single tests that skip",
			},
		},
		{
			name: "documentation", files: []string{"docs/reference/states.md", "Makefile"},
			packages: []string{"conductor/node", "test/arch"},
			want:     []string{"no test depends on:\n    Makefile\n"},
		},
		{
			name: "modules", files: []string{"go.mod"},
			packages: []string{
				"agent", "agent/inventory", "agent/inventory/smbios", "conductor/agents", "conductor/app",
				"conductor/node", "conductor/store", "images/qcow2", "test/arch", "test/kit",
			},
			jobs: []string{"images/qcow2", "images/vhd", "test/e2e:TestBIOS"},
			want: []string{"1 packages that the change can affect have no tests"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := small()
			costs := maps.Clone(costsOfAll)
			maps.Copy(costs, c.costs)
			p := choose(input{
				change: classify(c.files, g), graph: g, suites: smallSuites(), costs: costs,
				budget: c.budget, root: !c.user, processors: 2,
			})
			if !slices.Equal(p.packages, c.packages) {
				t.Errorf("packages = %v\nwant %v", p.packages, c.packages)
			}
			if !slices.Equal(p.jobs, c.jobs) {
				t.Errorf("jobs = %v\nwant %v", p.jobs, c.jobs)
			}
			var b strings.Builder
			p.print(&b)
			for _, w := range c.want {
				if !strings.Contains(b.String(), w) {
					t.Errorf("what is printed lacks %q", w)
				}
			}
			for _, w := range c.not {
				if strings.Contains(b.String(), w) {
					t.Errorf("what is printed has %q", w)
				}
			}
			for l := range strings.Lines(b.String()) {
				if len(l) > 121 {
					t.Errorf("a line has %d columns: %s", len(l)-1, l)
				}
			}
			if t.Failed() {
				t.Log("\n" + b.String())
			}
		})
	}
}

func TestChangedFiles(t *testing.T) {
	dir := t.TempDir()
	for _, v := range []string{"AUTHOR", "COMMITTER"} {
		t.Setenv("GIT_"+v+"_NAME", "x")
		t.Setenv("GIT_"+v+"_EMAIL", "x@example.org")
	}
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	in := func(args ...string) {
		t.Helper()
		kit.Run(t, "git", append([]string{"-C", dir}, args...)...)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	changed := func(base string) (string, []string) {
		t.Helper()
		from, files, err := changedFiles(t.Context(), dir, base)
		if err != nil {
			t.Fatal(err)
		}
		return from, files
	}
	in("init", "-q", "-b", "main")
	if _, _, err := changedFiles(t.Context(), dir, ""); err == nil {
		t.Error("a repository without a commit has something to compare with")
	}
	for _, f := range []string{"old", "moved", "deleted", "edited"} {
		write(f, strings.Repeat(f+"\n", 10))
	}
	write(".gitignore", "ignored\n")
	in("add", ".")
	in("commit", "-q", "-m", "first")
	if from, files := changed(""); len(files) != 0 || !strings.HasSuffix(from, "first (of main)") {
		t.Errorf("without a change = %q %q", from, files)
	}
	in("switch", "-q", "-c", "topic")
	in("mv", "moved", "new place")
	in("commit", "-q", "-m", "second")
	write("edited", "x")
	write("untracked", "x")
	write("ignored", "x")
	in("rm", "-q", "deleted")
	if _, files := changed(""); !slices.Equal(files, []string{"deleted", "edited", "moved", "new place", "untracked"}) {
		t.Errorf("against main = %q", files)
	}
	if _, files := changed("HEAD"); !slices.Equal(files, []string{"deleted", "edited", "untracked"}) {
		t.Errorf("against HEAD = %q", files)
	}
	// What others did on the base meanwhile is no change of ours.
	in("stash", "-q")
	in("switch", "-q", "main")
	write("old", "of others")
	in("commit", "-q", "-a", "-m", "third")
	in("update-ref", "refs/remotes/origin/main", "main")
	in("switch", "-q", "topic")
	from, files := changed("")
	if !slices.Equal(files, []string{"moved", "new place", "untracked"}) ||
		!strings.HasSuffix(from, "(of origin/main)") {
		t.Errorf("against origin/main = %q %q", from, files)
	}
	for _, bad := range []string{"nothing", "--help"} {
		if _, _, err := changedFiles(t.Context(), dir, bad); err == nil || !strings.Contains(err.Error(), "BASE="+bad) {
			t.Errorf("base %s = %v", bad, err)
		}
	}
}

// TestMachinesAreTheTests holds the table of machine tests to the tests and packages that there are.
func TestMachinesAreTheTests(t *testing.T) {
	t.Chdir("../..")
	g, err := readGraph(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	suites, _, err := readSuites(t.Context(), g)
	if err != nil {
		t.Fatal(err)
	}
	used := map[*line]bool{}
	for _, s := range suites {
		if !isMachineSuite(s.Package) {
			if len(s.Needs) > 0 && !s.Also {
				t.Errorf("%s needs %v and is not in machines.go", s.Package, s.Needs)
			}
			continue
		}
		for _, u := range unitsOf(s) {
			l := lineOf(s.Package, u.test)
			if l == nil {
				t.Errorf("%s:%s has no line in machines.go: say which packages it is there for", s.Package, u.test)
			}
			used[l] = true
		}
	}
	for i := range machines {
		l := &machines[i]
		if !used[l] {
			t.Errorf("machines.go has a line for %s, which is no test, or has a line before", l.test)
		}
		for _, on := range l.packages() {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(g)), func(name string) bool { return matches(on, name) }) {
				t.Errorf("%s depends on %s, which is no package", l.test, on)
			}
		}
	}
	for name := range g {
		if strings.HasPrefix(name, "test/") {
			continue
		}
		if !slices.ContainsFunc(machines, func(l line) bool { return l.isFor([]string{name}) }) {
			t.Errorf("no machine test is there for %s", name)
		}
	}
	for _, r := range readers {
		for _, test := range r.tests {
			pkg, name, ok := cutColon(test)
			is := g[pkg] != nil && !ok
			if s := (input{suites: suites}).suite(pkg); s != nil && ok {
				is = slices.ContainsFunc(unitsOf(*s), func(u unit) bool { return u.test == name })
			}
			if !is {
				t.Errorf("%s, which reads %s, is no test", test, r.file)
			}
		}
	}
}

// TestReadersAreTheTests looks for tests that name files of other folders.
func TestReadersAreTheTests(t *testing.T) {
	t.Chdir("../..")
	g, err := readGraph(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	document := regexp.MustCompile(`"(?:[./]*/)?((?:docs/)?(?:[a-z]+/)?[\w-]+\.md)"`)
	data := regexp.MustCompile(`"((?:\.\./)+[\w./-]*testdata/[\w./*-]*)"`)
	found := 0
	for name, p := range g {
		if name == "test/arch" || name == "test/affected" {
			continue
		}
		for _, f := range p.tests {
			src, err := os.ReadFile(filepath.Join(name, f))
			if err != nil {
				t.Fatal(err)
			}
			var files []string
			for _, m := range document.FindAllStringSubmatch(string(src), -1) {
				files = append(files, m[1])
				if strings.Contains(m[1], "/") { // a shelf
					files = append(files, filepath.Join("docs", m[1]))
				}
			}
			for _, m := range data.FindAllStringSubmatch(string(src), -1) {
				files = append(files, filepath.Join(name, m[1]))
			}
			for _, file := range files {
				if _, err := os.Stat(file); err != nil && !strings.Contains(file, "*") {
					continue // not a file of ours
				}
				found++
				isOurs := func(test string) bool { pkg, _, _ := cutColon(test); return pkg == name }
				if !slices.ContainsFunc(readers, func(r reader) bool {
					return (r.file == file || matches(r.file, file)) && slices.ContainsFunc(r.tests, isOurs)
				}) {
					t.Errorf("%s/%s reads %s: readers in files.go does not say so", name, f, file)
				}
			}
		}
	}
	if found < 8 {
		t.Errorf("%d files that tests of other folders read were found; does this test still find them?", found)
	}
}

func TestTestsIn(t *testing.T) {
	got := testsIn(`package x

func TestMain(m *testing.M) {}
func TestA(t *testing.T) {
	func TestNot()
}
func FuzzB(f *testing.F) {}
func helper() {}
`)
	if !slices.Equal(got, []string{"TestA", "FuzzB"}) {
		t.Errorf("testsIn = %v", got)
	}
}
