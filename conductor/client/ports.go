package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// Ports lists the ports of a node, or with "" of all.
func (c *Client) Ports(ctx context.Context, ident string) ([]rest.Port, error) {
	path := "/v1/ports?detail=true"
	if ident != "" {
		path += "&node=" + url.QueryEscape(ident)
	}
	return all[rest.Port](ctx, c, path, "ports")
}

// NewPort holds the fields with which a port can be created. PXEEnabled nil is true.
type NewPort struct {
	NodeUUID        string         `json:"node_uuid"`
	Address         string         `json:"address"`
	PXEEnabled      *bool          `json:"pxe_enabled,omitempty"`
	PhysicalNetwork string         `json:"physical_network,omitempty"`
	Extra           map[string]any `json:"extra,omitempty"`
}

// CreatePort makes a port.
func (c *Client) CreatePort(ctx context.Context, p NewPort) (*rest.Port, error) {
	return ask[rest.Port](ctx, c, http.MethodPost, "/v1/ports", p)
}

// Port finds a port by UUID.
func (c *Client) Port(ctx context.Context, uuid string) (*rest.Port, error) {
	return ask[rest.Port](ctx, c, http.MethodGet, "/v1/ports/"+seg(uuid), nil)
}

// PortByAddress finds a port by its MAC; nil if there is none.
func (c *Client) PortByAddress(ctx context.Context, mac string) (*rest.Port, error) {
	ports, err := all[rest.Port](ctx, c, "/v1/ports?detail=true&address="+url.QueryEscape(mac), "ports")
	if err != nil || len(ports) == 0 {
		return nil, err
	}
	return &ports[0], nil
}

// DeletePort removes a port.
func (c *Client) DeletePort(ctx context.Context, uuid string) error {
	return c.do(ctx, http.MethodDelete, "/v1/ports/"+seg(uuid), nil, nil)
}

// Driver is a hardware type.
type Driver struct {
	Name  string   `json:"name"`
	Hosts []string `json:"hosts"`
	Type  string   `json:"type"`
}

// Drivers lists the hardware types.
func (c *Client) Drivers(ctx context.Context) ([]Driver, error) {
	return all[Driver](ctx, c, "/v1/drivers", "drivers")
}

// DriverProperties describes what driver_info may hold.
func (c *Client) DriverProperties(ctx context.Context, name string) (map[string]string, error) {
	var out map[string]string
	err := c.do(ctx, http.MethodGet, "/v1/drivers/"+seg(name)+"/properties", nil, &out)
	return out, err
}
