package client

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// Erasures lists the reports of a node's erased disks, newest first.
func (c *Client) Erasures(ctx context.Context, ident string) ([]rest.Erasure, error) {
	var out rest.Erasures
	err := c.do(ctx, http.MethodGet, "/ingot/v1/nodes/"+seg(ident)+"/erasures", nil, &out)
	return out.Erasures, err
}

// Erasure gets one of them as it was signed.
func (c *Client) Erasure(ctx context.Context, ident, erasure string) (json.RawMessage, error) {
	var out json.RawMessage
	err := c.do(ctx, http.MethodGet, "/ingot/v1/nodes/"+seg(ident)+"/erasures/"+seg(erasure), nil, &out)
	return out, err
}

// ErasureKey gets the public key with which the conductor's reports are verified, as PEM.
func (c *Client) ErasureKey(ctx context.Context) (string, error) {
	var out rest.ErasureKey
	err := c.do(ctx, http.MethodGet, "/ingot/v1/erasure_key", nil, &out)
	return out.PublicKey, err
}
