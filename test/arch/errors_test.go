package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
)

// TestErrorsAreThoseOfTheCode compares the tables of docs/reference/errors.md with the code, in both directions.
func TestErrorsAreThoseOfTheCode(t *testing.T) {
	page := filepath.Join("reference", "errors.md")

	var statuses []string
	for _, name := range callArguments(t, "conductor/api", "Fault", "Routing") {
		statuses = append(statuses, statusNumber(t, name))
	}
	for _, dir := range []string{"conductor/rest", "conductor/api/openapi"} {
		for _, name := range selectors(t, dir, "http", "Status") {
			if name != "StatusText" { // a function
				statuses = append(statuses, statusNumber(t, name))
			}
		}
	}
	statuses = slices.DeleteFunc(statuses, func(s string) bool { return s < "400" })
	sameNames(t, page, "Answers of the API", column(t, page, "Answers of the API", 0), statuses)

	kinds := slices.Collect(maps.Values(stringConstants(t, "conductor/hardware/power/power.go", "Kind")))
	sameNames(t, page, "Faults of controllers", column(t, page, "Faults of controllers", 0), kinds)
	for _, row := range tableUnder(t, page, "Faults of controllers") {
		want := "fails the operation"
		if power.Retryable(&power.Error{Kind: power.Kind(strings.Trim(row[0], "`"))}) {
			want = "tries again"
		}
		if row[3] != want {
			t.Errorf("docs/%s: after %s the engine %s, not %q", page, row[0], want, row[3])
		}
	}

	outcomes := typedConstants(t, "agent/step", "Kind")
	sameNames(t, page, "Ends of steps", column(t, page, "Ends of steps", 0), outcomes)

	codes := callArguments(t, "conductor/agents", "Error", "Errorf")
	codes = slices.DeleteFunc(codes, func(name string) bool { return strings.HasPrefix(name, "Status") })
	sameNames(t, page, "Codes between agent and conductor", column(t, page, "Codes between agent and conductor", 0), codes)
	final := selectors(t, "agent/session.go", "codes", "")
	for _, row := range tableUnder(t, page, "Codes between agent and conductor") {
		if row[2] == "final" && !slices.Contains(final, strings.Trim(row[0], "`")) {
			t.Errorf("docs/%s: %s is final, but agent/session.go does not name it", page, row[0])
		}
	}

	programs := map[string]string{"ingot": "tools/cmd/ingot", "ingotd": "conductor/cmd/ingotd",
		"ingot-agent": "agent/cmd/ingot-agent"}
	var want, got []string
	for name, dir := range programs {
		for _, status := range append(callArguments(t, dir, "Exit"), "0") {
			want = append(want, name+" "+status)
		}
	}
	for _, row := range tableUnder(t, page, "Exit statuses of programs") {
		got = append(got, strings.Trim(row[0], "`")+" "+row[1])
	}
	sameNames(t, page, "Exit statuses of programs", got, want)
}

// sameNames compares what a table of a page names with what the code has.
func sameNames(t *testing.T, page, heading string, got, want []string) {
	t.Helper()
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(slices.Compact(got), slices.Compact(want)); diff != "" {
		t.Errorf("docs/%s, %q, is not what the code has (-page +code):\n%s", page, heading, diff)
	}
}

// tableUnder gives the rows of the tables under a heading of a page, without their heads.
func tableUnder(t *testing.T, page, heading string) (rows [][]string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	_, part, ok := strings.Cut(string(text), "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("docs/%s has no heading %q", page, heading)
	}
	part, _, _ = strings.Cut(part, "\n## ")
	head := true
	for line := range strings.Lines(part) {
		switch {
		case !strings.HasPrefix(line, "|"):
			head = true
		case strings.HasPrefix(line, "|--"):
			head = false
		case !head:
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells)
		}
	}
	if len(rows) == 0 {
		t.Fatalf("docs/%s has no table under %q", page, heading)
	}
	return rows
}

// column gives a column of the tables under a heading, without the marks of code.
func column(t *testing.T, page, heading string, i int) (cells []string) {
	t.Helper()
	for _, row := range tableUnder(t, page, heading) {
		cells = append(cells, strings.Trim(row[i], "`"))
	}
	return cells
}

// parsed gives the syntax of a file, or of all files below a folder but tests and what is for tests.
func parsed(t *testing.T, place string) (files []*ast.File) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join("..", "..", place), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasSuffix(path, "test") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		files = append(files, f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// callArguments gives the first argument of each call of a function, or of a package's function, of these names: a
// selector without its package, or a number.
func callArguments(t *testing.T, place string, functions ...string) (all []string) {
	t.Helper()
	for _, f := range parsed(t, place) {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			name := ""
			switch fun := call.Fun.(type) {
			case *ast.Ident:
				name = fun.Name
			case *ast.SelectorExpr:
				name = fun.Sel.Name
			}
			if !slices.Contains(functions, name) {
				return true
			}
			switch arg := call.Args[0].(type) {
			case *ast.SelectorExpr:
				if pkg, ok := arg.X.(*ast.Ident); ok && (pkg.Name == "http" || pkg.Name == "codes") {
					all = append(all, arg.Sel.Name)
				}
			case *ast.BasicLit:
				if arg.Kind == token.INT {
					all = append(all, arg.Value)
				}
			}
			return true
		})
	}
	return all
}

// selectors gives the names that begin with prefix and that files take from a package.
func selectors(t *testing.T, place, pkg, prefix string) (all []string) {
	t.Helper()
	for _, f := range parsed(t, place) {
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && strings.HasPrefix(s.Sel.Name, prefix) {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == pkg {
					all = append(all, s.Sel.Name)
				}
			}
			return true
		})
	}
	return all
}

// statusNumber is the number of a constant of net/http. It is found by the text of the status, which says the same as
// the constant's name.
func statusNumber(t *testing.T, name string) string {
	t.Helper()
	for n := 100; n < 600; n++ {
		if text := http.StatusText(n); text != "" && "Status"+strings.ReplaceAll(text, " ", "") == name {
			return strconv.Itoa(n)
		}
	}
	t.Errorf("no status of net/http has the name %s", name)
	return ""
}

// stringConstants gives the constants of a type that a file, or a folder, declares: names and values.
func stringConstants(t *testing.T, place, typ string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, f := range parsed(t, place) {
		for _, c := range constantSpecs(f) {
			if id, ok := c.Type.(*ast.Ident); !ok || id.Name != typ || len(c.Values) != len(c.Names) {
				continue
			}
			for i, name := range c.Names {
				if lit, ok := c.Values[i].(*ast.BasicLit); ok && lit.Kind == token.STRING {
					value, err := strconv.Unquote(lit.Value)
					if err != nil {
						t.Fatal(err)
					}
					all[name.Name] = value
				}
			}
		}
	}
	if len(all) == 0 {
		t.Fatalf("%s declares no constant of type %s", place, typ)
	}
	return all
}

// typedConstants gives the names of the constants that count up from one of this type.
func typedConstants(t *testing.T, place, typ string) (names []string) {
	t.Helper()
	for _, f := range parsed(t, place) {
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			if id, ok := g.Specs[0].(*ast.ValueSpec).Type.(*ast.Ident); !ok || id.Name != typ {
				continue
			}
			for _, s := range g.Specs {
				for _, id := range s.(*ast.ValueSpec).Names {
					names = append(names, id.Name)
				}
			}
		}
	}
	return names
}
