package client

import (
	"context"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// Steps returns the steps of a node's work, and the results of the previous ones.
func (c *Client) Steps(ctx context.Context, ident string) (*rest.Steps, error) {
	return ask[rest.Steps](ctx, c, http.MethodGet, "/ingot/v1/nodes/"+seg(ident)+"/steps", nil)
}

// Plan returns the steps that a change of provision state would begin, and changes nothing.
func (c *Client) Plan(ctx context.Context, ident string, r ProvisionRequest) (*rest.Plan, error) {
	return ask[rest.Plan](ctx, c, http.MethodPost, "/ingot/v1/nodes/"+seg(ident)+"/plan", r)
}
