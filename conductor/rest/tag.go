package rest

import (
	"strings"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// The headers that name entity tags.
const (
	IfMatch     = "If-Match"
	IfNoneMatch = "If-None-Match"
)

// Tags are what an If-Match or an If-None-Match names (RFC 9110, sections 8.8.3 and 13.1).
type Tags struct {
	any  bool // "*": every state of an existing resource
	list []string
}

// ParseTags reads the values of a header, whose name is for errors.
func ParseTags(name string, values []string) (*Tags, *Error) {
	left := strings.Join(values, ",")
	if len(left) > limit.MatchHeader {
		return nil, BadRequest("The header %s is longer than %d bytes.", name, limit.MatchHeader)
	}
	if strings.Trim(left, " \t") == "*" {
		return &Tags{any: true}, nil
	}
	t := new(Tags)
	for {
		left = strings.TrimLeft(left, " \t")
		if rest, ok := strings.CutPrefix(left, ","); ok { // members of a list may be empty
			left = rest
			continue
		}
		if left == "" {
			break
		}
		n := tagLength(left)
		if n == 0 {
			return nil, badTags(name)
		}
		t.list, left = append(t.list, left[:n]), strings.TrimLeft(left[n:], " \t")
		if left != "" && left[0] != ',' {
			return nil, badTags(name)
		}
		if len(t.list) > limit.MatchTags {
			return nil, BadRequest("The header %s names more than %d entity tags.", name, limit.MatchTags)
		}
	}
	if len(t.list) == 0 {
		return nil, badTags(name)
	}
	return t, nil
}

func badTags(name string) *Error {
	return BadRequest(
		`The header %s must be *, or ETags as an answer has them, in double quotes: "5-hk2mrx6-hk2ms01". Several stand with commas between them.`, name)
}

// tagLength is the length of the entity tag that a text begins with; 0: with none.
func tagLength(s string) int {
	at := len(s) - len(strings.TrimPrefix(s, "W/"))
	if at == len(s) || s[at] != '"' {
		return 0
	}
	for i := at + 1; i < len(s); i++ {
		switch b := s[i]; {
		case b == '"':
			return i + 1
		case b <= ' ' || b == 0x7f:
			return 0
		}
	}
	return 0
}

// Holds reports whether If-Match holds for a strong tag: weak ones match nothing.
func (t *Tags) Holds(tag string) bool { return t.has(tag, false) }

// Knows reports whether If-None-Match names a tag; W/ makes no difference.
func (t *Tags) Knows(tag string) bool { return t.has(tag, true) }

func (t *Tags) has(tag string, weakly bool) bool {
	if t.any {
		return true
	}
	for _, named := range t.list {
		if weakly {
			named = strings.TrimPrefix(named, "W/")
		}
		if named == tag {
			return true
		}
	}
	return false
}
