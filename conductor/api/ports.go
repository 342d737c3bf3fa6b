package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

func (s *Server) port(ctx context.Context, c *call) (*node.Port, error) {
	id := c.path["port"]
	if !isUUID(id) {
		return nil, rest.BadRequest("Expected UUID for port_uuid: %s", id)
	}
	return s.store.Port(ctx, id)
}

func (s *Server) getPort(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow("fields"); err != nil {
		return nil, err
	}
	names, err := selected(c, rest.PortFields)
	if err != nil {
		return nil, err
	}
	p, perr := s.port(ctx, c)
	if perr != nil {
		return nil, perr
	}
	shown := showPort(c, p)
	return &reply{status: http.StatusOK, body: rest.PortFields.Render(&shown, c.v, names)}, nil
}

func (s *Server) listPorts(ctx context.Context, c *call) (*reply, error) {
	return s.portList(ctx, c, "ports", false, nil)
}

func (s *Server) listPortsDetail(ctx context.Context, c *call) (*reply, error) {
	return s.portList(ctx, c, "ports/detail", true, nil)
}

func (s *Server) listNodePorts(ctx context.Context, c *call) (*reply, error) {
	n, err := s.node(ctx, c)
	if err != nil {
		return nil, err
	}
	return s.portList(ctx, c, "nodes/"+n.UUID+"/ports", false, n)
}

func (s *Server) listNodePortsDetail(ctx context.Context, c *call) (*reply, error) {
	n, err := s.node(ctx, c)
	if err != nil {
		return nil, err
	}
	return s.portList(ctx, c, "nodes/"+n.UUID+"/ports/detail", true, n)
}

// portList lists ports: of one node if of is not nil, else of those that the filters name.
func (s *Server) portList(ctx context.Context, c *call, path string, detail bool, of *node.Node) (*reply, error) {
	allowed := slices.Clone(pageArguments)
	if of == nil {
		allowed = append(allowed, "node", "node_uuid", "address", "portgroup")
	}
	if !detail {
		allowed = append(allowed, "fields", "detail")
	}
	if err := c.allow(allowed...); err != nil {
		return nil, err
	}
	var names []string
	if !detail {
		var err *rest.Error
		if names, detail, err = listFields(c, rest.PortFields, rest.PortListFields); err != nil {
			return nil, err
		}
	}
	if detail {
		names = nil
	}
	var q store.PortQuery
	for _, arg := range []string{"node", "node_uuid"} {
		if ident := c.text(arg); ident != nil && of == nil {
			n, err := s.nodeByIdent(ctx, c, *ident)
			if err != nil {
				return nil, err
			}
			of = n
		}
	}
	if of != nil {
		q.NodeUUID = &of.UUID
	}
	if a := c.text("address"); a != nil {
		mac, ok := hardwareAddress(*a)
		if !ok {
			return nil, rest.BadRequest("Expected valid MAC address for address: %s", *a)
		}
		q.Address = &mac
	}
	if g := c.text("portgroup"); g != nil {
		return nil, rest.NotFound("Portgroup %s could not be found.", *g) // there is no way to make one
	}
	p, err := c.page(func(k string) bool { _, ok := rest.PortFields.Since(k); return ok }, rest.PortFields.Sortable)
	if err != nil {
		return nil, err
	}
	q.Limit, q.Marker, q.Sort, q.Desc = p.limit, p.marker, p.sort, p.desc
	q.Project = c.scope()
	ports, perr := s.store.Ports(ctx, q)
	if errors.Is(perr, store.ErrNotFound) {
		return nil, rest.NotFound("Port %s could not be found.", p.marker)
	}
	if perr != nil {
		return nil, perr
	}
	items := make([]rest.Object, len(ports))
	for i, port := range ports {
		shown := showPort(c, port)
		items[i] = rest.PortFields.Render(&shown, c.v, names)
	}
	next := ""
	if len(ports) > 0 {
		next = c.next(p, path, len(ports), ports[len(ports)-1].UUID)
	}
	return list("ports", items, next), nil
}

// portSchema is the body of POST ports.
var portSchema = &rest.Schema{
	Types: []string{"object"}, Closed: true, Required: []string{"address", "node_uuid"},
	Props: map[string]*rest.Schema{
		"address": {Types: []string{"string"}}, "node_uuid": {Types: []string{"string"}}, "uuid": optionalText, "extra": optionalObject,
		"is_smartnic": optionalFlag, "local_link_connection": optionalObject,
		"physical_network": {Types: []string{"string", "null"}, MaxLen: 64}, "portgroup_uuid": optionalText, "pxe_enabled": optionalFlag,
	},
}

// linkSchema is a port's connection to a switch.
var linkSchema = &rest.Schema{
	Types: []string{"object"}, Closed: true,
	Props: map[string]*rest.Schema{
		"port_id": {Types: []string{"string"}}, "switch_id": {Types: []string{"string"}}, "switch_info": {Types: []string{"string"}},
		"network_type": {Types: []string{"string"}, Enum: []any{"managed", "unmanaged"}}, "hostname": {Types: []string{"string"}},
	},
}

// portPatchable are the attributes that PATCH may change.
var portPatchable = []string{"address", "extra", "is_smartnic", "local_link_connection", "node_uuid", "physical_network", "portgroup_uuid", "pxe_enabled"}

// assignPort sets the attributes of a port from a document. The node has been looked up by the caller.
func assignPort(p *node.Port, d map[string]any) *rest.Error {
	address, _ := d["address"].(string)
	mac, ok := hardwareAddress(address)
	if !ok {
		return rest.BadRequest("Expected valid MAC address for address: %s", address)
	}
	p.Address = mac
	if g, ok := d["portgroup_uuid"].(string); ok && g != "" {
		return rest.BadRequest("Portgroup %s could not be found.", g) // there is no way to make one
	}
	p.PXEEnabled, p.IsSmartNIC = true, false
	for name, to := range map[string]*bool{"pxe_enabled": &p.PXEEnabled, "is_smartnic": &p.IsSmartNIC} {
		if d[name] == nil {
			continue
		}
		b, err := boolean(name, d[name])
		if err != nil {
			return err
		}
		*to = b
	}
	link, _ := d["local_link_connection"].(map[string]any)
	if fault := checkLink(link); fault != "" {
		return rest.BadRequest("Schema error for local_link_connection: %s is not valid under any of the given schemas. Possible root cause: %s", rest.Repr(link), fault)
	}
	p.LocalLinkConnection = rest.Clone(link)
	p.PhysicalNetwork, _ = d["physical_network"].(string)
	extra, _ := d["extra"].(map[string]any)
	p.Extra = rest.Clone(extra)
	return nil
}

// checkLink wants both ends of a link, or an empty object, or one that only says that nobody manages the switch.
func checkLink(link map[string]any) string {
	if len(link) == 0 {
		return ""
	}
	if fault := linkSchema.Check(link); fault != "" {
		return fault
	}
	if link["network_type"] == "unmanaged" && len(link) == 1 {
		return ""
	}
	for _, name := range []string{"switch_id", "port_id"} {
		if _, ok := link[name]; !ok {
			return rest.Repr(name) + " is a required property"
		}
	}
	return ""
}

func (s *Server) createPort(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	b, err := c.object("port")
	if err != nil {
		return nil, err
	}
	if fault := portSchema.Check(b); fault != "" {
		return nil, rest.BadRequest("Schema error for port: %s", fault)
	}
	for name := range b {
		if since, _ := rest.PortFields.Since(name); since > c.v {
			return nil, rest.NotAcceptable()
		}
	}
	p := &node.Port{}
	if id, ok := b["uuid"].(string); ok {
		if !isUUID(id) {
			return nil, rest.BadRequest("Expected UUID for uuid: %s", id)
		}
		p.UUID = strings.ToLower(id)
	}
	if err := assignPort(p, b); err != nil {
		return nil, err
	}
	var perr error
	if p.NodeUUID, perr = s.portOwner(ctx, c, b["node_uuid"].(string)); perr != nil {
		return nil, perr
	}
	if err := s.store.CreatePort(ctx, p); err != nil {
		return nil, err
	}
	shown := showPort(c, p)
	return &reply{
		status: http.StatusCreated, body: rest.PortFields.Render(&shown, c.v, nil),
		location: c.base + "/v1/ports/" + p.UUID,
	}, nil
}

// portOwner finds the node that a port is to belong to, and asks whether the actor may give it ports.
func (s *Server) portOwner(ctx context.Context, c *call, id string) (string, error) {
	if !isUUID(id) {
		return "", rest.BadRequest("Expected UUID for node_uuid: %s", id)
	}
	n, err := s.visible(ctx, c, id)
	if errors.Is(err, store.ErrNotFound) {
		return "", rest.BadRequest("Node %s could not be found.", id)
	}
	if err != nil {
		return "", err
	}
	return n.UUID, c.may(access.PortCreate, n)
}

// connectivityIn are the states in which a port's connection may be changed: the node is not on a tenant's network then.
var connectivityIn = []node.State{node.Enroll, node.Inspecting, node.InspectWait, node.Manageable}

func (s *Server) patchPort(ctx context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	patch, err := rest.ParsePatch(orList(c.body), c.v, portPatchable)
	if err != nil {
		return nil, err
	}
	for _, root := range patch.Roots() {
		if since, _ := rest.PortFields.Since(root); since > c.v {
			return nil, rest.NotAcceptable()
		}
	}
	p, perr := s.port(ctx, c)
	if perr != nil {
		return nil, perr
	}
	owner, perr := s.store.Node(ctx, p.NodeUUID)
	if perr != nil {
		return nil, perr
	}
	if owner.Reservation != "" {
		return nil, lockedBy(owner)
	}
	d := portDocument(p)
	if err := patch.Apply(d); err != nil {
		return nil, err
	}
	if fault := portSchema.Check(d); fault != "" {
		return nil, rest.BadRequest("Schema error for patch: %s", fault)
	}
	if id := d["node_uuid"].(string); id != p.NodeUUID {
		if _, err := s.portOwner(ctx, c, id); err != nil {
			return nil, err
		}
	}
	p, perr = s.store.UpdatePort(ctx, p.UUID, func(p *node.Port) error {
		was := *p
		d := portDocument(p)
		if err := patch.Apply(d); err != nil {
			return err
		}
		if err := assignPort(p, d); err != nil {
			return err
		}
		p.NodeUUID = strings.ToLower(d["node_uuid"].(string))
		moved := was.PXEEnabled != p.PXEEnabled || was.PhysicalNetwork != p.PhysicalNetwork || !sameObject(was.LocalLinkConnection, p.LocalLinkConnection)
		if moved && !owner.Maintenance && !slices.Contains(connectivityIn, owner.Provision) {
			return rest.Conflict("Port %s can not have any connectivity attributes (physical_network, portgroup_id, local_link_connection, pxe_enabled) updated unless node %s is in a enroll, inspecting, inspect wait, manageable state or in maintenance mode. The current state is %s.", p.UUID, owner.UUID, owner.Provision)
		}
		return nil
	})
	if perr != nil {
		return nil, perr
	}
	shown := showPort(c, p)
	return &reply{status: http.StatusOK, body: rest.PortFields.Render(&shown, c.v, nil)}, nil
}

func portDocument(p *node.Port) map[string]any {
	d := map[string]any{
		"address": p.Address, "extra": rest.Clone(p.Extra), "is_smartnic": p.IsSmartNIC, "local_link_connection": rest.Clone(p.LocalLinkConnection),
		"node_uuid": p.NodeUUID, "physical_network": nil, "portgroup_uuid": nil, "pxe_enabled": p.PXEEnabled,
	}
	if p.PhysicalNetwork != "" {
		d["physical_network"] = p.PhysicalNetwork
	}
	return d
}

func sameObject(a, b map[string]any) bool {
	return rest.Repr(rest.Clone(a)) == rest.Repr(rest.Clone(b))
}

func (s *Server) deletePort(ctx context.Context, c *call) (*reply, error) {
	p, err := s.port(ctx, c)
	if err != nil {
		return nil, err
	}
	n, err := s.store.Node(ctx, p.NodeUUID)
	if err != nil {
		return nil, err
	}
	if n.Reservation != "" {
		return nil, lockedBy(n)
	}
	if id, ok := p.InternalInfo[vifKey]; ok && !n.Maintenance {
		return nil, rest.Conflict("Cannot delete the port %s because it has a VIF %v attached; detach it first.", p.UUID, id)
	}
	if err := s.store.DeletePort(ctx, p.UUID); err != nil {
		return nil, err
	}
	return &reply{status: http.StatusNoContent}, nil
}
