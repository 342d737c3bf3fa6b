package rest

import (
	"encoding/json"
	"maps"
	"reflect"
	"regexp"
	"strings"
	"time"
)

// SchemaOf describes the JSON of a value by its type alone: of a struct by the tags of its fields (shape:"null": null
// may be there, too), of an Object by its members, each of which must be there. A *Schema describes itself, and nil is
// anything.
func SchemaOf(v any) *Schema {
	switch x := v.(type) {
	case nil:
		return nil
	case *Schema:
		return x
	case Object:
		s := &Schema{Types: []string{"object"}, Closed: true, Props: map[string]*Schema{}}
		for _, m := range x {
			s.add(m.Name, SchemaOf(m.Value), false)
		}
		return s
	}
	return schemaOf(reflect.TypeOf(v), map[reflect.Type]*Schema{})
}

// ListOf describes a list.
func ListOf(item any) *Schema { return &Schema{Types: []string{"array"}, Items: SchemaOf(item)} }

// MapOf describes an object whose properties have names of anybody's choice.
func MapOf(value any) *Schema { return &Schema{Types: []string{"object"}, Others: SchemaOf(value)} }

// Collection describes a page of a list.
func Collection(member string, item any) *Schema {
	return SchemaOf(Object{{member, ListOf(item)}, {"next", (&Schema{Types: []string{"string"}}).Perhaps()}})
}

// From describes the same from a version on.
func (s *Schema) From(v Version) *Schema {
	c := *s
	c.Since = v
	return &c
}

// Perhaps describes the same as a property that may be missing.
func (s *Schema) Perhaps() *Schema {
	c := *s
	c.Optional = true
	return &c
}

// Called describes the same under a name.
func (s *Schema) Called(name string) *Schema {
	c := *s
	c.Name = name
	return &c
}

// Of returns the schema of a body whose properties came with the versions of a table of fields.
func (s *Schema) Of(fields interface {
	Since(name string) (Version, bool)
}) *Schema {
	c := *s
	c.Props = make(map[string]*Schema, len(s.Props))
	for name, p := range s.Props {
		if since, _ := fields.Since(name); p != nil && since > p.Since {
			p = p.From(since)
		}
		c.Props[name] = p
	}
	return &c
}

// PatchOf describes a PATCH of the attributes named, which came with the versions of a table of fields.
func PatchOf(names []string, fields interface {
	Since(name string) (Version, bool)
}) *Schema {
	c := *escapedPatch
	item := *c.Items
	item.Props = map[string]*Schema{"op": item.Props["op"], "value": nil}
	path := &Schema{
		Types: []string{"string"}, Pattern: regexp.MustCompile("^/(" + strings.Join(names, "|") + ")(/.+)?$"),
		Sinces: map[string]Version{}}
	for _, name := range names {
		path.Sinces["/"+name], _ = fields.Since(name)
	}
	item.Props["path"], c.Items = path, &item
	return &c
}

func (s *Schema) add(name string, p *Schema, optional bool) {
	s.Props[name] = p
	if !optional && (p == nil || !p.Optional && p.Since <= MinVersion) {
		s.Required = append(s.Required, name)
	}
}

// plain are the types whose JSON is not what their kind says.
var plain = map[reflect.Type]*Schema{
	reflect.TypeFor[Null]():            {Types: []string{"string", "null"}},
	reflect.TypeFor[NullTime]():        {Types: []string{"string", "null"}, Format: "date-time"},
	reflect.TypeFor[time.Time]():       {Types: []string{"string"}, Format: "date-time"},
	reflect.TypeFor[json.RawMessage](): {},
}

// schemaOf keeps the schemas of structs in known: they may have themselves in them.
func schemaOf(t reflect.Type, known map[reflect.Type]*Schema) *Schema {
	if s, ok := plain[t]; ok {
		return s
	}
	if s := known[t]; s != nil {
		return s
	}
	switch t.Kind() {
	case reflect.Bool:
		return &Schema{Types: []string{"boolean"}}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return &Schema{Types: []string{"integer"}}
	case reflect.Float64:
		return &Schema{Types: []string{"number"}}
	case reflect.String:
		return &Schema{Types: []string{"string"}}
	case reflect.Pointer:
		return &Schema{Maybe: schemaOf(t.Elem(), known)}
	case reflect.Slice:
		if t == reflect.TypeFor[Object]() {
			return &Schema{Types: []string{"object"}}
		}
		return &Schema{Types: []string{"array"}, Items: schemaOf(t.Elem(), known)}
	case reflect.Map:
		return &Schema{Types: []string{"object"}, Others: schemaOf(t.Elem(), known)}
	case reflect.Struct:
		s := &Schema{Types: []string{"object"}, Closed: true, Props: map[string]*Schema{}, Name: t.Name()}
		known[t] = s
		for f := range t.Fields() {
			name, optional, _ := strings.Cut(f.Tag.Get("json"), ",")
			p := schemaOf(f.Type, known)
			if f.Tag.Get("shape") == "null" {
				p = &Schema{Maybe: p}
			}
			if f.Anonymous {
				maps.Copy(s.Props, p.Props)
				s.Required = append(s.Required, p.Required...)
				continue
			}
			s.add(name, p, optional == "omitempty")
		}
		return s
	}
	return &Schema{} // anything
}
