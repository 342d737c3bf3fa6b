package openstack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	"github.com/gophercloud/gophercloud/v2/pagination"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/inventory"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Inspect is the inspect interface: what Nova and Neutron know of a server, without booting it.
type Inspect struct {
	s   *Service
	log *slog.Logger
}

// NewInspect makes the interface.
func NewInspect(s *Service, log *slog.Logger) *Inspect { return &Inspect{s, log} }

// readingTime bounds an inspection.
const readingTime = 2 * time.Minute

// Steps has the one step of an inspection.
func (i *Inspect) Steps(*node.Node) []hardware.Step {
	return []hardware.Step{{Interface: "inspect", Name: "inspect_hardware", Abortable: true,
		Description: "reads processors, memory, root disk and network cards from Nova and Neutron, without booting the server",
		Priority:    map[node.Phase]int{node.PhaseInspect: 100}, Limit: readingTime,
		Run: func(ctx context.Context, call hardware.Call) (out hardware.Outcome, err error) {
			d, err := i.s.open(power.Info(call.Node.DriverInfo), i.log)
			if err != nil {
				return out, err
			}
			arch, _ := call.Node.Properties["cpu_arch"].(string)
			m, err := d.inventory(ctx, arch)
			if err == nil {
				out.Found, err = m.Document()
			}
			return out, err
		}}}
}

// mostPorts bounds the network cards of a server.
const mostPorts = 100

// inventory reads the server. Nova does not tell the architecture.
func (d *Driver) inventory(ctx context.Context, arch string) (*inventory.Machine, error) {
	const op = "inspect"
	s, err := d.c.get(ctx, d.o.server)
	if err != nil {
		return nil, d.c.explain(ctx, op, d.o.server, err)
	}
	if s.Flavor.VCPUs == 0 { // an old Nova names the flavour only
		err := d.c.compute(ctx, "read flavor "+clean.Line(s.Flavor.ID, 64),
			func(ctx context.Context, sc *gophercloud.ServiceClient) error {
				f, err := flavors.Get(ctx, sc, s.Flavor.ID).Extract()
				if err == nil {
					s.Flavor.Name, s.Flavor.VCPUs, s.Flavor.RAM, s.Flavor.Disk = f.Name, f.VCPUs, f.RAM, int64(f.Disk)
				}
				return err
			})
		if err != nil {
			return nil, d.c.explain(ctx, op, d.o.server, err)
		}
	}
	m := &inventory.Machine{Manufacturer: "OpenStack Foundation", Model: "OpenStack Nova", Serial: s.ID,
		CPUs: s.Flavor.VCPUs, Sockets: 1, Arch: cmp.Or(arch, "x86_64"), MemoryMB: s.Flavor.RAM,
		CPUModel: clean.Line(s.Flavor.Name, 64)}
	if !s.volume() && s.Flavor.Disk > 0 {
		m.Disks = []inventory.Disk{{Name: "/dev/vda", Size: s.Flavor.Disk << 30}}
	}
	var found []ports.Port
	err = d.c.ask(ctx, "network", neutron, "list ports of server "+d.o.server,
		func(ctx context.Context, sc *gophercloud.ServiceClient) error {
			return ports.List(sc, ports.ListOpts{DeviceID: d.o.server, Limit: mostPorts}).EachPage(ctx,
				func(_ context.Context, p pagination.Page) (more bool, err error) {
					found, err = ports.ExtractPorts(p)
					return false, err
				})
		})
	if err != nil {
		return nil, d.c.explain(ctx, op, d.o.server, err)
	}
	slices.SortFunc(found, func(a, b ports.Port) int {
		return strings.Compare(strings.ToLower(a.MACAddress), strings.ToLower(b.MACAddress))
	})
	for n, p := range found {
		mac, err := net.ParseMAC(p.MACAddress)
		if err != nil || len(mac) != 6 {
			continue
		}
		m.Interfaces = append(m.Interfaces, inventory.Interface{Name: fmt.Sprintf("eth%d", n), MAC: mac.String(),
			Up: new(p.Status == "ACTIVE")})
	}
	if len(m.Interfaces) == 0 {
		return nil, &power.Error{Kind: power.Refused, Op: op, Addr: d.c.addr(d.o.server),
			Err:  errors.New("the server has no port in Neutron"),
			Hint: "give it one: openstack server add network " + d.o.server + " NETWORK"}
	}
	return m, nil
}
