package api

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// kind is one kind of resource beside nodes and ports, and all that its routes need to know: T is how the store keeps one, R how
// clients see it. routes gives the routes that every kind has; lists below other addresses (a node's connectors) are made with
// listWhere. There are few resources of a kind, so filters, order and pages are made here from all of them.
//
// A resource is written from a document: the JSON values of all attributes that a client may set, as in the body of a POST (so
// numbers are float64, lists []any). PATCH is applied to the document of what is stored, and assign reads either.
type kind[T, R any] struct {
	path    string // of the collection, below /v1/: "volume/connectors"
	param   string // what routes call one of them: {connector} in "/v1/volume/connectors/{connector}"
	list    string // the member of an answer that holds a list: "connectors"
	body    string // in "Schema error for connector: ..."
	title   string // in "Volume connector ... could not be found."
	expects string // in "Expected UUID for connector_uuid: ..."

	since       rest.Version // that brought the routes; below it they are not found
	named       rest.Version // from which on one is found by its name; 0: by UUID only
	detailPath  bool         // there is a list under path + "/detail"
	detailSince rest.Version // from which on ?detail= is known; 0: never
	write       Access       // of whoever creates, changes and deletes
	ofNode      *Server      // not nil: one belongs to a node, and is seen by those who see the node

	// update is the table's Update unless a change has to do more than write the resource.
	update func(ctx context.Context, uuid string, change func(*T) error) (*T, error)
	table  func() *store.Table[T] // asked for with every request: the table of routes is made without a store, too
	fields rest.Fields[R]
	short  []string // fields of a list without detail
	show   func(c *call, v *T) R

	schema    *rest.Schema // of a document; "uuid" is in it, but not in what document returns
	patchable []string
	document  func(v *T) map[string]any // of the caller's own: it may change what is in it
	// check looks at what a document refers to and refuses what depends on how things are. was is nil for a new resource. It
	// may change d, say to put a UUID where the client sent a name. Nil: nothing to check.
	check func(ctx context.Context, c *call, was *T, d map[string]any) error
	// assign sets the attributes from a document; one that is absent or null gets its default. It runs inside a transaction:
	// no I/O. v holds what was stored before, with its UUID.
	assign func(c *call, v *T, d map[string]any) *rest.Error
	// sees tells whether whoever asks may know that v exists; nil: whoever gets through to the routes may.
	sees func(c *call, v *T) bool
	// may refuses to let whoever asks change v (PATCH), or delete it (DELETE); nil allows it.
	may func(c *call, v *T) error
	// release refuses to delete; nil allows it.
	release func(ctx context.Context, c *call, v *T) error
	filters []filter[T]
}

// filter is a query argument of a list. match is given its value and returns which resources to keep.
type filter[T any] struct {
	name  string
	since rest.Version // below it the argument is not acceptable; 0: all versions
	match func(ctx context.Context, c *call, value string) (func(*T) bool, error)
}

// routes are those of the collection and of its members.
func (k *kind[T, R]) routes() []route {
	all, one := "/v1/"+k.path, "/v1/"+k.path+"/{"+k.param+"}"
	rs := []route{
		{Method: http.MethodGet, Path: all, Access: Read, handle: func(ctx context.Context, c *call) (*reply, error) {
			return k.listWhere(ctx, c, k.path, false, "", nil)
		}},
		{Method: http.MethodPost, Path: all, Access: k.write, handle: k.create},
		{Method: http.MethodGet, Path: one, Access: Read, handle: k.get},
		{Method: http.MethodPatch, Path: one, Access: k.write, handle: k.patch},
		{Method: http.MethodDelete, Path: one, Access: k.write, handle: k.delete},
	}
	if k.detailPath {
		rs = append(rs, route{Method: http.MethodGet, Path: all + "/detail", Access: Read, handle: func(ctx context.Context, c *call) (*reply, error) {
			return k.listWhere(ctx, c, k.path+"/detail", true, "", nil)
		}})
	}
	for i := range rs {
		rs[i].Since, rs[i].Hidden = k.since, true
	}
	return rs
}

func head[T any](v *T) *node.Head { return any(v).(node.Resource).Meta() }

// byIdent finds the resource with this UUID or, in versions that have names, this name.
func (k *kind[T, R]) byIdent(ctx context.Context, c *call, ident string) (*T, error) {
	switch {
	case isUUID(ident):
	case k.named == 0:
		return nil, rest.BadRequest("Expected UUID for %s: %s", k.expects, ident)
	case !urlName.MatchString(ident):
		return nil, rest.BadRequest("Expected UUID or name for %s: %s", k.expects, ident)
	case c.v < k.named:
		return nil, k.missing(ident)
	}
	v, err := k.table().Get(ctx, ident)
	if errors.Is(err, store.ErrNotFound) {
		// Like nodes: "x.json" is "x", with a wish for JSON.
		if stem, ok := strings.CutSuffix(ident, ".json"); ok && stem != "" && c.v < rest.VersionNoSuffix {
			if v, err2 := k.table().Get(ctx, stem); err2 == nil && (k.sees == nil || k.sees(c, v)) {
				return v, nil
			}
		}
		return nil, k.missing(ident)
	}
	if err == nil && k.sees != nil && !k.sees(c, v) {
		return nil, k.missing(ident)
	}
	return v, err
}

func (k *kind[T, R]) missing(ident string) *rest.Error {
	return rest.NotFound("%s %s could not be found.", k.title, ident)
}

// object tells whose the node is that a resource belongs to. One of a node that the actor may not see is not there.
func (k *kind[T, R]) object(ctx context.Context, c *call, ident string) (access.Object, error) {
	v, err := k.byIdent(ctx, c, ident)
	if err != nil {
		return access.Object{}, err
	}
	n, err := k.ofNode.visible(ctx, c, head(v).NodeUUID)
	if errors.Is(err, store.ErrNotFound) {
		return access.Object{}, k.missing(ident)
	}
	if err != nil {
		return access.Object{}, err
	}
	return access.Of(n), nil
}

// show1 answers with one resource.
func (k *kind[T, R]) show1(c *call, status int, v *T, names []string) *reply {
	shown := k.show(c, v)
	return &reply{status: status, body: k.fields.Render(&shown, c.v, names)}
}

func (k *kind[T, R]) get(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow("fields"); err != nil {
		return nil, err
	}
	names, err := selected(c, k.fields)
	if err != nil {
		return nil, err
	}
	v, verr := k.byIdent(ctx, c, c.path[k.param])
	if verr != nil {
		return nil, verr
	}
	return k.show1(c, http.StatusOK, v, names), nil
}

// listWhere lists the resources of a node (nodeUUID; "" is all) that keep holds for (nil: all) and that the request's filters
// name. path is the list's own address below /v1/, for links to the next page. detail tells that the address asks for all fields.
func (k *kind[T, R]) listWhere(ctx context.Context, c *call, path string, detail bool, nodeUUID string, keep func(*T) bool) (*reply, error) {
	allowed := slices.Clone(pageArguments)
	for _, f := range k.filters {
		allowed = append(allowed, f.name)
	}
	if !detail {
		allowed = append(allowed, "fields")
		if k.detailSince > 0 {
			allowed = append(allowed, "detail")
		}
	}
	if err := c.allow(allowed...); err != nil {
		return nil, err
	}
	names, err := k.listNames(c, detail)
	if err != nil {
		return nil, err
	}
	keeps, ferr := k.wanted(ctx, c)
	if ferr != nil {
		return nil, ferr
	}
	if keep != nil {
		keeps = append(keeps, keep)
	}
	if k.sees != nil {
		keeps = append(keeps, func(v *T) bool { return k.sees(c, v) })
	}
	p, err := c.page(func(f string) bool { _, ok := k.fields.Since(f); return ok }, k.fields.Sortable)
	if err != nil {
		return nil, err
	}
	if since, _ := k.fields.Since(p.sort); since > c.v {
		return nil, rest.NotAcceptable()
	}
	vs, terr := k.table().List(ctx, nodeUUID)
	if terr != nil {
		return nil, terr
	}
	if k.ofNode != nil {
		sees, err := k.ofNode.sees(ctx, c)
		if err != nil {
			return nil, err
		}
		vs = slices.DeleteFunc(vs, func(v *T) bool { return !sees(head(v).NodeUUID) })
	}
	vs = k.order(c, vs, p)
	if p.marker != "" {
		i := slices.IndexFunc(vs, func(v *T) bool { return head(v).UUID == strings.ToLower(p.marker) })
		if i < 0 {
			return nil, k.missing(p.marker)
		}
		vs = vs[i+1:]
	}
	var items []rest.Object
	last := ""
	for _, v := range vs {
		if len(items) == p.limit {
			break
		}
		if slices.ContainsFunc(keeps, func(keep func(*T) bool) bool { return !keep(v) }) {
			continue
		}
		shown := k.show(c, v)
		items, last = append(items, k.fields.Render(&shown, c.v, names)), head(v).UUID
	}
	return list(k.list, items, c.next(p, path, len(items), last)), nil
}

// listNames tells which fields a list shows; nil is all.
func (k *kind[T, R]) listNames(c *call, detail bool) ([]string, *rest.Error) {
	if detail {
		return nil, nil
	}
	d, err := c.flag("detail")
	if err != nil {
		return nil, err
	}
	if d != nil && c.v < k.detailSince {
		return nil, rest.NotAcceptable()
	}
	names, err := selected(c, k.fields)
	switch {
	case err != nil:
		return nil, err
	case d != nil && *d && names != nil:
		return nil, rest.BadRequest("Can not specify ?detail=True and fields in the same request.")
	case d != nil && *d:
		return nil, nil
	case names == nil:
		return append(slices.Clone(k.short), "links"), nil
	}
	return names, nil
}

// wanted makes the request's filters.
func (k *kind[T, R]) wanted(ctx context.Context, c *call) ([]func(*T) bool, error) {
	var keeps []func(*T) bool
	for _, f := range k.filters {
		value := c.text(f.name)
		if value == nil {
			continue
		}
		if c.v < f.since {
			return nil, rest.NotAcceptable()
		}
		keep, err := f.match(ctx, c, *value)
		if err != nil {
			return nil, err
		}
		keeps = append(keeps, keep)
	}
	return keeps, nil
}

// order sorts a list that is in the order its members were made, which decides between equals.
func (k *kind[T, R]) order(c *call, vs []*T, p page) []*T {
	if p.sort != "" {
		type pair struct {
			v     *T
			shown R
		}
		pairs := make([]pair, len(vs))
		for i, v := range vs {
			pairs[i] = pair{v, k.show(c, v)}
		}
		slices.SortStableFunc(pairs, func(a, b pair) int { return k.fields.Compare(&a.shown, &b.shown, p.sort) })
		for i := range pairs {
			vs[i] = pairs[i].v
		}
	}
	if p.desc {
		slices.Reverse(vs)
	}
	return vs
}

func (k *kind[T, R]) create(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	d, err := c.object(k.body)
	if err != nil {
		return nil, err
	}
	if fault := k.schema.Check(d); fault != "" {
		return nil, rest.BadRequest("Schema error for %s: %s", k.body, fault)
	}
	for name := range d {
		if since, _ := k.fields.Since(name); since > c.v {
			return nil, rest.NotAcceptable()
		}
	}
	v := new(T)
	if id, ok := d["uuid"].(string); ok {
		if !isUUID(id) {
			return nil, rest.BadRequest("Expected UUID for uuid: %s", id)
		}
		head(v).UUID = strings.ToLower(id)
	}
	if k.check != nil {
		if err := k.check(ctx, c, nil, d); err != nil {
			return nil, err
		}
	}
	if err := k.assign(c, v, d); err != nil {
		return nil, err
	}
	if err := k.table().Create(ctx, v); err != nil {
		return nil, k.refused(err, v)
	}
	rep := k.show1(c, http.StatusCreated, v, nil)
	rep.location = c.base + "/v1/" + k.path + "/" + head(v).UUID
	return rep, nil
}

// refused words why the store did not take v: the node that it is to belong to may have been deleted just now.
func (k *kind[T, R]) refused(err error, v *T) error {
	if errors.Is(err, store.ErrNotFound) {
		return rest.BadRequest("Node %s could not be found.", head(v).NodeUUID)
	}
	return err
}

func (k *kind[T, R]) patch(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	patch, err := rest.ParsePatch(orList(c.body), c.v, k.patchable)
	if err != nil {
		return nil, err
	}
	for _, root := range patch.Roots() {
		if since, _ := k.fields.Since(root); since > c.v {
			return nil, rest.NotAcceptable()
		}
	}
	// What check finds must be true of what the patch is applied to: if somebody else was faster, all is looked at again.
	for range 10 {
		v, err := k.patchOnce(ctx, c, patch)
		if errors.Is(err, errChanged) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return k.show1(c, http.StatusOK, v, nil), nil
	}
	return nil, rest.Conflict("%s %s is being changed by others all the time; try again.", k.title, c.path[k.param])
}

// errChanged says that a resource is not any more what it was when it was read.
var errChanged = errors.New("the resource was changed meanwhile")

func (k *kind[T, R]) patchOnce(ctx context.Context, c *call, patch *rest.Patch) (*T, error) {
	was, err := k.byIdent(ctx, c, c.path[k.param])
	if err != nil {
		return nil, err
	}
	if k.may != nil {
		if err := k.may(c, was); err != nil {
			return nil, err
		}
	}
	d := k.document(was)
	if err := patch.Apply(d); err != nil {
		return nil, err
	}
	if fault := k.schema.Check(d); fault != "" {
		return nil, rest.BadRequest("Schema error for patch: %s", fault)
	}
	if k.check != nil {
		if err := k.check(ctx, c, was, d); err != nil {
			return nil, err
		}
	}
	found := false
	update := k.update
	if update == nil {
		update = k.table().Update
	}
	v, err := update(ctx, head(was).UUID, func(v *T) error {
		found = true
		if !reflect.DeepEqual(k.document(v), k.document(was)) {
			return errChanged
		}
		if err := k.assign(c, v, d); err != nil {
			return err
		}
		was = v
		return nil
	})
	switch {
	case err == nil:
		return v, nil
	case !found && errors.Is(err, store.ErrNotFound):
		return nil, k.missing(c.path[k.param])
	}
	return nil, k.refused(err, was)
}

func (k *kind[T, R]) delete(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	v, err := k.byIdent(ctx, c, c.path[k.param])
	if err != nil {
		return nil, err
	}
	if k.may != nil {
		if err := k.may(c, v); err != nil {
			return nil, err
		}
	}
	if k.release != nil {
		if err := k.release(ctx, c, v); err != nil {
			return nil, err
		}
	}
	if err := k.table().Delete(ctx, head(v).UUID); errors.Is(err, store.ErrNotFound) {
		return nil, k.missing(c.path[k.param])
	} else if err != nil {
		return nil, err
	}
	return &reply{status: http.StatusNoContent}, nil
}
