package api

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

func (s *Server) volumeConnectors() *kind[node.VolumeConnector, rest.VolumeConnector] {
	return &kind[node.VolumeConnector, rest.VolumeConnector]{
		path: "volume/connectors", param: "connector", list: "connectors", body: "connector", title: "Volume connector", expects: "connector_uuid",
		since: rest.VersionVolumes, detailSince: rest.VersionVolumes, write: Write, ofNode: s,
		table:  func() *store.Table[node.VolumeConnector] { return s.store.VolumeConnectors() },
		fields: rest.VolumeConnectorFields, short: rest.VolumeConnectorListFields,
		show: func(c *call, v *node.VolumeConnector) rest.VolumeConnector {
			return rest.VolumeConnector{
				UUID: v.UUID, CreatedAt: rest.NullTime{Time: v.CreatedAt}, UpdatedAt: rest.NullTime{Time: v.UpdatedAt},
				ConnectorID: v.ConnectorID, Extra: v.Extra, Type: v.Type, NodeUUID: v.NodeUUID,
				Links: rest.Links(c.base, "volume/connectors/"+v.UUID),
			}
		},
		schema: &rest.Schema{Types: []string{"object"}, Closed: true, Required: []string{"connector_id", "node_uuid", "type"}, Props: map[string]*rest.Schema{
			"uuid": optionalText, "node_uuid": {Types: []string{"string"}}, "extra": optionalObject,
			"connector_id": {Types: []string{"string"}, MaxLen: 255}, "type": {Types: []string{"string"}, MaxLen: 32},
		}},
		patchable: []string{"connector_id", "extra", "node_uuid", "type"},
		document: func(v *node.VolumeConnector) map[string]any {
			return map[string]any{"connector_id": v.ConnectorID, "extra": rest.Clone(v.Extra), "node_uuid": v.NodeUUID, "type": v.Type}
		},
		check: func(ctx context.Context, c *call, was *node.VolumeConnector, d map[string]any) error {
			if was == nil {
				_, err := s.nodeIn(ctx, c, d, access.VolumeCreate)
				return err
			}
			return s.checkVolume(ctx, c, "volume connector", was.NodeUUID, d)
		},
		assign: func(_ *call, v *node.VolumeConnector, d map[string]any) *rest.Error {
			v.NodeUUID, v.ConnectorID, v.Type, v.Extra = textIn(d, "node_uuid"), textIn(d, "connector_id"), textIn(d, "type"), objectIn(d, "extra")
			return nil
		},
		release: func(ctx context.Context, _ *call, v *node.VolumeConnector) error {
			return s.releaseVolume(ctx, "volume connector", v.NodeUUID)
		},
		filters: []filter[node.VolumeConnector]{ofNode[node.VolumeConnector](s)},
	}
}

func (s *Server) volumeTargets() *kind[node.VolumeTarget, rest.VolumeTarget] {
	return &kind[node.VolumeTarget, rest.VolumeTarget]{
		path: "volume/targets", param: "target", list: "targets", body: "target", title: "Volume target", expects: "target_uuid",
		since: rest.VersionVolumes, detailSince: rest.VersionVolumes, write: Write, ofNode: s,
		table:  func() *store.Table[node.VolumeTarget] { return s.store.VolumeTargets() },
		fields: rest.VolumeTargetFields, short: rest.VolumeTargetListFields,
		show: func(c *call, v *node.VolumeTarget) rest.VolumeTarget {
			properties := rest.Mask(v.Properties)
			if !c.actor.May(access.VolumeProperties, access.Object{}) {
				properties = map[string]any{"redacted_contents": redactedVolume}
			}
			return rest.VolumeTarget{
				UUID: v.UUID, CreatedAt: rest.NullTime{Time: v.CreatedAt}, UpdatedAt: rest.NullTime{Time: v.UpdatedAt},
				BootIndex: v.BootIndex, Extra: v.Extra, Properties: properties, VolumeID: v.VolumeID, VolumeType: v.VolumeType,
				NodeUUID: v.NodeUUID, Links: rest.Links(c.base, "volume/targets/"+v.UUID),
			}
		},
		schema: &rest.Schema{Types: []string{"object"}, Closed: true, Required: []string{"boot_index", "node_uuid", "volume_id", "volume_type"}, Props: map[string]*rest.Schema{
			"uuid": optionalText, "node_uuid": {Types: []string{"string"}}, "extra": optionalObject, "properties": optionalObject,
			"boot_index": {Types: []string{"integer"}}, "volume_id": {Types: []string{"string"}, MaxLen: 255}, "volume_type": {Types: []string{"string"}, MaxLen: 64},
		}},
		patchable: []string{"boot_index", "extra", "node_uuid", "properties", "volume_id", "volume_type"},
		document: func(v *node.VolumeTarget) map[string]any {
			return map[string]any{
				"boot_index": float64(v.BootIndex), "extra": rest.Clone(v.Extra), "node_uuid": v.NodeUUID,
				"properties": rest.Clone(v.Properties), "volume_id": v.VolumeID, "volume_type": v.VolumeType,
			}
		},
		check: func(ctx context.Context, c *call, was *node.VolumeTarget, d map[string]any) error {
			if was == nil {
				_, err := s.nodeIn(ctx, c, d, access.VolumeCreate)
				return err
			}
			return s.checkVolume(ctx, c, "volume target", was.NodeUUID, d)
		},
		assign: func(_ *call, v *node.VolumeTarget, d map[string]any) *rest.Error {
			properties := objectIn(d, "properties")
			rest.Unmask(properties, v.Properties)
			v.NodeUUID, v.VolumeID, v.VolumeType = textIn(d, "node_uuid"), textIn(d, "volume_id"), textIn(d, "volume_type")
			v.BootIndex, v.Properties, v.Extra = numberIn(d, "boot_index"), properties, objectIn(d, "extra")
			return nil
		},
		release: func(ctx context.Context, _ *call, v *node.VolumeTarget) error {
			return s.releaseVolume(ctx, "volume target", v.NodeUUID)
		},
		filters: []filter[node.VolumeTarget]{ofNode[node.VolumeTarget](s)},
	}
}

// checkVolume refuses to change what a machine may be running from: it must be off, and so must the one that the volume goes to.
func (s *Server) checkVolume(ctx context.Context, c *call, what, nodeUUID string, d map[string]any) error {
	n, err := s.unlocked(ctx, nodeUUID)
	if err != nil {
		return err
	}
	if n.Power != "power off" {
		return notOff(what+" update", n)
	}
	if strings.EqualFold(textIn(d, "node_uuid"), n.UUID) {
		return nil
	}
	to, err := s.nodeIn(ctx, c, d, access.VolumeCreate)
	switch {
	case err != nil:
		return err
	case to.Reservation != "":
		return lockedBy(to)
	case to.Power != "power off":
		return notOff(what+" update", to)
	}
	return nil
}

// forgettable are the states in which a node can be deleted with all that is known of its volumes, and these before it.
var forgettable = []node.State{node.Manageable, node.Enroll, node.AdoptFailed}

func (s *Server) releaseVolume(ctx context.Context, what, nodeUUID string) error {
	n, err := s.unlocked(ctx, nodeUUID)
	if err != nil {
		return err
	}
	if n.Power != "power off" && !slices.Contains(forgettable, n.Provision) {
		return notOff(what+" deletion", n)
	}
	return nil
}

func notOff(action string, n *node.Node) *rest.Error {
	state := n.Power
	if state == "" {
		state = "None"
	}
	return rest.BadRequest(`The requested action "%s" can not be performed on node "%s" while it is in state "%s".`, action, n.UUID, state)
}

func (s *Server) volumeRoutes() []route {
	connectors, targets := s.volumeConnectors(), s.volumeTargets()
	rs := append(connectors.routes(), targets.routes()...)
	add := func(path string, handle func(ctx context.Context, c *call, n *node.Node) (*reply, error)) {
		rs = append(rs, route{Method: http.MethodGet, Path: path, Access: Read, Since: rest.VersionVolumes, Hidden: true, handle: func(ctx context.Context, c *call) (*reply, error) {
			if _, ok := c.path["node"]; !ok {
				return handle(ctx, c, nil)
			}
			n, err := s.node(ctx, c)
			if err != nil {
				return nil, err
			}
			return handle(ctx, c, n)
		}})
	}
	index := func(_ context.Context, c *call, n *node.Node) (*reply, error) {
		path := "volume"
		if n != nil {
			path = "nodes/" + c.path["node"] + "/volume"
		}
		return &reply{status: http.StatusOK, body: rest.Object{
			{Name: "links", Value: rest.Links(c.base, path+"/")},
			{Name: "connectors", Value: rest.Links(c.base, path+"/connectors")},
			{Name: "targets", Value: rest.Links(c.base, path+"/targets")},
		}}, nil
	}
	add("/v1/volume", index)
	add("/v1/nodes/{node}/volume", index)
	add("/v1/nodes/{node}/volume/connectors", func(ctx context.Context, c *call, n *node.Node) (*reply, error) {
		return connectors.listWhere(ctx, c, "nodes/"+n.UUID+"/volume/connectors", false, n.UUID, nil)
	})
	add("/v1/nodes/{node}/volume/targets", func(ctx context.Context, c *call, n *node.Node) (*reply, error) {
		return targets.listWhere(ctx, c, "nodes/"+n.UUID+"/volume/targets", false, n.UUID, nil)
	})
	return rs
}
