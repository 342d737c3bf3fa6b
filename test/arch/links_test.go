package arch

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// TestLinksOfTheDocumentation: each relative link in a page leads to a file that exists, and to a heading that the page
// it leads to has.
func TestLinksOfTheDocumentation(t *testing.T) {
	root := filepath.Join("..", "..")
	pages := markdownFiles(t, root)
	checked := 0
	for _, page := range pages {
		text, _ := prose(t, page)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target := m[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			checked++
			if fault := linkFault(t, page, target); fault != "" {
				t.Errorf("%s: link to %s: %s", strings.TrimPrefix(page, root+"/"), target, fault)
			}
		}
	}
	if len(pages) < 20 || checked < 100 {
		t.Errorf("%d links in %d pages were checked; does this test still find them?", checked, len(pages))
	}
}

// mostPictures is how many bytes all pictures of the documentation may have, since each clone has them.
const mostPictures = 600_000

var picture = regexp.MustCompile(`(?s)<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)-dark\.webp">\s*` +
	`<img src="([^"]+)-light\.webp" alt="([^"]{15,})">`)

// TestPictures: each picture of the documentation is there in both themes, shown, and described in words; together they
// are small.
func TestPictures(t *testing.T) {
	dir := filepath.Join("..", "..", "docs", "pictures")
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	total, unused := int64(0), map[string]bool{}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
		unused[f.Name()] = true
	}
	if total > mostPictures {
		t.Errorf("the pictures have %d bytes, want at most %d", total, mostPictures)
	}
	shown := 0
	for _, page := range markdownFiles(t, filepath.Join("..", "..")) {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		found := picture.FindAllStringSubmatch(string(b), -1)
		if n := strings.Count(string(b), "<picture>"); n != len(found) {
			t.Errorf("%s: of %d pictures %d have both themes and a text of 15 letters or more", page, n, len(found))
		}
		for _, m := range found {
			shown++
			if m[1] != m[2] {
				t.Errorf("%s: %s and %s are not one picture", page, m[1], m[2])
			}
			for _, theme := range []string{"-dark.webp", "-light.webp"} {
				name := filepath.Base(m[1]) + theme
				if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1]+theme)); err != nil {
					t.Errorf("%s: %v; make pictures takes them", page, err)
				}
				delete(unused, name)
			}
		}
	}
	for name := range unused {
		t.Errorf("docs/pictures/%s is on no page", name)
	}
	if shown < 20 {
		t.Errorf("%d pictures are shown", shown)
	}
}

// TestLinkFaults: the check above detects faults.
func TestLinkFaults(t *testing.T) {
	dir := t.TempDir()
	page := filepath.Join(dir, "page.md")
	text := "# A `word`, and -- more\n## Same\n## Same\n```sh\n# no heading\n```\n"
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"page.md", "#a-word-and----more", "page.md#same", "#same-1", "."} {
		if fault := linkFault(t, page, target); fault != "" {
			t.Errorf("link to %s: %s", target, fault)
		}
	}
	for _, target := range []string{"other.md", "#same-2", "page.md#no-heading", "/page.md"} {
		if linkFault(t, page, target) == "" {
			t.Errorf("link to %s: no fault was found", target)
		}
	}
}

var link = regexp.MustCompile(`\]\(([^()\s]+)\)`)

// linkFault describes the fault of a link of a page, or returns "".
func linkFault(t *testing.T, page, target string) string {
	t.Helper()
	file, anchor, _ := strings.Cut(target, "#")
	if filepath.IsAbs(file) {
		return "it is not relative"
	}
	if file == "" {
		file = page
	} else {
		file = filepath.Join(filepath.Dir(page), file)
	}
	if _, err := os.Stat(file); err != nil {
		return "there is no such file"
	}
	if anchor == "" {
		return ""
	}
	if _, anchors := prose(t, file); !anchors[anchor] {
		return "the page has no such heading"
	}
	return ""
}

// markdownFiles lists the pages below a folder, without what builds and package managers leave there.
func markdownFiles(t *testing.T, root string) (pages []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "node_modules" || path == filepath.Join(root, "build")):
			return filepath.SkipDir
		case strings.HasSuffix(path, ".md"):
			pages = append(pages, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

// prose reads a page without its blocks of code and without code in its lines, and the anchors of its headings.
func prose(t *testing.T, page string) (text string, anchors map[string]bool) {
	t.Helper()
	src, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	anchors = map[string]bool{}
	fence := ""
	for line := range strings.Lines(string(src)) {
		trimmed := strings.TrimSpace(line)
		switch {
		case fence != "":
			if trimmed == fence {
				fence = ""
			}
		case strings.HasPrefix(trimmed, "```"):
			fence = trimmed[:len(trimmed)-len(strings.TrimLeft(trimmed, "`"))]
		case strings.HasPrefix(line, "#"):
			anchor := anchorOf(strings.TrimLeft(trimmed, "# "))
			for n, base := 1, anchor; anchors[anchor]; n++ {
				anchor = base + "-" + string(rune('0'+n))
			}
			anchors[anchor] = true
		default:
			b.WriteString(codeSpan.ReplaceAllString(line, "code"))
		}
	}
	return b.String(), anchors
}

var codeSpan = regexp.MustCompile("`[^`\n]*`")

// anchorOf returns the anchor that web servers of repositories make of a heading.
func anchorOf(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

// TestPagesAreShort: a page that takes more than a quarter of an hour to read is split.
func TestPagesAreShort(t *testing.T) {
	const most = 2500
	root := filepath.Join("..", "..")
	for _, page := range markdownFiles(t, root) {
		src, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		words := 0
		for word := range strings.FieldsSeq(string(src)) {
			if strings.ContainsFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
				words++
			}
		}
		if words > most {
			t.Errorf("%s has %d words, want at most %d", strings.TrimPrefix(page, root+"/"), words, most)
		}
	}
}
