package ports

import (
	"context"
	"errors"
	"slices"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// vifKey is where a port or a port group keeps the virtual interface that it carries.
const vifKey = "tenant_vif_port_id"

// carrier is a port group, or a port in none, to which a virtual interface can be attached.
type carrier struct {
	uuid, kind string
	pxe        bool
	vif        string // the VIF it carries; "" when it is free
	set        func(ctx context.Context, vif string) error
}

// carriers lists those of a node in the order of preference: port groups, ports that boot (that is where the
// provisioning network is), other ports.
func (s *Handlers) carriers(ctx context.Context, n *node.Node) ([]carrier, error) {
	groups, err := s.store.Portgroups().List(ctx, n.UUID)
	if err != nil {
		return nil, err
	}
	ports, err := s.store.Ports(ctx, store.PortQuery{NodeUUID: &n.UUID})
	if err != nil {
		return nil, err
	}
	var all []carrier
	alone := map[string]bool{"": true} // port groups whose ports may be used by themselves
	for _, g := range groups {
		alone[g.UUID] = g.StandalonePortsSupported
		used := slices.ContainsFunc(ports, func(p *node.Port) bool { return p.PortgroupUUID == g.UUID })
		vif, _ := g.InternalInfo[vifKey].(string)
		if !used && vif == "" {
			continue // nothing would carry the traffic
		}
		all = append(all,
			carrier{uuid: g.UUID, kind: "Portgroup", pxe: true, vif: vif,
				set: func(ctx context.Context, vif string) error {
					if vif == "" && g.DynamicPortgroup {
						return s.dissolve(ctx, g)
					}
					_, err := s.store.Portgroups().Update(ctx, g.UUID, func(g *node.Portgroup) (err error) {
						g.InternalInfo, err = carry(g.InternalInfo, vif)
						return err
					})
					return err
				}})
	}
	others := func(p *node.Port) int { return map[bool]int{false: 1}[p.PXEEnabled] }
	slices.SortStableFunc(ports, func(a, b *node.Port) int { return others(a) - others(b) })
	for _, p := range ports {
		vif, _ := p.InternalInfo[vifKey].(string)
		if vif == "" && !alone[p.PortgroupUUID] {
			continue
		}
		all = append(all,
			carrier{uuid: p.UUID, kind: "Port", pxe: p.PXEEnabled, vif: vif,
				set: func(ctx context.Context, vif string) error {
					_, err := s.store.UpdatePort(ctx, p.UUID, func(p *node.Port) (err error) {
						p.InternalInfo, err = carry(p.InternalInfo, vif)
						return err
					})
					return err
				}})
	}
	return all, nil
}

// dissolve ends a port group that was made for one attachment. Stopped half way it still carries its VIF, which can be
// detached again.
func (s *Handlers) dissolve(ctx context.Context, g *node.Portgroup) error {
	members, err := s.store.Ports(ctx, store.PortQuery{PortgroupUUID: &g.UUID})
	if err != nil {
		return err
	}
	for _, p := range members {
		_, err := s.store.UpdatePort(ctx, p.UUID, func(p *node.Port) error { p.PortgroupUUID = ""; return nil })
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	return s.store.Portgroups().Delete(ctx, g.UUID)
}

// carry puts a virtual interface into a port's record; "" takes it out.
func carry(info map[string]any, vif string) (map[string]any, error) {
	info = rest.Clone(info)
	if vif == "" {
		delete(info, vifKey)
		return info, nil
	}
	if info[vifKey] != nil {
		return nil, rest.Conflict("The port was taken by VIF %v meanwhile, try again.", info[vifKey])
	}
	info[vifKey] = vif
	return info, nil
}

// plugsVIFs reports whether a node's network interface supports virtual interfaces: noop accepts them and does nothing.
func (s *Handlers) plugsVIFs(n *node.Node) bool { return s.drivers.Interface(n, "network") != "noop" }

func (s *Handlers) listVIFs(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	items := []rest.Object{}
	if s.plugsVIFs(n) {
		all, err := s.carriers(ctx, n)
		if err != nil {
			return nil, err
		}
		for _, at := range all {
			if at.vif != "" {
				items = append(items, rest.Object{{Name: "id", Value: at.vif}})
			}
		}
	}
	return call.List("vifs", items, ""), nil
}

// vifSchema accepts further members: they go to a network service, if there is one.
var vifSchema = &rest.Schema{Types: []string{"object"}, Required: []string{"id"},
	Props: map[string]*rest.Schema{"id": {Types: []string{"string"}}}}

func (s *Handlers) attachVIF(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, err := c.Checked("vif", vifSchema)
	if err != nil {
		return nil, err
	}
	id := b["id"].(string)
	if err := checkVIF("id", id); err != nil {
		return nil, err
	}
	n, nerr := s.find.Free(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	if !s.plugsVIFs(n) {
		return call.NoContent(), nil // nor does anybody look where it should be plugged
	}
	wanted, err := wantedCarrier(c, b)
	if err != nil {
		return nil, err
	}
	s.attaching.Lock() // one at a time: a VIF is on one port
	defer s.attaching.Unlock()
	all, nerr := s.carriers(ctx, n)
	if nerr != nil {
		return nil, nerr
	}
	for _, at := range all {
		if at.vif == id {
			return nil, rest.Conflict("Unable to attach VIF because VIF %s is already attached to Ironic %s %s", id,
				at.kind, at.uuid)
		}
	}
	i := slices.IndexFunc(all, func(at carrier) bool { return at.vif == "" && (wanted == "" || wanted == at.uuid) })
	if i < 0 {
		return nil, rest.BadRequest("Unable to attach VIF %s, not enough free physical ports.", id)
	}
	return call.NoContent(), all[i].set(ctx, id)
}

// wantedCarrier reads which port or port group a VIF is to be on; "" leaves the choice to us.
func wantedCarrier(c *call.Call, vif map[string]any) (uuid string, _ *rest.Error) {
	if c.Version < rest.VersionVIFPort {
		return "", nil
	}
	_, port := vif["port_uuid"]
	_, group := vif["portgroup_uuid"]
	if port && group {
		return "", rest.BadRequest("Cannot specify both port_uuid and portgroup_uuid")
	}
	for _, name := range []string{"port_uuid", "portgroup_uuid"} {
		v, ok := vif[name]
		if !ok {
			continue
		}
		if uuid, _ = v.(string); !document.IsUUID(uuid) {
			return "", rest.BadRequest("Expected UUID for %s: %s", name, rest.Shown(v))
		}
	}
	return uuid, nil
}

// checkVIF refuses invalid names of VIFs.
func checkVIF(argument, id string) *rest.Error {
	if !document.IsName(id) {
		return rest.BadRequest("Expected UUID or name for %s: %s", argument, id)
	}
	return nil
}

func (s *Handlers) detachVIF(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if err := checkVIF("vif_id", c.Path["vif"]); err != nil {
		return nil, err
	}
	n, err := s.find.Free(ctx, c)
	if err != nil {
		return nil, err
	}
	if !s.plugsVIFs(n) {
		return call.NoContent(), nil
	}
	s.attaching.Lock()
	defer s.attaching.Unlock()
	all, err := s.carriers(ctx, n)
	if err != nil {
		return nil, err
	}
	id := c.Path["vif"]
	for _, at := range all {
		if at.vif == id {
			if err = at.set(ctx, ""); errors.Is(err, store.ErrNotFound) {
				err = nil
			}
			return call.NoContent(), err
		}
	}
	return nil, rest.BadRequest("Unable to detach VIF %s from node %s because it is not attached to it.", id, n.UUID)
}
