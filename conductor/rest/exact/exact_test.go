package exact

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestNumbersStayAsWritten(t *testing.T) {
	for _, text := range []string{"0", "-0", "1", "-17", "1.5", "1.0", "1.10", "1e3", "1E+3", "0.1", "-0.0",
		"123456789012345", "1234567890123456", "9007199254740992", "9007199254740993", "-9007199254740993",
		"1732350000123456789", "12345678901234567890", "100000000000000000000", "0.30000000000000001",
		"3.141592653589793238462643", "1e-999"} {
		for _, doc := range []string{text, `[` + text + `]`, `{"a\"` + text + `":{"b":[[` + text + `]]}}`} {
			var v any
			if err := Unmarshal([]byte(doc), &v); err != nil {
				t.Errorf("%s: %v", doc, err)
				continue
			}
			b, err := json.Marshal(v)
			if err != nil || string(b) != doc {
				t.Errorf("%s became %s, %v", doc, b, err)
			}
		}
	}
}

// TestUsualNumbersAreFloats: code that knows nothing of this package finds what it has always found, beside a number
// that is kept as text too.
func TestUsualNumbersAreFloats(t *testing.T) {
	type part struct {
		Any    any
		Map    map[string]any
		Maps   []map[string]any
		Parts  map[string]*part
		Number json.Number
		Int    int64
		Float  float64
		Raw    json.RawMessage
	}
	const doc = `{"Any":[1,9007199254740993],"Map":{"a":2.5,"b":1.0},"Maps":[{"c":3}],"Parts":{"p":{"Any":4,"Map":{"d":5e0}}},"Number":7,"Int":9007199254740993,` +
		`"Float":1.0,"Raw":[1.0]}`
	var got part
	if err := Unmarshal([]byte(doc), &got); err != nil {
		t.Fatal(err)
	}
	want := part{Any: []any{1.0, json.Number("9007199254740993")},
		Map: map[string]any{"a": 2.5, "b": json.Number("1.0")}, Maps: []map[string]any{{"c": 3.0}},
		Parts: map[string]*part{"p": {Any: 4.0, Map: map[string]any{"d": json.Number("5e0")}}}, Number: "7",
		Int: 9007199254740993, Float: 1, Raw: json.RawMessage("[1.0]")}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestWhatIsNoJSONIsRefused(t *testing.T) {
	for _, doc := range []string{"", "1.0 2", "[1.0", "1.", "01", "--1", "1e", `{"a":1.0}}`, "1e400", "-1e400",
		strings.Repeat("9", 400)} {
		var v any
		if err := Unmarshal([]byte(doc), &v); err == nil || len(err.Error()) > 200 {
			t.Errorf("%.20s: %v, error %v", doc, v, err)
		}
	}
}

func TestEqual(t *testing.T) {
	n := func(s string) any { return json.Number(s) }
	for _, c := range []struct {
		a, b           any
		equal, numbers bool
	}{
		{1.0, n("1.0"), true, true},
		{1.0, n("1e0"), true, true},
		{1.0, 2.0, false, true},
		{n("9007199254740993"), 9007199254740992.0, false, true},
		{n("9007199254740993"), n("9007199254740993"), true, true},
		{n("9007199254740993"), n("9007199254740995"), false, true},
		{"1", 1.0, false, false},
		{nil, 1.0, false, false},
	} {
		if equal, numbers := Equal(c.a, c.b); equal != c.equal || numbers != c.numbers {
			t.Errorf("Equal(%v, %v) = %v, %v", c.a, c.b, equal, numbers)
		}
	}
}

func FuzzUnmarshal(f *testing.F) {
	for _, s := range []string{"1.0", `{"a":[1e5,"\\\"1.0"]}`, "-", `"`, "12345678901234567890", `"\`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var got, usual any
		err, want := Unmarshal([]byte(s), &got), json.Unmarshal([]byte(s), &usual)
		if (err == nil) != (want == nil) {
			t.Fatalf("%q: %v, json.Unmarshal %v", s, err, want)
		}
		if err != nil {
			return
		}
		b, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		var again any
		if err := Unmarshal(b, &again); err != nil || !reflect.DeepEqual(got, again) {
			t.Errorf("%q: %v, again %v, %v", s, got, again, err)
		}
	})
}
