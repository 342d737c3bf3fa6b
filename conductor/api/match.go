package api

import (
	"context"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// With If-Match a change is refused (412) when the object differs from the version that the client read. The tag is
// compared twice: here, before the handler runs, because a handler acts on a machine before it writes, and in the
// transaction that writes (node.Expected), which decides.

// actFirst are routes that do something to the machine and then note it in the node. The first comparison is the only
// one for them: a refusal after the deed would say that nothing was done.
var actFirst = map[string]bool{
	"PUT /v1/nodes/{node}/states/console":                    true,
	"PUT /v1/nodes/{node}/states/boot_mode":                  true,
	"PUT /v1/nodes/{node}/states/secure_boot":                true,
	"PUT /v1/nodes/{node}/management/boot_device":            true,
	"PUT /v1/nodes/{node}/management/inject_nmi":             true,
	"PUT /v1/nodes/{node}/management/indicators/{indicator}": true,
}

// matches reads If-Match of a request that changes something; nil without one. A client that requests protection where
// none exists gets an error.
func matches(r *http.Request, rt *call.Route) (*rest.Tags, *rest.Error) {
	values := r.Header[rest.IfMatch]
	if len(values) == 0 || rt.Method == http.MethodGet {
		return nil, nil
	}
	if !rt.Compares() {
		return nil, rest.BadRequest("What this address names has no ETag: leave out the header %s.", rest.IfMatch)
	}
	return rest.ParseTags(rest.IfMatch, values)
}

// expect compares the object of a request with its If-Match, and returns a context with which the store does so again.
func (s *Server) expect(ctx context.Context, c *call.Call, rt *call.Route,
	tags *rest.Tags) (context.Context, *node.Expected, error) {
	at, err := s.target(ctx, c, rt)
	if err != nil {
		return nil, nil, err
	}
	if !tags.Holds(at.Tag) {
		return nil, nil, &node.ChangedError{Kind: at.Kind, UUID: at.UUID}
	}
	e := &node.Expected{Kind: at.Kind, UUID: at.UUID, Holds: tags.Holds}
	if actFirst[rt.Method+" "+rt.Path] {
		e.End()
	}
	return node.WithExpected(ctx, e), e, nil
}

func (s *Server) target(ctx context.Context, c *call.Call, rt *call.Route) (call.Target, error) {
	if rt.Target != nil {
		return rt.Target(ctx, c)
	}
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return call.Target{}, err
	}
	c.Remember(n, c.Path["node"])
	return call.Target{Kind: "node", UUID: n.UUID, Tag: n.Tag()}, nil
}

// unchanged reports whether a client that reads has this answer already. An invalid If-None-Match counts as none: it
// protects nothing.
func unchanged(r *http.Request, rep *call.Reply) bool {
	values := r.Header[rest.IfNoneMatch]
	if len(values) == 0 || r.Method != http.MethodGet || rep.Status != http.StatusOK {
		return false
	}
	tags, err := rest.ParseTags(rest.IfNoneMatch, values)
	return err == nil && tags.Knows(rep.ETag)
}
