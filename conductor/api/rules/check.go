package rules

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/engine/findings"
	"github.com/ingot-metal/ingot/conductor/inspect"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// checkRoutes returns the route that tries an inspection rule out: on the results of a node's newest inspection,
// without changing anything.
func (s *Handlers) checkRoutes() []call.Route {
	return []call.Route{
		{Method: http.MethodPost, Path: "/ingot/v1/nodes/{node}/rule_check", Access: call.Admin,
			Takes:   call.Body([]string{"rule"}, call.Args{"rule": {Types: []string{"string", "object"}}}),
			Answers: call.OK(rest.RuleCheck{}), Handle: s.checkRule}}
}

func (s *Handlers) checkRule(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, aerr := c.Arguments("rule")
	if aerr != nil {
		return nil, aerr
	}
	rule, err := s.ruleToCheck(ctx, c, b["rule"])
	if err != nil {
		return nil, err
	}
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	doc, err := s.store.Inventory(ctx, n.UUID)
	if errors.Is(err, store.ErrNotFound) {
		return nil, rest.NotFound("Node inventory record for node %s could not be found.", n.UUID)
	}
	if err != nil {
		return nil, err
	}
	f, err := findings.Found(n, doc)
	if err != nil {
		return nil, fmt.Errorf("read stored inventory of node %s: %w", n.UUID, err)
	}
	if f.Ports, err = s.store.Ports(ctx, store.PortQuery{NodeUUID: &n.UUID}); err != nil {
		return nil, err
	}
	rep := inspect.Check(f, rule, inspect.Options{Mask: s.mask})
	out := rest.RuleCheck{NodeUUID: n.UUID, Matched: rep.Matched, Failure: rest.Null(rep.Failure),
		Conditions: append([]bool{}, rep.Conditions...), Calls: append([]string{}, rep.Calls...),
		Changes: []rest.RuleChange{}, Notes: []rest.RuleNote{}}
	for _, ch := range rep.Changes {
		out.Changes = append(out.Changes, rest.RuleChange{Path: ch.Path, From: ch.From, To: ch.To})
	}
	for _, note := range rep.Notes {
		out.Notes = append(out.Notes, rest.RuleNote{Severity: note.Severity, Text: note.Text})
	}
	return &call.Reply{Status: http.StatusOK, Body: out}, nil
}

// ruleToCheck is a rule that is stored, by its UUID, or one that is given.
func (s *Handlers) ruleToCheck(ctx context.Context, c *call.Call, given any) (*node.InspectionRule, error) {
	switch given := given.(type) {
	case string:
		r, err := s.store.InspectionRules().Get(ctx, given)
		if errors.Is(err, store.ErrNotFound) {
			return nil, rest.NotFound("Rule %s could not be found.", given)
		}
		return r, err
	case map[string]any:
		k := s.kind()
		if fault := k.Schema.Check(given); fault != "" {
			return nil, rest.BadRequest("Schema error for inspection_rule: %s", fault)
		}
		r := new(node.InspectionRule)
		if err := k.Assign(c, r, given); err != nil {
			return nil, err
		}
		if r.UUID = document.Text(given, "uuid"); r.UUID == "" {
			r.UUID = "(not stored)"
		}
		return r, nil
	}
	return nil, rest.BadRequest("Missing mandatory parameter: rule, the UUID of an inspection rule or a whole rule")
}
