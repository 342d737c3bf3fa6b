// Package described checks the API's answers against its own document, /openapi.json: the status is listed, the body
// has the documented type and shape, no unknown member, none newer than the requested version, and all others unless
// the request selected some.
package described

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// Document is a description of the API. Several tests may use it at a time.
type Document struct {
	root  map[string]any
	paths map[string]map[string]any // operations of a path by method

	mu       sync.Mutex
	compiler *jsonschema.Compiler
	compiled map[string]*jsonschema.Schema // by their places in root
}

// place is the document's name in references between its schemas.
const place = "openapi.json"

// Parse reads a document.
func Parse(doc []byte) (*Document, error) {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(doc))
	if err != nil {
		return nil, fmt.Errorf("read the description of the API: %w", err)
	}
	d := &Document{compiler: jsonschema.NewCompiler(), compiled: map[string]*jsonschema.Schema{},
		paths: map[string]map[string]any{}}
	d.root, _ = v.(map[string]any)
	d.compiler.DefaultDraft(jsonschema.Draft2020)
	d.compiler.AssertFormat()
	d.compiler.AssertContent()
	if err := d.compiler.AddResource(place, v); err != nil {
		return nil, fmt.Errorf("read the schemas of the API's description: %w", err)
	}
	paths, _ := d.root["paths"].(map[string]any)
	for path, ops := range paths {
		d.paths[path], _ = ops.(map[string]any)
	}
	if len(d.paths) == 0 {
		return nil, errors.New("the description of the API has no paths")
	}
	return d, nil
}

// Exchange is a request and its answer.
type Exchange struct {
	Method  string
	Path    string // as the document writes it, with {names}; "" when it has no such path
	Version rest.Version
	Query   url.Values
	Sent    []byte // the body of the request
	Status  int
	Header  http.Header
	Body    []byte
}

// Path gives the path of the document that an address is of, or "".
func (d *Document) Path(segments []string) string {
	best := ""
	for path := range d.paths {
		want := strings.FieldsFunc(path, func(c rune) bool { return c == '/' })
		fits := len(want) == len(segments)
		for i := 0; fits && i < len(want); i++ {
			fits = want[i] == segments[i] || want[i][0] == '{'
		}
		if fits && (best == "" || strings.Count(path, "{") < strings.Count(best, "{")) {
			best = path
		}
	}
	return best
}

// Check says what of an exchange is not as the document says; nil when it is.
func (d *Document) Check(x Exchange) error {
	if x.Method == http.MethodOptions || x.Status == http.StatusNotModified {
		return nil
	}
	op, _ := d.paths[x.Path][strings.ToLower(x.Method)].(map[string]any)
	at := []string{"paths", x.Path, strings.ToLower(x.Method)}
	refused := x.Status >= 400
	if op == nil || d.newer(op, x.Version) {
		if !refused {
			return fmt.Errorf("%d from an address, or a version of one, that is not described", x.Status)
		}
		if x.Status == http.StatusUnauthorized {
			return d.body([]string{"components", "responses", "Unknown"}, x)
		}
		return d.body([]string{"components", "responses", "Error"}, x)
	}
	responses, _ := op["responses"].(map[string]any)
	answer, _ := responses[strconv.Itoa(x.Status)].(map[string]any)
	if answer == nil {
		return fmt.Errorf("status %d is not one of %v", x.Status, slices.Sorted(maps.Keys(responses)))
	}
	if !refused {
		if err := d.request(op, at, x); err != nil {
			return err
		}
	}
	if r, ok := answer["$ref"].(string); ok {
		return d.body(strings.Split(strings.TrimPrefix(r, "#/"), "/"), x)
	}
	at = append(at, "responses", strconv.Itoa(x.Status))
	if err := d.body(at, x); err != nil || !isWhole(op, x) || answer["content"] == nil || x.Method == http.MethodHead {
		return err
	}
	got, err := jsonschema.UnmarshalJSON(bytes.NewReader(x.Body))
	if err != nil {
		return nil //nolint:nilerr // a stream
	}
	if err := d.whole(d.at(append(at, "content", "application/json", "schema")), got, x.Version, ""); err != nil {
		return fmt.Errorf("%d: %w: %.500s", x.Status, err, x.Body)
	}
	return nil
}

// isWhole reports whether a request leaves nothing out of its answer.
func isWhole(op map[string]any, x Exchange) bool {
	params, _ := op["parameters"].([]any)
	list := slices.ContainsFunc(params, func(p any) bool { return p.(map[string]any)["name"] == "detail" })
	detail := strings.ToLower(strings.TrimSpace(x.Query.Get("detail")))
	return !x.Query.Has("fields") && (!list || slices.Contains([]string{"1", "t", "true", "y", "yes", "on"}, detail))
}

// whole finds members that the version has and an answer has not.
func (d *Document) whole(schema, v any, version rest.Version, path string) error {
	s, _ := schema.(map[string]any)
	if r, ok := s["$ref"].(string); ok {
		return d.whole(d.at(strings.Split(strings.TrimPrefix(r, "#/"), "/")), v, version, path)
	}
	switch v := v.(type) {
	case []any:
		for i := range v {
			if err := d.whole(s["items"], v[i], version, path+"/"+strconv.Itoa(i)); err != nil {
				return err
			}
		}
	case map[string]any:
		props, _ := s["properties"].(map[string]any)
		for name, p := range props {
			p, _ := p.(map[string]any)
			in, has := v[name]
			if !has && s["x-ingot-whole"] == true && !d.newer(p, version) {
				return fmt.Errorf("%s/%s is missing, which version %s has", path, name, version)
			}
			if err := d.whole(p, in, version, path+"/"+name); err != nil {
				return err
			}
		}
	}
	return nil
}

// request looks at a request that was done: its arguments and its body are described.
func (d *Document) request(op map[string]any, at []string, x Exchange) error {
	known := map[string]bool{}
	params, _ := op["parameters"].([]any)
	for _, p := range params {
		if p, _ := p.(map[string]any); p["in"] == "query" && !d.newer(p, x.Version) {
			known[fmt.Sprint(p["name"])] = true
		}
	}
	for name := range x.Query {
		if !known[name] {
			return fmt.Errorf("argument %s was taken, and is not described for version %s", name, x.Version)
		}
	}
	if op["requestBody"] == nil || len(bytes.TrimSpace(x.Sent)) == 0 {
		return nil
	}
	sent, err := jsonschema.UnmarshalJSON(bytes.NewReader(x.Sent))
	if err != nil {
		return nil // a form, or a body that is not read
	}
	if err := d.hold(append(at, "requestBody", "content", "application/json", "schema"), sent, x.Version); err != nil {
		return fmt.Errorf("a body was taken that is not as described: %w", err)
	}
	return nil
}

// body holds the body of an answer against the response at a place of the document.
func (d *Document) body(at []string, x Exchange) error {
	answer, _ := d.at(at).(map[string]any)
	content, _ := answer["content"].(map[string]any)
	if content == nil {
		if len(x.Body) > 0 {
			return fmt.Errorf("%d has a body, which is not described: %.200s", x.Status, x.Body)
		}
		return nil
	}
	kind, _, err := mime.ParseMediaType(x.Header.Get("Content-Type"))
	if err != nil || content[kind] == nil {
		return fmt.Errorf("%d is of type %q, not of %v", x.Status, x.Header.Get("Content-Type"),
			slices.Sorted(maps.Keys(content)))
	}
	if x.Method == http.MethodHead || kind != "application/json" {
		return nil
	}
	got, err := jsonschema.UnmarshalJSON(bytes.NewReader(x.Body))
	if err != nil {
		return fmt.Errorf("%d is no JSON: %w: %.200s", x.Status, err, x.Body)
	}
	if err := d.hold(append(at, "content", kind, "schema"), got, x.Version); err != nil {
		return fmt.Errorf("%d: %w: %.500s", x.Status, err, x.Body)
	}
	return nil
}

// hold holds a value against the schema at a place of the document, and against a version.
func (d *Document) hold(at []string, v any, version rest.Version) error {
	s, err := d.schema(at)
	if err != nil {
		return err
	}
	if err := s.Validate(v); err != nil {
		return err
	}
	return d.old(d.at(at), v, version, "")
}

// schema compiles a schema, once.
func (d *Document) schema(at []string) (*jsonschema.Schema, error) {
	var b strings.Builder
	b.WriteString(place + "#")
	for _, key := range at {
		b.WriteString("/" + url.PathEscape(strings.NewReplacer("~", "~0", "/", "~1").Replace(key)))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.compiled[b.String()]; s != nil {
		return s, nil
	}
	s, err := d.compiler.Compile(b.String())
	if err != nil {
		return nil, fmt.Errorf("the schema at %s: %w", b.String(), err)
	}
	d.compiled[b.String()] = s
	return s, nil
}

// at returns the part of the document at a place.
func (d *Document) at(keys []string) any {
	var v any = d.root
	for _, key := range keys {
		o, _ := v.(map[string]any)
		v = o[key]
	}
	return v
}

// newer reports whether a version lacks the object that o describes; 0 is none.
func (d *Document) newer(o map[string]any, v rest.Version) bool {
	since, until := minor(o["x-openstack-min-version"]), minor(o["x-openstack-max-version"])
	return v > 0 && (since > v || until > 0 && until < v)
}

func minor(v any) rest.Version {
	text, _ := v.(string)
	n, _ := strconv.Atoi(strings.TrimPrefix(text, "1."))
	return rest.Version(n)
}

// old finds members of a value that the version does not have.
func (d *Document) old(schema, v any, version rest.Version, path string) error {
	s, _ := schema.(map[string]any)
	if r, ok := s["$ref"].(string); ok {
		return d.old(d.at(strings.Split(strings.TrimPrefix(r, "#/"), "/")), v, version, path)
	}
	if any, ok := s["anyOf"].([]any); ok { // something, or null
		if v == nil {
			return nil
		}
		return d.old(any[0], v, version, path)
	}
	switch v := v.(type) {
	case []any:
		for i := range v {
			if err := d.old(s["items"], v[i], version, path+"/"+strconv.Itoa(i)); err != nil {
				return err
			}
		}
	case map[string]any:
		props, _ := s["properties"].(map[string]any)
		for name, in := range v {
			p, known := props[name].(map[string]any)
			if !known {
				p, _ = s["additionalProperties"].(map[string]any)
			}
			if d.newer(p, version) {
				return fmt.Errorf("%s/%s is not in version %s, but %v to %v", path, name, version,
					p["x-openstack-min-version"], p["x-openstack-max-version"])
			}
			if err := d.old(p, in, version, path+"/"+name); err != nil {
				return err
			}
		}
	}
	return nil
}

// Server is a running server that describes itself.
type Server struct {
	URL string

	once sync.Once
	doc  *Document
	err  error
}

// Check holds an answer of the server against its description. The address has to be written as the document writes it:
// Ironic's other ways to write one are left alone.
func (s *Server) Check(r *http.Request, sent []byte, answer *http.Response, body []byte) error {
	s.once.Do(func() { s.doc, s.err = fetch(s.URL + "/openapi.json") })
	if s.err != nil {
		return s.err
	}
	x := Exchange{Method: r.Method, Query: r.URL.Query(), Sent: sent, Status: answer.StatusCode, Header: answer.Header,
		Body: body}
	segments := strings.FieldsFunc(r.URL.EscapedPath(), func(c rune) bool { return c == '/' })
	if x.Path = s.doc.Path(segments); x.Path == "" || x.Query.Has("node_ident") ||
		strings.HasSuffix(r.URL.Path, ".json") && x.Path != "/openapi.json" {
		return nil
	}
	if strings.HasPrefix(x.Path, "/v1") {
		v, _, err := rest.Negotiate(r.Header, rest.NewestVersion)
		if err != nil {
			return nil // a version that there is not
		}
		x.Version = v
	}
	if err := s.doc.Check(x); err != nil {
		return fmt.Errorf("%s %s in version %s is not as /openapi.json says: %w", r.Method, r.URL.RequestURI(),
			x.Version, err)
	}
	return nil
}

func fetch(url string) (*Document, error) {
	resp, err := http.Get(url) // of the test's own server
	if err != nil {
		return nil, fmt.Errorf("fetch the description of the API: %w", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fetch the description of the API: %d %w", resp.StatusCode, err)
	}
	return Parse(b)
}
