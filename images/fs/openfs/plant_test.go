package openfs

import (
	"strings"
	"testing"
)

func TestPlant(t *testing.T) {
	r := Rules{What: "a test", Files: 4, Depth: 3, Units: 4, Bytes: 6, Forbidden: ":"}
	fold := r
	fold.Fold = true
	files := func(names ...string) (out []Content) {
		for _, n := range names {
			out = append(out, Content{Path: n, Data: []byte(n)})
		}
		return out
	}
	for _, c := range []struct {
		files []Content
		rules Rules
		want  string // the tree, or the error
	}{
		{files("b", "a/c", "a/b"), r, "b a/(c b)"},
		{files("x", "X", "d/y", "D/z"), r, "x X d/(y) D/(z)"},
		{files("d/y", "D/z"), fold, "d/(y z)"},
		{files("x", "X"), fold, "two files"},
		{files("a", "a"), r, "two files"},
		{files("a", "a/b"), r, "two files"},
		{files("a/b", "a"), r, "two files"},
		{files("1", "2", "3", "4", "5"), r, "5 files are too many"},
		{files("a/b/c/d"), r, "too deep"},
		{files("abcde"), r, "can't be on a test"},
		{files("äöüß"), r, "can't be on a test"}, // four units, eight bytes
		{files("a:"), r, "can't be on a test"},
		{files("a//b"), r, "can't be on a test"},
		{files("../a"), r, "can't be on a test"},
		{files("/a"), r, "can't be on a test"},
	} {
		root, err := Plant[int](c.files, c.rules)
		if err != nil {
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: %v, want %q", c.files, err, c.want)
			}
			continue
		}
		if got := drawn(root); got != c.want {
			t.Errorf("%v: %q, want %q", c.files, got, c.want)
		}
	}
}

func drawn(dir *Node[int]) string {
	var out []string
	for _, n := range dir.Children {
		s := n.Name
		if n.Dir {
			s += "/(" + drawn(n) + ")"
		} else if !strings.HasSuffix(string(n.Data), n.Name) {
			s += "?"
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func TestPlainName(t *testing.T) {
	for in, want := range map[string]string{"abc": "ABC", "a-b.c": "A_B_C", "longname": "LONGNA", "ä": "_", "": ""} {
		if got := PlainName(in, 6); got != want {
			t.Errorf("PlainName(%q) = %q, want %q", in, got, want)
		}
	}
}
