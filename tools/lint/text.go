package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"

	"github.com/golangci/misspell"
	"github.com/mgechev/revive/lint"
	"github.com/mgechev/revive/rule"
)

// Columns that a line of Go may have, a tab being four.
const width = 120

// text reports lines that are too wide, words that are misspelled or not plain English, and exported names of the
// product whose comment does not begin with them.
func text(files []string) ([]string, error) {
	var findings []string
	var product []string
	spelling := misspell.New()
	spelling.Compile()
	for _, name := range files {
		content, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted and not committed yet
		}
		if err != nil {
			return nil, err
		}
		if !strings.HasSuffix(name, ".go") {
			findings = append(findings, misspelled(spelling.Replace, name, string(content))...)
			findings = append(findings, phrased(name, 1, string(content))...)
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, content, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		if ast.IsGenerated(file) {
			continue
		}
		findings = append(findings, misspelled(spelling.ReplaceGo, name, string(content))...)
		findings = append(findings, unplain(fset, file)...)
		findings = append(findings, wide(fset, file, name, string(content))...)
		if !strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "test/") {
			product = append(product, name)
		}
	}
	undocumented, err := exported(product)
	return append(findings, undocumented...), err
}

func misspelled(replace func(string) (string, []misspell.Diff), name, content string) []string {
	var findings []string
	_, diffs := replace(content)
	for _, d := range diffs {
		findings = append(findings, fmt.Sprintf("%s:%d:%d: misspell: %q is written %q",
			name, d.Line, d.Column+1, d.Original, d.Corrected))
	}
	return findings
}

// wide finds lines that are wider than width, apart from those that a string literal alone makes so.
func wide(fset *token.FileSet, file *ast.File, name, content string) []string {
	literal := map[int]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING && len(l.Value) > width/4 {
			for line := fset.Position(l.Pos()).Line; line <= fset.Position(l.End()).Line; line++ {
				literal[line] = true
			}
		}
		return true
	})
	var findings []string
	for i, line := range strings.Split(content, "\n") {
		columns := 0
		for _, r := range line {
			columns++
			if r == '\t' {
				columns += 3
			}
		}
		if columns > width && !literal[i+1] {
			findings = append(findings, fmt.Sprintf("%s:%d: width: %d columns, at most %d", name, i+1, columns, width))
		}
	}
	return findings
}

// exported runs revive's rule of the same name, by package.
func exported(files []string) ([]string, error) {
	byFolder := map[string][]string{}
	var folders [][]string
	for _, f := range files {
		dir := f[:strings.LastIndex("/"+f, "/")]
		byFolder[dir] = append(byFolder[dir], f)
	}
	for _, f := range byFolder {
		folders = append(folders, f)
	}
	r := &rule.ExportedRule{}
	if err := r.Configure(lint.Arguments{"disableStutteringCheck"}); err != nil {
		return nil, err
	}
	linter := lint.New(os.ReadFile, 0)
	failures, err := linter.Lint(folders, []lint.Rule{r}, lint.Config{
		Rules: lint.RulesConfig{"exported": {Arguments: lint.Arguments{"disableStutteringCheck"}}},
	})
	if err != nil {
		return nil, err
	}
	var findings []string
	for f := range failures {
		if f.Failure != "" {
			findings = append(findings, fmt.Sprintf("%s:%d: exported: %s",
				f.Position.Start.Filename, f.Position.Start.Line, f.Failure))
		}
	}
	return findings, nil
}
