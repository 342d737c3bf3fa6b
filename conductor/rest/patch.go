package rest

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// Operation is one line of a JSON PATCH.
type Operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// Root returns the attribute that an operation changes.
func (o Operation) Root() string {
	root, _, _ := strings.Cut(strings.TrimPrefix(o.Path, "/"), "/")
	return root
}

// Patch is a checked JSON PATCH.
type Patch struct {
	ops []operation
}

// operation is one line of a Patch as it was sent, and the names on its path.
type operation struct {
	sent map[string]any
	keys []string
}

// patchSchema is the schema of a body; path is the form of paths, and text names that form in errors.
func patchSchema(path *regexp.Regexp, text string) *Schema {
	return &Schema{Types: []string{"array"}, Items: &Schema{
		Types:    []string{"object"},
		Required: []string{"op", "path"},
		Closed:   true,
		Props: map[string]*Schema{
			"op":    {Types: []string{"string"}, Enum: []any{"add", "replace", "remove"}},
			"path":  {Types: []string{"string"}, Pattern: path, PatternText: text},
			"value": nil,
		},
	}}
}

// Names on a path are words; from VersionPatchEscapes on they are anything, with ~0 for ~ and ~1 for /.
var (
	plainPatch   = patchSchema(regexp.MustCompile(`^(/[\p{L}\p{N}_-]+)+$`), `^(/[\w-]+)+$`)
	escapedPatch = patchSchema(regexp.MustCompile(`^(/([^~/]|~[01])+)+$`), "")
	unescape     = strings.NewReplacer("~1", "/", "~0", "~")
)

// ParsePatch checks the shape of a PATCH body as version v has it, and that it touches none but the attributes allowed.
func ParsePatch(body any, v Version, allowed []string) (*Patch, *Error) {
	p, err := ReadPatch(body, v)
	if err == nil {
		err = p.Only(allowed)
	}
	return p, err
}

// Only refuses a patch that touches others than the attributes allowed.
func (p *Patch) Only(allowed []string) *Error {
	for _, op := range p.ops {
		if !slices.Contains(allowed, op.keys[0]) {
			return BadRequest("Cannot patch %s. Only the following can be updated: %s", op.sent["path"],
				strings.Join(allowed, ", "))
		}
	}
	return nil
}

// ReadPatch is ParsePatch for attributes of any name.
func ReadPatch(body any, v Version) (*Patch, *Error) {
	schema := plainPatch
	if v >= VersionPatchEscapes {
		schema = escapedPatch
	}
	if body == nil {
		body = map[string]any{} // as in Ironic no body is an empty object, which is no list
	}
	if fault := schema.Check(body); fault != "" {
		return nil, BadRequest("Schema error for patch: %s", fault)
	}
	p := &Patch{}
	for _, item := range body.([]any) {
		op := operation{sent: item.(map[string]any)}
		path := op.sent["path"].(string)
		for key := range strings.SplitSeq(path[1:], "/") {
			if v >= VersionPatchEscapes {
				key = unescape.Replace(key)
			}
			op.keys = append(op.keys, key)
		}
		p.ops = append(p.ops, op)
	}
	return p, nil
}

// Roots returns the attributes that the patch changes, each once.
func (p *Patch) Roots() []string {
	var roots []string
	for _, op := range p.ops {
		if !slices.Contains(roots, op.keys[0]) {
			roots = append(roots, op.keys[0])
		}
	}
	return roots
}

// Value returns the last value that the patch sets for an attribute as a whole; false if it sets none.
func (p *Patch) Value(root string) (v any, set bool) {
	for _, op := range p.ops {
		if op.sent["op"] != "remove" && len(op.keys) == 1 && op.keys[0] == root {
			v, set = op.sent["value"], true
		}
	}
	return v, set
}

// Removes reports whether the patch removes an attribute as a whole.
func (p *Patch) Removes(root string) bool {
	return slices.ContainsFunc(p.ops, func(op operation) bool {
		return op.sent["op"] == "remove" && len(op.keys) == 1 && op.keys[0] == root
	})
}

// Apply changes doc, which holds the present values of all attributes that may be patched. A removed attribute is gone
// from doc: it takes its default. doc's inner values must be the caller's to change. An attribute that gets too large
// is refused, and so is a document.
func (p *Patch) Apply(doc map[string]any) *Error {
	was := limit.DocumentSize(doc)
	for _, op := range p.ops {
		verb := op.sent["op"].(string)
		refuse := func(why string) *Error {
			return RefusedPatch(why, map[string]any{"op": verb, "path": op.sent["path"]})
		}
		if verb == "remove" && len(op.keys) == 1 {
			delete(doc, op.keys[0]) // absent means that it has its default already
			continue
		}
		value, has := op.sent["value"]
		if verb != "remove" && !has {
			return refuse("The operation does not contain a 'value' member")
		}
		if err := change(doc, op.keys, verb, clone(value)); err != nil {
			return refuse(err.Error())
		}
	}
	if !slices.ContainsFunc(p.ops, func(op operation) bool { return op.sent["op"] != "remove" }) {
		return nil // an oversized document can be made smaller
	}
	return Oversized(doc, p.Roots(), was)
}

// RefusedPatch is the answer to a PATCH that can't be applied. what is the operation, or all of them; of each its name
// and its path are shown, and no value.
func RefusedPatch(why string, what any) *Error {
	bare := func(op any) any {
		o, ok := op.(map[string]any)
		if !ok {
			return op
		}
		return map[string]any{"op": o["op"], "path": o["path"]}
	}
	if list, ok := what.([]any); ok {
		shown := make([]any, len(list))
		for i := range list {
			shown[i] = bare(list[i])
		}
		what = shown
	}
	return &Error{Status: http.StatusBadRequest,
		Message: fmt.Sprintf("Couldn't apply patch '%s'. Reason: %s", Repr(bare(what)), why)}
}

// change applies one operation below root. Its errors name paths, never values.
func change(root map[string]any, keys []string, op string, value any) error {
	var at any = root
	set := func(any) {} // puts a list that had to grow back where it was
	for depth, key := range keys[:len(keys)-1] {
		switch x := at.(type) {
		case map[string]any:
			next, ok := x[key]
			if !ok {
				return fmt.Errorf("member '%s' not found in %s", key, pointer(keys[:depth]))
			}
			set = func(v any) { x[key] = v }
			at = next
		case []any:
			i, err := index(x, key, len(x)-1)
			if err != nil {
				return err
			}
			set = func(v any) { x[i] = v }
			at = x[i]
		default:
			return fmt.Errorf("there is nothing below %s", pointer(keys[:depth]))
		}
	}
	last := keys[len(keys)-1]
	switch x := at.(type) {
	case map[string]any:
		if _, ok := x[last]; !ok && op != "add" && len(keys) > 1 {
			return fmt.Errorf("can't %s a non-existent object '%s'", op, last)
		}
		if op == "remove" {
			delete(x, last)
		} else {
			x[last] = value
		}
	case []any:
		switch op {
		case "add":
			i, err := index(x, last, len(x))
			if err != nil {
				return err
			}
			set(slices.Insert(slices.Clone(x), i, value))
		default:
			i, err := index(x, last, len(x)-1)
			if err != nil {
				return err
			}
			if op == "remove" {
				set(slices.Delete(slices.Clone(x), i, i+1))
			} else {
				x[i] = value
			}
		}
	default:
		return fmt.Errorf("there is nothing below %s", pointer(keys[:len(keys)-1]))
	}
	return nil
}

// pointer writes names as a path.
func pointer(keys []string) string {
	var b strings.Builder
	for _, key := range keys {
		b.WriteString("/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key))
	}
	return "'" + b.String() + "'"
}

func index(list []any, key string, limit int) (int, error) {
	if key == "-" && limit == len(list) {
		return limit, nil
	}
	i, err := strconv.Atoi(key)
	if err != nil || i < 0 || i > limit {
		return 0, fmt.Errorf("list index '%s' out of range", key)
	}
	return i, nil
}

// clone copies a JSON value, so that patched values are never shared.
func clone(v any) any {
	switch x := v.(type) {
	case map[string]any:
		return Clone(x)
	case []any:
		c := make([]any, len(x))
		for i := range x {
			c[i] = clone(x[i])
		}
		return c
	}
	return v
}

// Clone copies a JSON object with all that is in it; nil becomes an empty object.
func Clone(m map[string]any) map[string]any {
	c := make(map[string]any, len(m))
	for k, v := range m {
		c[k] = clone(v)
	}
	return c
}
