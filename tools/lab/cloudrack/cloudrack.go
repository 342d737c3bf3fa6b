// Package cloudrack makes a rack of virtual machines in an OpenStack cloud: a network without DHCP, and servers in it
// that are off.
//
// Everything carries a tag from the moment that it is made (servers a tag of Nova's, the rest its description), and
// the tag is how it is found again: Up makes what is missing, Down removes exactly what has the tag in the project of
// the login, and both can be repeated after any end. Administrators see all projects' things, and anybody may share a
// network with the tag: those of other projects are left alone.
//
// Nova makes no server that is off: one is made, marked as new in its metadata, and stopped; the mark goes when it is
// off, so that Up never stops a machine that is in use.
package cloudrack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/image/v2/images"
	"github.com/gophercloud/gophercloud/v2/pagination"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/guard/oscloud"
)

// Spec describes a rack.
type Spec struct {
	Name          string // of the rack; its servers are NAME-0, NAME-1, ...
	Nodes         int
	Flavor, Image string // of its servers, by ID or name
	BootImage     string // with iPXE, by ID or name; "": none
	Subnet        string // of its network, CIDR
}

// Node is a server of a rack.
type Node struct {
	Name, Server, MAC, Address string
}

// Rack has the things that Up made, or found.
type Rack struct {
	Network   string // ID
	BootImage string // ID
	Nodes     []Node
}

// Builder works in one cloud.
type Builder struct {
	nova, neutron *gophercloud.ServiceClient
	cloud         *oscloud.Cloud
	project       string
	tag           string
	name          string
	note          func(format string, args ...any)
}

// Microversions of Nova, 2.x: the newest that is spoken, and that which tags a server as it is made.
const (
	newest = 93
	tagged = 52
)

// newKey is the metadata of a server that has not been off yet.
const newKey = "ingot:new"

// longest bounds Up and Down.
const longest = 30 * time.Minute

// Open logs in to a cloud, for the rack of a name. note is told what is done.
func Open(ctx context.Context, cloud *oscloud.Cloud, name string, note func(format string, args ...any)) (*Builder,
	error) {
	b := &Builder{cloud: cloud, name: name, tag: "ingot-lab-" + name, note: note}
	var err error
	if b.nova, err = cloud.Service(ctx, "compute", "Nova"); err != nil {
		return nil, err
	}
	if b.neutron, err = cloud.Service(ctx, "network", "Neutron"); err != nil {
		return nil, err
	}
	if b.project, err = cloud.Project(ctx); err != nil {
		return nil, err
	}
	if err := oscloud.Negotiate(ctx, b.nova, newest); err != nil {
		return nil, err
	}
	if m := oscloud.Minor(b.nova.Microversion); m < tagged {
		return nil, fmt.Errorf("nova has version 2.%d of its API, and a lab needs 2.%d, which tags servers as they are made",
			m, tagged)
	}
	return b, nil
}

// all reads a list that is one page, which is enough for a rack.
func all[T any](ctx context.Context, p pagination.Pager, extract func(pagination.Page) ([]T, error)) (out []T,
	err error) {
	err = p.EachPage(ctx, func(_ context.Context, page pagination.Page) (more bool, err error) {
		out, err = extract(page)
		return false, err
	})
	return out, err
}

// Up makes what the rack lacks. On an error, what there is by then stays: Up goes on from there, Down removes it.
func (b *Builder) Up(ctx context.Context, s Spec) (*Rack, error) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	flavor, err := b.flavor(ctx, s.Flavor)
	if err != nil {
		return nil, err
	}
	image, err := b.image(ctx, s.Image)
	if err != nil {
		return nil, err
	}
	r := &Rack{}
	if s.BootImage != "" {
		if r.BootImage, err = b.image(ctx, s.BootImage); err != nil {
			return nil, err
		}
	}
	if r.Network, err = b.network(ctx, s.Subnet); err != nil {
		return nil, b.left(ctx, err)
	}
	// Nova takes more than a quota allows while it is busy, and finds out later; a host may refuse, too.
	if err := b.remove(ctx, func(s server) bool { return s.failed() && s.Metadata[newKey] != "" }); err != nil {
		return nil, b.left(ctx, err)
	}
	have, err := b.servers(ctx)
	if err != nil {
		return nil, err
	}
	if at := slices.IndexFunc(have, func(s server) bool { return s.Task == "deleting" }); at >= 0 {
		return nil, fmt.Errorf("server %s is still being deleted: run this again when it is gone",
			clean.Line(have[at].Name, 64))
	}
	cards, err := b.things(ctx, ports)
	if err != nil {
		return nil, err
	}
	for i := range s.Nodes {
		name := fmt.Sprintf("%s-%d", s.Name, i)
		card, err := b.port(ctx, r.Network, name, cards)
		if err != nil {
			return nil, b.left(ctx, err)
		}
		n := Node{Name: name, MAC: strings.ToLower(card.MAC)}
		if len(card.Addresses) > 0 {
			n.Address = card.Addresses[0].IP
		}
		if at := slices.IndexFunc(have, func(h server) bool { return h.Name == name }); at >= 0 {
			n.Server = have[at].ID
		} else {
			b.note("Making server %s ...", name)
			made, err := servers.Create(ctx, b.nova, servers.CreateOpts{Name: name, FlavorRef: flavor, ImageRef: image,
				Networks: []servers.Network{{Port: card.ID}}, Tags: []string{b.tag},
				Metadata: map[string]string{newKey: "1"}}, nil).Extract()
			if err != nil {
				return nil, b.left(ctx, oscloud.Explain("Nova", "make server "+name, err))
			}
			n.Server = made.ID
		}
		r.Nodes = append(r.Nodes, n)
	}
	for _, n := range r.Nodes {
		if err := b.off(ctx, n); err != nil {
			return nil, b.left(ctx, err)
		}
	}
	return r, nil
}

// left names the things that there are of the rack after an error.
func (b *Builder) left(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), oscloud.Timeout)
	defer cancel()
	machines, merr := b.servers(ctx)
	cards, perr := b.things(ctx, ports)
	nets, nerr := b.things(ctx, networks)
	if errors.Join(merr, perr, nerr) != nil {
		return err
	}
	return fmt.Errorf("%w; made so far: %d networks, %d ports, %d servers, all with the tag %s", err, len(nets), len(cards),
		len(machines), b.tag)
}

// server has the fields of Nova's answers that matter here.
type server struct {
	ID, Name, Status string
	Task             string `json:"OS-EXT-STS:task_state"`
	Metadata         map[string]string
	Tags             []string
	Fault            struct{ Message string }
}

// failed reports whether Nova has given up on it.
func (s server) failed() bool { return s.Status == "ERROR" && s.Task == "" }

// maxPages bounds a listing, of a hundred servers each.
const maxPages = 20

// servers are those with the tag.
func (b *Builder) servers(ctx context.Context) (found []server, err error) {
	for marker := ""; ; marker = found[len(found)-1].ID {
		page, err := all(ctx, servers.List(b.nova, servers.ListOpts{Tags: b.tag, Limit: 100, Marker: marker}),
			func(p pagination.Page) (out []server, err error) {
				return out, servers.ExtractServersInto(p, &out)
			})
		if err != nil {
			return nil, oscloud.Explain("Nova", "list the servers of the lab", err)
		}
		if len(page) == 0 || len(found) >= 100*maxPages {
			return mine(found, func(s server) bool { return slices.Contains(s.Tags, b.tag) }), nil
		}
		found = append(found, page...)
	}
}

// mine keeps those with the tag: a service that does not know a filter of a listing lists others, too.
func mine[T any](list []T, tagged func(T) bool) []T {
	return slices.DeleteFunc(list, func(v T) bool { return !tagged(v) })
}

// Neutron's kinds of things that a rack has.
const (
	networks = "networks"
	subnets  = "subnets"
	ports    = "ports"
)

// thing is one of them.
type thing struct {
	ID          string
	Name        string
	Description string
	Project     string `json:"project_id"`
	MAC         string `json:"mac_address"`
	Addresses   []struct {
		IP string `json:"ip_address"`
	} `json:"fixed_ips"`
}

// things are those with the tag.
func (b *Builder) things(ctx context.Context, kind string) ([]thing, error) {
	var out map[string][]thing
	query := url.Values{"description": {b.tag}, "project_id": {b.project}}
	//nolint:bodyclose gophercloud closes what it has decoded
	_, err := b.neutron.Get(ctx, b.neutron.ServiceURL(kind)+"?"+query.Encode(), &out, nil)
	return mine(out[kind], func(o thing) bool { return o.Description == b.tag && o.Project == b.project }),
		oscloud.Explain("Neutron", "list the "+kind+" of the lab", err)
}

// add makes one, with the tag.
func (b *Builder) add(ctx context.Context, kind, name string, o map[string]any) (thing, error) {
	o["name"], o["description"] = name, b.tag
	one := strings.TrimSuffix(kind, "s")
	var out map[string]thing
	//nolint:bodyclose gophercloud closes what it has decoded
	_, err := b.neutron.Post(ctx, b.neutron.ServiceURL(kind), map[string]any{one: o}, &out, nil)
	return out[one], oscloud.Explain("Neutron", "make "+one+" "+name, err)
}

// flavor finds one by ID or name.
func (b *Builder) flavor(ctx context.Context, name string) (string, error) {
	list, err := all(ctx, flavors.ListDetail(b.nova, nil), flavors.ExtractFlavors)
	if err != nil {
		return "", oscloud.Explain("Nova", "list flavors", err)
	}
	for _, f := range list {
		if f.ID == name || f.Name == name {
			return f.ID, nil
		}
	}
	return "", fmt.Errorf("the cloud has no flavor %q: openstack flavor list shows them", name)
}

// image finds one by ID or name.
func (b *Builder) image(ctx context.Context, name string) (string, error) {
	glance, err := b.cloud.Service(ctx, "image", "Glance")
	if err != nil {
		return "", err
	}
	var found []images.Image
	for _, by := range []images.ListOpts{{ID: "in:" + name}, {Name: name}} {
		if by.ID != "" && strings.Trim(strings.ToLower(name), "0123456789abcdef-") != "" {
			continue // which Glance would not take for IDs
		}
		list, err := all(ctx, images.List(glance, by), images.ExtractImages)
		if err != nil {
			return "", oscloud.Explain("Glance", "find image "+clean.Line(name, 64), err)
		}
		found = append(found, list...)
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("the cloud has no image %q: openstack image list shows them", name)
	case 1:
		return found[0].ID, nil
	}
	return "", fmt.Errorf("the cloud has %d images with the name %q: name one by its ID", len(found), name)
}

// network finds or makes the network with its subnet.
func (b *Builder) network(ctx context.Context, cidr string) (string, error) {
	nets, err := b.things(ctx, networks)
	if err != nil {
		return "", err
	}
	if len(nets) == 0 {
		b.note("Making network %s (%s, without DHCP) ...", b.name, cidr)
		// Machines are given addresses by Ingot, and some send what others' ports would not let pass.
		o := map[string]any{}
		switch guarded, err := b.guarded(ctx); {
		case err != nil:
			return "", err
		case guarded:
			o["port_security_enabled"] = false
		}
		made, err := b.add(ctx, networks, b.name, o)
		if err != nil {
			return "", err
		}
		nets = append(nets, made)
	}
	subs, err := b.things(ctx, subnets)
	if err == nil && len(subs) == 0 {
		_, err = b.add(ctx, subnets, b.name, map[string]any{"network_id": nets[0].ID, "cidr": cidr, "ip_version": 4,
			"enable_dhcp": false, "gateway_ip": nil})
	}
	return nets[0].ID, err
}

// guarded reports whether Neutron lets pass only what a port's addresses send, unless it is told not to.
func (b *Builder) guarded(ctx context.Context) (bool, error) {
	//nolint:bodyclose gophercloud closes it
	_, err := b.neutron.Get(ctx, b.neutron.ServiceURL("extensions", "port-security"), nil, nil)
	err = oscloud.Explain("Neutron", "ask for the extension port-security", err)
	if oscloud.Is(err, http.StatusNotFound) {
		return false, nil
	}
	return err == nil, err
}

// port finds or makes a card.
func (b *Builder) port(ctx context.Context, network, name string, have []thing) (thing, error) {
	if at := slices.IndexFunc(have, func(p thing) bool { return p.Name == name }); at >= 0 {
		return have[at], nil
	}
	return b.add(ctx, ports, name, map[string]any{"network_id": network})
}

func (b *Builder) get(ctx context.Context, n Node) (s server, err error) {
	err = servers.Get(ctx, b.nova, n.Server).ExtractInto(&s)
	return s, oscloud.Explain("Nova", "read server "+n.Name, err)
}

// off stops a server that was just made; another one stays as it is.
func (b *Builder) off(ctx context.Context, n Node) error {
	wait := firstWait
	for asked := false; ; {
		s, err := b.get(ctx, n)
		switch {
		case err != nil:
			return err
		case s.Metadata[newKey] == "":
			return nil
		case s.failed():
			return fmt.Errorf("server %s could not be made: %s", n.Name, clean.Line(s.Fault.Message, 300))
		case s.Task != "" || s.Status == "BUILD" || asked && s.Status != "SHUTOFF":
		case s.Status == "SHUTOFF":
			err := servers.DeleteMetadatum(ctx, b.nova, n.Server, newKey).ExtractErr()
			return oscloud.Explain("Nova", "mark server "+n.Name, err)
		default:
			b.note("Stopping server %s ...", n.Name)
			err := oscloud.Explain("Nova", "stop server "+n.Name, servers.Stop(ctx, b.nova, n.Server).ExtractErr())
			if err != nil && !oscloud.Is(err, http.StatusConflict) { // of a task that has begun meanwhile
				return err
			}
			asked = err == nil
		}
		if err := sleep(ctx, &wait); err != nil {
			return fmt.Errorf("wait until server %s is off: %w", n.Name, err)
		}
	}
}

// Waits between two looks at what is being waited for.
const (
	firstWait = 100 * time.Millisecond
	slowest   = 3 * time.Second
)

// sleep waits for wait, which it makes longer for the next time.
func sleep(ctx context.Context, wait *time.Duration) error {
	t := time.NewTimer(*wait)
	defer t.Stop()
	*wait = min(*wait*3/2, slowest)
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Servers are the IDs of the rack's servers.
func (b *Builder) Servers(ctx context.Context) (ids []string, err error) {
	list, err := b.servers(ctx)
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	return ids, err
}

// Down removes everything with the tag, and returns when it is gone.
func (b *Builder) Down(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	if err := b.remove(ctx, func(server) bool { return true }); err != nil {
		return err
	}
	for _, kind := range []string{ports, subnets, networks} {
		list, err := b.things(ctx, kind)
		if err != nil {
			return err
		}
		for _, o := range list {
			//nolint:bodyclose gophercloud closes it
			_, err := b.neutron.Delete(ctx, b.neutron.ServiceURL(kind, o.ID), nil)
			if err := gone("Neutron", "delete "+strings.TrimSuffix(kind, "s")+" "+o.ID, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// gone is the error of a deletion; that of a thing that is not there is none.
func gone(service, op string, err error) error {
	err = oscloud.Explain(service, op, err)
	if oscloud.Is(err, http.StatusNotFound) {
		return nil
	}
	return err
}

// remove deletes servers of the rack, and returns when they are gone.
func (b *Builder) remove(ctx context.Context, which func(server) bool) error {
	wait := firstWait
	for asked := map[string]bool{}; ; {
		list, err := b.servers(ctx)
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(s server) bool { return !asked[s.ID] && !which(s) })
		if len(list) == 0 {
			return nil
		}
		for _, s := range list {
			if asked[s.ID] {
				if s.failed() {
					return fmt.Errorf("server %s can't be deleted: %s", s.Name, clean.Line(s.Fault.Message, 300))
				}
				continue
			}
			b.note("Deleting server %s ...", clean.Line(s.Name, 64))
			asked[s.ID] = true
			if err := gone("Nova", "delete server "+s.ID, servers.Delete(ctx, b.nova, s.ID).ExtractErr()); err != nil {
				return err
			}
		}
		if err := sleep(ctx, &wait); err != nil {
			return fmt.Errorf("wait until the servers are gone: %w", err)
		}
	}
}
