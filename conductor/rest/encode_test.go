package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"testing"
	"time"
)

// reference returns the output of encoding/json for v.
func reference(t testing.TB, v any) string {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		t.Fatalf("%#v: %v", v, err)
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

func TestEncodeLikeTheLibrary(t *testing.T) {
	yes := true
	at := time.Date(2026, 11, 3, 4, 5, 6, 789, time.FixedZone("x", 3600))
	type other struct {
		A int `json:"a"`
		B Null
	}
	for _, v := range []any{
		nil, "", "text", "q\"b\\s/\n\t\r\b\f\x00\x1f\x7f", "<&>", "é\u2028\u2029\xff\xfe", "日本", true, false, 0, -7,
		1 << 40, 0.0, math.Copysign(0, -1), 1.5, -3.0, 1e14, 1e15, 1e21, 1e-7, 123456789.125, math.MaxFloat64,
		math.SmallestNonzeroFloat64, -1e15, Null(""), Null("x\n"), NullTime{}, NullTime{at}, &yes, (*bool)(nil),
		[]string{"a", "\""}, []string(nil), []string{},
		[]Link{{Href: "http://h/<", Rel: "self"}, {Href: "h", Rel: "r", Type: "t"}}, []Link(nil),
		map[string]any{"b": 1.0, "a": []any{nil, "x", map[string]any{}}, "\"": Null("")}, map[string]any(nil),
		[]any(nil), []any{}, map[string]string{"k": "<"}, other{1, ""}, []other{{2, "x"}},
		json.RawMessage(`{ "a" : "<" }`), []int{1}, int64(7), uint64(1) << 63, 'x',
	} {
		got, err := Marshal(v)
		if err != nil || string(got) != reference(t, v) {
			t.Errorf("Marshal(%#v) = %s, %v, want %s", v, got, err, reference(t, v))
		}
		// As a member, where its own encoder does not get to see it first.
		o, err := Marshal([]Object{{{"name", v}, {"again", v}}})
		if want := `[{"name":` + reference(t, v) + `,"again":` + reference(t, v) + `}]`; err != nil ||
			string(o) != want {
			t.Errorf("a member: %s, %v, want %s", o, err, want)
		}
	}
	for _, v := range []any{math.NaN(), math.Inf(1), make(chan int), Object{{"x", math.NaN()}}, []any{func() {}}} {
		if b, err := Marshal(v); err == nil {
			t.Errorf("Marshal(%T) = %s, want an error", v, b)
		}
	}
}

// TestAppendIsRender: a list that is encoded item by item is the one that is rendered first.
func TestAppendIsRender(t *testing.T) {
	nodes := make([]Node, 20)
	for i := range nodes {
		nodes[i] = Node{UUID: "u\"", Name: Null("n"), Extra: map[string]any{"i": float64(i)},
			Links: Links("http://h", "x")}
	}
	for _, v := range []Version{1, 31, 82, MaxVersion} {
		for _, names := range [][]string{nil, NodeListFields, {"uuid", "no such field", "extra"}} {
			var rendered []Object
			for i := range nodes {
				rendered = append(rendered, NodeFields.Render(&nodes[i], v, names))
			}
			list := List{Len: len(nodes), Item: func(b []byte, i int) ([]byte, error) {
				return NodeFields.Append(b, &nodes[i], v, names)
			}}
			got, err := Marshal(Object{{"nodes", list}})
			if want := reference(t, Object{{"nodes", rendered}}); err != nil || string(got) != want {
				t.Errorf("%s, %v:\n%s\n%v, want\n%s", v, names, got, err, want)
			}
			if lib := reference(t, map[string]any{"nodes": list}); lib != string(got) {
				t.Errorf("encoding/json makes %s", lib)
			}
		}
	}
	if b, err := Marshal(List{}); err != nil || string(b) != "[]" {
		t.Errorf("an empty list is %s, %v", b, err)
	}
	if _, err := Marshal(
		[]any{List{Len: 1, Item: func([]byte, int) ([]byte, error) { return nil, errors.New("no") }}}); err == nil {
		t.Error("an item that fails is encoded")
	}
}

// TestEncodeAppends: what was there before stays, also when the library is asked.
func TestEncodeAppends(t *testing.T) {
	for _, v := range []any{"plain", "esc\"aped", map[string]int{"a": 1}, 1.25} {
		b, err := appendJSON(append(make([]byte, 0, 64), "before:"...), v)
		if err != nil || string(b) != "before:"+reference(t, v) {
			t.Errorf("%#v is appended as %s, %v", v, b, err)
		}
	}
}

func FuzzEncode(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5,"x",null,true,{"b":"\u2028"}]}`, `"\ud800"`, `-0`, `1e400`, `[[[]]]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var v any
		if json.Unmarshal(b, &v) != nil {
			v = string(b)
		}
		got, err := Marshal(v)
		if err != nil || string(got) != reference(t, v) {
			t.Errorf("Marshal = %s, %v, want %s", got, err, reference(t, v))
		}
	})
}
