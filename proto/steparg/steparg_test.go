package steparg

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	args := []Arg{
		{Name: "url", Type: "string", Required: true, Description: "where it is"},
		{Name: "n", Type: "integer", Min: Limit(1), Max: Limit(8)}, {Name: "f", Type: "number", Min: Limit(0.5)},
		{Name: "o", Type: "object"},
		{Name: "l", Type: "array", Items: "string", Enum: []string{"a", "b"}, Max: Limit(2)},
		{Name: "b", Type: "boolean"}, {Name: "x", Type: "any"},
		{Name: "m", Type: "string", Enum: []string{"fast", "slow"}},
		{Name: "s", Type: "string", Min: Limit(2), Max: Limit(3)}, {Name: "big", Type: "integer"},
	}
	if err := Declared(args); err != nil {
		t.Fatal(err)
	}
	for given, want := range map[string]string{
		`{"url":"u"}`: "",
		`{"url":"u","n":8,"f":0.5,"o":{},"l":["a","b"],"b":true,"x":[],"m":"slow","s":"üü"}`: "",
		`{"url":"u","n":null}`:               "",
		`{"url":"u","big":9007199254740993}`: "",
		`{"url":"u","n":2.0}`:                "",
		``:                                   "needs the argument url (where it is)",
		`{"url":null}`:                       "needs the argument url",
		`{"url":7}`:                          "argument url of step s is a number, but has to be a string",
		`{"url":"u","n":1.5}`:                "is a number, but has to be an integer",
		`{"url":"u","n":0}`:                  "argument n of step s is 0, but has to be at least 1",
		`{"url":"u","n":9}`:                  "is 9, but has to be at most 8",
		`{"url":"u","f":0.25}`:               "is 0.25, but has to be at least 0.5",
		`{"url":"u","o":"s"}`:                "is a string, but has to be an object",
		`{"url":"u","l":["a",1]}`:            "has a number as item 2, but its items have to be a string",
		`{"url":"u","l":["c"]}`:              `is "c", but has to be one of a, b`,
		`{"url":"u","l":["a","a","b"]}`:      "is 3 items long, but has to be at most 2",
		`{"url":"u","m":"warp"}`:             `is "warp", but has to be one of fast, slow`,
		`{"url":"u","s":"x"}`:                "is 1 characters long, but has to be at least 2",
		`{"url":"u","zzz":1}`:                "step s has no argument zzz; it takes url, n,",
		`{"zzz":1,"n":"x"}`:                  "needs the argument url (where it is); argument n of step s is a string, but has to be an integer; step s has no argument zzz",
		`[]`:                                 "not a JSON object",
		`{} {}`:                              "not a JSON object",
	} {
		err := Check("s", args, json.RawMessage(given), false)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("Check(%s) = %v, want %q", given, err, want)
		}
	}
	given := []Arg{{Name: "url", Required: true, Given: true}, {Name: "keys", Owner: "driver_info"},
		{Name: "md5", Owner: Configuration}}
	if err := Check("s", given, nil, true); err != nil {
		t.Errorf("an argument that the conductor gives is asked for: %v", err)
	}
	if err := Check("s", given, json.RawMessage(`{"keys":null,"url":1,"md5":1}`), false); err != nil {
		t.Errorf("what the conductor gives: %v", err)
	}
	for arg, want := range map[string]string{"keys": "set it in driver_info", "md5": "conductor's configuration"} {
		if err := Check("s", given, json.RawMessage(`{"`+arg+`":null}`), true); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s in a request: %v, want %q", arg, err, want)
		}
	}
	if err := CheckValues("s", args, map[string]any{"url": "u", "n": float64(9)}, false); err == nil ||
		!strings.Contains(err.Error(), "at most 8") {
		t.Errorf("a decoded number: %v", err)
	}
	if err := Check("s", nil, json.RawMessage(`{"a":1}`), false); err == nil ||
		!strings.Contains(err.Error(), "it takes none") {
		t.Errorf("a step without arguments: %v", err)
	}
}

func TestDeclared(t *testing.T) {
	for want, args := range map[string][]Arg{
		"has no name":              {{Type: "string"}},
		"is declared twice":        {{Name: "a", Type: "any"}, {Name: "a", Type: "any"}},
		`unknown type "float"`:     {{Name: "a", Type: "float"}},
		"but is no array":          {{Name: "a", Type: "string", Items: "string"}},
		"is not made of strings":   {{Name: "a", Type: "integer", Enum: []string{"1"}}},
		"allows no string at all":  {{Name: "a", Type: "string", Enum: []string{}}},
		`which type "boolean" has`: {{Name: "a", Type: "boolean", Min: Limit(1)}},
		"at least 2 and at most 1": {{Name: "a", Type: "integer", Min: Limit(2), Max: Limit(1)}},
	} {
		if err := Declared(args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Declared(%+v) = %v, want %q", args, err, want)
		}
	}
}

func FuzzCheck(f *testing.F) {
	for _, s := range []string{`{}`, `{"n":1}`, `{"l":["a"]}`, `{"n":1e999}`, `{"n":-0}`, `[]`, `{"s":"\ud800"}`, ``} {
		f.Add(s)
	}
	args := []Arg{{Name: "n", Type: "integer", Min: Limit(1), Max: Limit(5)},
		{Name: "l", Type: "array", Items: "string", Max: Limit(3)}, {Name: "s", Type: "string", Max: Limit(4)}}
	f.Fuzz(func(t *testing.T, given string) {
		if Check("s", args, json.RawMessage(given), false) != nil {
			return
		}
		// What is let through is really of the types.
		var v struct {
			N *float64  `json:"n"`
			L []*string `json:"l"`
			S *string   `json:"s"`
		}
		if len(strings.TrimSpace(given)) == 0 {
			return
		}
		if err := json.Unmarshal([]byte(given), &v); err != nil {
			t.Fatalf("%q was let through, and can't be read: %v", given, err)
		}
		if v.N != nil && (*v.N < 1 || *v.N > 5) || len(v.L) > 3 {
			t.Fatalf("%q was let through", given)
		}
	})
}
