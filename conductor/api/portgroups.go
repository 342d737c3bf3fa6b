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

// defaultMode is how the ports of a group act together when nobody says otherwise.
const defaultMode = "active-backup"

func (s *Server) portgroups() *kind[node.Portgroup, rest.Portgroup] {
	return &kind[node.Portgroup, rest.Portgroup]{
		path: "portgroups", param: "portgroup", list: "portgroups", body: "portgroup", title: "Portgroup", expects: "portgroup_ident",
		since: rest.VersionPortgroups, named: rest.VersionPortgroups, detailPath: true, detailSince: rest.VersionDetailQuery, write: Write, ofNode: s,
		table: func() *store.Table[node.Portgroup] { return s.store.Portgroups() }, fields: rest.PortgroupFields, short: rest.PortgroupListFields,
		update: func(ctx context.Context, uuid string, change func(*node.Portgroup) error) (*node.Portgroup, error) {
			return s.store.UpdatePortgroup(ctx, uuid, change)
		},
		show: func(c *call, v *node.Portgroup) rest.Portgroup {
			path := "portgroups/" + v.UUID
			return rest.Portgroup{
				UUID: v.UUID, CreatedAt: rest.NullTime{Time: v.CreatedAt}, UpdatedAt: rest.NullTime{Time: v.UpdatedAt},
				Address: rest.Null(v.Address), Category: rest.Null(v.Category), DynamicPortgroup: v.DynamicPortgroup, Extra: v.Extra,
				InternalInfo: v.InternalInfo, Mode: v.Mode, Name: rest.Null(v.Name), NodeUUID: v.NodeUUID,
				PhysicalNetwork: rest.Null(v.PhysicalNetwork), Properties: v.Properties, StandalonePortsSupported: v.StandalonePortsSupported,
				Links: rest.Links(c.base, path), Ports: rest.Links(c.base, path+"/ports"),
			}
		},
		schema: &rest.Schema{Types: []string{"object"}, Closed: true, Required: []string{"node_uuid"}, Props: map[string]*rest.Schema{
			"uuid": optionalText, "node_uuid": {Types: []string{"string"}}, "address": optionalText,
			"category": {Types: []string{"string", "null"}, MaxLen: 80}, "extra": optionalObject, "mode": {Types: []string{"string", "null"}, MaxLen: 255},
			"name": optionalText, "physical_network": {Types: []string{"string", "null"}, MaxLen: 64}, "properties": optionalObject,
			"standalone_ports_supported": optionalFlag,
		}},
		patchable: []string{"address", "category", "extra", "mode", "name", "node_uuid", "physical_network", "properties", "standalone_ports_supported"},
		document: func(v *node.Portgroup) map[string]any {
			return map[string]any{
				"address": textOrNull(v.Address), "category": textOrNull(v.Category), "extra": rest.Clone(v.Extra), "mode": v.Mode,
				"name": textOrNull(v.Name), "node_uuid": v.NodeUUID, "physical_network": textOrNull(v.PhysicalNetwork),
				"properties": rest.Clone(v.Properties), "standalone_ports_supported": v.StandalonePortsSupported,
			}
		},
		check:  s.checkPortgroup,
		assign: assignPortgroup,
		release: func(ctx context.Context, _ *call, v *node.Portgroup) error {
			n, err := s.unlocked(ctx, v.NodeUUID)
			if err != nil {
				return err
			}
			if vif, ok := v.InternalInfo[vifKey]; ok && !n.Maintenance {
				return rest.Conflict("Cannot delete the portgroup %s as it is bound to VIF %v for use.", v.UUID, vif)
			}
			return nil
		},
		filters: []filter[node.Portgroup]{
			ofNode[node.Portgroup](s),
			{name: "address", match: func(_ context.Context, _ *call, value string) (func(*node.Portgroup) bool, error) {
				mac, ok := hardwareAddress(value)
				if !ok {
					return nil, rest.BadRequest("Expected valid MAC address for address: %s", value)
				}
				return func(v *node.Portgroup) bool { return v.Address == mac }, nil
			}},
			ofNodes[node.Portgroup](s, "shard", rest.VersionGroupShards, inShards),
			ofNodes[node.Portgroup](s, "conductor_groups", rest.VersionGroupFilter, inConductorGroups),
		},
	}
}

func assignPortgroup(_ *call, v *node.Portgroup, d map[string]any) *rest.Error {
	standalone, err := flagIn(d, "standalone_ports_supported", true)
	if err != nil {
		return err
	}
	v.NodeUUID, v.Name, v.Address, v.Mode = textIn(d, "node_uuid"), textIn(d, "name"), textIn(d, "address"), textIn(d, "mode")
	v.Category, v.PhysicalNetwork = textIn(d, "category"), textIn(d, "physical_network")
	v.Extra, v.Properties, v.StandalonePortsSupported = objectIn(d, "extra"), objectIn(d, "properties"), standalone
	if v.Mode == "" {
		v.Mode = defaultMode
	}
	return nil
}

// checkPortgroup looks at a port group that is to be: at its node, its name, and at its ports when it is not new.
func (s *Server) checkPortgroup(ctx context.Context, c *call, was *node.Portgroup, d map[string]any) error {
	name := textIn(d, "name")
	bad := name != "" && !validName(c.v, name)
	if err := macIn(d, "address"); err != nil {
		return err
	}
	if was == nil {
		if bad {
			return rest.BadRequest("Cannot create portgroup with invalid name '%s'", name)
		}
		_, err := s.nodeIn(ctx, c, d, access.PortgroupCreate)
		return err
	}
	if bad && name != was.Name {
		return rest.BadRequest("Portgroup %s: Cannot change name to invalid name '%s'", c.path["portgroup"], name)
	}
	if _, ok := d["mode"]; !ok {
		return rest.BadRequest("'mode' is a mandatory attribute and can not be removed")
	}
	standalone, flagErr := flagIn(d, "standalone_ports_supported", true)
	if flagErr != nil {
		return flagErr
	}
	n, err := s.unlocked(ctx, was.NodeUUID)
	if err != nil {
		return err
	}
	if n.Provision == node.Inspecting && c.v >= rest.VersionInspectWait {
		return rest.Conflict(`Cannot update portgroup "%s" on node "%s" while it is in state "%s".`, was.UUID, n.UUID, n.Provision)
	}
	ports, err := s.store.Ports(ctx, store.PortQuery{PortgroupUUID: &was.UUID})
	if err != nil {
		return err
	}
	if id := textIn(d, "node_uuid"); !strings.EqualFold(id, was.NodeUUID) {
		to, err := s.nodeIn(ctx, c, d, access.PortgroupCreate)
		if err != nil {
			return err
		}
		if to.Reservation != "" {
			return lockedBy(to)
		}
		if !to.Maintenance && !slices.Contains(connectivityIn, to.Provision) {
			return rest.Conflict("Portgroup %s can not be associated to node %s unless the node is in a %s state or in maintenance mode. Current state is '%s'.",
				was.UUID, to.UUID, joinStates(connectivityIn), to.Provision)
		}
		if len(ports) > 0 {
			return rest.BadRequest("Portgroup %s can not be associated with node %s because there are ports associated with this portgroup.", was.UUID, to.UUID)
		}
	}
	if was.StandalonePortsSupported && !standalone {
		for _, p := range ports {
			if why := aloneBecause(p); len(why) > 0 {
				return rest.Conflict("standalone_ports_supported can not be set to False, because the port group %s contains port with %s",
					was.UUID, strings.Join(why, ", "))
			}
		}
	}
	return nil
}

// aloneBecause tells what a port does that a member of a group without standalone ports may not.
func aloneBecause(p *node.Port) []string {
	var why []string
	if p.PXEEnabled {
		why = append(why, "'pxe_enabled' is set to True")
	}
	if vif, ok := p.InternalInfo[vifKey].(string); ok {
		why = append(why, "VIF "+vif+" is attached to this port")
	}
	return why
}

func joinStates(states []node.State) string {
	names := make([]string, len(states))
	for i, st := range states {
		names[i] = string(st)
	}
	return strings.Join(names, ", ")
}

func (s *Server) portgroupRoutes() []route {
	k := s.portgroups()
	ports := func(detail bool) func(context.Context, *call) (*reply, error) {
		return func(ctx context.Context, c *call) (*reply, error) {
			g, err := k.byIdent(ctx, c, c.path["portgroup"])
			if err != nil {
				return nil, err
			}
			return s.portList(ctx, c, "portgroups/"+g.UUID+"/ports", detail, nil, g)
		}
	}
	of := func(detail bool) func(context.Context, *call) (*reply, error) {
		return func(ctx context.Context, c *call) (*reply, error) {
			n, err := s.node(ctx, c)
			if err != nil {
				return nil, err
			}
			path := "nodes/" + n.UUID + "/portgroups"
			if detail {
				path += "/detail"
			}
			return k.listWhere(ctx, c, path, detail, n.UUID, nil)
		}
	}
	rs := k.routes()
	for _, r := range []route{
		{Path: "/v1/portgroups/{portgroup}/ports", handle: ports(false)},
		{Path: "/v1/portgroups/{portgroup}/ports/detail", handle: ports(true)},
		{Path: "/v1/nodes/{node}/portgroups", handle: of(false)},
		{Path: "/v1/nodes/{node}/portgroups/detail", handle: of(true)},
	} {
		r.Method, r.Access, r.Since, r.Hidden = http.MethodGet, Read, rest.VersionGroupParts, true
		rs = append(rs, r)
	}
	return rs
}
