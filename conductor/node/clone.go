package node

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// Clone returns a node that shares nothing with n: changes of one don't affect the other. Values in maps of any become
// what JSON makes of them, and times lose what JSON does not keep, so that a clone equals the node that a store would
// return. It is driven by the types, so that a new field needs nothing here.
func (n *Node) Clone() *Node {
	c := *n
	apart(reflect.ValueOf(&c).Elem(), nodeParts)
	return &c
}

// nodeParts are the fields of a node that are not just values.
var nodeParts = parts(reflect.TypeFor[Node]())

// parts returns the indexes of a struct's fields that share something with a copy of it, or hold times.
func parts(t reflect.Type) []int {
	var out []int
	for i := range t.NumField() {
		if !value(t.Field(i).Type) {
			out = append(out, i)
		}
	}
	return out
}

// value reports whether a copy of a T shares nothing with the original.
func value(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Map, reflect.Slice, reflect.Pointer, reflect.Interface:
		return false
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() {
			return false
		}
		for i := range t.NumField() {
			if !value(t.Field(i).Type) {
				return false
			}
		}
	}
	return true
}

// apart makes the fields of a copied struct its own.
func apart(v reflect.Value, fields []int) {
	for _, i := range fields {
		own(v.Field(i))
	}
}

// own makes what v refers to its own.
func own(v reflect.Value) {
	switch v.Kind() {
	case reflect.Map, reflect.Slice, reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return
		}
	}
	switch p := v.Addr().Interface().(type) {
	case *time.Time:
		*p = p.UTC().Round(0)
		return
	case *map[string]any:
		*p = cloneMap(*p)
		return
	case *map[string]string:
		*p = maps.Clone(*p)
		return
	case *[]string:
		*p = slices.Clone(*p)
		return
	case *json.RawMessage:
		*p = slices.Clone(*p)
		return
	case *any:
		*p = cloneValue(*p)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		apart(v, parts(v.Type()))
	case reflect.Pointer:
		c := reflect.New(v.Type().Elem())
		c.Elem().Set(v.Elem())
		v.Set(c)
		own(c.Elem())
	case reflect.Slice:
		c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(c, v)
		v.Set(c)
		if value(v.Type().Elem()) {
			return
		}
		for i := range c.Len() {
			own(c.Index(i))
		}
	case reflect.Map:
		c := reflect.MakeMapWithSize(v.Type(), v.Len())
		for it := v.MapRange(); it.Next(); {
			e := reflect.New(v.Type().Elem()).Elem()
			e.Set(it.Value())
			own(e)
			c.SetMapIndex(it.Key(), e)
		}
		v.Set(c)
	}
}

func cloneMap(m map[string]any) map[string]any {
	if m == nil {
		return nil
	}
	c := make(map[string]any, len(m))
	for k, v := range m {
		c[k] = cloneValue(v)
	}
	return c
}

func cloneValue(v any) any {
	switch x := v.(type) {
	case nil, bool, float64, string, json.Number:
		return v
	case map[string]any:
		if x == nil {
			return nil
		}
		return cloneMap(x)
	case []any:
		if x == nil {
			return nil
		}
		c := make([]any, len(x))
		for i := range x {
			c[i] = cloneValue(x[i])
		}
		return c
	}
	// A value that is not from JSON, such as an int set by the engine, becomes what a store would make of it.
	b, err := json.Marshal(v)
	if err != nil {
		return nil // a store refuses it
	}
	var out any
	if err := exact.Unmarshal(b, &out); err != nil {
		return nil
	}
	return out
}

// With is a copy of a map in which a key has a value.
func With[K comparable, V any](m map[K]V, key K, value V) map[K]V {
	out := make(map[K]V, len(m)+1)
	maps.Copy(out, m)
	out[key] = value
	return out
}
