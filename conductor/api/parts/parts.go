// Package parts answers requests for the parts of a node: traits, history, inventory, children, console, boot mode,
// indicators, virtual media, BIOS settings, firmware, RAID, and the vendor's own methods.
//
// Most of them are implemented below conductor/hardware; for a node whose interfaces lack a feature the answer is
// Ironic's for drivers without it.
package parts

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/api/finder"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// nodeStore is the part of the store that these routes need.
type nodeStore interface {
	Nodes(ctx context.Context, q store.Query) ([]*node.Node, error)
	UpdateNode(ctx context.Context, uuid string, change func(*node.Node) error) (*node.Node, error)
	Change(ctx context.Context, uuid string, change func(*node.Node, *node.SideEffects) error) (*node.Node, error)
	History(ctx context.Context, nodeUUID string, limit int) ([]node.HistoryEntry, error)
	Inventory(ctx context.Context, nodeUUID string) ([]byte, error)
}

// machines is the part of the engine that parts need.
type machines interface {
	// Here returns why this conductor may not ask the node's controller; nil if it may.
	Here(n *node.Node) error
}

// Handlers answer the requests.
type Handlers struct {
	store    nodeStore
	machines machines
	find     *finder.Finder
	drivers  *driver.Table
	hardware *hardware.Set
	consoles Consoles // nil: none can be opened
	hostname string
	log      *slog.Logger

	background sync.WaitGroup // what goes on after its request was answered
}

// New makes Handlers of the conductor hostname.
func New(st nodeStore, en machines, find *finder.Finder, drivers *driver.Table, hw *hardware.Set, consoles Consoles,
	hostname string, log *slog.Logger) *Handlers {
	return &Handlers{store: st, machines: en, find: find, drivers: drivers, hardware: hw, consoles: consoles,
		hostname: hostname, log: log}
}

// atOwner makes the handler of a route that asks the node's controller at once, which only the node's owner may.
func (s *Handlers) atOwner(handle func(context.Context, *call.Call) (*call.Reply, error)) func(context.Context,
	*call.Call) (*call.Reply, error) {
	return func(ctx context.Context, c *call.Call) (*call.Reply, error) {
		if n, err := s.find.Node(ctx, c); err == nil { // else handle says what is wrong
			if err := s.machines.Here(n); err != nil {
				return nil, err
			}
		}
		return handle(ctx, c)
	}
}

// Routes are the routes of parts of a node.
func (s *Handlers) Routes() []call.Route {
	const get, post, put, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete
	later, done := call.None(http.StatusAccepted), call.None(http.StatusNoContent)
	rs := append(s.consoleRoutes(), []call.Route{
		{Method: get, Path: "/v1/nodes/{node}/traits", Access: call.Read, Since: rest.VersionTraits,
			Answers: call.OK(rest.Object{{Name: "traits", Value: []string{}}}), Handle: s.find.Named(s.listTraits)},
		{Method: put, Path: "/v1/nodes/{node}/traits", Access: call.Write, Since: rest.VersionTraits, Barred: true,
			Takes: document.TraitsSchema, Answers: done, Handle: s.setTraits},
		{Method: del, Path: "/v1/nodes/{node}/traits", Access: call.Write, Since: rest.VersionTraits, Hidden: true,
			Answers: done, Handle: s.clearTraits},
		{Method: put, Path: "/v1/nodes/{node}/traits/{trait}", Access: call.Write, Since: rest.VersionTraits,
			Barred: true, Answers: done, Handle: s.addTrait},
		{Method: del, Path: "/v1/nodes/{node}/traits/{trait}", Access: call.Write, Since: rest.VersionTraits,
			Hidden: true, Answers: done, Handle: s.removeTrait},
		{Method: get, Path: "/v1/nodes/{node}/history", Access: call.Read, Query: call.Named,
			Since: rest.VersionHistory, Hidden: true, Args: call.PageArgs.With(call.Args{"detail": call.Truth}),
			Answers: call.OK(rest.Collection("history", rest.HistoryFields.Schema())), Handle: s.listHistory},
		{Method: get, Path: "/v1/nodes/{node}/history/{event}", Access: call.Read, Since: rest.VersionHistory,
			Hidden: true, Answers: call.OK(rest.HistoryFields.Schema()), Handle: s.getHistory},
		{Method: get, Path: "/v1/nodes/{node}/inventory", Access: call.Read, Since: rest.VersionInventory, Hidden: true,
			Answers: call.OK(
				rest.Object{{Name: "inventory", Value: map[string]any{}},
					{Name: "plugin_data", Value: map[string]any{}}}), Handle: s.find.Named(s.getInventory)},
		{Method: get, Path: "/v1/nodes/{node}/states/console", Access: call.Use, Answers: call.OK(consoleShape),
			Handle: s.atOwner(s.find.Named(s.getConsole))},
		{Method: put, Path: "/v1/nodes/{node}/states/console", Access: call.Use, Query: call.Members,
			Takes: call.Body([]string{"enabled"}, call.Args{"enabled": call.Flag}), Answers: later,
			Handle: s.atOwner(s.putConsole)},
		{Method: put, Path: "/v1/nodes/{node}/states/raid", Late: true, Access: call.Write, Since: rest.VersionRAID,
			Takes: rest.MapOf(nil), Answers: done, Handle: s.putRAID},
		{Method: put, Path: "/v1/nodes/{node}/states/boot_mode", Late: true, Access: call.Write, Query: call.Members,
			Since: rest.VersionSetBootMode, Hidden: true,
			Takes: call.Body([]string{"target"},
				call.Args{"target": {Types: []string{"string"}, Enum: []any{"bios", "uefi"}}}), Answers: later,
			Handle: s.atOwner(s.putBootMode)},
		{Method: put, Path: "/v1/nodes/{node}/states/secure_boot", Late: true, Access: call.Write, Query: call.Members,
			Since: rest.VersionSetBootMode, Hidden: true,
			Takes: call.Body([]string{"target"}, call.Args{"target": call.Flag}), Answers: later,
			Handle: s.atOwner(s.putSecureBoot)},
		{Method: put, Path: "/v1/nodes/{node}/management/inject_nmi", Late: true, Access: call.Use,
			Since: rest.VersionNMI, Hidden: true, Takes: call.Body(nil, nil), Answers: done,
			Handle: s.atOwner(s.injectNMI)},
		{Method: get, Path: "/v1/nodes/{node}/management/indicators", Access: call.Read, Since: rest.VersionIndicators,
			Hidden: true, Answers: call.OK(rest.Object{{Name: "indicators", Value: rest.ListOf(indicatorShape)}}),
			Handle: s.atOwner(s.find.Named(s.listIndicators))},
		{Method: get, Path: "/v1/nodes/{node}/management/indicators/{indicator}", Access: call.Read,
			Since: rest.VersionIndicators, Hidden: true, Answers: call.OK(rest.Object{{Name: "state", Value: ""}}),
			Handle: s.atOwner(s.getIndicator)},
		{Method: put, Path: "/v1/nodes/{node}/management/indicators/{indicator}", Access: call.Use,
			Since: rest.VersionIndicators, Hidden: true,
			Takes: call.Body([]string{"state"}, call.Args{"state": call.Text}), Answers: done,
			Handle: s.atOwner(s.putIndicator)},
		{Method: get, Path: "/v1/nodes/{node}/bios", Access: call.Read, Query: call.Named, Since: 40, Hidden: true,
			Args:    chosenArgs(rest.VersionBIOSRegistry),
			Answers: call.OK(rest.Object{{Name: "bios", Value: rest.ListOf(rest.BIOSFields.Schema())}}),
			Handle:  s.listBIOS},
		{Method: get, Path: "/v1/nodes/{node}/bios/{setting}", Access: call.Read, Since: 40, Hidden: true,
			Answers: call.OK(rest.MapOf(rest.BIOSFields.Schema())), Handle: s.find.Named(s.getBIOS)},
		{Method: get, Path: "/v1/nodes/{node}/firmware", Access: call.Read, Query: call.Named,
			Since: rest.VersionFirmware, Hidden: true, Args: chosenArgs(rest.VersionFirmware),
			Answers: call.OK(rest.Object{{Name: "firmware", Value: rest.ListOf(rest.FirmwareFields.Schema())}}),
			Handle:  s.listFirmware},
		{Method: get, Path: "/v1/nodes/{node}/children", Access: call.Read, Since: rest.VersionChildren, Hidden: true,
			Answers: call.OK(rest.Object{{Name: "children", Value: []string{}}, {Name: "links", Value: rest.Link{}}}),
			Handle:  s.find.Named(s.listChildren)},
		{Method: get, Path: "/v1/nodes/{node}/vmedia", Access: call.Read, Since: rest.VersionGetMedia, Hidden: true,
			Answers: call.OK(rest.ListOf(mediaShape)), Handle: s.atOwner(s.find.Named(s.getMedia))},
		{Method: post, Path: "/v1/nodes/{node}/vmedia", Access: call.Write, Since: rest.VersionAttachMedia,
			Hidden: true, Takes: mediaSchema, Answers: done, Handle: s.atOwner(s.attachMedia)},
		{Method: del, Path: "/v1/nodes/{node}/vmedia", Access: call.Write, Query: call.Named,
			Since: rest.VersionAttachMedia, Hidden: true, Args: call.Args{"device_types": call.Texts}, Answers: done,
			Handle: s.atOwner(s.detachMedia)},
		{Method: get, Path: "/v1/nodes/{node}/vendor_passthru/methods", Access: call.Write,
			Answers: call.OK(rest.MapOf(methodShape)), Handle: s.find.Named(s.listVendorMethods)},
		{Method: get, Path: "/v1/drivers/{driver}/raid/logical_disk_properties", Access: call.Read,
			Since: rest.VersionRAID, Answers: call.OK(map[string]string{}), Handle: s.getDiskProperties},
		{Method: get, Path: "/v1/drivers/{driver}/vendor_passthru/methods", Access: call.Admin,
			Answers: call.OK(rest.MapOf(methodShape)), Handle: s.listDriverMethods},
	}...)
	vendor, methodArg := call.Answers{http.StatusOK: call.Anything, http.StatusAccepted: nil},
		call.Args{"method": call.Text}
	takes := rest.MapOf(nil) // also of GET: clients of Ironic send the arguments of get_subscription so
	for _, method := range []string{get, post, put, del} {
		rs = append(rs,
			call.Route{Method: method, Path: "/v1/nodes/{node}/vendor_passthru", Access: call.Write, Query: call.Named,
				Args: methodArg, Takes: takes, Answers: vendor, Handle: s.atOwner(s.callVendor)},
			call.Route{Method: method, Path: "/v1/drivers/{driver}/vendor_passthru", Access: call.Admin,
				Query: call.Named, Args: methodArg, Takes: takes, Answers: call.Answers{}, Handle: s.callDriver},
			// The method in the address is how python-ironicclient calls it.
			call.Route{Method: method, Path: "/v1/nodes/{node}/vendor_passthru/{method}", Access: call.Write,
				Takes: takes, Answers: vendor, Handle: s.atOwner(s.callVendor)},
			call.Route{Method: method, Path: "/v1/drivers/{driver}/vendor_passthru/{method}", Access: call.Admin,
				Takes: takes, Answers: call.Answers{}, Handle: s.callDriver},
		)
	}
	return rs
}

// keep stores the result of an action on a node's hardware, with a line in its history.
func (s *Handlers) keep(ctx context.Context, c *call.Call, n *node.Node, event string, set func(*node.Node)) error {
	_, err := s.store.Change(ctx, n.UUID, func(n *node.Node, effects *node.SideEffects) error {
		set(n)
		effects.History = append(effects.History,
			node.HistoryEntry{Type: "management", Severity: "INFO", Event: event, Conductor: s.hostname, User: c.User})
		return nil
	})
	return err
}

func (s *Handlers) putRAID(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if c.Body == nil {
		return nil, rest.BadRequest("Expected types <class 'dict'> for target_raid_config: None")
	}
	config, err := c.Object("target_raid_config")
	if err != nil {
		return nil, err
	}
	if err := rest.Oversized(map[string]any{"target_raid_config": config}, nil, 0); err != nil {
		return nil, err
	}
	n, nerr := s.find.Free(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	if err := s.hardware.RAID(n).Check(n, config); err != nil {
		if isUnsupported(err) {
			return nil, rest.NotFound("%s", err.Error()) // not 400, as everywhere else
		}
		return nil, err
	}
	nerr = s.keep(ctx, c, n, "target RAID configuration set", func(n *node.Node) { n.TargetRAID = config })
	return call.NoContent(), nerr
}

func (s *Handlers) listChildren(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	nodes, err := s.store.Nodes(ctx, store.Query{ParentNode: &n.UUID, Project: c.Scope()})
	if err != nil {
		return nil, err
	}
	uuids := make([]string, len(nodes))
	for i, child := range nodes {
		uuids[i] = child.UUID
	}
	return &call.Reply{Status: http.StatusOK, Body: rest.Object{
		{Name: "children", Value: uuids},
		{Name: "links", Value: rest.Link{Href: c.Base + "/v1/nodes/?parent_node=" + n.UUID, Rel: "children"}},
	}}, nil
}

// queryOnly checks ?fields= and ?detail= of BIOS settings and firmware: which fields to show of each.
func queryOnly[T any](c *call.Call, fields rest.Fields[T], short []string, since rest.Version) ([]string, *rest.Error) {
	detail, err := c.Flag("detail")
	if err != nil {
		return nil, err
	}
	asked := c.Text("fields")
	switch {
	case detail != nil && c.Version < since:
		return nil, call.NoDetail(c)
	case asked != nil && c.Version < since:
		return nil, rest.BadRequest("Invalid query parameter ?fields=%s received.", *asked)
	}
	all := detail != nil && *detail
	switch {
	case all && asked != nil:
		return nil, rest.BadRequest("Can not specify ?detail=True and fields in the same request.")
	case all:
		return nil, nil
	case asked == nil:
		return short, nil
	}
	names, err := fields.Select(c.Version, *asked)
	if err != nil {
		return nil, err
	}
	return append([]string{"created_at", "updated_at"},
		slices.DeleteFunc(names, func(n string) bool { return n == "created_at" || n == "updated_at" })...), nil
}

func showBIOS(c *call.Call, ident string, b *node.BIOSSetting) rest.BIOSSetting {
	return rest.BIOSSetting{
		CreatedAt: rest.NullTime{Time: b.CreatedAt}, UpdatedAt: rest.NullTime{Time: b.UpdatedAt}, Name: b.Name,
		Value: rest.Null(b.Value), AttributeType: rest.Null(b.AttributeType), AllowableValues: b.Allowable,
		LowerBound: b.LowerBound, MaxLength: b.MaxLength, MinLength: b.MinLength, ReadOnly: b.ReadOnly,
		ResetRequired: b.ResetRequired, Unique: b.Unique, UpperBound: b.UpperBound,
		Links: rest.Links(c.Base, "nodes/"+ident+"/bios/"+b.Name),
	}
}

func (s *Handlers) listBIOS(ctx context.Context, c *call.Call) (*call.Reply, error) {
	names, err := queryOnly(c, rest.BIOSFields, rest.BIOSListFields, rest.VersionBIOSRegistry)
	if err != nil {
		return nil, err
	}
	n, nerr := s.find.Node(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	items := make([]rest.Object, len(n.BIOS))
	for i := range n.BIOS {
		items[i] = rest.BIOSFields.Render(new(showBIOS(c, c.Path["node"], &n.BIOS[i])), c.Version, names)
	}
	return call.List("bios", items, ""), nil
}

func (s *Handlers) getBIOS(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	name := c.Path["setting"]
	if !document.IsName(name) {
		return nil, rest.BadRequest("Expected name for setting_name: %s", name)
	}
	i := slices.IndexFunc(n.BIOS, func(b node.BIOSSetting) bool { return b.Name == name })
	if i < 0 {
		return nil, rest.NotFound("Node %s doesn't have a BIOS setting '%s'", n.UUID, name)
	}
	return &call.Reply{
			Status: http.StatusOK,
			Body: rest.Object{{Name: name, Value: rest.BIOSFields.Render(new(showBIOS(c, n.UUID, &n.BIOS[i])),
				c.Version, nil)}}},
		nil
}

// newerFirmware refuses fields newer than the requested version: with 400, where all other lists answer 406.
func newerFirmware(c *call.Call) *rest.Error {
	var newer []string
	for name := range strings.SplitSeq(c.Query.Get("fields"), ",") {
		if since, _ := rest.FirmwareFields.Since(name); since > c.Version {
			newer = append(newer, name)
		}
	}
	if len(newer) == 0 {
		return nil
	}
	slices.Sort(newer)
	return rest.BadRequest("Fields %s are not allowed in this API version. They require at least API version %s.",
		strings.Join(slices.Compact(newer), ", "), rest.VersionFirmwareNames)
}

func (s *Handlers) listFirmware(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if err := newerFirmware(c); err != nil {
		return nil, err
	}
	names, err := queryOnly(c, rest.FirmwareFields, nil, rest.VersionFirmware)
	if err != nil {
		return nil, err
	}
	n, nerr := s.find.Node(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	items := make([]rest.Object, len(n.Firmware))
	for i, f := range n.Firmware {
		shown := rest.Firmware{
			CreatedAt: rest.NullTime{Time: f.CreatedAt}, UpdatedAt: rest.NullTime{Time: f.UpdatedAt},
			Component: f.Component, InitialVersion: rest.Null(f.InitialVersion),
			CurrentVersion: rest.Null(f.CurrentVersion), LastVersionFlashed: rest.Null(f.LastVersionFlashed),
			Vendor: rest.Null(f.Vendor), Model: rest.Null(f.Model), SerialNumber: rest.Null(f.SerialNumber),
		}
		items[i] = rest.FirmwareFields.Render(&shown, c.Version, names)
	}
	return call.List("firmware", items, ""), nil
}

// getDiskProperties describes the properties of a logical disk with a hardware type's default RAID interface.
func (s *Handlers) getDiskProperties(_ context.Context, c *call.Call) (*call.Reply, error) {
	name := c.Path["driver"]
	if !s.driverExists(name) {
		return nil, unknownDriver(name)
	}
	n := &node.Node{Driver: name}
	props, err := s.hardware.RAID(n).Properties(n)
	if isUnsupported(err) {
		return nil, rest.NotFound("%s", err.Error())
	}
	if err != nil {
		return nil, err
	}
	o := rest.Object{}
	for _, p := range props {
		o = append(o, rest.Member{Name: p.Name, Value: p.Description})
	}
	return &call.Reply{Status: http.StatusOK, Body: o}, nil
}

func isUnsupported(err error) bool {
	return errors.As(err, new(*hardware.UnsupportedError))
}

// vendorTime is how long an asynchronous vendor method may take.
const vendorTime = 10 * time.Minute
