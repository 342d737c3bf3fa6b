package arch

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/ingot-metal/ingot/conductor/config"
)

// TestLimitsAreThoseOfTheCode: each row of the tables of limits in docs/reference/limits.md names the settings, or
// the constants, that its values come from, and the values are theirs. No setting of limits.* and history.*, and no
// constant of the list of limits is missing there.
func TestLimitsAreThoseOfTheCode(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "limits.md"))
	if err != nil {
		t.Fatal(err)
	}
	settings := defaults(t)
	rows := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 2 || strings.HasPrefix(line, "|--") || strings.Contains(line, "| setting |") {
			continue
		}
		if len(cells) != 6 {
			t.Errorf("a row has %d cells, want 4: %s", len(cells)-2, line)
			continue
		}
		rows++
		sources := source.FindAllString(cells[3], -1)
		if len(sources) == 0 {
			t.Errorf("neither a setting nor a constant is named: %s", line)
		}
		left := cells[2]
		for _, name := range sources {
			value, known := settings[strings.Trim(name, "`")]
			if !strings.HasPrefix(name, "`") {
				value, known = constantOf(t, name), true
			}
			delete(settings, strings.Trim(name, "`"))
			if !known {
				t.Errorf("there is no setting %s: %s", name, line)
				continue
			}
			at := regexp.MustCompile(`(^|[^0-9,])(` + strings.Join(written(value), "|") +
				`)($|[^0-9,]|,[^0-9])`).FindStringIndex(left)
			if at == nil {
				t.Errorf("%s is %v, which %q does not say: %s", name, value, left, line)
				continue
			}
			left = left[at[1]-1:]
		}
	}
	for _, name := range constants(t, listOfLimits) {
		if !strings.Contains(string(text), "conductor/guard/limit."+name+" ") {
			t.Errorf("docs/reference/limits.md does not name limit.%s", name)
		}
	}
	for name := range settings {
		if strings.HasPrefix(name, "limits.") || strings.HasPrefix(name, "history.") {
			t.Errorf("docs/reference/limits.md does not name %s", name)
		}
	}
	if rows < 30 {
		t.Errorf("%d rows of limits; are the tables still as this test reads them?", rows)
	}
}

// listOfLimits has all limits that can't be set.
var listOfLimits = filepath.Join("..", "..", "conductor", "guard", "limit", "list.go")

// constants lists the names of the constants of a file.
func constants(t *testing.T, file string) (names []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range constantSpecs(f) {
		for _, id := range c.Names {
			names = append(names, id.Name)
		}
	}
	if len(names) < 50 {
		t.Errorf("%s has %d constants; are the limits still there?", file, len(names))
	}
	return names
}

func constantSpecs(f *ast.File) (all []*ast.ValueSpec) {
	for _, d := range f.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.CONST {
			for _, s := range g.Specs {
				all = append(all, s.(*ast.ValueSpec))
			}
		}
	}
	return all
}

// source is a `setting`, or a constant as folder.name.
var source = regexp.MustCompile("`[a-z_]+\\.[a-z_.]+`|conductor/[a-z/]+\\.[A-Za-z]+")

// defaults gives the settings and what they are when nothing is said: numbers and durations.
func defaults(t *testing.T) map[string]any {
	t.Helper()
	var b bytes.Buffer
	if err := config.Default().Write(&b); err != nil {
		t.Fatal(err)
	}
	var sections map[string]any
	if err := yaml.Unmarshal(b.Bytes(), &sections); err != nil {
		t.Fatal(err)
	}
	all := map[string]any{}
	for section, v := range sections {
		keys, _ := v.(map[string]any)
		for key, v := range keys {
			if d, err := time.ParseDuration(fmt.Sprint(v)); err == nil {
				v = d
			}
			all[section+"."+key] = v
		}
	}
	return all
}

// constantOf gives the value of a constant, named by the folder of its package and its name: an int or a time.Duration.
func constantOf(t *testing.T, name string) any {
	t.Helper()
	dir, name, _ := strings.Cut(name, ".")
	files, err := filepath.Glob(filepath.Join("..", "..", dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, "_test.go") || !bytes.Contains(src, []byte(name+" ")) {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range constantSpecs(f) {
			for i, id := range c.Names {
				if id.Name == name && i < len(c.Values) {
					return evaluated(t, string(src[c.Values[i].Pos()-f.FileStart:c.Values[i].End()-f.FileStart]))
				}
			}
		}
	}
	t.Errorf("there is no constant %s in %s", name, dir)
	return 0
}

// evaluated computes what needs nothing but numbers and units of time.
func evaluated(t *testing.T, expr string) any {
	t.Helper()
	plain := strings.NewReplacer("time.Millisecond", "1000000", "time.Second", "1000000000", "time.Minute",
		"60000000000", "time.Hour", "3600000000000").Replace(expr)
	v, err := types.Eval(token.NewFileSet(), nil, token.NoPos, plain)
	if err != nil {
		t.Fatalf("compute %s: %v", expr, err)
	}
	n, exact := constant.Int64Val(constant.ToInt(v.Value))
	if !exact {
		t.Fatalf("%s is no whole number", expr)
	}
	if plain != expr {
		return time.Duration(n)
	}
	return int(n)
}

// written gives the ways in which the documentation writes a value, as patterns.
func written(v any) (ways []string) {
	add := func(n, unit int, name string) {
		if n > 0 && n%unit == 0 {
			ways = append(ways, strconv.Itoa(n/unit)+name)
		}
	}
	switch v := v.(type) {
	case time.Duration:
		const day = 24 * int(time.Hour)
		for unit, name := range map[int]string{int(time.Millisecond): " ms", int(time.Second): " s",
			int(time.Minute): " min", int(time.Hour): " h", day: " days", 365 * day: " years"} {
			add(int(v), unit, name)
		}
	case int:
		add(v, 1, "")
		add(v, 1<<10, " KiB")
		add(v, 1<<20, " MiB")
		if v >= 10_000 && v%1000 == 0 && v < 1_000_000 {
			ways = append(ways, fmt.Sprintf("%d,000", v/1000))
		}
	}
	return ways
}
