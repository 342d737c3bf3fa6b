package engine

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// sentence ends a text with a full stop and begins it with a capital, which last_error is read with. Names of things
// are left.
func sentence(s string) string {
	s = strings.TrimSpace(s)
	if s == "" {
		return s
	}
	r, n := utf8.DecodeRuneInString(s)
	first, _, _ := strings.Cut(s, " ")
	if unicode.IsLower(r) && !strings.ContainsAny(first, "_./:") {
		s = string(unicode.ToUpper(r)) + s[n:]
	}
	return ended(s)
}

// ended ends a text with a full stop.
func ended(s string) string {
	if s == "" || strings.HasSuffix(s, ".") || strings.HasSuffix(s, "!") {
		return s
	}
	return s + "."
}

// withRemedy joins what happened and what to do about it.
func withRemedy(cause, remedy string) string {
	if remedy == "" {
		return sentence(cause)
	}
	return sentence(cause) + " " + sentence(remedy)
}
