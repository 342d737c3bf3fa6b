package rest

import (
	"encoding/json"
	"slices"
	"time"
)

// Null is a string that is JSON null when empty.
type Null string

// Blank is the Null that is an empty string in JSON. It is no text that a client could send, and sorts before all that
// are.
const Blank Null = "\x00\xff"

// Text returns an attribute as clients see it: Blank when it is empty and its name is among blank.
func Text(s, name string, blank []string) Null {
	if s == "" && slices.Contains(blank, name) {
		return Blank
	}
	return Null(s)
}

// MarshalJSON implements json.Marshaler.
func (n Null) MarshalJSON() ([]byte, error) { return marshal(n) }

// UnmarshalJSON implements json.Unmarshaler.
func (n *Null) UnmarshalJSON(b []byte) error {
	var s *string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	*n = ""
	if s != nil {
		*n = Null(*s)
	}
	return nil
}

// NullTime is a time that is JSON null when zero.
type NullTime struct{ time.Time }

const timeLayout = "2006-01-02T15:04:05-07:00"

// MarshalJSON implements json.Marshaler.
func (t NullTime) MarshalJSON() ([]byte, error) {
	return appendTime(nil, t), nil
}

// UnmarshalJSON implements json.Unmarshaler. Fractions of seconds and a missing offset (then UTC) are accepted too.
func (t *NullTime) UnmarshalJSON(b []byte) error {
	var s *string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	t.Time = time.Time{}
	if s == nil || *s == "" {
		return nil
	}
	at, err := time.Parse(time.RFC3339Nano, *s)
	if err != nil {
		if at, err = time.Parse("2006-01-02T15:04:05.999999999", *s); err != nil {
			return err
		}
	}
	t.Time = at.UTC()
	return nil
}

// Link points at a resource.
type Link struct {
	Href string `json:"href"`
	Rel  string `json:"rel"`
	Type string `json:"type,omitempty"`
}

// Links makes the pair of links every resource has: itself, and its bookmark, which is the address without the version.
// base is scheme and host; path starts without slash: "nodes/1be2...".
func Links(base, path string) []Link {
	return []Link{{Href: base + "/v1/" + path, Rel: "self"}, {Href: base + "/" + path, Rel: "bookmark"}}
}

// Member is one name and value of an Object.
type Member struct {
	Name  string
	Value any
}

// Object is a JSON object that keeps the order of its members.
type Object []Member

// MarshalJSON implements json.Marshaler.
func (o Object) MarshalJSON() ([]byte, error) { return appendObject(nil, o) }

// marshal is json.Marshal without the escapes for HTML.
func marshal(v any) ([]byte, error) { return appendJSON(nil, v) }

// Marshal makes the JSON of an answer.
func Marshal(v any) ([]byte, error) { return marshal(v) }

// Append appends the JSON of an answer to b.
func Append(b []byte, v any) ([]byte, error) { return appendJSON(b, v) }

// orEmpty makes nil maps objects: the API never shows null where clients expect an object.
func orEmpty(m map[string]any) map[string]any {
	if m == nil {
		return map[string]any{}
	}
	return m
}
