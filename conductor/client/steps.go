package client

import (
	"context"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// Steps tells what a node's work consists of, and what came out of the last.
func (c *Client) Steps(ctx context.Context, ident string) (*rest.Steps, error) {
	return ask[rest.Steps](ctx, c, http.MethodGet, "/ingot/v1/nodes/"+seg(ident)+"/steps", nil)
}

// Plan tells which steps a change of provision state would begin, and changes nothing.
func (c *Client) Plan(ctx context.Context, ident string, r ProvisionRequest) (*rest.Plan, error) {
	return ask[rest.Plan](ctx, c, http.MethodPost, "/ingot/v1/nodes/"+seg(ident)+"/plan", r)
}
