package node

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fill sets everything that can be reached from v to something that is not its zero value.
func fill(v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Now())) // with a monotonic reading, in a zone
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), depth)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth)
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			v.SetBytes([]byte(`{"a":1}`))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), depth)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		e := reflect.New(v.Type().Elem()).Elem()
		fill(e, depth)
		v.SetMapIndex(reflect.ValueOf("key").Convert(v.Type().Key()), e)
	case reflect.Interface:
		if depth > 2 {
			v.Set(reflect.ValueOf(1.5))
			return
		}
		inner := map[string]any{"list": []any{"x", true, nil, map[string]any{"deep": 2.0}}, "text": "t"}
		v.Set(reflect.ValueOf(inner))
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint8, reflect.Uint64:
		v.SetUint(7)
	case reflect.Float64:
		v.SetFloat(7)
	default:
		panic("a node has a field of kind " + v.Kind().String())
	}
}

// shared returns the path of the first thing that two values have in common, or "".
func shared(a, b reflect.Value, path string) string {
	switch a.Kind() {
	case reflect.Struct:
		if a.Type() == reflect.TypeFor[time.Time]() {
			return ""
		}
		for i := range a.NumField() {
			if p := shared(a.Field(i), b.Field(i), path+"."+a.Type().Field(i).Name); p != "" {
				return p
			}
		}
	case reflect.Pointer:
		if a.IsNil() {
			return ""
		}
		if a.Pointer() == b.Pointer() {
			return path
		}
		return shared(a.Elem(), b.Elem(), path)
	case reflect.Slice:
		if a.Len() == 0 {
			return ""
		}
		if a.Pointer() == b.Pointer() {
			return path
		}
		for i := range a.Len() {
			if p := shared(a.Index(i), b.Index(i), path+"[]"); p != "" {
				return p
			}
		}
	case reflect.Map:
		if a.IsNil() {
			return ""
		}
		if a.Pointer() == b.Pointer() {
			return path
		}
		for _, k := range a.MapKeys() {
			if p := shared(a.MapIndex(k), b.MapIndex(k), path+"["+k.String()+"]"); p != "" {
				return p
			}
		}
	case reflect.Interface:
		if a.IsNil() {
			return ""
		}
		return shared(a.Elem(), b.Elem(), path)
	}
	return ""
}

// TestClone: whatever a node may hold, its clone is equal and shares nothing with it.
func TestClone(t *testing.T) {
	n := new(Node)
	fill(reflect.ValueOf(n).Elem(), 0)
	c := n.Clone()
	if d := cmp.Diff(n, c); d != "" {
		t.Errorf("a clone differs:\n%s", d)
	}
	if p := shared(reflect.ValueOf(n).Elem(), reflect.ValueOf(c).Elem(), "Node"); p != "" {
		t.Errorf("a node and its clone share %s", p)
	}
	// It is exactly what JSON gives back, times included: no zones, no monotonic readings.
	b, err := json.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	read := new(Node)
	if err := json.Unmarshal(b, read); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c, read.Clone()) {
		t.Errorf("a clone is not what a store returns:\n%s", cmp.Diff(c, read.Clone()))
	}
	empty := new(Node)
	if !reflect.DeepEqual(empty, empty.Clone()) {
		t.Error("a clone of the zero node is not zero")
	}
}

func TestCloneMakesJSON(t *testing.T) {
	n := &Node{Extra: map[string]any{"n": 3, "l": []string{"a"}, "m": map[string]string{"k": "v"}, "nil": []any(nil)},
		Properties: map[string]any{}}
	want := &Node{Extra: map[string]any{"n": 3.0, "l": []any{"a"}, "m": map[string]any{"k": "v"}, "nil": nil},
		Properties: map[string]any{}}
	if c := n.Clone(); !reflect.DeepEqual(c, want) {
		t.Errorf("Clone = %#v, want %#v", c.Extra, want.Extra)
	}
}

func BenchmarkClone(b *testing.B) {
	n := &Node{UUID: "x", DriverInfo: map[string]any{"a": "b", "c": "d"},
		Properties: map[string]any{"cpus": 4.0, "memory_mb": 1.0, "arch": "x"}, Extra: map[string]any{"rack": "a"},
		InstanceInfo: map[string]any{}, NetworkData: map[string]any{}}
	for b.Loop() {
		n.Clone()
	}
}
