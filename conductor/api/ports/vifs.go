package ports

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// vifKey is where a port or a port group keeps the virtual interface that it carries.
const vifKey = "tenant_vif_port_id"

// VIFs is a service whose ports virtual interfaces are, such as Neutron. Faults of a request are *node.InvalidError.
type VIFs interface {
	// Serves reports whether those of a node are.
	Serves(n *node.Node) bool
	// Physical returns the physical networks that a virtual interface is on; none: any card will do.
	Physical(ctx context.Context, vif string) ([]string, error)
	// Address gives a virtual interface the address of the card that carries it.
	Address(ctx context.Context, vif, mac string) error
	// Plug connects a virtual interface that is attached to a node with an instance, and Unplug ends that.
	Plug(ctx context.Context, n *node.Node, vif string) error
	Unplug(ctx context.Context, n *node.Node, vif string) error
}

// carrier is a port group, or a port in none, to which a virtual interface can be attached.
type carrier struct {
	uuid, kind string
	pxe        bool
	mac        string // "": a port group without an address of its own
	physical   string // physical network; "": not known
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
		used, physical := false, g.PhysicalNetwork
		for _, p := range ports {
			if p.PortgroupUUID == g.UUID {
				used, physical = true, cmp.Or(physical, p.PhysicalNetwork)
			}
		}
		vif, _ := g.InternalInfo[vifKey].(string)
		if !used && vif == "" {
			continue // nothing would carry the traffic
		}
		all = append(all,
			carrier{uuid: g.UUID, kind: "Portgroup", pxe: true, mac: g.Address, physical: physical, vif: vif,
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
			carrier{uuid: p.UUID, kind: "Port", pxe: p.PXEEnabled, mac: p.Address, physical: p.PhysicalNetwork,
				vif: vif,
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
	lock := s.attachingTo(n) // one at a time: a VIF is on one port
	lock.Lock()
	defer lock.Unlock()
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
	if s.serves(n) {
		if all, nerr = s.fitting(ctx, n, id, all); nerr != nil {
			return nil, nerr
		}
	}
	i := slices.IndexFunc(all, func(at carrier) bool { return at.vif == "" && (wanted == "" || wanted == at.uuid) })
	if i < 0 {
		return nil, rest.BadRequest("Unable to attach VIF %s, not enough free physical ports.", id)
	}
	at := all[i]
	if s.serves(n) && at.mac != "" {
		if err := s.service.Address(ctx, id, at.mac); err != nil {
			return nil, err
		}
	}
	if err := at.set(ctx, id); err != nil {
		return nil, err
	}
	if s.serves(n) && n.Provision == node.Active {
		if err := s.service.Plug(ctx, n, id); err != nil {
			return nil, errors.Join(err, at.set(ctx, ""))
		}
	}
	return call.NoContent(), nil
}

// serves reports whether a node's virtual interfaces are ports of the service.
func (s *Handlers) serves(n *node.Node) bool { return s.service != nil && s.service.Serves(n) }

// fitting are the carriers on a physical network of a virtual interface's, those that are known to be on one first. As
// in Ironic, a node none of whose ports has a physical network takes all.
func (s *Handlers) fitting(ctx context.Context, n *node.Node, vif string, all []carrier) ([]carrier, error) {
	if !slices.ContainsFunc(all, func(at carrier) bool { return at.physical != "" }) {
		return all, nil
	}
	of, err := s.service.Physical(ctx, vif)
	if err != nil || len(of) == 0 {
		return all, err
	}
	fit := slices.DeleteFunc(all, func(at carrier) bool {
		return at.physical != "" && !slices.Contains(of, at.physical)
	})
	if len(fit) == 0 {
		return nil, rest.Conflict(
			"Unable to attach VIF %s to node %s. Reason: none of its ports is on the VIF's physical network (%s).", vif,
			n.UUID, strings.Join(of, ", "))
	}
	unknown := func(at carrier) int { return map[bool]int{true: 1}[at.physical == ""] }
	slices.SortStableFunc(fit, func(a, b carrier) int { return unknown(a) - unknown(b) })
	return fit, nil
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
	lock := s.attachingTo(n)
	lock.Lock()
	defer lock.Unlock()
	all, err := s.carriers(ctx, n)
	if err != nil {
		return nil, err
	}
	id := c.Path["vif"]
	for _, at := range all {
		if at.vif == id {
			if s.serves(n) && (n.Provision == node.Active || n.Provision == node.Deleting) {
				if err := s.service.Unplug(ctx, n, id); err != nil {
					return nil, err
				}
			}
			if err = at.set(ctx, ""); errors.Is(err, store.ErrNotFound) {
				err = nil
			}
			return call.NoContent(), err
		}
	}
	return nil, rest.BadRequest("Unable to detach VIF %s from node %s because it is not attached to it.", id, n.UUID)
}
