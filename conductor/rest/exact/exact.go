// Package exact decodes JSON so that numbers stay as they were written.
//
// A float64 has 53 bits: 9007199254740993 becomes 9007199254740992 in it, and 1.0 is written back as 1. Unmarshal keeps
// the text of such a number, as a json.Number; every other number is a float64, as encoding/json makes it. So equal
// texts become equal values, and code that needs the size of a number calls Float or Plain. A number beyond the range
// of a float64 is refused: clients that decode into one could not read the answer.
package exact

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"strconv"
)

// Unmarshal is json.Unmarshal for values that are stored or answered.
func Unmarshal(data []byte, v any) error {
	if !spoiled(data) || !json.Valid(data) {
		return json.Unmarshal(data, v)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(v); err != nil {
		return err
	}
	return settle(reflect.ValueOf(v))
}

// Float returns the size of a number, rounded if need be; false if v is no number.
func Float(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case json.Number:
		f, err := v.Float64()
		return f, err == nil
	}
	return 0, false
}

// Plain makes a float64 of a number that is kept as text, and leaves other values alone: for code that goes by the
// size.
func Plain(v any) any {
	if n, ok := v.(json.Number); ok {
		if f, ok := Float(n); ok {
			return f
		}
	}
	return v
}

// Equal compares two numbers. From 2^53 on, where floats lie further apart than integers do, their texts must be the
// same.
func Equal(a, b any) (equal, numbers bool) {
	x, xOK := Float(a)
	y, yOK := Float(b)
	if !xOK || !yOK {
		return false, false
	}
	if x != y || math.Abs(x) < 1<<53 {
		return x == y, true
	}
	return a == b, true
}

// safeDigits are so many that every number which has no more of them, and neither fraction nor exponent, is the same as
// a float64.
const safeDigits = 15

// spoiled reports whether JSON has a number that a float64 would change. It looks at every byte once: most documents
// have none, and are decoded the usual way.
func spoiled(b []byte) bool {
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			for i++; i < len(b) && b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case c == '-' || '0' <= c && c <= '9':
			from, plain := i, true
			for ; i < len(b) && inNumber(b[i]); i++ {
				plain = plain && b[i] != '.' && b[i] != 'e' && b[i] != 'E'
			}
			if (!plain || i-from > safeDigits) && !survives(string(b[from:i])) {
				return true
			}
			i--
		}
	}
	return false
}

func inNumber(c byte) bool {
	return '0' <= c && c <= '9' || c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-'
}

// survives reports whether a float64 is written back as the text that it was read from.
func survives(text string) bool {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return false
	}
	b, err := json.Marshal(f)
	return err == nil && string(b) == text
}

// settle makes float64 of the numbers in v that are the same as one.
func settle(v reflect.Value) error {
	switch v.Kind() {
	case reflect.Interface:
		if v.IsNil() {
			return nil
		}
		x, err := settled(v.Interface())
		if err != nil {
			return err
		}
		v.Set(reflect.ValueOf(x))
	case reflect.Pointer:
		if !v.IsNil() {
			return settle(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				if err := settle(v.Field(i)); err != nil {
					return err
				}
			}
		}
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return nil
		}
		for i := range v.Len() {
			if err := settle(v.Index(i)); err != nil {
				return err
			}
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			e := reflect.New(v.Type().Elem()).Elem()
			e.Set(v.MapIndex(k))
			if err := settle(e); err != nil {
				return err
			}
			v.SetMapIndex(k, e)
		}
	}
	return nil
}

func settled(v any) (any, error) {
	switch x := v.(type) {
	case json.Number:
		f, err := x.Float64()
		if err != nil {
			return nil, &json.UnmarshalTypeError{Value: "number " + short(string(x)), Type: reflect.TypeFor[float64]()}
		}
		if survives(string(x)) {
			return f, nil
		}
	case map[string]any:
		for k, e := range x {
			s, err := settled(e)
			if err != nil {
				return nil, err
			}
			x[k] = s
		}
	case []any:
		for i, e := range x {
			s, err := settled(e)
			if err != nil {
				return nil, err
			}
			x[i] = s
		}
	}
	return v, nil
}

// short keeps a client's text from filling an error.
func short(s string) string {
	if len(s) > 40 {
		return s[:40] + "..."
	}
	return s
}
