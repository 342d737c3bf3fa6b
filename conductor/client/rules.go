package client

import (
	"context"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// Rules lists inspection rules with all that they do, in the order they were made.
func (c *Client) Rules(ctx context.Context) ([]rest.InspectionRule, error) {
	return all[rest.InspectionRule](ctx, c, "/v1/inspection_rules?detail=true", "inspection_rules")
}

// Rule finds an inspection rule by UUID.
func (c *Client) Rule(ctx context.Context, uuid string) (*rest.InspectionRule, error) {
	return ask[rest.InspectionRule](ctx, c, http.MethodGet, "/v1/inspection_rules/"+seg(uuid), nil)
}

// CreateRule makes an inspection rule of an object with the API's fields.
func (c *Client) CreateRule(ctx context.Context, rule map[string]any) (*rest.InspectionRule, error) {
	return ask[rest.InspectionRule](ctx, c, http.MethodPost, "/v1/inspection_rules", rule)
}

// UpdateRule changes an inspection rule.
func (c *Client) UpdateRule(ctx context.Context, uuid string, patch []rest.Operation) (*rest.InspectionRule, error) {
	return ask[rest.InspectionRule](ctx, c, http.MethodPatch, "/v1/inspection_rules/"+seg(uuid), patch)
}

// DeleteRule removes an inspection rule.
func (c *Client) DeleteRule(ctx context.Context, uuid string) error {
	return c.do(ctx, http.MethodDelete, "/v1/inspection_rules/"+seg(uuid), nil, nil)
}

// CheckRule returns what a rule (the UUID of one, or an object) would do to a node.
func (c *Client) CheckRule(ctx context.Context, ident string, rule any) (*rest.RuleCheck, error) {
	return ask[rest.RuleCheck](ctx, c, http.MethodPost, "/ingot/v1/nodes/"+seg(ident)+"/rule_check",
		map[string]any{"rule": rule})
}
