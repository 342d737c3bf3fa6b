package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// Quarantine marks a node in use as broken: it goes on as it is, and does not become available when it is torn down.
func (c *Client) Quarantine(ctx context.Context, ident, reason string) (*rest.Quarantine, error) {
	return ask[rest.Quarantine](ctx, c, http.MethodPost, "/ingot/v1/nodes/"+seg(ident)+"/quarantine",
		map[string]any{"reason": reason})
}

// Unquarantine takes the mark away.
func (c *Client) Unquarantine(ctx context.Context, ident string) error {
	return c.do(ctx, http.MethodDelete, "/ingot/v1/nodes/"+seg(ident)+"/quarantine", nil, nil)
}

// Lock returns who holds a node's lock.
func (c *Client) Lock(ctx context.Context, ident string) (*rest.Lock, error) {
	return ask[rest.Lock](ctx, c, http.MethodGet, "/ingot/v1/nodes/"+seg(ident)+"/lock", nil)
}

// BreakLock breaks a node's lock and returns it; the work under way has then failed.
func (c *Client) BreakLock(ctx context.Context, ident string) (*rest.Lock, error) {
	return ask[rest.Lock](ctx, c, http.MethodDelete, "/ingot/v1/nodes/"+seg(ident)+"/lock", nil)
}

// MachineHealth returns what a node's controller said of its machine when it was asked last.
func (c *Client) MachineHealth(ctx context.Context, ident string) (*rest.MachineHealth, error) {
	return ask[rest.MachineHealth](ctx, c, http.MethodGet, "/ingot/v1/nodes/"+seg(ident)+"/health", nil)
}

// SetControllerPassword sets the password of a node's controller, and stores it when it is proven.
func (c *Client) SetControllerPassword(ctx context.Context, ident, password string) error {
	return c.do(ctx, http.MethodPost, "/ingot/v1/nodes/"+seg(ident)+"/controller_password",
		map[string]string{"password": password}, nil)
}

// ResetNetwork has the node's agent acquire its links and addresses anew.
func (c *Client) ResetNetwork(ctx context.Context, ident string) error {
	return c.do(ctx, http.MethodPost, "/ingot/v1/nodes/"+seg(ident)+"/network_reset", nil, nil)
}

// Exports lists the disks that machines lend to an initiator now.
func (c *Client) Exports(ctx context.Context, initiator string) ([]rest.Export, error) {
	all, err := ask[rest.Exports](ctx, c, http.MethodGet,
		"/ingot/v1/exports?initiator_name="+url.QueryEscape(initiator), nil)
	if err != nil {
		return nil, err
	}
	return all.Exports, nil
}

// ExportFailed ends the deployment of a node whose lent disk could not be written.
func (c *Client) ExportFailed(ctx context.Context, ident, export, why string) error {
	return c.do(ctx, http.MethodPost, "/ingot/v1/nodes/"+seg(ident)+"/export_failure",
		map[string]string{"export": export, "reason": why}, nil)
}
