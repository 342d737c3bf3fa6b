package attack

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// source parses a file of the project; path begins at the project's root.
func source(t *testing.T, fset *token.FileSet, path string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(fset, filepath.Join("..", "..", path), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// proofs knows the test functions of packages.
type proofs map[string]map[string]bool

// check fails the test unless each of the names, PACKAGE.FUNCTION, is a test or a fuzz test that there is.
func (p proofs) check(t *testing.T, what string, names []string) {
	t.Helper()
	if len(names) == 0 {
		t.Errorf("%s: no test shows that it fails", what)
	}
	for _, name := range names {
		pkg, function, _ := strings.Cut(name, ".")
		if p[pkg] == nil {
			p[pkg] = map[string]bool{}
			files, err := filepath.Glob(filepath.Join("..", "..", pkg, "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range files {
				for _, d := range source(t, token.NewFileSet(), filepath.Join(pkg, filepath.Base(file))).Decls {
					if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil &&
						(strings.HasPrefix(f.Name.Name, "Test") || strings.HasPrefix(f.Name.Name, "Fuzz")) {
						p[pkg][f.Name.Name] = true
					}
				}
			}
		}
		if !p[pkg][function] {
			t.Errorf("%s: %s does not exist", what, name)
		}
	}
}
