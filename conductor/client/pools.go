package client

import (
	"context"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// Pools lists the policies that keep nodes warm, by name.
func (c *Client) Pools(ctx context.Context) ([]rest.Pool, error) {
	var out rest.Pools
	if err := c.do(ctx, http.MethodGet, "/ingot/v1/pools", nil, &out); err != nil {
		return nil, err
	}
	return out.Pools, nil
}

// Pool returns the state of a pool, with each of its nodes.
func (c *Client) Pool(ctx context.Context, name string) (*rest.Pool, error) {
	return ask[rest.Pool](ctx, c, http.MethodGet, "/ingot/v1/pools/"+seg(name), nil)
}

// SetPool makes a pool, or replaces the policy of the one of that name: missing fields get their defaults.
func (c *Client) SetPool(ctx context.Context, name string, policy map[string]any) (*rest.Pool, error) {
	return ask[rest.Pool](ctx, c, http.MethodPut, "/ingot/v1/pools/"+seg(name), policy)
}

// DeletePool removes a pool; the machines that it keeps warm are turned off.
func (c *Client) DeletePool(ctx context.Context, name string) error {
	return c.do(ctx, http.MethodDelete, "/ingot/v1/pools/"+seg(name), nil, nil)
}

// Warmth returns whether an available node is booted into the agent, and if not, why.
func (c *Client) Warmth(ctx context.Context, ident string) (*rest.Warm, error) {
	return ask[rest.Warm](ctx, c, http.MethodGet, "/ingot/v1/nodes/"+seg(ident)+"/warm", nil)
}

// Warm has an available node booted into the agent, and an image written ahead unless it is nil. It does not wait for
// that.
func (c *Client) Warm(ctx context.Context, ident string, image map[string]any) (*rest.Warm, error) {
	body := map[string]any{}
	if image != nil {
		body["image"] = image
	}
	return ask[rest.Warm](ctx, c, http.MethodPost, "/ingot/v1/nodes/"+seg(ident)+"/warm", body)
}

// Cool has a warm node turned off. It does not wait for that.
func (c *Client) Cool(ctx context.Context, ident string) (*rest.Warm, error) {
	return ask[rest.Warm](ctx, c, http.MethodDelete, "/ingot/v1/nodes/"+seg(ident)+"/warm", nil)
}
