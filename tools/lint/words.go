package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"strings"
)

// phrases are forms of speech that a reader who learned English late has to guess at, and the form that replaces them.
// One letter is in brackets so that this table does not find itself.
var phrases = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`(?i)\bn[o]body\b`), "the noun: no client, no user, no test"},
	{regexp.MustCompile(`(?i)\bwho[e]ver\b`), "the noun: the client, the caller, anyone who"},
	{regexp.MustCompile(`(?i)\bwho [a]sks\b`), "the noun: the client, the caller, the requester"},
	{regexp.MustCompile(`(?i)\bt[e]lls\b`), "reports, returns, says"},
	{regexp.MustCompile(`(?i)\bis [w]hat\b`), "the noun itself"},
	{regexp.MustCompile(`(?i)\bspeaks? [a]gainst\b`), "prevents, forbids"},
	{regexp.MustCompile(`(?i)\bof [n]o use\b`), "cannot be used"},
}

// privateNames are words in identifiers for which the field has a term.
var privateNames = map[string]string{
	"calm": "clear", "doors": "grants", "keeper": "store", "nobody": "the noun", "told": "the fact that was reported",
	"wish": "request",
}

// phrased finds the phrases in prose that begins at a line of a file.
func phrased(name string, first int, prose string) []string {
	var findings []string
	for i, line := range strings.Split(prose, "\n") {
		for _, p := range phrases {
			if found := p.pattern.FindString(line); found != "" {
				findings = append(findings, fmt.Sprintf("%s:%d: words: not %q but %s", name, first+i, found, p.instead))
			}
		}
	}
	return findings
}

// unplain finds phrases in comments and in literals of more than one word, and private words in identifiers.
func unplain(fset *token.FileSet, file *ast.File) []string {
	var findings []string
	prose := func(pos token.Pos, text string) {
		p := fset.Position(pos)
		findings = append(findings, phrased(p.Filename, p.Line, text)...)
	}
	for _, group := range file.Comments {
		for _, c := range group.List {
			prose(c.Pos(), c.Text)
		}
	}
	seen := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if strings.Contains(n.Value, " ") {
				prose(n.Pos(), n.Value)
			}
		case *ast.Ident:
			if seen[n.Name] {
				break
			}
			seen[n.Name] = true
			for _, word := range camelCase.FindAllString(n.Name, -1) {
				if instead, ok := privateNames[strings.ToLower(word)]; ok {
					p := fset.Position(n.Pos())
					findings = append(findings, fmt.Sprintf("%s:%d: words: %s: not %q but %s", p.Filename, p.Line,
						n.Name, word, instead))
				}
			}
		}
		return true
	})
	return findings
}

var camelCase = regexp.MustCompile(`[A-Z]?[a-z0-9]+|[A-Z]+`)
