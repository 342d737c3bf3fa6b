package clean

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestLine(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "PowerEdge R740, größer — 機械": "PowerEdge R740, größer — 機械", "a\nb\tc": "a b c",
		"\x1b[2J\x1b]0;own\x07": "?[2J?]0;own?", "x\u009b2J": "x?2J", "a\u202eb": "a?b", "\xff\xfe": "?",
		"a\x00b\x7f": "a?b?", strings.Repeat("a", 70): strings.Repeat("a", 61) + "...",
	} {
		if got := Line(in, 64); got != want {
			t.Errorf("Line(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestJSONStaysOrIsClean(t *testing.T) {
	for in, want := range map[string]string{
		`{ "a" : [1.50, "x", null, 12345678901234567890], "b":"é" }`: `{ "a" : [1.50, "x", null, 12345678901234567890], "b":"é" }`,
		`{"a":"\u001b[2J","n":1.50}`:                                 `{"a":"?[2J","n":1.50}`,
		`{"\u001bk":["l\nm"]}`:                                       `{"?k":["l m"]}`,
		`{"a":"` + "\u009b" + `"}`:                                   `{"a":"?"}`,
		`"` + strings.Repeat("b", 50) + `"`:                          `"` + strings.Repeat("b", 29) + `..."`,
		`{`:                                                          "", `1 2`: "",
	} {
		if got := string(JSON([]byte(in), 32, false)); got != want {
			t.Errorf("JSON(%s) = %s, want %s", in, got, want)
		}
	}
	if in := `{"a":"l\nm\tn"}`; string(JSON([]byte(in), 32, true)) != in {
		t.Error("lines of a text that may have several are not kept")
	}
}

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{"plain ä": "plain ä", "\x1b[2J": `\x1b[2J`, "a\nb": `a\nb`,
		"\u202e": `\u202e`, "\xff": `\xff`, "\u009b": `\x9b`} {
		if got := Quote(in); got != want {
			t.Errorf("Quote(%q) = %q, want %q", in, got, want)
		}
	}
	var b strings.Builder
	if n, err := (Writer{&b}).Write([]byte("a\tb\n\x1b[2J\r\nc\n")); n == 0 || err != nil ||
		b.String() != "a\tb\n\\x1b[2J\\x0d\nc\n" {
		t.Errorf("Writer wrote %q", b.String())
	}
}

func FuzzClean(f *testing.F) {
	f.Add("\x1b[2J", 10)
	f.Fuzz(func(t *testing.T, s string, most int) {
		if most < 8 || most > 1<<16 {
			return
		}
		for _, got := range []string{Line(s, most), Quote(s)} {
			if strings.ContainsFunc(got, bad) {
				t.Errorf("%q became %q", s, got)
			}
		}
		if got := Line(s, most); len(got) > most || Line(got, most) != got {
			t.Errorf("Line(%q, %d) = %q", s, most, got)
		}
		if b, err := json.Marshal(s); err == nil && !json.Valid(JSON(b, most, true)) {
			t.Errorf("JSON of %q is none", s)
		}
	})
}
