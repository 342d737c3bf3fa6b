// Package resource answers requests for the kinds of resource that are alike: lists with filters, order and pages,
// create, get, PATCH and delete. A Kind holds the differences.
package resource

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/api/finder"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// Kind is one kind of resource other than nodes and ports, with all parameters of its routes: T is the stored form, R
// the clients' form. routes returns the routes that every kind has; lists below other addresses (a node's connectors)
// are made with List. A kind has few resources, so filters, order and pages are made here from all of them.
//
// A resource is written from a document: the JSON values of all attributes that a client may set, as in the body of a
// POST (so numbers are in the form of package exact, lists []any). PATCH is applied to the document of the stored
// resource, and assign reads either.
type Kind[T, R any] struct {
	Path    string // of the collection, below /v1/: "volume/connectors"
	Param   string // what routes call one of them: {connector} in "/v1/volume/connectors/{connector}"
	Member  string // the member of an answer that holds a list: "connectors"
	Body    string // in "Schema error for connector: ..."
	Title   string // in "Volume connector ... could not be found."
	Expects string // in "Expected UUID for connector_uuid: ..."

	Since       rest.Version   // that brought the routes; below it they are not found
	Named       rest.Version   // from which on one is found by its name; 0: by UUID only
	DetailPath  bool           // there is a list under path + "/detail"
	DetailSince rest.Version   // from which on ?detail= is known; 0: never
	Write       call.Access    // to create, change and delete
	Nodes       *finder.Finder // not nil: one belongs to a node, and is seen by those who see the node

	// Update is the table's Update unless a change has to do more than write the resource.
	Update func(ctx context.Context, uuid string, change func(*T) error) (*T, error)
	Table  func() *store.Table[T] // called with every request: the table of routes is made without a store, too
	Fields rest.Fields[R]
	// Shapes are the schemas of fields whose type does not determine one.
	Shapes map[string]*rest.Schema
	Short  []string // Fields of a list without detail; nil: all
	Marker call.Marker
	Show   func(c *call.Call, v *T) R

	// Unknown: a version that does not have a field yet takes it for one that there is not (400), and not for one that
	// it may not have (406). Ironic has both kinds.
	Unknown bool

	// FoundFirst: PATCH looks for the resource before it looks at which attributes are to change. Ironic has both
	// orders.
	FoundFirst bool
	// Loose: for PATCH any identifier will do, and one that is no UUID is of a resource that there is not (404 rather
	// than 400).
	Loose bool

	Schema    *rest.Schema // of a document; "uuid" is in it, but not in what document returns
	Patchable []string
	Document  func(v *T) map[string]any // of the caller's own, who may change it
	// Check looks up the references of a document and refuses values that don't fit the present state. was is nil for a
	// new resource. It May change d, say to put a UUID where the client sent a name. Nil: nothing to check.
	Check func(ctx context.Context, c *call.Call, was *T, d map[string]any) error
	// Assign sets the attributes from a document; one that is absent or null gets its default. It runs inside a
	// transaction: no I/O. v holds the stored resource, with its UUID.
	Assign func(c *call.Call, v *T, d map[string]any) *rest.Error
	// Sees reports whether the caller may know that v exists; nil: every caller of the routes may.
	Sees func(c *call.Call, v *T) bool
	// May refuses to let the caller change v (PATCH), or delete it (DELETE); nil allows it.
	May func(c *call.Call, v *T) error
	// Release refuses to delete; nil allows it.
	Release func(ctx context.Context, c *call.Call, v *T) error
	Filters []Filter[T]
}

// Routes are those of the collection and of its members.
func (k *Kind[T, R]) Routes() []call.Route {
	all, one := "/v1/"+k.Path, "/v1/"+k.Path+"/{"+k.Param+"}"
	shape := k.Shape()
	rs := []call.Route{
		{Method: http.MethodGet, Path: all, Access: call.Read, Query: call.Named, Args: k.Args(false),
			Answers: k.Page(), Handle: func(ctx context.Context, c *call.Call) (*call.Reply, error) {
				return k.List(ctx, c, k.Path, false, "", nil)
			}},
		{Method: http.MethodPost, Path: all, Access: k.Write, Takes: k.Schema.Of(k.Fields),
			Answers: call.Answers{http.StatusCreated: shape}, Handle: k.create},
		{Method: http.MethodGet, Path: one, Access: call.Read, Query: call.Named,
			Fields: k.Since < rest.VersionChildren,
			Args:   call.Args{"fields": call.Texts.From(rest.VersionSelectFields)}, Answers: call.OK(shape),
			Handle: k.get},
		{Method: http.MethodPatch, Path: one, Access: k.Write, Takes: rest.PatchOf(k.Patchable, k.Fields),
			Answers: call.OK(shape), Handle: k.patch},
		{Method: http.MethodDelete, Path: one, Access: k.Write, Answers: call.None(http.StatusNoContent),
			Handle: k.delete},
	}
	if k.DetailPath {
		rs = append(rs, call.Route{Method: http.MethodGet, Path: all + "/detail", Access: call.Read, Query: call.Named,
			Args: k.Args(true), Answers: k.Page(),
			Handle: func(ctx context.Context, c *call.Call) (*call.Reply, error) {
				return k.List(ctx, c, k.Path+"/detail", true, "", nil)
			}})
	}
	for i := range rs {
		rs[i].Since, rs[i].Hidden = k.Since, true
		if rs[i].Path == one {
			rs[i].Target = k.Addressed
		}
	}
	return rs
}

// Shape is the schema of a resource of the kind in answers.
func (k *Kind[T, R]) Shape() *rest.Schema {
	s := k.Fields.Schema()
	for name, shape := range k.Shapes {
		s.Props[name] = shape.From(s.Props[name].Since)
	}
	return s
}

// Page is the answer of a list of the kind.
func (k *Kind[T, R]) Page() call.Answers {
	return call.OK(rest.Collection(k.Member, k.Shape()))
}

// Args are the arguments of a list. detail means that the address requests all fields.
func (k *Kind[T, R]) Args(detail bool) call.Args {
	args := call.PageArgs.With()
	if k.Marker.May != nil {
		args["marker"] = call.Text
	}
	for _, f := range k.Filters {
		args[f.Name] = call.Text.From(f.Since)
	}
	if !detail {
		args["fields"] = call.Texts.From(rest.VersionSelectFields)
		if k.DetailSince > 0 {
			args["detail"] = call.Truth.From(k.DetailSince)
		}
	}
	return args
}

// Addressed is the Target that the address names.
func (k *Kind[T, R]) Addressed(ctx context.Context, c *call.Call) (call.Target, error) {
	v, err := k.ByIdent(ctx, c, c.Path[k.Param])
	if err != nil {
		return call.Target{}, err
	}
	return k.Target(v), nil
}

// Target names the present state of a resource.
func (k *Kind[T, R]) Target(v *T) call.Target {
	return call.Target{Kind: k.Table().Kind(), UUID: head(v).UUID, Tag: head(v).Tag()}
}

func head[T any](v *T) *node.Head { return any(v).(node.Resource).Meta() }

// ByIdent finds the resource with this UUID or, in versions that have names, this name.
func (k *Kind[T, R]) ByIdent(ctx context.Context, c *call.Call, ident string) (*T, error) {
	switch {
	case document.IsUUID(ident):
	case k.Loose && c.Request.Method == http.MethodPatch:
		return nil, k.Missing(ident)
	case k.Named == 0:
		return nil, rest.BadRequest("Expected UUID for %s: %s", k.Expects, ident)
	case !document.IsName(ident):
		return nil, rest.BadRequest("Expected UUID or name for %s: %s", k.Expects, ident)
	case c.Version < k.Named:
		return nil, k.Missing(ident)
	}
	v, err := k.Table().Get(ctx, ident)
	if errors.Is(err, store.ErrNotFound) {
		if stem, ok := c.Stem(ident); ok {
			if v, err2 := k.Table().Get(ctx, stem); err2 == nil && (k.Sees == nil || k.Sees(c, v)) {
				return v, nil
			}
		}
		return nil, k.Missing(ident)
	}
	if err == nil && k.Sees != nil && !k.Sees(c, v) {
		return nil, k.Missing(ident)
	}
	return v, err
}

// Missing is the error for an object that does not exist.
func (k *Kind[T, R]) Missing(ident string) *rest.Error {
	return rest.NotFound("%s %s could not be found.", k.Title, ident)
}

// Object returns the owner and lessee of the node that a resource belongs to. A resource of a node that the actor may
// not see counts as missing.
func (k *Kind[T, R]) Object(ctx context.Context, c *call.Call, ident string) (access.Object, error) {
	v, err := k.ByIdent(ctx, c, ident)
	if err != nil {
		return access.Object{}, err
	}
	n, err := k.Nodes.Visible(ctx, c, head(v).NodeUUID)
	if errors.Is(err, store.ErrNotFound) {
		return access.Object{}, k.Missing(ident)
	}
	if err != nil {
		return access.Object{}, err
	}
	return access.Of(n), nil
}

// One answers with one resource.
func (k *Kind[T, R]) One(c *call.Call, status int, v *T, names []string) *call.Reply {
	return &call.Reply{Status: status, Body: k.Fields.Render(new(k.Show(c, v)), c.Version, names), ETag: head(v).Tag()}
}

func (k *Kind[T, R]) get(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if c.Text("fields") != nil && c.Version < rest.VersionSelectFields {
		return nil, rest.NotAcceptable()
	}
	v, verr := k.ByIdent(ctx, c, c.Path[k.Param])
	if verr != nil {
		return nil, verr
	}
	names, err := k.selected(c) // after the lookup: a missing resource is reported first
	if err != nil {
		return nil, err
	}
	return k.One(c, http.StatusOK, v, names), nil
}

// later reports whether a field was added after version v.
func (k *Kind[T, R]) later(v rest.Version, name string) bool {
	since, _ := k.Fields.Since(name)
	return since > v
}

// selected reads ?fields=.
func (k *Kind[T, R]) selected(c *call.Call) ([]string, *rest.Error) {
	if f := c.Text("fields"); f != nil && k.Unknown {
		names := slices.DeleteFunc(call.Split(*f), func(name string) bool { return !k.later(c.Version, name) })
		if len(names) > 0 {
			return nil, rest.BadRequest(`Field(s) "%s" are not valid`, strings.Join(names, ", "))
		}
	}
	return call.Selected(c, k.Fields)
}

// schema is that of a new resource in version v.
func (k *Kind[T, R]) schema(v rest.Version) *rest.Schema {
	if !k.Unknown {
		return k.Schema
	}
	known := *k.Schema
	known.Props = maps.Clone(known.Props)
	maps.DeleteFunc(known.Props, func(name string, _ *rest.Schema) bool { return k.later(v, name) })
	return &known
}

// List lists the resources of a node (nodeUUID; "" is all) that keep holds for (nil: all) and that the request's
// filters Name. path is the list's own address below /v1/, for links to the next page. detail means that the address
// requests all fields.
func (k *Kind[T, R]) List(ctx context.Context, c *call.Call, path string, detail bool, nodeUUID string,
	keep func(*T) bool) (*call.Reply, error) {
	names, unknown := k.listNames(c, detail)
	if unknown != nil && unknown.Status != http.StatusBadRequest {
		return nil, unknown
	}
	for _, f := range k.Filters {
		if c.Query.Has(f.Name) && c.Version < f.Since {
			return nil, rest.NotAcceptable()
		}
	}
	marker := k.Marker
	marker.There = func(uuid string) error {
		v, err := k.Table().Get(ctx, uuid)
		if errors.Is(err, store.ErrNotFound) || err == nil && k.Sees != nil && !k.Sees(c, v) {
			return k.Missing(uuid)
		}
		return err
	}
	p, perr := c.Page(k.Fields, marker)
	if perr != nil {
		return nil, perr
	}
	keeps, ferr := k.wanted(ctx, c)
	if ferr != nil {
		return nil, ferr
	}
	if unknown != nil { // fields that there are not are found last
		return nil, unknown
	}
	if keep != nil {
		keeps = append(keeps, keep)
	}
	if k.Sees != nil {
		keeps = append(keeps, func(v *T) bool { return k.Sees(c, v) })
	}
	vs, terr := k.Table().List(ctx, nodeUUID)
	if terr != nil {
		return nil, terr
	}
	if k.Nodes != nil {
		sees, err := k.Nodes.Sees(ctx, c)
		if err != nil {
			return nil, err
		}
		vs = slices.DeleteFunc(vs, func(v *T) bool { return !sees(head(v).NodeUUID) })
	}
	vs = k.order(c, vs, p)
	if p.Marker != "" {
		i := slices.IndexFunc(vs, func(v *T) bool { return head(v).UUID == strings.ToLower(p.Marker) })
		if i < 0 {
			return nil, k.Missing(p.Marker)
		}
		vs = vs[i+1:]
	}
	var items []rest.Object
	last := ""
	for _, v := range vs {
		if len(items) == p.Limit {
			break
		}
		if slices.ContainsFunc(keeps, func(keep func(*T) bool) bool { return !keep(v) }) {
			continue
		}
		items, last = append(items, k.Fields.Render(new(k.Show(c, v)), c.Version, names)), head(v).UUID
	}
	return call.List(k.Member, items, c.Next(p, path, len(items), last, names)), nil
}

// listNames returns the fields that a list shows; nil is all.
func (k *Kind[T, R]) listNames(c *call.Call, detail bool) ([]string, *rest.Error) {
	if detail {
		return nil, nil
	}
	d, err := c.Flag("detail")
	if err != nil {
		return nil, err
	}
	if d != nil && c.Version < k.DetailSince {
		return nil, call.NoDetail(c)
	}
	names, err := k.selected(c)
	switch {
	case err != nil:
		return nil, err
	case d != nil && *d && names != nil:
		return nil, rest.BadRequest("Can not specify ?detail=True and fields in the same request.")
	case d != nil && *d:
		return nil, nil
	case names == nil && k.Short != nil:
		return slices.DeleteFunc(append(slices.Clone(k.Short), "links"),
			func(f string) bool { return k.later(c.Version, f) }), nil
	}
	return names, nil
}

// wanted makes the request's filters.
func (k *Kind[T, R]) wanted(ctx context.Context, c *call.Call) ([]func(*T) bool, error) {
	var keeps []func(*T) bool
	for _, f := range k.Filters {
		value := c.Text(f.Name)
		if value == nil {
			continue
		}
		keep, err := f.Match(ctx, c, *value)
		if err != nil {
			return nil, err
		}
		keeps = append(keeps, keep)
	}
	return keeps, nil
}

// order sorts a list that is in the order its members were made, which decides between equals.
func (k *Kind[T, R]) order(c *call.Call, vs []*T, p call.Page) []*T {
	if p.Sort != "" {
		type pair struct {
			v     *T
			shown R
		}
		pairs := make([]pair, len(vs))
		for i, v := range vs {
			pairs[i] = pair{v, k.Show(c, v)}
		}
		slices.SortStableFunc(pairs, func(a, b pair) int { return k.Fields.Compare(&a.shown, &b.shown, p.Sort) })
		for i := range pairs {
			vs[i] = pairs[i].v
		}
	}
	if p.Desc {
		slices.Reverse(vs)
	}
	return vs
}

func (k *Kind[T, R]) create(ctx context.Context, c *call.Call) (*call.Reply, error) {
	d, err := c.Created(k.Body, k.schema(c.Version), k.Fields)
	if err != nil {
		return nil, err
	}
	v := new(T)
	if head(v).UUID, err = document.NewUUID(d); err != nil {
		return nil, err
	}
	if k.Check != nil {
		if err := k.Check(ctx, c, nil, d); err != nil {
			return nil, err
		}
	}
	if err := k.Assign(c, v, d); err != nil {
		return nil, err
	}
	if err := k.Table().Create(ctx, v); err != nil {
		return nil, k.refused(err, v)
	}
	rep := k.One(c, http.StatusCreated, v, nil)
	rep.Location = c.Base + "/v1/" + k.Path + "/" + head(v).UUID
	return rep, nil
}

// refused words why the store did not take v: the node that it is to belong to may have been deleted just now.
func (k *Kind[T, R]) refused(err error, v *T) error {
	if errors.Is(err, store.ErrNotFound) {
		return rest.BadRequest("Node %s could not be found.", head(v).NodeUUID)
	}
	return err
}

func (k *Kind[T, R]) patch(ctx context.Context, c *call.Call) (*call.Reply, error) {
	patchable := k.Patchable
	if k.Unknown {
		patchable = slices.DeleteFunc(slices.Clone(patchable),
			func(name string) bool { return k.later(c.Version, name) })
	}
	patch, err := rest.ReadPatch(c.Body, c.Version)
	if err != nil {
		return nil, err
	}
	if k.FoundFirst {
		if _, err := k.ByIdent(ctx, c, c.Path[k.Param]); err != nil {
			return nil, err
		}
	}
	if err := patch.Only(patchable); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(patch.Roots(), func(root string) bool { return k.later(c.Version, root) }) {
		return nil, rest.NotAcceptable()
	}
	v, perr := Unchanged(k.Title+" "+c.Path[k.Param], func() (*T, error) { return k.patchOnce(ctx, c, patch) })
	if perr != nil {
		return nil, perr
	}
	return k.One(c, http.StatusOK, v, nil), nil
}

// Unchanged makes a change of what was read and checked before: where change returns ErrChanged, because somebody else
// was faster, all is looked at again.
func Unchanged[T any](what string, change func() (T, error)) (T, error) {
	for range 10 {
		if v, err := change(); !errors.Is(err, ErrChanged) {
			return v, err
		}
	}
	return *new(T), rest.Conflict("%s is being changed by others all the time; try again.", what)
}

// ErrChanged says that a resource has changed since it was read.
var ErrChanged = errors.New("the resource was changed meanwhile")

func (k *Kind[T, R]) patchOnce(ctx context.Context, c *call.Call, patch *rest.Patch) (*T, error) {
	was, err := k.ByIdent(ctx, c, c.Path[k.Param])
	if err != nil {
		return nil, err
	}
	if k.May != nil {
		if err := k.May(c, was); err != nil {
			return nil, err
		}
	}
	d := k.Document(was)
	if err := patch.Apply(d); err != nil {
		return nil, err
	}
	if fault := k.Schema.Check(d); fault != "" {
		return nil, rest.BadRequest("Schema error for patch: %s", fault)
	}
	if k.Check != nil {
		if err := k.Check(ctx, c, was, d); err != nil {
			return nil, err
		}
	}
	found, update := false, k.Update
	if update == nil {
		update = k.Table().Update
	}
	v, err := update(ctx, head(was).UUID, func(v *T) error {
		found = true
		if !reflect.DeepEqual(k.Document(v), k.Document(was)) {
			return ErrChanged
		}
		if err := k.Assign(c, v, d); err != nil {
			return err
		}
		was = v
		return nil
	})
	switch {
	case err == nil:
		return v, nil
	case !found && errors.Is(err, store.ErrNotFound):
		return nil, k.Missing(c.Path[k.Param])
	}
	return nil, k.refused(err, was)
}

func (k *Kind[T, R]) delete(ctx context.Context, c *call.Call) (*call.Reply, error) {
	v, err := k.ByIdent(ctx, c, c.Path[k.Param])
	if err != nil {
		return nil, err
	}
	if k.May != nil {
		if err := k.May(c, v); err != nil {
			return nil, err
		}
	}
	if k.Release != nil {
		if err := k.Release(ctx, c, v); err != nil {
			return nil, err
		}
	}
	err = k.Table().Delete(ctx, head(v).UUID)
	if errors.Is(err, store.ErrNotFound) {
		return nil, k.Missing(c.Path[k.Param])
	}
	return call.NoContent(), err
}
