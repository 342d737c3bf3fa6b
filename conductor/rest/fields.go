package rest

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
)

// Field is one field of an object: its name, the version that brought it, whether a list may be sorted by it, and how
// to get it.
type Field[T any] struct {
	Name     string
	Since    Version
	Sortable bool
	get      func(*T) any
}

// Fields is the table of an object's fields in the order they are shown.
type Fields[T any] []Field[T]

// find returns the field, or nil.
func (fs Fields[T]) find(name string) *Field[T] {
	for i := range fs {
		if fs[i].Name == name {
			return &fs[i]
		}
	}
	return nil
}

// Without returns the table without some of its fields.
func (fs Fields[T]) Without(names ...string) Fields[T] {
	return slices.DeleteFunc(slices.Clone(fs), func(f Field[T]) bool { return slices.Contains(names, f.Name) })
}

// Names returns the names of all fields that version v shows.
func (fs Fields[T]) Names(v Version) []string {
	var names []string
	for i := range fs {
		if fs[i].Since <= v {
			names = append(names, fs[i].Name)
		}
	}
	return names
}

// Since returns the version that brought a field; ok is false for a name that is no field.
func (fs Fields[T]) Since(name string) (v Version, ok bool) {
	if f := fs.find(name); f != nil {
		return f.Since, true
	}
	return 0, false
}

// Sortable reports whether lists may be sorted by a field.
func (fs Fields[T]) Sortable(name string) bool {
	f := fs.find(name)
	return f != nil && f.Sortable
}

// Schema returns the shape of Render's result. The request and the version decide which fields are shown, so none is
// required.
func (fs Fields[T]) Schema() *Schema {
	s := &Schema{Types: []string{"object"}, Closed: true, Whole: true, Props: map[string]*Schema{},
		Name: reflect.TypeFor[T]().Name()}
	for i := range fs {
		p := cmp.Or(SchemaOf(fs[i].get(new(T))), &Schema{})
		s.Props[fs[i].Name] = p.From(fs[i].Since)
	}
	return s
}

// Select checks a client's ?fields= and returns the fields to show. A field that is newer than the version is reported
// before one that does not exist. Links are always shown, as the last field.
func (fs Fields[T]) Select(v Version, fields string) ([]string, *Error) {
	var names []string
	for name := range strings.SplitSeq(fields, ",") {
		if since, _ := fs.Since(name); since > v {
			return nil, NotAcceptable()
		}
	}
	for name := range strings.SplitSeq(fields, ",") {
		_, known := fs.Since(name)
		if name == "" || known && name == "links" || slices.Contains(names, name) {
			continue
		}
		if !known {
			return nil, BadRequest("Field %s is not a valid field.", name)
		}
		names = append(names, name)
	}
	return append(names, "links"), nil
}

// Render makes the JSON object that a client of version v sees: the fields named, or with nil all of that version.
func (fs Fields[T]) Render(x *T, v Version, names []string) Object {
	if names == nil {
		o := make(Object, 0, len(fs))
		for i := range fs {
			if fs[i].Since <= v {
				o = append(o, Member{fs[i].Name, fs[i].get(x)})
			}
		}
		return o
	}
	o := make(Object, 0, len(names))
	for _, name := range names {
		if f := fs.find(name); f != nil && f.Since <= v {
			o = append(o, Member{f.Name, f.get(x)})
		}
	}
	return o
}

// Append appends the same object as Render to b, as JSON.
func (fs Fields[T]) Append(b []byte, x *T, v Version, names []string) ([]byte, error) {
	first := true
	add := func(f *Field[T]) (err error) {
		if f == nil || f.Since > v {
			return nil
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(appendString(b, f.Name), ':')
		b, err = appendJSON(b, f.get(x))
		return err
	}
	b = append(b, '{')
	if names == nil {
		for i := range fs {
			if err := add(&fs[i]); err != nil {
				return nil, err
			}
		}
	}
	for _, name := range names {
		if err := add(fs.find(name)); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

// Compare orders two objects by a field: null before everything, false before true, else as numbers, times or texts.
// Fields of other types, and names that are no fields, are all equal.
func (fs Fields[T]) Compare(a, b *T, name string) int {
	f := fs.find(name)
	if f == nil {
		return 0
	}
	switch x := f.get(a).(type) {
	case string:
		return strings.Compare(x, f.get(b).(string))
	case Null:
		return strings.Compare(string(x), string(f.get(b).(Null)))
	case int:
		return cmp.Compare(x, f.get(b).(int))
	case bool:
		y := f.get(b).(bool)
		if x == y {
			return 0
		}
		if y {
			return -1
		}
		return 1
	case NullTime:
		return x.Compare(f.get(b).(NullTime).Time)
	}
	return 0
}
