package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// Nodes lists nodes with all their fields. filter holds the API's filters ("provision_state", "driver", ...); nil is
// all nodes.
func (c *Client) Nodes(ctx context.Context, filter url.Values) ([]rest.Node, error) {
	q := url.Values{}
	for k, v := range filter {
		q[k] = v
	}
	q.Set("detail", "true")
	return all[rest.Node](ctx, c, "/v1/nodes?"+q.Encode(), "nodes")
}

// Objects lists all objects at a path of the API, which may have a query, as they are shown. name is their member in
// the answer.
func (c *Client) Objects(ctx context.Context, path, name string) ([]map[string]any, error) {
	return all[map[string]any](ctx, c, path, name)
}

// Names lists the names of all nodes, or the UUIDs of those without.
func (c *Client) Names(ctx context.Context) ([]string, error) {
	nodes, err := all[rest.Node](ctx, c, "/v1/nodes?fields=uuid,name", "nodes")
	if err != nil {
		return nil, err
	}
	names := make([]string, len(nodes))
	for i, n := range nodes {
		names[i] = string(n.Name)
		if n.Name == "" {
			names[i] = n.UUID
		}
	}
	return names, nil
}

// States lists all nodes with their UUIDs, names, provision states and maintenance flags alone.
func (c *Client) States(ctx context.Context) ([]rest.Node, error) {
	return all[rest.Node](ctx, c, "/v1/nodes?fields=uuid,name,provision_state,maintenance", "nodes")
}

// Node gets a node by UUID or name.
func (c *Client) Node(ctx context.Context, ident string) (*rest.Node, error) {
	var n rest.Node
	if err := c.do(ctx, http.MethodGet, "/v1/nodes/"+seg(ident), nil, &n); err != nil {
		return nil, err
	}
	return &n, nil
}

// NewNode holds the fields with which a node can be created. Zero values are left to the server.
type NewNode struct {
	UUID           string         `json:"uuid,omitempty"`
	Name           string         `json:"name,omitempty"`
	Driver         string         `json:"driver"`
	DriverInfo     map[string]any `json:"driver_info,omitempty"`
	Properties     map[string]any `json:"properties,omitempty"`
	Extra          map[string]any `json:"extra,omitempty"`
	InstanceInfo   map[string]any `json:"instance_info,omitempty"`
	ResourceClass  string         `json:"resource_class,omitempty"`
	Owner          string         `json:"owner,omitempty"`
	Description    string         `json:"description,omitempty"`
	AutomatedClean *bool          `json:"automated_clean,omitempty"`
	BootIf         string         `json:"boot_interface,omitempty"`
	DeployIf       string         `json:"deploy_interface,omitempty"`
	InspectIf      string         `json:"inspect_interface,omitempty"`
	NetworkIf      string         `json:"network_interface,omitempty"`
	NetworkData    map[string]any `json:"network_data,omitempty"`
}

// CreateNode makes a node.
func (c *Client) CreateNode(ctx context.Context, n NewNode) (*rest.Node, error) {
	return ask[rest.Node](ctx, c, http.MethodPost, "/v1/nodes", n)
}

// UpdateNode patches a node.
func (c *Client) UpdateNode(ctx context.Context, ident string, patch []rest.Operation) (*rest.Node, error) {
	return ask[rest.Node](ctx, c, http.MethodPatch, "/v1/nodes/"+seg(ident), patch)
}

// UpdateDriver changes a node's driver with other attributes. Interfaces that the patch does not name become the new
// driver's defaults.
func (c *Client) UpdateDriver(ctx context.Context, ident string, patch []rest.Operation) (*rest.Node, error) {
	return ask[rest.Node](ctx, c, http.MethodPatch, "/v1/nodes/"+seg(ident)+"?reset_interfaces=true", patch)
}

// DeleteNode removes a node.
func (c *Client) DeleteNode(ctx context.Context, ident string) error {
	return c.do(ctx, http.MethodDelete, "/v1/nodes/"+seg(ident), nil, nil)
}

// Step is a step that a request names.
type Step struct {
	Interface string         `json:"interface"`
	Step      string         `json:"step"`
	Args      map[string]any `json:"args"`
	Priority  *int           `json:"priority,omitempty"` // of deploy steps; clean steps run in their order
}

// ProvisionRequest requests a change of provision state.
type ProvisionRequest struct {
	Target      string `json:"target"` // "manage", "inspect", "provide", "active", "deleted", "abort", ...
	ConfigDrive any    `json:"configdrive,omitempty"`
	CleanSteps  []Step `json:"clean_steps,omitempty"`
	DeploySteps []Step `json:"deploy_steps,omitempty"`
	// ServiceSteps are like CleanSteps, for service; Runbook names a list of either instead.
	ServiceSteps []Step `json:"service_steps,omitempty"`
	Runbook      string `json:"runbook,omitempty"`
	// RescuePassword is for "rescue", and may be empty when the node's instance_info has ssh keys.
	RescuePassword string `json:"rescue_password,omitempty"`
}

// ConfigDrive is the content of a config drive.
type ConfigDrive struct {
	MetaData    map[string]any `json:"meta_data,omitempty"`
	UserData    any            `json:"user_data,omitempty"`
	NetworkData map[string]any `json:"network_data,omitempty"`
	VendorData  map[string]any `json:"vendor_data,omitempty"`
}

// Provision requests a change of provision state and returns when the server has accepted it; Wait waits for its end.
func (c *Client) Provision(ctx context.Context, ident string, r ProvisionRequest) error {
	return c.do(ctx, http.MethodPut, "/v1/nodes/"+seg(ident)+"/states/provision", r, nil)
}

// Power requests "power on", "power off", "rebooting", "soft power off" or "soft rebooting". timeout 0 is the server's
// choice.
func (c *Client) Power(ctx context.Context, ident, target string, timeout time.Duration) error {
	body := map[string]any{"target": target}
	if timeout > 0 {
		body["timeout"] = int((timeout + time.Second - 1) / time.Second)
	}
	return c.do(ctx, http.MethodPut, "/v1/nodes/"+seg(ident)+"/states/power", body, nil)
}

// SetMaintenance puts a node into maintenance, or takes it out.
func (c *Client) SetMaintenance(ctx context.Context, ident string, on bool, reason string) error {
	path := "/v1/nodes/" + seg(ident) + "/maintenance"
	if !on {
		return c.do(ctx, http.MethodDelete, path, nil, nil)
	}
	return c.do(ctx, http.MethodPut, path, map[string]any{"reason": reason}, nil)
}

// BootDevice is the boot device of a node.
type BootDevice struct {
	Device     rest.Null `json:"boot_device"`
	Persistent *bool     `json:"persistent"`
}

// BootDevice returns a node's boot device.
func (c *Client) BootDevice(ctx context.Context, ident string) (BootDevice, error) {
	var d BootDevice
	err := c.do(ctx, http.MethodGet, "/v1/nodes/"+seg(ident)+"/management/boot_device", nil, &d)
	return d, err
}

// SetBootDevice sets a node's boot device.
func (c *Client) SetBootDevice(ctx context.Context, ident, device string, persistent bool) error {
	return c.do(ctx, http.MethodPut, "/v1/nodes/"+seg(ident)+"/management/boot_device",
		map[string]any{"boot_device": device, "persistent": persistent}, nil)
}

// Validation is whether a node has what one of its interfaces needs. Result nil: it was not looked at.
type Validation struct {
	Result *bool  `json:"result"`
	Reason string `json:"reason"`
}

// Validate checks a node's settings, by interface.
func (c *Client) Validate(ctx context.Context, ident string) (map[string]Validation, error) {
	var out map[string]Validation
	err := c.do(ctx, http.MethodGet, "/v1/nodes/"+seg(ident)+"/validate", nil, &out)
	return out, err
}

// Event is a line of a node's history.
type Event = rest.History

// History lists what happened to a node, oldest first.
func (c *Client) History(ctx context.Context, ident string) ([]Event, error) {
	return all[Event](ctx, c, "/v1/nodes/"+seg(ident)+"/history?detail=true", "history")
}

// Inventory is the result of an inspection, as JSON: the inventory proper and the agent's further data.
type Inventory struct {
	Inventory  json.RawMessage            `json:"inventory"`
	PluginData map[string]json.RawMessage `json:"plugin_data"`
}

// Inventory gets what inspection found; a *rest.Error with status 404 before the first.
func (c *Client) Inventory(ctx context.Context, ident string) (*Inventory, error) {
	return ask[Inventory](ctx, c, http.MethodGet, "/v1/nodes/"+seg(ident)+"/inventory", nil)
}

// Timeline gets where the time went: of one job, or all that is kept if job is "".
func (c *Client) Timeline(ctx context.Context, ident, job string) (*rest.Timeline, error) {
	path := "/ingot/v1/nodes/" + seg(ident) + "/timeline"
	if job != "" {
		path += "?job=" + url.QueryEscape(job)
	}
	return ask[rest.Timeline](ctx, c, http.MethodGet, path, nil)
}

// Logs returns the lines of the agent's log after a number.
func (c *Client) Logs(ctx context.Context, ident string, after uint64) (*rest.Logs, error) {
	return ask[rest.Logs](ctx, c, http.MethodGet,
		"/ingot/v1/nodes/"+seg(ident)+"/logs?after="+strconv.FormatUint(after, 10), nil)
}
