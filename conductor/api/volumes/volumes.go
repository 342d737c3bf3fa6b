// Package volumes answers requests for volume connectors and targets: what a node needs to reach its remote disks.
package volumes

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/api/finder"
	"github.com/ingot-metal/ingot/conductor/api/resource"
	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// tables are where connectors and targets are kept.
type tables interface {
	VolumeConnectors() *store.Table[node.VolumeConnector]
	VolumeTargets() *store.Table[node.VolumeTarget]
}

// Handlers answer the requests.
type Handlers struct {
	store tables
	find  *finder.Finder
}

// New makes Handlers.
func New(st tables, find *finder.Finder) *Handlers { return &Handlers{store: st, find: find} }

// Connectors describes volume connectors as a kind of resource.
func (s *Handlers) Connectors() *resource.Kind[node.VolumeConnector, rest.VolumeConnector] {
	return &resource.Kind[node.VolumeConnector, rest.VolumeConnector]{
		Path: "volume/connectors", Param: "connector", Member: "connectors", Body: "connector",
		Title: "Volume connector", Expects: "connector_uuid", Since: rest.VersionVolumes,
		DetailSince: rest.VersionVolumes, Write: call.Write, Nodes: s.find, FoundFirst: true,
		Table:  func() *store.Table[node.VolumeConnector] { return s.store.VolumeConnectors() },
		Fields: rest.VolumeConnectorFields, Short: rest.VolumeConnectorListFields,
		Show: func(c *call.Call, v *node.VolumeConnector) rest.VolumeConnector {
			return rest.VolumeConnector{
				UUID: v.UUID, CreatedAt: rest.NullTime{Time: v.CreatedAt}, UpdatedAt: rest.NullTime{Time: v.UpdatedAt},
				ConnectorID: v.ConnectorID, Extra: v.Extra, Type: v.Type, NodeUUID: v.NodeUUID,
				Links: rest.Links(c.Base, "volume/connectors/"+v.UUID),
			}
		},
		Schema: &rest.Schema{Types: []string{"object"}, Closed: true,
			Required: []string{"connector_id", "node_uuid", "type"}, Props: map[string]*rest.Schema{
				"uuid": document.OptionalText, "node_uuid": {Types: []string{"string"}},
				"extra": document.OptionalObject, "connector_id": {Types: []string{"string"}, MaxLen: 255},
				"type": {Types: []string{"string"}, MaxLen: 32},
			}},
		Patchable: []string{"connector_id", "extra", "node_uuid", "type"},
		Document: func(v *node.VolumeConnector) map[string]any {
			return map[string]any{"connector_id": v.ConnectorID, "extra": rest.Clone(v.Extra), "node_uuid": v.NodeUUID,
				"type": v.Type}
		},
		Check: func(ctx context.Context, c *call.Call, was *node.VolumeConnector, d map[string]any) error {
			if was == nil {
				_, err := s.find.In(ctx, c, d, access.VolumeCreate)
				return err
			}
			return s.checkVolume(ctx, c, "volume connector", was.NodeUUID, d)
		},
		Assign: func(_ *call.Call, v *node.VolumeConnector, d map[string]any) *rest.Error {
			v.NodeUUID, v.ConnectorID, v.Type, v.Extra = document.Text(d, "node_uuid"),
				document.Text(d, "connector_id"), document.Text(d, "type"), document.Object(d, "extra")
			return nil
		},
		Release: func(ctx context.Context, _ *call.Call, v *node.VolumeConnector) error {
			return s.releaseVolume(ctx, "volume connector", v.NodeUUID)
		},
		Filters: []resource.Filter[node.VolumeConnector]{resource.OfNode[node.VolumeConnector](s.find)},
	}
}

// Targets describes volume targets as a kind of resource.
func (s *Handlers) Targets() *resource.Kind[node.VolumeTarget, rest.VolumeTarget] {
	return &resource.Kind[node.VolumeTarget, rest.VolumeTarget]{
		Path: "volume/targets", Param: "target", Member: "targets", Body: "target", Title: "Volume target",
		Expects: "target_uuid", Since: rest.VersionVolumes, DetailSince: rest.VersionVolumes, Write: call.Write,
		Nodes: s.find, FoundFirst: true, Table: func() *store.Table[node.VolumeTarget] {
			return s.store.VolumeTargets()
		},
		Fields: rest.VolumeTargetFields, Short: rest.VolumeTargetListFields,
		Show: func(c *call.Call, v *node.VolumeTarget) rest.VolumeTarget {
			properties := redact.Map(v.Properties)
			if !c.Actor.May(access.VolumeProperties, access.Object{}) {
				properties = map[string]any{"redacted_contents": redactedVolume}
			}
			return rest.VolumeTarget{
				UUID: v.UUID, CreatedAt: rest.NullTime{Time: v.CreatedAt}, UpdatedAt: rest.NullTime{Time: v.UpdatedAt},
				BootIndex: v.BootIndex, Extra: v.Extra, Properties: properties, VolumeID: v.VolumeID,
				VolumeType: v.VolumeType, NodeUUID: v.NodeUUID, Links: rest.Links(c.Base, "volume/targets/"+v.UUID),
			}
		},
		Schema: &rest.Schema{Types: []string{"object"}, Closed: true,
			Required: []string{"boot_index", "node_uuid", "volume_id", "volume_type"}, Props: map[string]*rest.Schema{
				"uuid": document.OptionalText, "node_uuid": {Types: []string{"string"}},
				"extra": document.OptionalObject, "properties": document.SecretObject,
				"boot_index": {Types: []string{"integer"}}, "volume_id": {Types: []string{"string"}, MaxLen: 255},
				"volume_type": {Types: []string{"string"}, MaxLen: 64},
			}},
		Patchable: []string{"boot_index", "extra", "node_uuid", "properties", "volume_id", "volume_type"},
		Document: func(v *node.VolumeTarget) map[string]any {
			return map[string]any{
				"boot_index": float64(v.BootIndex), "extra": rest.Clone(v.Extra), "node_uuid": v.NodeUUID,
				"properties": rest.Clone(v.Properties), "volume_id": v.VolumeID, "volume_type": v.VolumeType,
			}
		},
		Check: func(ctx context.Context, c *call.Call, was *node.VolumeTarget, d map[string]any) error {
			if was == nil {
				_, err := s.find.In(ctx, c, d, access.VolumeCreate)
				return err
			}
			return s.checkVolume(ctx, c, "volume target", was.NodeUUID, d)
		},
		Assign: func(c *call.Call, v *node.VolumeTarget, d map[string]any) *rest.Error {
			properties := document.Object(d, "properties")
			redact.Restore(properties, v.Properties)
			if v.NodeUUID != "" { // else it is new
				if err := c.Resent([]string{"properties"}, toNode(v.Properties, v.NodeUUID),
					toNode(properties, document.Text(d, "node_uuid")), false); err != nil {
					return err
				}
			}
			v.NodeUUID, v.VolumeID, v.VolumeType = document.Text(d, "node_uuid"), document.Text(d, "volume_id"),
				document.Text(d, "volume_type")
			v.BootIndex, v.Properties, v.Extra = document.Number(d, "boot_index"), properties,
				document.Object(d, "extra")
			return nil
		},
		Release: func(ctx context.Context, _ *call.Call, v *node.VolumeTarget) error {
			return s.releaseVolume(ctx, "volume target", v.NodeUUID)
		},
		Filters: []resource.Filter[node.VolumeTarget]{resource.OfNode[node.VolumeTarget](s.find)},
	}
}

// toNode is a volume's properties with the node that gets them: it is where the credentials among them go.
func toNode(properties map[string]any, uuid string) map[string]any {
	return node.With(properties, "node_address", any(strings.ToLower(uuid)))
}

// checkVolume refuses to change a disk that a machine may be running from: it must be off, and so must the one that the
// volume goes to.
func (s *Handlers) checkVolume(ctx context.Context, c *call.Call, what, nodeUUID string, d map[string]any) error {
	n, err := s.find.Unlocked(ctx, nodeUUID)
	if err != nil {
		return err
	}
	if n.Power != "power off" {
		return notOff(what+" update", n)
	}
	if strings.EqualFold(document.Text(d, "node_uuid"), n.UUID) {
		return nil
	}
	to, err := s.find.In(ctx, c, d, access.VolumeCreate)
	switch {
	case err != nil:
		return err
	case to.Reservation != "":
		return finder.LockedBy(to)
	case to.Power != "power off":
		return notOff(what+" update", to)
	}
	return nil
}

// forgettable are the states in which a node can be deleted with all that is known of its volumes, and these before it.
var forgettable = []node.State{node.Manageable, node.Enroll, node.AdoptFailed}

func (s *Handlers) releaseVolume(ctx context.Context, what, nodeUUID string) error {
	n, err := s.find.Unlocked(ctx, nodeUUID)
	if err != nil {
		return err
	}
	if n.Power != "power off" && !slices.Contains(forgettable, n.Provision) {
		return notOff(what+" deletion", n)
	}
	return nil
}

func notOff(action string, n *node.Node) *rest.Error {
	state := cmp.Or(n.Power, "None")
	return rest.BadRequest(`The requested action "%s" can not be performed on node "%s" while it is in state "%s".`,
		action, n.UUID, state)
}

// Routes lists the routes of connectors and targets.
func (s *Handlers) Routes() []call.Route {
	connectors, targets := s.Connectors(), s.Targets()
	rs := append(connectors.Routes(), targets.Routes()...)
	add := func(path string, args call.Args, answers call.Answers,
		handle func(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error)) {
		query := call.NoQuery
		if args != nil {
			query = call.Named
		}
		rs = append(rs, call.Route{Method: http.MethodGet, Path: path, Access: call.Read, Query: query, Args: args,
			Answers: answers, Since: rest.VersionVolumes, Hidden: true,
			Handle: func(ctx context.Context, c *call.Call) (*call.Reply, error) {
				if _, ok := c.Path["node"]; !ok {
					return handle(ctx, c, nil)
				}
				n, err := s.find.Node(ctx, c)
				if err != nil {
					return nil, err
				}
				return handle(ctx, c, n)
			}})
	}
	index := func(_ context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
		path := "volume"
		if n != nil {
			path = "nodes/" + c.Path["node"] + "/volume"
		}
		return &call.Reply{Status: http.StatusOK, Body: rest.Object{
			{Name: "links", Value: rest.Links(c.Base, path+"/")},
			{Name: "connectors", Value: rest.Links(c.Base, path+"/connectors")},
			{Name: "targets", Value: rest.Links(c.Base, path+"/targets")},
		}}, nil
	}
	links := call.OK(rest.Object{{Name: "links", Value: []rest.Link{}}, {Name: "connectors", Value: []rest.Link{}},
		{Name: "targets", Value: []rest.Link{}}})
	add("/v1/volume", nil, links, index)
	add("/v1/nodes/{node}/volume", nil, links, index)
	add("/v1/nodes/{node}/volume/connectors", connectors.Args(false), connectors.Page(),
		func(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
			return connectors.List(ctx, c, "nodes/"+n.UUID+"/volume/connectors", false, n.UUID, nil)
		})
	add("/v1/nodes/{node}/volume/targets", targets.Args(false), targets.Page(),
		func(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
			return targets.List(ctx, c, "nodes/"+n.UUID+"/volume/targets", false, n.UUID, nil)
		})
	return rs
}

// redactedVolume stands for the properties of a volume, in Ironic's words.
const redactedVolume = "** Value redacted: Requires permission baremetal:volume:view_target_properties access. Permission denied. **"
