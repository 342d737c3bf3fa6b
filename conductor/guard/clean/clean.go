// Package clean makes strings of machines fit to be stored and shown.
//
// Strings from an agent, a controller, a switch or a network card may hold escape sequences for the reader's terminal,
// line breaks that forge lines of a log, marks that turn the direction of writing, or a wall of text. Line and JSON are
// applied where such strings arrive; Quote and Writer where they are shown, for strings that were stored before or came
// another way. Clean text stays unchanged.
package clean

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Replacement stands for a character that is not let through.
const Replacement = '?'

// bad reports whether a character affects a terminal or a log instead of being shown: control characters, and Unicode's
// characters for the direction of writing and for line breaks.
func bad(r rune) bool {
	if r < 0x7f {
		return r < 0x20
	}
	if r < 0xa0 || r == '\u200e' || r == '\u200f' || r == '\u061c' || r >= '\u2028' && r <= '\u202e' || r >= '\u2066' &&
		r <= '\u2069' || r == '\ufeff' {
		return true
	}
	return r >= 0xe0000 && unicode.Is(unicode.Cf, r) // tags, which are invisible text
}

// Line is a text as one line of at most most bytes: line breaks and tabs become spaces, other control characters
// Replacement.
func Line(s string, most int) string { return text(s, most, false) }

func text(s string, most int, breaks bool) string {
	const more = "..."
	s = strings.ToValidUTF8(s, string(Replacement))
	s = strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			if breaks {
				return r
			}
			return ' '
		}
		if bad(r) {
			return Replacement
		}
		return r
	}, s)
	if len(s) > most {
		s = strings.ToValidUTF8(s[:max(0, most-len(more))], "") + more
	}
	return s
}

// JSON is a document whose texts, and names of members, are clean and of at most most bytes each. With breaks, texts
// may have several lines. One that is clean stays as it is, to the byte; one that can't be read becomes nil.
func JSON(doc []byte, most int, breaks bool) []byte {
	var v any
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	if dec.Decode(&v) != nil || dec.More() {
		return nil
	}
	changed := false
	v = value(v, most, breaks, &changed)
	if !changed && utf8.Valid(doc) {
		return doc
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return b
}

func value(v any, most int, breaks bool, changed *bool) any {
	str := func(s string, breaks bool) string {
		c := text(s, most, breaks)
		*changed = *changed || c != s
		return c
	}
	switch x := v.(type) {
	case string:
		return str(x, breaks)
	case []any:
		for i := range x {
			x[i] = value(x[i], most, breaks, changed)
		}
	case map[string]any:
		for k, in := range x {
			in = value(in, most, breaks, changed)
			if c := str(k, false); c != k {
				delete(x, k)
				k = c
			}
			x[k] = in
		}
	}
	return v
}

// Quote writes the characters of a text that are not to reach a terminal as Go writes them (\x1b, \u202e).
func Quote(s string) string {
	if utf8.ValidString(s) && strings.IndexFunc(s, bad) < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case bad(r) && r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		case bad(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	return b.String()
}

// Writer writes text to a terminal or a file, with what Quote quotes quoted, but for line breaks and tabs. A character
// must not be split between two writes.
type Writer struct{ W io.Writer }

func (w Writer) Write(p []byte) (int, error) {
	if utf8.Valid(p) && bytes.IndexFunc(p, func(r rune) bool { return bad(r) && r != '\n' && r != '\t' }) < 0 {
		return w.W.Write(p)
	}
	var b strings.Builder
	for part := range strings.SplitAfterSeq(string(p), "\n") {
		line, broken := strings.CutSuffix(part, "\n")
		for i, cell := range strings.Split(line, "\t") {
			if i > 0 {
				b.WriteByte('\t')
			}
			b.WriteString(Quote(cell))
		}
		if broken {
			b.WriteByte('\n')
		}
	}
	if _, err := io.WriteString(w.W, b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}
