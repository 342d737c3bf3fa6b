// Package pools answers requests about machines that are kept warm: the policies, below /ingot/v1/pools, and one node
// at a time, at /ingot/v1/nodes/{node}/warm. Package conductor/schedule/pool checks policies and reports how things
// stand.
package pools

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/api/finder"
	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/schedule/pool"
	"github.com/ingot-metal/ingot/conductor/store"
)

// poolStore is the part of the store that pools need.
type poolStore interface {
	Pools() *store.Table[node.Pool]
	PoolMembers(ctx context.Context) (map[string]node.PoolMember, error)
	Promises(ctx context.Context) ([]node.Promise, error)
	Nodes(ctx context.Context, q store.Query) ([]*node.Node, error)
	Node(ctx context.Context, ident string) (*node.Node, error)
}

// Machines has single nodes made warm and turned off again.
type Machines interface {
	Warm(ctx context.Context, ident, user string) error
	Cool(ctx context.Context, ident, user string) error
	Stage(ctx context.Context, ident string, image map[string]any, user string) error
}

// Handlers answer the requests.
type Handlers struct {
	store poolStore
	find  *finder.Finder
	do    Machines
	pace  Pace
}

// Pace says how often actions are tried again, as the runner of the pools does.
type Pace = pool.Pace

// New makes Handlers. With nil machines, single nodes can't be warmed.
func New(st poolStore, find *finder.Finder, do Machines, pace Pace) *Handlers {
	return &Handlers{store: st, find: find, do: do, pace: pace}
}

// Routes are those of pools and of single warm nodes.
func (s *Handlers) Routes() []call.Route {
	const all, one, warm = "/ingot/v1/pools", "/ingot/v1/pools/{pool}", "/ingot/v1/nodes/{node}/warm"
	changed := call.Answers{http.StatusAccepted: rest.Warm{}}
	return []call.Route{
		{Method: http.MethodGet, Path: all, Access: call.Read, Answers: call.OK(rest.Pools{}), Handle: s.list},
		{Method: http.MethodGet, Path: one, Access: call.Read, Answers: call.OK(rest.Pool{}), Handle: s.get},
		{Method: http.MethodPut, Path: one, Access: call.Admin, Takes: schema,
			Answers: call.Answers{http.StatusOK: rest.Pool{}, http.StatusCreated: rest.Pool{}}, Handle: s.set},
		{Method: http.MethodDelete, Path: one, Access: call.Admin, Answers: call.None(http.StatusNoContent),
			Handle: s.delete},
		{Method: http.MethodGet, Path: warm, Access: call.Read, Answers: call.OK(rest.Warm{}),
			Handle: s.find.Named(s.getWarm)},
		{Method: http.MethodPost, Path: warm, Access: call.Use,
			Takes: call.Body(nil, call.Args{"image": document.OptionalObject}), Answers: changed, Handle: s.postWarm},
		{Method: http.MethodDelete, Path: warm, Access: call.Use, Answers: changed, Handle: s.deleteWarm},
	}
}

// poolName matches names of pools: they go into an address unescaped.
var poolName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// schema is that of a policy.
var schema = &rest.Schema{Types: []string{"object"}, Closed: true, Props: map[string]*rest.Schema{
	"description":     {Types: []string{"string", "null"}, MaxLen: 255},
	"conductor_group": {Types: []string{"string", "null"}, MaxLen: 255},
	"resource_class":  {Types: []string{"string", "null"}, MaxLen: 80},
	"count":           {Types: []string{"integer"}},
	"percent":         {Types: []string{"integer"}},
	"max_on":          {Types: []string{"integer"}},
	"max_watts":       {Types: []string{"integer"}},
	"watts_per_node":  {Types: []string{"integer"}},
	"image":           {Types: []string{"object", "null"}},
}}

func (s *Handlers) list(ctx context.Context, c *call.Call) (*call.Reply, error) {
	w, err := pool.Look(ctx, s.store)
	if err != nil {
		return nil, err
	}
	out := rest.Pools{Pools: []rest.Pool{}}
	byName := slices.Clone(w.Pools)
	slices.SortFunc(byName, func(a, b *node.Pool) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	for _, p := range byName {
		out.Pools = append(out.Pools, s.show(w, p, false))
	}
	return &call.Reply{Status: http.StatusOK, Body: out}, nil
}

func (s *Handlers) get(ctx context.Context, c *call.Call) (*call.Reply, error) {
	return s.answer(ctx, c, http.StatusOK)
}

// answer shows the pool that the address names.
func (s *Handlers) answer(ctx context.Context, c *call.Call, status int) (*call.Reply, error) {
	w, err := pool.Look(ctx, s.store)
	if err != nil {
		return nil, err
	}
	ident := c.Path["pool"]
	i := slices.IndexFunc(w.Pools, func(p *node.Pool) bool { return p.Name == ident || p.UUID == ident })
	if i < 0 {
		return nil, missing(ident)
	}
	return &call.Reply{Status: status, Body: s.show(w, w.Pools[i], true)}, nil
}

func missing(ident string) *rest.Error { return rest.NotFound("Pool %s could not be found.", ident) }

func (s *Handlers) show(w *pool.World, p *node.Pool, nodes bool) rest.Pool {
	facts := w.Facts(p)
	d := pool.Decide(p, facts, time.Now(), s.pace)
	out := rest.Pool{UUID: p.UUID, Name: p.Name, Description: rest.Null(p.Description),
		ConductorGroup: p.ConductorGroup, ResourceClass: rest.Null(p.ResourceClass), Count: p.Count, Percent: p.Percent,
		MaxOn: p.MaxOn, MaxWatts: p.MaxWatts, WattsPerNode: p.WattsPerNode, Image: shownImage(p.Image),
		CreatedAt: rest.NullTime{Time: p.CreatedAt}, UpdatedAt: rest.NullTime{Time: p.UpdatedAt}, Matching: len(facts),
		Wanted: d.Wanted, Warm: d.Warm, Warming: d.Warming, On: d.On, Watts: d.Watts, Short: rest.Null(d.Short)}
	if !nodes {
		return out
	}
	out.Nodes = make([]rest.Warm, len(facts))
	for i := range facts {
		out.Nodes[i] = showNode(w, p, &facts[i], d.Why[facts[i].UUID])
	}
	return out
}

func showNode(w *pool.World, p *node.Pool, f *pool.Fact, why string) rest.Warm {
	out := rest.Warm{NodeUUID: f.UUID, Name: rest.Null(f.Name), State: string(f.Standing), On: f.On, Watts: f.Watts,
		Reason: rest.Null(why), Failures: f.Member.Failures, LastFailure: rest.Null(f.Member.Reason),
		StageFault: rest.Null(f.Member.StageReason)}
	if p != nil {
		out.Pool = rest.Null(p.Name)
	}
	if f.Standing == pool.Warm || f.Standing == pool.Staging {
		out.Since = rest.NullTime{Time: f.Member.Since}
		if n := w.Node(f.UUID); n != nil && n.Boot != nil && n.Boot.Staged != nil {
			out.Staged = rest.Null(n.Boot.Staged.Digest)
		}
	}
	return out
}

// set makes a pool, or changes the one of that name: fields that the body lacks get their defaults.
func (s *Handlers) set(ctx context.Context, c *call.Call) (*call.Reply, error) {
	name := c.Path["pool"]
	if !poolName.MatchString(name) || document.IsUUID(name) {
		return nil, rest.BadRequest(
			"%q can't be the name of a pool: it begins with a letter or a digit, and goes on with up to 62 of those, dots, dashes and underscores.", name)
	}
	d, aerr := c.Checked("pool", schema)
	if aerr != nil {
		return nil, aerr
	}
	if err := rest.Oversized(d, nil, 0); err != nil {
		return nil, err
	}
	p := node.Pool{Head: node.Head{Name: name}}
	assign(&p, d)
	if fault := pool.Validate(&p); fault != "" {
		return nil, rest.BadRequest("The policy can't be so: %s.", fault)
	}
	status := http.StatusOK
	was, err := s.store.Pools().Get(ctx, name)
	switch {
	case errors.Is(err, store.ErrNotFound):
		status, err = http.StatusCreated, s.store.Pools().Create(ctx, &p)
	case err == nil:
		_, err = s.store.Pools().Update(ctx, was.UUID, func(v *node.Pool) error {
			assign(v, d)
			return nil
		})
		if errors.Is(err, store.ErrNotFound) {
			return nil, rest.Conflict("Pool %s was deleted meanwhile; try again.", name)
		}
	}
	var taken *store.DuplicateError
	if errors.As(err, &taken) && taken.Field == "match" {
		return nil, rest.Conflict("There is a pool for %s already.", p.Match())
	}
	if err != nil {
		return nil, err
	}
	return s.answer(ctx, c, status)
}

func assign(p *node.Pool, d map[string]any) {
	p.Description, p.ResourceClass, p.ConductorGroup = document.Text(d, "description"),
		document.Text(d, "resource_class"), nil
	if g, ok := d["conductor_group"].(string); ok {
		p.ConductorGroup = &g
	}
	p.Count, p.Percent, p.MaxOn = document.Number(d, "count"), document.Number(d, "percent"),
		document.Number(d, "max_on")
	p.MaxWatts, p.WattsPerNode = document.Number(d, "max_watts"), document.Number(d, "watts_per_node")
	was := p.Image
	p.Image = nil
	if image, ok := d["image"].(map[string]any); ok {
		p.Image = maps.Clone(image)
		redact.Restore(p.Image, was)
	}
}

// shownImage is a pool's image without the secrets by which it is fetched.
func shownImage(image map[string]any) map[string]any {
	if image == nil {
		return nil
	}
	return redact.Map(image)
}

func (s *Handlers) delete(ctx context.Context, c *call.Call) (*call.Reply, error) {
	p, err := s.store.Pools().Get(ctx, c.Path["pool"])
	if err == nil {
		err = s.store.Pools().Delete(ctx, p.UUID)
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil, missing(c.Path["pool"])
	}
	return call.NoContent(), err
}

func (s *Handlers) getWarm(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	return s.warmth(ctx, c, n, http.StatusOK)
}

func (s *Handlers) warmth(ctx context.Context, c *call.Call, n *node.Node, status int) (*call.Reply, error) {
	nodeUUID, v := n.UUID, c.View(n)
	w, err := pool.Look(ctx, s.store)
	if err != nil {
		return nil, err
	}
	p := w.Of(nodeUUID)
	if p != nil {
		facts := w.Facts(p)
		d := pool.Decide(p, facts, time.Now(), s.pace)
		if i := slices.IndexFunc(facts, func(f pool.Fact) bool { return f.UUID == nodeUUID }); i >= 0 {
			return &call.Reply{Status: status, Body: concealed(showNode(w, p, &facts[i], d.Why[nodeUUID]), v)}, nil
		}
	}
	if n, err = s.store.Node(ctx, nodeUUID); err != nil {
		return nil, err
	}
	f := pool.FactOf(n, &node.Pool{}, w.Member(nodeUUID))
	out := showNode(w, nil, &f, f.Excluded)
	if n.IsWarm() && n.Boot.Staged != nil {
		out.Staged = rest.Null(n.Boot.Staged.Digest)
	}
	if f.Failure != "" && out.LastFailure == "" {
		out.LastFailure = rest.Null(f.Failure)
	}
	return &call.Reply{Status: status, Body: concealed(out, v)}, nil
}

// concealed is a node's part in a pool as a caller sees it.
func concealed(out rest.Warm, v call.View) rest.Warm {
	out.LastFailure = rest.Null(v.Error(string(out.LastFailure)))
	return out
}

// postWarm boots a node's agent. With an image in the body it has that written ahead as well.
func (s *Handlers) postWarm(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, aerr := c.Arguments("image")
	if aerr != nil {
		return nil, aerr
	}
	var image map[string]any
	if v, sent := b["image"]; sent && v != nil {
		var ok bool
		if image, ok = v.(map[string]any); !ok {
			return nil, rest.BadRequest(
				"Invalid image: it is not an object of what instance_info says of an image, such as image_source")
		}
		if fault := pool.Validate(&node.Pool{Image: image}); fault != "" {
			return nil, rest.BadRequest("Invalid image: %s.", fault)
		}
	}
	return s.change(ctx, c, func(uuid string) error {
		if image != nil {
			return s.do.Stage(ctx, uuid, image, c.User)
		}
		return s.do.Warm(ctx, uuid, c.User)
	})
}

func (s *Handlers) deleteWarm(ctx context.Context, c *call.Call) (*call.Reply, error) {
	return s.change(ctx, c, func(uuid string) error { return s.do.Cool(ctx, uuid, c.User) })
}

func (s *Handlers) change(ctx context.Context, c *call.Call, do func(uuid string) error) (*call.Reply, error) {
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	if s.do == nil {
		return nil, rest.BadRequest("This conductor boots no machines.")
	}
	if err := do(n.UUID); err != nil {
		return nil, err
	}
	return s.warmth(ctx, c, n, http.StatusAccepted)
}
