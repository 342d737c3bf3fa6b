package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// pkg is a package of this module. Names are paths in the module.
type pkg struct {
	name        string
	embeds      []string // files that are compiled in, relative to the package's folder
	imports     []string // packages of this module
	testImports []string // those of its tests, and of the programs in its testdata
	tests       []string // its test files
	hasSource   bool     // it is more than tests
}

// graph is all packages by name.
type graph map[string]*pkg

// readGraph asks go for all packages. Those that do not build are there as well.
func readGraph(ctx context.Context) (graph, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-e",
		"-json=Dir,ImportPath,GoFiles,EmbedFiles,Imports,TestGoFiles,XTestGoFiles,TestImports,XTestImports", "./...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	g := graph{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			Dir, ImportPath              string
			GoFiles, EmbedFiles, Imports []string
			TestGoFiles, XTestGoFiles    []string
			TestImports, XTestImports    []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return g, nil
		} else if err != nil {
			return nil, fmt.Errorf("list the packages: %w", err)
		}
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		programs, err := testdataImports(p.Dir)
		if err != nil {
			return nil, err
		}
		g[name] = &pkg{
			name: name, embeds: p.EmbedFiles, imports: ours(p.Imports), hasSource: len(p.GoFiles) > 0,
			testImports: ours(slices.Concat(p.TestImports, p.XTestImports, programs)),
			tests:       slices.Concat(p.TestGoFiles, p.XTestGoFiles),
		}
	}
}

// ours keeps the packages of this module.
func ours(imports []string) []string {
	var all []string
	for _, i := range imports {
		if name, ok := strings.CutPrefix(i, module+"/"); ok {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// testdataImports lists what the Go programs in a package's testdata import: tests build and run them.
func testdataImports(dir string) ([]string, error) {
	var all []string
	err := filepath.WalkDir(filepath.Join(dir, "testdata"), func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || e.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return nil // a sample of broken Go is data
		}
		for _, i := range f.Imports {
			if name, err := strconv.Unquote(i.Path.Value); err == nil {
				all = append(all, name)
			}
		}
		return nil
	})
	return all, err
}

// affected gives each package whose tests a change can affect its distance: 0 when itself changed, 1 when it imports
// such a package, and so on. What only tests import affects those tests, and nothing beyond them.
func (g graph) affected(source, tests []string) map[string]int {
	importers := map[string][]string{}
	for _, p := range g {
		for _, i := range p.imports {
			importers[i] = append(importers[i], p.name)
		}
	}
	far := map[string]int{}
	for _, name := range source {
		far[name] = 0
	}
	for next := slices.Clone(source); len(next) > 0; next = next[1:] {
		for _, name := range importers[next[0]] {
			if _, seen := far[name]; !seen {
				far[name] = far[next[0]] + 1
				next = append(next, name)
			}
		}
	}
	all := maps.Clone(far)
	for _, p := range g {
		for _, i := range p.testImports {
			if d, ok := far[i]; ok {
				if have, ok := all[p.name]; !ok || d+1 < have {
					all[p.name] = d + 1
				}
			}
		}
	}
	for _, name := range tests {
		all[name] = 0
	}
	maps.DeleteFunc(all, func(name string, _ int) bool { return g[name] == nil }) // those that were deleted
	return all
}
