package main

import (
	_ "embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"sort"
	"strings"

	"github.com/golangci/dupl/lib"
)

// Nodes of syntax from which on a likeness counts, and lines that it must have.
const (
	twinNodes = 30
	twinLines = 12
)

//go:embed twins.txt
var allowedTwins string

// twins finds pairs of functions of product code that share twelve lines or more of the same shape and that twins.txt
// does not list. A line there that matches no pair is a finding as well.
func twins(files []string) ([]string, error) {
	var product []string
	functions := map[string][]span{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "test/") || !strings.HasSuffix(name, ".go") {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		if ast.IsGenerated(file) {
			continue
		}
		product = append(product, name)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				functions[name] = append(functions[name],
					span{fset.Position(f.Pos()).Line, fset.Position(f.End()).Line, f.Name.Name})
			}
		}
	}
	issues, err := lib.Run(product, twinNodes)
	if err != nil {
		return nil, err
	}
	allowed, used := map[string]bool{}, map[string]bool{}
	for _, line := range strings.Split(allowedTwins, "\n") {
		if pair, _, ok := strings.Cut(line, "|"); ok && !strings.HasPrefix(line, "#") {
			allowed[strings.TrimSpace(pair)] = true
		}
	}
	seen := map[string]string{}
	for _, i := range issues {
		if i.From.LineEnd()-i.From.LineStart()+1 < twinLines {
			continue
		}
		a := place(functions, i.From.Filename(), i.From.LineStart(), i.From.LineEnd())
		b := place(functions, i.To.Filename(), i.To.LineStart(), i.To.LineEnd())
		if a == "" || b == "" || a == b {
			continue
		}
		if b < a {
			a, b = b, a
		}
		pair := a + " ~ " + b
		if allowed[pair] {
			used[pair] = true
			continue
		}
		seen[pair] = fmt.Sprintf("%s:%d: twins: %s (%d lines): merge them, or list the pair with a reason in"+
			" tools/lint/twins.txt", i.From.Filename(), i.From.LineStart(), pair,
			i.From.LineEnd()-i.From.LineStart()+1)
	}
	var findings []string
	for _, f := range seen {
		findings = append(findings, f)
	}
	for pair := range allowed {
		if !used[pair] {
			findings = append(findings, "tools/lint/twins.txt: no such twins: "+pair)
		}
	}
	sort.Strings(findings)
	return findings, nil
}

type span struct {
	first, last int
	name        string
}

// place names the functions that the lines are in, or that they hold; "" when there are none.
func place(functions map[string][]span, file string, first, last int) string {
	var names []string
	for _, f := range functions[file] {
		if f.first <= last && first <= f.last {
			names = append(names, f.name)
		}
	}
	if names == nil {
		return ""
	}
	return file + ":" + strings.Join(names, "+")
}
