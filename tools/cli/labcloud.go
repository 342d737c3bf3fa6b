package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/guard/oscloud"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/tools/lab/cloudrack"
)

// Ways in which servers are booted from the network; they are explained in conductor/hardware/openstack.
var bootWays = []string{bootMetadata, "rescue", "rebuild"}

const bootMetadata = "metadata"

// cloudOptions are those of a lab in a cloud.
type cloudOptions struct {
	name, flavor, image, boot, bootImage string
}

func (o *cloudOptions) options() []option {
	return []option{
		opt("cloud", &o.name, "cloud of clouds.yaml whose servers are the machines (default: machines of this host)").freeText(),
		opt("flavor", &o.flavor, "with --cloud: flavor of the servers").freeText(),
		opt("boot", &o.boot, "with --cloud: how it boots servers from the network: metadata, rescue or rebuild",
			bootWays...),
		opt("boot-image", &o.bootImage, "with --boot rescue or rebuild: image with iPXE").freeText(),
		opt("image", &o.image, "with --cloud: image that is on the servers' disks at first (default: --boot-image)").freeText(),
	}
}

// cloudName is the name of a lab that a cloud takes everywhere.
var cloudName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,39}$`)

// checkCloud looks at the options before anything is made.
func (r *rack) checkCloud() (cloudrack.Spec, error) {
	o := r.cloud
	s := cloudrack.Spec{Name: r.name, Nodes: r.nodes, Flavor: o.flavor, Image: o.image, BootImage: o.bootImage,
		Subnet: r.subnet}
	if s.Subnet == "" {
		s.Subnet = "10.77.0.0/24"
	}
	if s.Image == "" {
		s.Image = o.bootImage
	}
	subnet, err := netip.ParsePrefix(s.Subnet)
	switch {
	case o.name == "":
		return s, usage("--flavor, --image, --boot and --boot-image are for a lab in a cloud, which --cloud names")
	case r.dir+r.personality+r.ramdisk+r.images+r.ingotd+r.site.DHCP+r.site.Relay+r.site.Netboot != "":
		return s, usage("with --cloud the conductor is that of --endpoint: options about machines and services of this host, such as --ramdisk and --dhcp, are not for it")
	case !cloudName.MatchString(s.Name):
		return s, usage("--name %q: with --cloud it has up to 40 lower-case letters, digits, dots and dashes", s.Name)
	case s.Nodes < 1 || s.Nodes > 200:
		return s, usage("--nodes %d: a lab in a cloud has 1 to 200 machines", s.Nodes)
	case err != nil || !subnet.Addr().Is4() || subnet != subnet.Masked():
		return s, usage("--subnet %q is not an IPv4 network such as 10.77.0.0/24", s.Subnet)
	case s.Flavor == "":
		return s, usage("--cloud needs --flavor: openstack flavor list shows them")
	case !slices.Contains(bootWays, o.boot):
		return s, usage("--cloud needs --boot, which is one of %s: docs/howto/virtual-bare-metal.md says which the cloud allows",
			strings.Join(bootWays, ", "))
	case o.boot != bootMetadata && s.BootImage == "":
		return s, usage("--boot %s needs --boot-image, an image with iPXE", o.boot)
	case o.boot == bootMetadata && s.BootImage != "":
		return s, usage("--boot metadata takes no --boot-image: the firmware loads iPXE itself")
	case s.Image == "":
		return s, usage("--boot metadata needs --image, which is on the servers' disks at first")
	}
	return s, nil
}

// rackIn opens a cloud of the user's clouds.yaml.
func (p *program) rackIn(ctx context.Context, cloud, name string) (*cloudrack.Builder, error) {
	file, err := oscloud.File(p.getenv)
	if err != nil {
		return nil, err
	}
	return cloudrack.Open(ctx, oscloud.NewCloud(file, cloud), name, p.note)
}

// machine is a server of a lab, as `lab up` shows it.
type machine struct {
	Name    string `json:"name"`
	UUID    string `json:"uuid"`
	Server  string `json:"server"`
	MAC     string `json:"mac"`
	Address string `json:"address"`
}

// cloudUp makes a lab in a cloud, and enrols its machines.
func (p *program) cloudUp(ctx context.Context, r rack) error {
	spec, err := r.checkCloud()
	if err != nil {
		return err
	}
	c, err := p.client(ctx)
	if err != nil {
		return err
	}
	nodes, err := c.Nodes(ctx, nil) // first: a conductor that is not there is found before anything is made
	if err != nil {
		return err
	}
	b, err := p.rackIn(ctx, r.cloud.name, r.name)
	if err != nil {
		return err
	}
	made, err := b.Up(ctx, spec)
	if err != nil {
		return advise(err, "Run it again to go on, or remove what there is: ingot lab down --cloud %s --name %s",
			r.cloud.name, r.name)
	}
	var machines []machine
	for _, n := range made.Nodes {
		uuid, err := p.enrolServer(ctx, c, nodes, n, r.cloud, made.BootImage)
		if err != nil {
			return about(n.Name, err)
		}
		machines = append(machines, machine{n.Name, uuid, n.Server, n.MAC, n.Address})
	}
	if p.values() {
		return p.print(machines)
	}
	if err := list(p, machines, []string{"MACHINE", "SERVER", "MAC", "ADDRESS"}, func(m *machine) []string {
		return []string{m.Name, m.Server, m.MAC, m.Address}
	}); err != nil {
		return err
	}
	p.note("The conductor needs the cloud %s in its openstack.clouds_file, and a place in network %s.\nNext: ingot node manage %s",
		r.cloud.name, made.Network, machines[0].Name)
	return nil
}

// isServer reports whether a node is a server of a cloud.
func isServer(n *rest.Node, cloud, server string) bool {
	return n.Driver == "openstack" && n.DriverInfo["openstack_cloud"] == cloud &&
		n.DriverInfo["openstack_server"] == server
}

// enrolServer makes the node of a server, with its port, unless they are there.
func (p *program) enrolServer(ctx context.Context, c *client.Client, nodes []rest.Node, n cloudrack.Node,
	o cloudOptions, image string) (uuid string, err error) {
	for i := range nodes {
		if isServer(&nodes[i], o.name, n.Server) {
			return nodes[i].UUID, p.addCard(ctx, c, nodes[i].UUID, n.MAC)
		}
		if string(nodes[i].Name) == n.Name {
			return "", fmt.Errorf("there is a node of this name that is not the server %s: delete it, or choose another --name",
				n.Server)
		}
	}
	info := map[string]any{"openstack_cloud": o.name, "openstack_server": n.Server, "openstack_boot": o.boot}
	if image != "" {
		info["openstack_boot_image"] = image
	}
	made, err := create(ctx, c, client.NewNode{Name: n.Name, Driver: "openstack", DriverInfo: info}, []string{n.MAC})
	if err != nil {
		return "", err
	}
	p.note("%s is enrolled", n.Name)
	return made.UUID, nil
}

// addCard makes the port of a node that was enrolled when an earlier run ended.
func (p *program) addCard(ctx context.Context, c *client.Client, uuid, mac string) error {
	have, err := c.Ports(ctx, uuid)
	if err != nil || len(have) > 0 {
		return err
	}
	_, err = c.CreatePort(ctx, client.NewPort{NodeUUID: uuid, Address: mac})
	return err
}

// cloudDown removes a lab's nodes, and what is in the cloud with its tag.
func (p *program) cloudDown(ctx context.Context, cloud, name string) error {
	if !cloudName.MatchString(name) {
		return usage("--name %q is not that of a lab in a cloud", name)
	}
	b, err := p.rackIn(ctx, cloud, name)
	if err != nil {
		return err
	}
	ids, err := b.Servers(ctx)
	if err != nil {
		return err
	}
	if len(ids) > 0 { // else there are no nodes to find by them, and no conductor is needed
		c, err := p.client(ctx)
		if err != nil {
			return err
		}
		nodes, err := c.Nodes(ctx, url.Values{"driver": {"openstack"}})
		if err != nil {
			return err
		}
		var faults []error
		for i := range nodes {
			n := &nodes[i]
			if !slices.ContainsFunc(ids, func(id string) bool { return isServer(n, cloud, id) }) {
				continue
			}
			if err := removeNode(ctx, c, n.UUID); err != nil {
				faults = append(faults, fmt.Errorf("%s: %w", label(n), err))
				continue
			}
			p.note("%s is deleted", label(n))
		}
		if err := errors.Join(faults...); err != nil {
			return err // its server stays, too
		}
	}
	if err := b.Down(ctx); err != nil {
		return err
	}
	return p.say("lab %s is gone from cloud %s", name, cloud)
}

// removeNode deletes a node in whichever state it is.
func removeNode(ctx context.Context, c *client.Client, uuid string) error {
	if err := c.SetMaintenance(ctx, uuid, true, "its lab is taken down"); err != nil {
		return err
	}
	return c.DeleteNode(ctx, uuid)
}
