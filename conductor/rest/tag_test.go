package rest

import (
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

func TestParseTags(t *testing.T) {
	many := func(n int) string { return strings.Repeat(`"a",`, n) }
	for _, tt := range []struct {
		header       string // with | between several lines of it
		holds, knows bool   // for "a"
		bad          string
	}{
		{`"a"`, true, true, ""},
		{`*`, true, true, ""},
		{"\t* ", true, true, ""},
		{`W/"a"`, false, true, ""},
		{`"b"`, false, false, ""},
		{`"A"`, false, false, ""},
		{`""`, false, false, ""},
		{`"b", "a"`, true, true, ""},
		{`"b","a"`, true, true, ""},
		{`,, "b" ,	,"a",`, true, true, ""},
		{`"b"|"a"`, true, true, ""},
		{`W/"a", "b"`, false, true, ""},
		{`"a,b", "c"`, false, false, ""},
		{`"x*", "é"`, false, false, ""},
		{many(limit.MatchTags), true, true, ""},
		{"", false, false, "must be *"},
		{",", false, false, "must be *"},
		{"a", false, false, "must be *"},
		{`"a`, false, false, "must be *"},
		{`a"`, false, false, "must be *"},
		{`"a" "b"`, false, false, "must be *"},
		{`"a"b`, false, false, "must be *"},
		{`"a b"`, false, false, "must be *"},
		{"\"a\x00\"", false, false, "must be *"},
		{"\"a\x7f\"", false, false, "must be *"},
		{`w/"a"`, false, false, "must be *"},
		{`W/a`, false, false, "must be *"},
		{`W/`, false, false, "must be *"},
		{`*, "a"`, false, false, "must be *"},
		{`"a", *`, false, false, "must be *"},
		{`'a'`, false, false, "must be *"},
		{many(limit.MatchTags + 1), false, false, "more than 100"},
		{`"` + strings.Repeat("a", limit.MatchHeader) + `"`, false, false, "longer than"},
		{strings.Repeat(",", limit.MatchHeader+1), false, false, "longer than"},
	} {
		tags, err := ParseTags("If-Match", strings.Split(tt.header, "|"))
		if err != nil {
			if tt.bad == "" || err.Status != 400 || !strings.Contains(err.Message, tt.bad) || len(err.Message) > 300 {
				t.Errorf("%.40q = %v, want %q", tt.header, err, tt.bad)
			}
			continue
		}
		if holds, knows := tags.Holds(`"a"`), tags.Knows(`"a"`); tt.bad != "" || holds != tt.holds ||
			knows != tt.knows {
			t.Errorf("%.40q holds %v, knows %v; want %v, %v %s", tt.header, holds, knows, tt.holds, tt.knows, tt.bad)
		}
	}
}
