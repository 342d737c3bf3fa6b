package arch

import (
	"fmt"
	"go/ast"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/images/blkid"
)

// TestFormatsAreThoseOfTheCode compares the tables of docs/reference/image-formats.md with the code, in both
// directions: formats and whether they are written, compressions, file systems and what is done with them.
func TestFormatsAreThoseOfTheCode(t *testing.T) {
	page := filepath.Join("reference", "image-formats.md")

	formats := stringConstants(t, "images/detect.go", "Format")
	opened := openedFormats(t)
	var named []string
	for _, row := range tableUnder(t, page, "Formats") {
		for name := range strings.SplitSeq(row[0], ", ") {
			name = strings.Trim(name, "`")
			named = append(named, name)
			// The index of a published image is read by the agent's own package, not by package images.
			written := strings.HasPrefix(row[2], "written")
			if written != opened[name] && name != formats["Published"] {
				t.Errorf("docs/%s: %s: %s; the code opens it: %v", page, name, row[2], opened[name])
			}
		}
	}
	sameNames(t, page, "Formats", named, slices.Collect(maps.Values(formats)))

	compressions := stringConstants(t, "images/detect.go", "Compression")
	delete(compressions, "Plain")
	sameNames(t, page, "Compressions", column(t, page, "Compressions", 0), slices.Collect(maps.Values(compressions)))

	var got, want []string
	for _, row := range tableUnder(t, page, "File systems") {
		name, _, _ := strings.Cut(strings.TrimPrefix(row[0], "`"), "`")
		got = append(got, strings.Join([]string{name, row[1], row[2], row[3]}, " "))
	}
	dirs, err := os.ReadDir(filepath.Join("..", "..", "images", "fs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if d.Name() == "openfs" { // what all of them share
			continue
		}
		does := func(function string) string {
			if slices.Contains(functions(t, "images/fs/"+d.Name()), function) {
				return "yes"
			}
			return "no"
		}
		want = append(want, fmt.Sprintf("%s %s %s %s", d.Name(), does("Open"), does("Make"), does("OpenWriter")))
	}
	sameNames(t, page, "File systems", got, want)
}

// TestFormatsSignatures makes the table of signatures in docs/reference/image-formats.md, or holds it to the code.
func TestFormatsSignatures(t *testing.T) {
	const begin = "<!-- signatures: made from images/blkid by go test ./test/arch -run Formats -update -->\n"
	const end = "<!-- end of signatures -->\n"
	file := filepath.Join("..", "..", "docs", "reference", "image-formats.md")
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(old), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("docs/reference/image-formats.md lacks the marks %q and %q", begin, end)
	}
	kinds := slices.Sorted(maps.Values(stringConstants(t, "images/blkid/blkid.go", "Kind")))
	table := "| kind | what it is |\n|---|---|\n"
	for _, k := range kinds {
		table += fmt.Sprintf("| `%s` | %s |\n", k, blkid.Kind(k).Description())
	}
	golden(t, file, []byte(before+begin+table+end+after))
}

// openedFormats gives the formats that the table of package images opens; the others are recognised and refused.
func openedFormats(t *testing.T) map[string]bool {
	t.Helper()
	names := stringConstants(t, "images/detect.go", "Format")
	opened := map[string]bool{}
	for _, f := range parsed(t, "images/images.go") {
		ast.Inspect(f, func(n ast.Node) bool {
			row, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			name, opens := "", false
			for _, e := range row.Elts {
				kv, ok := e.(*ast.KeyValueExpr)
				if !ok {
					return true
				}
				key, _ := kv.Key.(*ast.Ident)
				value, _ := kv.Value.(*ast.Ident)
				switch {
				case key == nil:
				case key.Name == "name" && value != nil:
					name = names[value.Name]
				case key.Name == "open":
					opens = true
				}
			}
			if name != "" {
				opened[name] = opens
			}
			return true
		})
	}
	if len(opened) < 10 {
		t.Fatalf("the table of formats has %d rows; is it still as this test reads it?", len(opened))
	}
	return opened
}

// functions gives the exported functions of a package.
func functions(t *testing.T, dir string) (names []string) {
	t.Helper()
	for _, f := range parsed(t, dir) {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.IsExported() {
				names = append(names, fn.Name.Name)
			}
		}
	}
	return names
}
