// Package openapi describes the API for authors of clients: an OpenAPI 3.1 document, made from the table of routes and
// the tables of fields that the server itself uses.
//
// Microversions are extensions: x-openstack-min-version and x-openstack-max-version on operations, on properties and on
// arguments say which versions have them, x-openstack-min-versions which version brought a value. Anything without them
// is in all versions. The document describes the newest supported version and leaves out newer parts. It says nothing
// of the site.
//
// Of an object with x-ingot-whole, an answer has all properties that its version has, unless the request chose some
// (fields), or left the choice to a list (no detail=true). Where a request has no choice, those of all versions are
// required.
package openapi

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// object is a JSON object. encoding/json writes its members in order, so that the same table makes the same bytes.
type object = map[string]any

// Document makes the description of a table of routes, with versions up to newest. rule names the permission that a
// route requires.
func Document(table []call.Route, newest rest.Version, rule func(*call.Route) string) ([]byte, error) {
	d := &describer{newest: newest, named: map[string]*rest.Schema{}, schemas: object{}}
	paths := map[string]object{}
	for i := range table {
		r := &table[i]
		if r.Since > newest {
			continue
		}
		if paths[r.Path] == nil {
			paths[r.Path] = object{}
		}
		op := d.operation(r)
		if r.Access != call.Public {
			op["x-ingot-permission"] = "baremetal:" + rule(r)
		}
		paths[r.Path][strings.ToLower(r.Method)] = op
	}
	doc := object{
		"openapi": "3.1.0",
		"info": object{
			"title":       "Ingot",
			"version":     newest.String(),
			"description": "The Bare Metal API of OpenStack Ironic below /v1, with microversions, and Ingot's own part below /ingot/v1, without.",
		},
		"servers":  []any{object{"url": "/"}},
		"security": []any{object{"basic": []any{}}, object{"token": []any{}}},
		"paths":    paths,
		"components": object{
			"schemas": d.schemas,
			"parameters": object{"Version": d.versionHeader(),
				rest.IfMatch: condition(rest.IfMatch,
					"Do it only if the resource, or the node that it is part of, still has one of these ETags; else 412."),
				rest.IfNoneMatch: condition(rest.IfNoneMatch,
					"Answer 304 without a body while the resource has one of these ETags."),
			},
			"headers": headers,
			"responses": object{
				"Error": d.answer("The request was refused.", d.schema(faulty), errorHeaders),
				"Unknown": d.answer("The request is not authenticated.", d.schema(unknown),
					append(slices.Clip(ownHeaders), "WWW-Authenticate")),
			},
			"securitySchemes": object{
				"basic": object{"type": "http", "scheme": "basic"},
				"token": object{"type": "apiKey", "in": "header", "name": "X-Auth-Token"},
			},
		},
	}
	if d.err != nil {
		return nil, d.err
	}
	return json.Marshal(doc)
}

// faulty is the body of an error, and unknown that of the one error that has another shape.
var (
	faulty  = rest.SchemaOf(rest.Object{{Name: "error_message", Value: ""}}).Called("Error")
	unknown = rest.SchemaOf(
		rest.Object{{Name: "error",
			Value: rest.Object{{Name: "message", Value: ""}, {Name: "code", Value: 0},
				{Name: "title", Value: rest.SchemaOf("").Perhaps()}}}}).Called("Unknown")
)

// inside is the text in the body of an error, which is JSON again.
var inside = object{"anyOf": []any{
	object{"type": "object", "required": []any{"faultcode", "faultstring", "debuginfo"}, "additionalProperties": false,
		"properties": object{
			"faultcode": object{"enum": []any{"Client", "Server"}}, "faultstring": object{"type": "string"},
			"debuginfo": object{"type": []any{"string", "null"}}}},
	object{"type": "object", "required": []any{"code", "title", "description"}, "additionalProperties": false,
		"properties": object{
			"code": object{"type": "integer"}, "title": object{"type": "string"},
			"description": object{"type": "string"}}},
}}

// headers are those of answers.
var headers = object{
	"Openstack-Request-Id": header("The name of the request in the server's log."),
	rest.VersionHeader:     header("The microversion of the answer."),
	rest.MinVersionHeader:  header("The oldest microversion on offer."),
	rest.MaxVersionHeader:  header("The newest microversion on offer."),
	"Location":             header("Where the result is found."),
	"ETag":                 header("The state of the resource, for If-Match."),
	"WWW-Authenticate":     header("How to authenticate."),
	"Retry-After":          header("In how many seconds the same request may do."),
}

// What answers have of them: all, those with versions, and errors.
var (
	ownHeaders       = []string{"Openstack-Request-Id"}
	versionedHeaders = append(slices.Clip(ownHeaders), rest.VersionHeader, rest.MinVersionHeader, rest.MaxVersionHeader)
	errorHeaders     = append(slices.Clip(versionedHeaders), "Retry-After")
)

func header(description string) object {
	return object{"description": description, "schema": object{"type": "string"}}
}

func condition(name, description string) object {
	return object{"name": name, "in": "header", "description": description, "schema": object{"type": "string"}}
}

// describer makes the parts of a document.
type describer struct {
	newest  rest.Version
	named   map[string]*rest.Schema
	schemas object // of named
	err     error
}

func (d *describer) versionHeader() object {
	return object{"name": rest.VersionHeader, "in": "header",
		"description": "The microversion that the request is written for; \"latest\" is the newest on offer.",
		"schema": object{"type": "string", "pattern": `^(1\.[0-9]+|latest)$`,
			"default": rest.MinVersion.String()},
		"x-openstack-min-version": rest.MinVersion.String(), "x-openstack-max-version": d.newest.String()}
}

// versioned reports whether a route has microversions.
func versioned(r *call.Route) bool { return strings.HasPrefix(r.Path, "/v1") }

func segments(path string) []string {
	return strings.FieldsFunc(path, func(c rune) bool { return c == '/' })
}

func (d *describer) operation(r *call.Route) object {
	segs := segments(r.Path)
	id := strings.ToLower(r.Method)
	for _, s := range segs {
		if s != "v1" || len(segs) == 1 {
			id += "_" + strings.NewReplacer("{", "", "}", "", ".", "_").Replace(s)
		}
	}
	if len(segs) == 0 {
		id += "_versions"
	}
	tag := "versions"
	if i := slices.Index(segs, "v1"); i >= 0 && i+1 < len(segs) {
		tag = segs[i+1]
	}
	if len(segs) > 0 && segs[0] == "ingot" {
		tag = "ingot"
	}
	op := object{"operationId": id, "tags": []any{tag}, "responses": d.answers(r)}
	between(op, r.Since, 0)
	if r.Access == call.Public {
		op["security"] = []any{}
	}
	var params []any
	for _, s := range segs {
		if name, ok := strings.CutPrefix(s, "{"); ok {
			params = append(params,
				object{"name": strings.TrimSuffix(name, "}"), "in": "path", "required": true,
					"schema": object{"type": "string"}})
		}
	}
	args := r.Args
	if r.Query == call.Members && r.Takes != nil {
		args = call.Args{}
		for name, p := range r.Takes.Props {
			if p == nil || !slices.Contains(p.Types, "object") && !slices.Contains(p.Types, "array") {
				args[name] = p
			}
		}
	}
	for _, name := range args.Names() {
		if p := args[name]; p == nil || p.Since <= d.newest {
			params = append(params, d.argument(name, p))
		}
	}
	for _, header := range []struct {
		name string
		has  bool
	}{{"Version", versioned(r)}, {rest.IfMatch, r.Compares()},
		{rest.IfNoneMatch, r.Tagged() && r.Method == http.MethodGet}} {
		if header.has {
			params = append(params, ref("parameters", header.name))
		}
	}
	if params != nil {
		op["parameters"] = params
	}
	if r.Takes != nil {
		op["requestBody"] = object{
			"required": r.Query != call.Members && (len(r.Takes.Required) > 0 || r.Takes.Items != nil),
			"content":  object{"application/json": object{"schema": d.schema(r.Takes)}},
		}
	}
	return op
}

func (d *describer) argument(name string, s *rest.Schema) object {
	p := object{"name": name, "in": "query"}
	s = cmp.Or(s, call.Text)
	bare := *s
	bare.Since, bare.Until = 0, 0
	p["schema"] = d.schema(&bare)
	if slices.Contains(s.Types, "array") {
		p["style"], p["explode"] = "form", false
	}
	between(p, s.Since, s.Until)
	return p
}

// answers describes the route's answers to a successful request, and its errors.
func (d *describer) answers(r *call.Route) object {
	out := object{}
	head := ownHeaders
	if versioned(r) {
		head = versionedHeaders
	}
	if r.Tagged() {
		head = append(slices.Clip(head), "ETag")
		if r.Method == http.MethodGet {
			out[strconv.Itoa(http.StatusNotModified)] = d.answer(http.StatusText(http.StatusNotModified), nil, head)
		}
	}
	for status, body := range r.Answers {
		hs := head
		if status == http.StatusCreated || status == http.StatusAccepted || r.Method == http.MethodPut &&
			status == http.StatusNoContent {
			hs = append(slices.Clip(head), "Location")
		}
		var a object
		if body == nil {
			a = d.answer(http.StatusText(status), nil, hs)
		} else {
			s := rest.SchemaOf(body)
			out := d.schema(s)
			if s.Whole && r.Args["fields"] == nil && r.Args["detail"] == nil {
				out["required"] = always(s, max(r.Since, rest.MinVersion))
			}
			a = d.answer(http.StatusText(status), out, hs)
		}
		if r.Stream {
			// The body is no JSON: lines "data:" hold it.
			a["content"] = object{
				"text/event-stream": object{"schema": object{"type": "string"},
					"x-ingot-event": d.schema(rest.SchemaOf(body))}}
		}
		if r.Text {
			a["content"] = object{"text/plain": object{"schema": object{"type": "string"}}}
		}
		out[strconv.Itoa(status)] = a
	}
	for _, status := range Refusals(r) {
		of := "Error"
		if status == http.StatusUnauthorized {
			of = "Unknown"
		}
		out[strconv.Itoa(status)] = ref("responses", of)
	}
	return out
}

// always are the properties of an object that all versions from since on have.
func always(s *rest.Schema, since rest.Version) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(s.Props)) {
		if p := s.Props[name]; p.Since <= since && p.Until == 0 && !p.Optional {
			names = append(names, name)
		}
	}
	return names
}

// Refusals are the statuses of errors that a route can answer with.
func Refusals(r *call.Route) []int {
	all := []int{http.StatusBadRequest, http.StatusNotFound, http.StatusNotAcceptable, http.StatusInternalServerError,
		http.StatusServiceUnavailable}
	if r.Access != call.Public {
		all = append(all, http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests)
		if r.Method != http.MethodGet && strings.Contains(r.Path, "/nodes/{node}") {
			all = append(all, http.StatusGatewayTimeout) // the node's owner was asked, and its answer was lost
		}
	}
	if r.Method != http.MethodGet {
		all = append(all, http.StatusRequestTimeout, http.StatusConflict, http.StatusRequestEntityTooLarge)
	}
	if r.Compares() {
		all = append(all, http.StatusPreconditionFailed)
	}
	if r.Barred {
		all = append(all, http.StatusMethodNotAllowed)
	}
	return all
}

func (d *describer) answer(description string, body object, head []string) object {
	a := object{"description": description}
	if body != nil {
		a["content"] = object{"application/json": object{"schema": body}}
	}
	hs := object{}
	for _, h := range head {
		hs[h] = ref("headers", h)
	}
	a["headers"] = hs
	return a
}

func ref(kind, name string) object { return object{"$ref": "#/components/" + kind + "/" + name} }

// between says which versions have what o describes.
func between(o object, since, until rest.Version) {
	if since > rest.MinVersion {
		o["x-openstack-min-version"] = since.String()
	}
	if until > 0 {
		o["x-openstack-max-version"] = until.String()
	}
}

// schema returns the JSON Schema of s. One with a name is put among the components, once.
func (d *describer) schema(s *rest.Schema) object {
	if s == nil {
		return object{}
	}
	if s.Name == "" {
		return d.inline(s)
	}
	bare := *s
	bare.Since, bare.Until, bare.Optional = 0, 0, false
	if was := d.named[s.Name]; was == nil {
		d.named[s.Name] = &bare
		d.schemas[s.Name] = d.inline(&bare)
		if s.Name == faulty.Name {
			d.schemas[s.Name].(object)["properties"].(object)["error_message"] = object{
				"type": "string", "contentMediaType": "application/json", "contentSchema": inside}
		}
	} else if !reflect.DeepEqual(was, &bare) {
		d.err = cmp.Or(d.err, fmt.Errorf("two shapes are called %s", s.Name))
	}
	out := ref("schemas", s.Name)
	between(out, s.Since, s.Until)
	return out
}

func (d *describer) inline(s *rest.Schema) object {
	o := object{}
	between(o, s.Since, s.Until)
	if s.Maybe != nil {
		inner := d.schema(s.Maybe)
		if t, ok := inner["type"].(string); ok {
			maps.Copy(inner, o)
			inner["type"] = []any{t, "null"}
			return inner
		}
		o["anyOf"] = []any{inner, object{"type": "null"}}
		return o
	}
	switch len(s.Types) {
	case 0:
	case 1:
		o["type"] = s.Types[0]
	default:
		o["type"] = s.Types
	}
	if s.Format != "" {
		o["format"] = s.Format
	}
	if s.Pattern != nil {
		o["pattern"] = s.Pattern.String()
	}
	if len(s.Enum) > 0 {
		values := slices.DeleteFunc(slices.Clone(s.Enum), func(v any) bool {
			text, _ := v.(string)
			return s.Sinces[text] > d.newest
		})
		if len(s.Types) == 0 || slices.Contains(s.Types, "null") { // null passes any list of values
			values = append(values, nil)
		}
		o["enum"] = values
	}
	sinces := object{}
	for value, since := range s.Sinces {
		if since > rest.MinVersion && since <= d.newest {
			sinces[value] = since.String()
		}
	}
	if len(sinces) > 0 {
		o["x-openstack-min-versions"] = sinces
	}
	if slices.Contains(s.Types, "array") {
		o["items"] = d.schema(s.Items)
		if s.MinLen > 0 {
			o["minItems"] = s.MinLen
		}
	}
	if slices.Contains(s.Types, "string") {
		if s.MinLen > 0 {
			o["minLength"] = s.MinLen
		}
		if s.MaxLen > 0 {
			o["maxLength"] = s.MaxLen
		}
	}
	if s.Props != nil {
		props := object{}
		for name, p := range s.Props {
			if p == nil || p.Since <= d.newest {
				props[name] = d.schema(p)
			}
		}
		o["properties"] = props
	}
	if len(s.Required) > 0 {
		o["required"] = s.Required
	}
	if s.Whole {
		o["x-ingot-whole"] = true
	}
	switch {
	case s.Closed:
		o["additionalProperties"] = false
	case s.Others != nil:
		o["additionalProperties"] = d.schema(s.Others)
	}
	return o
}
