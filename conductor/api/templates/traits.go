package templates

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// runbookTraits are the routes of the traits of a runbook.
func (s *Handlers) runbookTraits() []call.Route {
	const all, one = "/v1/runbooks/{runbook}/traits", "/v1/runbooks/{runbook}/traits/{trait}"
	rs := []call.Route{
		{Method: http.MethodGet, Path: all, Access: call.Read,
			Answers: call.OK(rest.Object{{Name: "traits", Value: []string{}}}), Handle: s.listTraits},
		{Method: http.MethodPut, Path: all, Access: call.Admin, Takes: document.TraitsSchema, Handle: s.putTraits},
		{Method: http.MethodPut, Path: one, Access: call.Admin, Handle: s.putTraits},
		{Method: http.MethodDelete, Path: all, Access: call.Admin, Handle: s.deleteTraits},
		{Method: http.MethodDelete, Path: one, Access: call.Admin, Handle: s.deleteTraits},
	}
	for i := range rs {
		if rs[i].Answers == nil {
			rs[i].Answers, rs[i].Target = call.None(http.StatusNoContent), s.runbooks().Addressed
		}
		rs[i].Since, rs[i].Part, rs[i].Within = rest.VersionRunbookTraits, "runbook traits", rest.VersionRunbooks
	}
	return rs
}

// runbook returns the runbook that the address names, for callers with rule for it. It does not suffice that it is
// public, so that all may read it.
func (s *Handlers) runbook(ctx context.Context, c *call.Call, rule access.Rule) (*node.Runbook, error) {
	r, err := s.runbooks().ByIdent(ctx, c, c.Path["runbook"])
	if err != nil {
		return nil, err
	}
	return r, c.MayFor(rule, owns(r))
}

func (s *Handlers) listTraits(ctx context.Context, c *call.Call) (*call.Reply, error) {
	r, err := s.runbook(ctx, c, access.RunbookGet)
	if err != nil {
		return nil, err
	}
	return &call.Reply{
		Status: http.StatusOK, Body: rest.Object{{Name: "traits", Value: append([]string{}, r.Traits...)}}}, nil
}

// putTraits adds the trait of the address, or replaces all by those of the body. It can't do both.
func (s *Handlers) putTraits(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, err := c.Object("body")
	if err != nil {
		return nil, err
	}
	trait, one := c.Path["trait"]
	traits, listed, err := document.Traits(b)
	if err != nil {
		return nil, err
	}
	if one == listed {
		return nil, rest.BadRequest(
			"A single runbook trait may be added via PUT /v1/runbooks/<runbook identifier>/traits/<trait> with no body, or all runbook traits may be replaced via PUT /v1/runbooks/<runbook identifier>/traits with the list of traits specified in the request body.")
	}
	if !one {
		return s.changeTraits(ctx, c, func([]string) []string { return traits })
	}
	if err := document.CheckTrait(trait); err != nil {
		return nil, err
	}
	rep, cerr := s.changeTraits(ctx, c, func(was []string) []string {
		if slices.Contains(was, trait) {
			return was
		}
		return append(slices.Clip(was), trait)
	})
	if cerr == nil {
		rep.Location = c.Base + "/v1/runbooks/" + c.Path["runbook"] + "/traits/" + trait
	}
	return rep, cerr
}

// deleteTraits removes the trait of the address, which need not be there, or all.
func (s *Handlers) deleteTraits(ctx context.Context, c *call.Call) (*call.Reply, error) {
	trait, one := c.Path["trait"]
	return s.changeTraits(ctx, c, func(was []string) []string {
		return slices.DeleteFunc(slices.Clone(was), func(t string) bool { return !one || t == trait })
	})
}

func (s *Handlers) changeTraits(ctx context.Context, c *call.Call,
	change func([]string) []string) (*call.Reply, error) {
	r, err := s.runbook(ctx, c, access.RunbookUpdate)
	if err != nil {
		return nil, err
	}
	_, err = s.store.Runbooks().Update(ctx, r.UUID, func(r *node.Runbook) error {
		r.Traits = change(r.Traits)
		return nil
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, s.runbooks().Missing(c.Path["runbook"])
	}
	return call.NoContent(), err
}
