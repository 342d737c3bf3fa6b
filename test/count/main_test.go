package main

import (
	"strings"
	"testing"
)

func TestCount(t *testing.T) {
	const pass = `{"Action":"run","Package":"p","Test":"A"}
{"Action":"output","Package":"p","Test":"A","Output":"fine\n"}
{"Action":"pass","Package":"p","Test":"A"}
{"Action":"pass","Package":"p","Elapsed":0.1}
`
	for _, c := range []struct {
		name, in string
		ok       bool
		want     []string
		not      string
	}{
		{"pass", pass, true, []string{"1 passed, 0 failed, 0 skipped"}, "fine"},
		{"what takes long is named", pass + `{"Action":"pass","Package":"p","Test":"B","Elapsed":61}
{"Action":"pass","Package":"p","Test":"B/part","Elapsed":60}
`, true, []string{"slow      61 s  p B\n3 passed"}, "part"},
		{"nothing ran", "", false, []string{"0 passed, 0 failed, 0 skipped"}, ""},
		{"fail shows output", pass + `{"Action":"output","Package":"p","Test":"B","Output":"why\n"}
{"Action":"fail","Package":"p","Test":"B"}
`, false, []string{"why", "1 passed, 1 failed, 0 skipped"}, "fine"},
		{"a skip is a gap", pass + `{"Action":"output","Package":"p","Test":"C","Output":"needs root\n"}
{"Action":"skip","Package":"p","Test":"C"}
`, false, []string{"needs root", "1 passed, 0 failed, 1 skipped"}, ""},
		{"package died", pass + `{"Action":"fail","Package":"q"}
`, false, []string{"FAIL  q", "1 passed, 0 failed, 0 skipped"}, ""},
		{"a test that never ended", pass + `{"Action":"run","Package":"q","Test":"D"}
{"Action":"output","Package":"q","Test":"D","Output":"goroutine 7 [chan receive]\n"}
{"Action":"output","Package":"q","Output":"FAIL q 900s\n"}
{"Action":"fail","Package":"q"}
`, false, []string{"FAIL q 900s", "UNFINISHED  q D\ngoroutine 7", "1 passed, 0 failed, 0 skipped"}, "fine"},
		{"build failure", pass + `{"Action":"build-output","ImportPath":"q","Output":"syntax\n"}
{"Action":"fail","Package":"q"}
`, false, []string{"syntax"}, ""},
	} {
		var out strings.Builder
		if got := count(strings.NewReader(c.in), &out); got != c.ok {
			t.Errorf("%s: count = %v, want %v", c.name, got, c.ok)
		}
		for _, w := range c.want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%s: output %q lacks %q", c.name, out.String(), w)
			}
		}
		if c.not != "" && strings.Contains(out.String(), c.not) {
			t.Errorf("%s: output %q has %q", c.name, out.String(), c.not)
		}
	}
}
