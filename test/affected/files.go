package main

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// reader names tests that read a file which is not in their own package. A file is a path, a pattern of path.Match, or
// a folder and all below it (/...). A test is a package, or package:Test of the second group.
type reader struct {
	file  string
	tests []string
}

// readers is all of them, apart from test/arch, which is always run.
var readers = []reader{
	{"README.md", []string{"test/compat:TestShellBlocks"}},
	{"docs/tutorial/*.md", []string{"test/compat:TestShellBlocks"}},
	{"docs/howto/*.md", []string{"test/compat:TestShellBlocks"}},
	{"docs/tutorial/api-without-machines.md", []string{"test/compat:TestTutorialOfTheAPI"}},
	{"docs/reference/states.md", []string{"conductor/node"}},
	{"docs/reference/api.md", []string{"conductor/api"}},
	{"docs/reference/configuration.md", []string{"conductor/config"}},
	{"docs/reference/ingotd.example.yaml", []string{"conductor/config"}},
	{"docs/reference/ingot.md", []string{"tools/cli"}},
	{"docs/reference/ingot-*.md", []string{"tools/cli"}},
	{"docs/reference/ingot-agent.md", []string{"agent/cmd/ingot-agent"}},
	{"docs/reference/ingotd.md", []string{"conductor/app"}},
	{"docs/reference/metrics.md", []string{"conductor/observe/metrics"}},
	{"docs/reference/hardware.md", []string{"conductor/api"}},
	{"docs/reference/redfish-differences.md", []string{"conductor/api"}},
	{"docs/reference/api-versions.md", []string{"conductor/api"}},
	{"docs/reference/ironic-differences.md", []string{"conductor/api"}},
	{"docs/howto/runbook.md", []string{"tools/monitoring"}},
	{"docs/howto/inspection.md", []string{"conductor/inspect/hook"}},
	{"docs/howto/upgrade.md", []string{"test/packages"}},
	{"docs/tutorial/from-packages.md", []string{"test/packages"}},
	{"tools/package/...", []string{"test/packages"}}, // a separate module
	{"test/packages/helm/...", []string{"test/packages"}},
	{"docs/howto/keepalived.md", []string{"conductor/app"}},
	{"docs/howto/dhcp-servers.md", []string{"tools/lab/site"}},
	{"initramfs/shell/...", []string{"initramfs/build:TestShellModule"}}, // a separate module
	{"docs/howto/from-ironic.md", []string{"test/openstack", "test/openstack/moving"}},
	{"docs/howto/under-ironic.md", []string{"test/openstack/underironic"}},
	{"conductor/importer/testdata/ironic.sql", []string{"test/openstack/moving"}},
	{"conductor/api/testdata/*.jsonl", []string{"conductor/importer"}},
	{"conductor/api/testdata/access.golden", []string{"test/attack"}},
	{"images/publish/testdata/*", []string{"tools/cli"}},
	{"conductor/web/ui/src/*", []string{"conductor/web", "test/ui"}},
	{"agent/inventory/testdata/rack-server.json", []string{"test/ui"}},
	{"tools/bundle/...", []string{"test/ui"}},
}

// matches reports whether a pattern stands for a file or a package.
func matches(pattern, name string) bool {
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return name == base || strings.HasPrefix(name, base+"/")
	}
	ok, err := path.Match(pattern, name)
	return err == nil && ok
}

// change is a change in terms of packages and tests.
type change struct {
	source    []string            // packages whose code changed
	tests     []string            // packages of which only tests changed, or what they read
	testFiles map[string][]string // changed files with tests, by package
	helpers   map[string]bool     // packages with changes that are not in testFiles: all tests may be affected
	read      map[string]string   // tests that read a changed file (see readers), and that file
	modules   string              // go.mod or go.sum when that changed: everything may be affected
	generated bool                // generated code, or what it is made from
	nothing   []string            // files that no test depends on
}

// classify turns changed files into a change. Files may be new or deleted.
func classify(files []string, g graph) change {
	c := change{testFiles: map[string][]string{}, helpers: map[string]bool{}, read: map[string]string{}}
	for _, f := range files {
		known := false
		for _, r := range readers {
			if matches(r.file, f) {
				known = true
				for _, t := range r.tests {
					c.read[t] = f
				}
			}
		}
		if strings.HasSuffix(f, ".proto") || strings.HasSuffix(f, ".pb.go") || f == "tools/generate.sh" ||
			strings.HasPrefix(f, "conductor/web/ui/") || strings.HasPrefix(f, "tools/bundle/") {
			c.generated, known = true, true
		}
		if f == "go.mod" || f == "go.sum" {
			c.modules, c.generated, known = f, true, true
		}
		switch name, isTest := owner(f, g); {
		case name == "" || known && g[name] == nil:
			if !known {
				c.nothing = append(c.nothing, f)
			}
		case !isTest:
			c.source = append(c.source, name)
			c.helpers[name] = true
		default:
			c.tests = append(c.tests, name)
			if strings.HasSuffix(f, "_test.go") && path.Dir(f) == name {
				c.testFiles[name] = append(c.testFiles[name], path.Base(f))
			} else {
				c.helpers[name] = true
			}
		}
	}
	slices.Sort(c.source)
	c.source = slices.Compact(c.source)
	slices.Sort(c.tests)
	inSource := func(name string) bool { return slices.Contains(c.source, name) }
	c.tests = slices.DeleteFunc(slices.Compact(c.tests), inSource)
	return c
}

// owner returns the package that a file belongs to, which may have been deleted, and whether only its tests see the
// file. No package owns what lies outside of them, like docs.
func owner(file string, g graph) (name string, isTest bool) {
	dir := path.Dir(file)
	if above, _, ok := strings.Cut(file, "/testdata/"); ok {
		dir, isTest = above, true
	} else if strings.HasSuffix(file, ".go") {
		return dir, strings.HasSuffix(file, "_test.go")
	}
	for ; dir != "."; dir = path.Dir(dir) {
		if p := g[dir]; p != nil {
			embedded := slices.Contains(p.embeds, strings.TrimPrefix(file, dir+"/"))
			return dir, !embedded && (isTest || strings.HasSuffix(file, ".md"))
		}
	}
	return "", false
}

// countedFiles says how many files changed, and in which folders.
func countedFiles(files []string) string {
	var dirs []string
	for _, f := range files {
		dirs = append(dirs, path.Dir(f))
	}
	slices.Sort(dirs)
	dirs = slices.Compact(dirs)
	switch {
	case len(files) == 1:
		return files[0]
	case len(dirs) > 5:
		return fmt.Sprintf("%d files in %d folders", len(files), len(dirs))
	}
	return fmt.Sprintf("%d files in %s", len(files), strings.Join(dirs, ", "))
}
