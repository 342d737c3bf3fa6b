package rest

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// appendJSON appends what encoding/json makes of v, without its escapes for HTML. The kinds of value that answers are
// made of are written at once; whatever else there is goes through encoding/json. Lists of a thousand nodes are why:
// sixty fields each, every one of which cost a buffer, an encoder and a second look at its output.
func appendJSON(b []byte, v any) ([]byte, error) {
	switch x := v.(type) {
	case nil:
		return append(b, "null"...), nil
	case string:
		return appendString(b, x), nil
	case bool:
		return strconv.AppendBool(b, x), nil
	case int:
		return strconv.AppendInt(b, int64(x), 10), nil
	case float64:
		return appendFloat(b, x)
	case json.Number: // kept by package exact: the decoder's own text
		return append(b, x...), nil
	case Null:
		if x == Blank {
			return append(b, '"', '"'), nil
		}
		if x == "" {
			return append(b, "null"...), nil
		}
		return appendString(b, string(x)), nil
	case NullTime:
		return appendTime(b, x), nil
	case *bool:
		if x == nil {
			return append(b, "null"...), nil
		}
		return strconv.AppendBool(b, *x), nil
	case Object:
		return appendObject(b, x)
	case []Object:
		return appendList(b, x, appendObject)
	case List:
		return x.append(b)
	case Item:
		return x(b)
	case map[string]any:
		return appendMap(b, x)
	case []any:
		return appendList(b, x, appendJSON)
	case []string:
		return appendList(b, x, func(b []byte, s string) ([]byte, error) { return appendString(b, s), nil })
	case []Link:
		return appendList(b, x, func(b []byte, l Link) ([]byte, error) { return appendLink(b, l), nil })
	}
	buf := bytes.NewBuffer(b)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// Item is a JSON value that is made while it is encoded: it appends itself to b.
type Item func(b []byte) ([]byte, error)

// MarshalJSON implements json.Marshaler.
func (i Item) MarshalJSON() ([]byte, error) { return i(nil) }

// List is a JSON list whose items are made while it is encoded, so that a long one is never there as a whole but in its
// encoding.
type List struct {
	Len int
	// Item appends the i-th item to b.
	Item func(b []byte, i int) ([]byte, error)
}

// MarshalJSON implements json.Marshaler.
func (l List) MarshalJSON() ([]byte, error) { return l.append(nil) }

func (l List) append(b []byte) ([]byte, error) {
	b = append(b, '[')
	for i := range l.Len {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = l.Item(b, i); err != nil {
			return nil, err
		}
		if i == 0 && l.Len > 8 { // the others will be about as long
			b = slices.Grow(b, (len(b)+64)*(l.Len-1))
		}
	}
	return append(b, ']'), nil
}

func appendList[T any](b []byte, l []T, item func([]byte, T) ([]byte, error)) ([]byte, error) {
	if l == nil {
		return append(b, "null"...), nil
	}
	b = append(b, '[')
	for i, v := range l {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = item(b, v); err != nil {
			return nil, err
		}
	}
	return append(b, ']'), nil
}

func appendObject(b []byte, o Object) ([]byte, error) {
	b = append(b, '{')
	for i, m := range o {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, m.Name), ':')
		var err error
		if b, err = appendJSON(b, m.Value); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

func appendMap(b []byte, m map[string]any) ([]byte, error) {
	if m == nil {
		return append(b, "null"...), nil
	}
	var few [16]string
	keys := few[:0]
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	b = append(b, '{')
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, k), ':')
		var err error
		if b, err = appendJSON(b, m[k]); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

func appendLink(b []byte, l Link) []byte {
	b = appendString(append(b, `{"href":`...), l.Href)
	b = appendString(append(b, `,"rel":`...), l.Rel)
	if l.Type != "" {
		b = appendString(append(b, `,"type":`...), l.Type)
	}
	return append(b, '}')
}

func appendTime(b []byte, t NullTime) []byte {
	if t.IsZero() {
		return append(b, "null"...)
	}
	b = append(b, '"')
	b = time.Time.AppendFormat(t.UTC(), b, timeLayout)
	return append(b, '"')
}

// appendFloat writes whole numbers itself, as most are.
func appendFloat(b []byte, f float64) ([]byte, error) {
	if n := int64(f); math.Abs(f) < 1e15 && float64(n) == f && (n != 0 || !math.Signbit(f)) {
		return strconv.AppendInt(b, n, 10), nil
	}
	out, err := json.Marshal(f)
	return append(b, out...), err
}

// appendString writes text as it is, as long as nothing in it needs an escape.
func appendString(b []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			return appendEscaped(b, s)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

func appendEscaped(b []byte, s string) []byte {
	buf := bytes.NewBuffer(b)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		return append(b, `""`...) // a string can't fail
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
}
