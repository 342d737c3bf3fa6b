package openstack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/pagination"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/guard/oscloud"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
)

// Services' names, for people.
const (
	nova    = "Nova"
	neutron = "Neutron"
)

// Microversions of Nova, all 2.x.
const (
	newest        = 93 // the newest that this package knows
	volumeRebuild = 93 // rebuild of a server that boots from a volume
	volumeRescue  = 87 // rescue of one
)

// Bounds of a listing.
const (
	pageSize = 100
	maxPages = 50
	// fresh is how long a listing answers for all servers that it has.
	fresh = 5 * time.Second
	// acting is how long a server is read alone after it was acted on: its state is being waited for.
	acting = 2 * time.Minute
)

// cloud has the login, the clients and the last listing of servers that all machines in one cloud share. Safe for
// concurrent use.
type cloud struct {
	name  string
	login *oscloud.Cloud

	mu      sync.Mutex
	clients map[string]*gophercloud.ServiceClient // by type in the catalog
	acted   map[string]time.Time                  // by server: when an action on it was last sent
	pending map[string]choice                     // by server: made while Nova rescues it, and keeps none

	turn     chan struct{} // held while listing, and to read what follows
	listed   map[string]*server
	begun    time.Time // of the listing
	listedAt time.Time
}

func newCloud(file, name string) *cloud {
	return &cloud{name: name, login: oscloud.NewCloud(file, name), clients: map[string]*gophercloud.ServiceClient{},
		acted: map[string]time.Time{}, pending: map[string]choice{}, turn: make(chan struct{}, 1)}
}

// server has the fields of Nova's answers that matter here.
type server struct {
	ID       string            `json:"id"`
	Name     string            `json:"name"`
	Status   string            `json:"status"`
	Task     string            `json:"OS-EXT-STS:task_state"`
	Power    int               `json:"OS-EXT-STS:power_state"`
	Image    any               `json:"image"` // "" when it boots from a volume
	Metadata map[string]string `json:"metadata"`
	Locked   bool              `json:"locked"`
	Flavor   struct {
		ID    string `json:"id"`
		Name  string `json:"original_name"`
		VCPUs int    `json:"vcpus"`
		RAM   int    `json:"ram"`  // MiB
		Disk  int64  `json:"disk"` // GiB
	} `json:"flavor"`
	Fault struct {
		Message string `json:"message"`
	} `json:"fault"`
}

// Nova's statuses and power states that matter here.
const (
	active   = "ACTIVE"
	shutoff  = "SHUTOFF"
	rescued  = "RESCUE"
	failed   = "ERROR"
	building = "BUILD"

	poweredDown = 4 // SHUTDOWN
	crashed     = 6
)

// volume reports whether the server boots from a volume.
func (s *server) volume() bool {
	m, ok := s.Image.(map[string]any)
	return !ok || m["id"] == nil
}

// halted reports whether the guest does not run, whatever the server's status: it may have turned itself off.
func (s *server) halted() bool {
	switch s.Status {
	case shutoff, "SUSPENDED", "SHELVED", "SHELVED_OFFLOADED":
		return true
	}
	return s.Power == poweredDown || s.Power == crashed
}

// client returns the client of a service, made when it is first needed.
func (c *cloud) client(ctx context.Context, kind, name string) (*gophercloud.ServiceClient, error) {
	c.mu.Lock()
	sc := c.clients[kind]
	c.mu.Unlock()
	if sc != nil {
		return sc, nil
	}
	if err := power.MaySend(ctx); err != nil {
		return nil, err
	}
	sc, err := c.login.Service(ctx, kind, name)
	if err == nil && kind == "compute" {
		err = oscloud.Negotiate(ctx, sc, newest)
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clients[kind] = sc
	return sc, nil
}

// ask sends one request to a service.
func (c *cloud) ask(ctx context.Context, kind, name, op string,
	f func(ctx context.Context, sc *gophercloud.ServiceClient) error) error {
	sc, err := c.client(ctx, kind, name)
	if err != nil {
		return err
	}
	if err := power.MaySend(ctx); err != nil {
		return err
	}
	err = oscloud.Explain(name, op, f(ctx, sc))
	if oscloud.Is(err, http.StatusNotAcceptable) { // the service is another version now
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.clients[kind] == sc {
			delete(c.clients, kind)
		}
	}
	return err
}

// compute sends one request to Nova.
func (c *cloud) compute(ctx context.Context, op string,
	f func(ctx context.Context, sc *gophercloud.ServiceClient) error) error {
	return c.ask(ctx, "compute", nova, op, f)
}

// minor is the microversion that is spoken with Nova.
func (c *cloud) minor(ctx context.Context) (int, error) {
	sc, err := c.client(ctx, "compute", nova)
	if err != nil {
		return 0, err
	}
	return oscloud.Minor(sc.Microversion), nil
}

// get reads one server.
func (c *cloud) get(ctx context.Context, id string) (*server, error) {
	var s server
	err := c.compute(ctx, "read server "+id, func(ctx context.Context, sc *gophercloud.ServiceClient) error {
		return servers.Get(ctx, sc, id).ExtractInto(&s)
	})
	if err != nil {
		return nil, err
	}
	return &s, nil
}

// act notes that an action on a server is sent: what was read of it before is old.
func (c *cloud) act(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acted[id] = time.Now()
}

// await keeps a choice until Nova can.
func (c *cloud) await(id string, made choice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending[id] = made
}

// kept forgets a choice that Nova keeps, or a later one.
func (c *cloud) kept(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, id)
}

func (c *cloud) awaited(id string) (made choice, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	made, ok = c.pending[id]
	return made, ok
}

func (c *cloud) lastActed(id string) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.acted[id]
}

// look returns a server as a listing has it that is a few seconds old at most and younger than the last action on the
// server: hundreds of machines are looked at with a few requests. The one that finds the listing too old makes the
// next, while the others wait.
func (c *cloud) look(ctx context.Context, id string) (*server, error) {
	if time.Since(c.lastActed(id)) < acting {
		return c.get(ctx, id)
	}
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var err error
	if time.Since(c.listedAt) > fresh {
		err = c.list(ctx)
	}
	s, ok := c.listed[id]
	begun := c.begun
	<-c.turn
	switch {
	case err != nil:
		return nil, err
	case !ok || !c.lastActed(id).Before(begun):
		return c.get(ctx, id)
	}
	return s, nil
}

// list reads the servers of the project. It asks for each page itself: the links in Nova's answers name the address
// that Nova believes to have. Called with the turn.
func (c *cloud) list(ctx context.Context) error {
	begun, found, marker := time.Now(), map[string]*server{}, ""
	for range maxPages {
		var page []server
		var next string
		err := c.compute(ctx, "list servers", func(ctx context.Context, sc *gophercloud.ServiceClient) error {
			return servers.List(sc, servers.ListOpts{Limit: pageSize, Marker: marker}).EachPage(ctx,
				func(_ context.Context, p pagination.Page) (more bool, err error) {
					if next, err = p.NextPageURL(); err == nil {
						err = servers.ExtractServersInto(p, &page)
					}
					return false, err
				})
		})
		if err != nil {
			return err
		}
		for i := range page {
			found[page[i].ID], marker = &page[i], page[i].ID
		}
		if next == "" {
			break
		}
	}
	c.listed, c.begun, c.listedAt = found, begun, time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, at := range c.acted {
		if begun.Sub(at) > acting {
			delete(c.acted, id)
		}
	}
	return nil
}

// explain sorts an error for the engine. Errors of contexts and of the right to act are passed on.
func (c *cloud) explain(ctx context.Context, op, id string, err error) error {
	var own *power.Error
	var login *oscloud.CloudError
	var answer *oscloud.Error
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", op, cmp.Or(ctx.Err(), err))
	case errors.As(err, &own):
		return err
	case errors.As(err, &login):
		e := &power.Error{Kind: power.Unreachable, Op: op, Err: login, Hint: "check that Keystone is up and reachable"}
		if login.Refused {
			e.Kind, e.Hint = power.Auth, "the file is read again at the next login"
		} else if login.Missing {
			e.Kind, e.Hint = power.Config, "correct the file, or openstack_cloud in driver_info"
		}
		return e
	case !errors.As(err, &answer):
		return err
	}
	e := &power.Error{Kind: power.Refused, Op: op, Addr: c.addr(id),
		Err: fmt.Errorf("%s answered %d: %s", answer.Service, answer.Status, cmp.Or(answer.Reason, "without a reason"))}
	switch s := answer.Status; {
	case s == 0:
		e.Kind, e.Err = power.Unreachable, fmt.Errorf("%s can't be asked: %s", answer.Service, answer.Reason)
		e.Hint = "check the service's address in the catalog of Keystone, and that it is up"
	case s == http.StatusBadRequest:
		e.Hint = "check openstack_boot_image in driver_info: the project has to see the image"
	case s == http.StatusUnauthorized:
		e.Kind, e.Hint = power.Auth, "Keystone's token is not good for this service: check the cloud's services"
	case s == http.StatusForbidden:
		e.Hint = "a quota is used up, or the user of the cloud lacks a role: member is enough for servers of its project"
	case s == http.StatusNotFound:
		e.Kind, e.Hint = power.Config,
			"the server was deleted, or is in another project or region: correct openstack_server in driver_info, or delete the node"
	case s == http.StatusConflict:
		e.Hint = "look at the server's status: openstack server show " + id
	case s == http.StatusTooManyRequests || s == http.StatusRequestEntityTooLarge:
		e.Kind, e.Hint = power.Busy, "the cloud limits requests"
	case s == http.StatusNotAcceptable:
		e.Kind, e.Hint = power.Busy, "its version of the API is asked for again"
	case s >= http.StatusInternalServerError:
		e.Kind, e.Hint = power.Unreachable, "look at the service's log"
	}
	return e
}

// addr names a server, for people.
func (c *cloud) addr(id string) string { return "server " + id + " of cloud " + clean.Line(c.name, 64) }
