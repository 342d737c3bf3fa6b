package ports

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
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// defaultMode is the bonding mode of a group without one.
const defaultMode = "active-backup"

// Groups describes port groups as a kind of resource.
func (s *Handlers) Groups() *resource.Kind[node.Portgroup, rest.Portgroup] {
	return &resource.Kind[node.Portgroup, rest.Portgroup]{
		Path: "portgroups", Param: "portgroup", Member: "portgroups", Body: "portgroup", Title: "Portgroup",
		Expects: "portgroup_ident", Since: rest.VersionPortgroups, Named: rest.VersionPortgroups, FoundFirst: true,
		DetailPath: true, DetailSince: rest.VersionDetailQuery, Write: call.Write, Nodes: s.find,
		Table: func() *store.Table[node.Portgroup] { return s.store.Portgroups() }, Fields: rest.PortgroupFields,
		Short: rest.PortgroupListFields,
		Update: func(ctx context.Context, uuid string, change func(*node.Portgroup) error) (*node.Portgroup, error) {
			return s.store.UpdatePortgroup(ctx, uuid, change)
		},
		Show: func(c *call.Call, v *node.Portgroup) rest.Portgroup {
			path := "portgroups/" + v.UUID
			return rest.Portgroup{
				UUID: v.UUID, CreatedAt: rest.NullTime{Time: v.CreatedAt}, UpdatedAt: rest.NullTime{Time: v.UpdatedAt},
				Address: rest.Null(v.Address), Category: rest.Null(v.Category), DynamicPortgroup: v.DynamicPortgroup,
				Extra: v.Extra, InternalInfo: v.InternalInfo, Mode: rest.Text(v.Mode, "mode", v.Blank),
				Name:     rest.Text(v.Name, "name", v.Blank),
				NodeUUID: v.NodeUUID, PhysicalNetwork: rest.Null(v.PhysicalNetwork), Properties: v.Properties,
				StandalonePortsSupported: v.StandalonePortsSupported, Links: rest.Links(c.Base, path),
				Ports: rest.Links(c.Base, path+"/ports"),
			}
		},
		Schema: &rest.Schema{Types: []string{"object"}, Closed: true, Required: []string{"node_uuid"},
			Props: map[string]*rest.Schema{
				"uuid": document.OptionalText, "node_uuid": {Types: []string{"string"}},
				"address": document.OptionalText, "category": {Types: []string{"string", "null"}, MaxLen: 80},
				"extra": document.OptionalObject, "mode": {Types: []string{"string", "null"}, MaxLen: 255},
				"name": document.OptionalText, "physical_network": {Types: []string{"string", "null"}, MaxLen: 64},
				"properties": document.OptionalObject, "standalone_ports_supported": document.OptionalFlag,
			}},
		Patchable: []string{"address", "extra", "mode", "name", "node_uuid", "properties", "standalone_ports_supported",
			"physical_network", "category"},
		Document: func(v *node.Portgroup) map[string]any {
			return map[string]any{
				"address": document.OrNull(v.Address), "category": document.OrNull(v.Category),
				"extra": rest.Clone(v.Extra), "mode": document.Kept(v.Mode, "mode", v.Blank),
				"name":      document.Kept(v.Name, "name", v.Blank),
				"node_uuid": v.NodeUUID, "physical_network": document.OrNull(v.PhysicalNetwork),
				"properties": rest.Clone(v.Properties), "standalone_ports_supported": v.StandalonePortsSupported,
			}
		},
		Check:  s.checkPortgroup,
		Assign: assignPortgroup,
		Release: func(ctx context.Context, _ *call.Call, v *node.Portgroup) error {
			n, err := s.find.Unlocked(ctx, v.NodeUUID)
			if err != nil {
				return err
			}
			if vif, ok := v.InternalInfo[vifKey]; ok && !n.Maintenance {
				return rest.Conflict("Cannot delete the portgroup %s as it is bound to VIF %v for use.", v.UUID, vif)
			}
			return nil
		},
		Filters: []resource.Filter[node.Portgroup]{
			resource.OfNode[node.Portgroup](s.find),
			{Name: "address",
				Match: func(_ context.Context, _ *call.Call, value string) (func(*node.Portgroup) bool, error) {
					mac, _ := document.HardwareAddress(value) // it is one: Call.CheckArgs
					return func(v *node.Portgroup) bool { return v.Address == mac }, nil
				}},
			resource.OfNodes[node.Portgroup](s.store, "shard", rest.VersionGroupShards, resource.InShards),
			resource.OfNodes[node.Portgroup](s.store, "conductor_groups", rest.VersionGroupFilter,
				resource.InConductorGroups),
		},
	}
}

func assignPortgroup(_ *call.Call, v *node.Portgroup, d map[string]any) *rest.Error {
	standalone, err := document.Flag(d, "standalone_ports_supported", true)
	if err != nil {
		return err
	}
	v.NodeUUID, v.Name, v.Address, v.Mode = document.Text(d, "node_uuid"), document.Text(d, "name"),
		document.Text(d, "address"), document.Text(d, "mode")
	v.Category, v.PhysicalNetwork = document.Text(d, "category"), document.Text(d, "physical_network")
	v.Blank = document.Blank(d, "name", "mode")
	v.Extra, v.Properties, v.StandalonePortsSupported = document.Object(d, "extra"), document.Object(d, "properties"),
		standalone
	if v.CreatedAt.IsZero() { // of one that there is, none stays none
		v.Mode = cmp.Or(v.Mode, defaultMode)
	}
	return nil
}

// checkPortgroup looks at a port group that is to be: at its node, its name, and at its ports when it is not new.
func (s *Handlers) checkPortgroup(ctx context.Context, c *call.Call, was *node.Portgroup, d map[string]any) error {
	name := document.Text(d, "name")
	bad := name != "" && !document.ValidLabel(c.Version, name)
	if err := document.MAC(d, "address"); err != nil {
		return err
	}
	if was == nil {
		if bad {
			return rest.BadRequest("Cannot create portgroup with invalid name '%s'", name)
		}
		_, err := s.find.In(ctx, c, d, access.PortgroupCreate)
		return err
	}
	if bad && name != was.Name {
		return rest.BadRequest("Portgroup %s: Cannot change name to invalid name '%s'", c.Path["portgroup"], name)
	}
	if _, ok := d["mode"]; !ok {
		return rest.BadRequest("'mode' is a mandatory attribute and can not be removed")
	}
	standalone, flagErr := document.Flag(d, "standalone_ports_supported", true)
	if flagErr != nil {
		return flagErr
	}
	n, err := s.find.Unlocked(ctx, was.NodeUUID)
	if err != nil {
		return err
	}
	if n.Provision == node.Inspecting && c.Version >= rest.VersionInspectWait {
		return rest.Conflict(`Cannot update portgroup "%s" on node "%s" while it is in state "%s".`, was.UUID, n.UUID,
			n.Provision)
	}
	ports, err := s.store.Ports(ctx, store.PortQuery{PortgroupUUID: &was.UUID})
	if err != nil {
		return err
	}
	if id := document.Text(d, "node_uuid"); !strings.EqualFold(id, was.NodeUUID) {
		to, err := s.find.In(ctx, c, d, access.PortgroupCreate)
		if err != nil {
			return err
		}
		if to.Reservation != "" {
			return finder.LockedBy(to)
		}
		if !to.Maintenance && !slices.Contains(connectivityIn, to.Provision) {
			return rest.Conflict(
				"Portgroup %s can not be associated to node %s unless the node is in a %s state or in maintenance mode. Current state is '%s'.",
				was.UUID, to.UUID, joinStates(connectivityIn), to.Provision)
		}
		if len(ports) > 0 {
			return rest.BadRequest(
				"Portgroup %s can not be associated with node %s because there are ports associated with this portgroup.", was.UUID, to.UUID)
		}
	}
	if was.StandalonePortsSupported && !standalone {
		for _, p := range ports {
			if why := aloneBecause(p); len(why) > 0 {
				return rest.Conflict(
					"standalone_ports_supported can not be set to False, because the port group %s contains port with %s",
					was.UUID, strings.Join(why, ", "))
			}
		}
	}
	return nil
}

// aloneBecause returns the settings of a port that a member of a group without standalone ports may not have.
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

func (s *Handlers) portgroupRoutes() []call.Route {
	k := s.Groups()
	ports := func(detail bool) func(context.Context, *call.Call) (*call.Reply, error) {
		return func(ctx context.Context, c *call.Call) (*call.Reply, error) {
			g, err := k.ByIdent(ctx, c, c.Path["portgroup"])
			if err != nil {
				return nil, err
			}
			return s.list(ctx, c, "portgroups/"+g.UUID+"/ports", detail, nil, g)
		}
	}
	of := func(detail bool) func(context.Context, *call.Call) (*call.Reply, error) {
		return func(ctx context.Context, c *call.Call) (*call.Reply, error) {
			n, err := s.find.Node(ctx, c)
			if err != nil {
				return nil, err
			}
			path := "nodes/" + n.UUID + "/portgroups"
			if detail {
				path += "/detail"
			}
			return k.List(ctx, c, path, detail, n.UUID, nil)
		}
	}
	rs := k.Routes()
	for _, r := range []call.Route{
		{Path: "/v1/portgroups/{portgroup}/ports", Args: listArgs(false, false, true), Answers: portPage(),
			Handle: ports(false)},
		{Path: "/v1/portgroups/{portgroup}/ports/detail", Args: listArgs(true, false, true), Answers: portPage(),
			Handle: ports(true)},
		{Path: "/v1/nodes/{node}/portgroups", Args: k.Args(false), Answers: k.Page(), Handle: of(false)},
		{Path: "/v1/nodes/{node}/portgroups/detail", Args: k.Args(true), Answers: k.Page(), Handle: of(true)},
	} {
		r.Method, r.Access, r.Query, r.Since, r.Hidden = http.MethodGet, call.Read, call.Named, rest.VersionGroupParts,
			true
		rs = append(rs, r)
	}
	return rs
}
