package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stmcginnis/gofish"
	"github.com/stmcginnis/gofish/schemas"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/quirk"
)

// serviceRoot is where the standard has it; gofish asks for it here.
const serviceRoot = "/redfish/v1"

// factsTime is how long the identity of a machine is believed: a new firmware changes it.
const factsTime = time.Hour

// Controller is the client of one service with one account. Safe for concurrent use.
type Controller struct {
	pool   *Pool
	access Access
	turn   *turn
	log    *slog.Logger
	wire   *http.Transport

	users int       // guarded by pool.mu
	used  time.Time // as users

	// What belongs to the session is used when it is the controller's turn only.
	sessions       string // where they are made
	token, session string
	basicUntil     time.Time

	closeConnections atomic.Bool

	connecting chan struct{} // held while api is made
	api        *gofish.APIClient
	mu         sync.Mutex
	single     string           // path of the only system, once that is known
	systems    map[string]facts // by path
}

// facts are what does not change from call to call.
type facts struct {
	quirks quirk.Set
	vendor string
	read   time.Time
}

// Host is the host of the service, with port if there is one.
func (c *Controller) Host() string { return c.access.Base.Host }

// User is the name of the account.
func (c *Controller) User() string { return c.access.User }

// client is gofish for one call.
func (c *Controller) client(ctx context.Context) (*gofish.APIClient, error) {
	select {
	case c.connecting <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-c.connecting }()
	if c.api == nil {
		api, err := gofish.ConnectContext(ctx, gofish.ClientConfig{
			Endpoint: c.access.Base.Scheme + "://" + c.access.Base.Host, ReuseConnections: true,
			MaxConcurrentRequests: limit.RedfishWaiting, NoModifyTransport: true,
			HTTPClient: &http.Client{Transport: c, CheckRedirect: redirected},
		})
		if err != nil {
			return nil, err
		}
		c.api = api
	}
	return c.api.WithContext(ctx), nil
}

// redirected follows a service that adds a slash or takes one away. RoundTrip sees that it is the same host.
func redirected(_ *http.Request, via []*http.Request) error {
	if via[0].Method != http.MethodGet || len(via) > 3 {
		return http.ErrUseLastResponse
	}
	return nil
}

// System is a machine as its service describes it: what is used of it, in gofish's types.
type System struct {
	Path string `json:"@odata.id"`
	ETag string `json:"@odata.etag"`
	// UUID of the machine; Manufacturer and Model.
	UUID, Manufacturer, Model string
	BiosVersion               string
	PowerState                schemas.PowerState
	Boot                      Boot
	// BootPath is where Boot is changed, and BootETag its ETag: the system itself, but for some controllers.
	BootPath, BootETag             string                                `json:"-"`
	Settings                       struct{ SettingsObject schemas.Link } `json:"@Redfish.Settings"`
	SecureBoot, VirtualMedia, Bios schemas.Link

	Actions struct {
		Reset struct {
			Target string
			Types  []schemas.ResetType `json:"ResetType@Redfish.AllowableValues"`
		} `json:"#ComputerSystem.Reset"`
	}
	Links struct{ ManagedBy, Chassis schemas.Links }

	Quirks quirk.Set `json:"-"`
	// Vendor is the maker in the words of the service.
	Vendor string `json:"-"`
}

// Boot is the choice of the boot device.
type Boot struct {
	BootSourceOverrideEnabled schemas.BootSourceOverrideEnabled
	BootSourceOverrideTarget  schemas.BootSource
	BootSourceOverrideMode    schemas.BootSourceOverrideMode
	HTTPBootURI               string                              `json:"HttpBootUri"`
	Enables                   []schemas.BootSourceOverrideEnabled `json:"BootSourceOverrideEnabled@Redfish.AllowableValues"`
	Targets                   []schemas.BootSource                `json:"BootSourceOverrideTarget@Redfish.AllowableValues"`
}

// Config is an error of kind Config: driver_info must be changed.
func Config(hint, format string, args ...any) error {
	return &power.Error{Kind: power.Config, Err: fmt.Errorf(format, args...), Hint: hint}
}

// System reads a machine. id is the path of it; "" is the only one that the service has.
func (c *Controller) System(ctx context.Context, id string) (*System, error) {
	api, err := c.client(ctx)
	if err != nil {
		return nil, err
	}
	if id == "" {
		if id, err = c.only(api); err != nil {
			return nil, err
		}
	}
	s := &System{}
	switch s.ETag, err = read(api, id, s); {
	case Status(err) == http.StatusNotFound:
		return nil, Config("correct redfish_system_id", "the Redfish System %q was not found", id)
	case err != nil:
		return nil, err
	}
	s.Path = id
	if s.PowerState == "" && s.Actions.Reset.Target == "" {
		return nil, Config("correct redfish_system_id", "%q is no Redfish System", id)
	}
	f, err := c.facts(ctx, api, s)
	s.Quirks, s.Vendor = f.quirks, f.vendor
	s.BootPath, s.BootETag = s.Path, s.ETag
	if err == nil && s.Quirks.Has(quirk.FutureBoot) && s.Settings.SettingsObject != "" {
		s.BootPath = string(s.Settings.SettingsObject)
		var future struct{ Boot Boot }
		s.BootETag, err = read(api, s.BootPath, &future)
		s.Boot = future.Boot
	}
	return s, err
}

// ErrWhoseManager means that nothing of a manager may be used, since it may be another machine's.
var ErrWhoseManager = errors.New(
	"the service has several Systems and does not say which manager (Links.ManagedBy) this one has")

// Managers lists the paths of the service's managers, if all of them are of its only machine.
func (c *Controller) Managers(ctx context.Context) (schemas.Links, error) {
	api, err := c.client(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := c.only(api); power.KindOf(err) == power.Config {
		return nil, &power.Error{Kind: power.Unsupported, Err: ErrWhoseManager,
			Hint: "update the controller's firmware, or set the node's boot_interface to ipxe"}
	} else if err != nil {
		return nil, err
	}
	var root struct{ Managers schemas.Link }
	if err := c.Root(ctx, &root); err != nil || root.Managers == "" {
		return nil, err
	}
	var all struct{ Members schemas.Links }
	_, err = c.Read(ctx, string(root.Managers), &all)
	return all.Members, err
}

// only finds the system of a service that has one.
func (c *Controller) only(api *gofish.APIClient) (string, error) {
	c.mu.Lock()
	known := c.single
	c.mu.Unlock()
	if known != "" {
		return known, nil
	}
	var root struct{ Systems schemas.Link }
	if _, err := read(api, serviceRoot+"/", &root); err != nil {
		return "", err
	}
	if root.Systems == "" {
		return "", Config(hintAddress, "the service has no Systems")
	}
	all, err := schemas.GetCollection(api, string(root.Systems))
	if err != nil {
		return "", err
	}
	if all.ItemLinks, err = machines(api, all.ItemLinks); err != nil {
		return "", err
	}
	if len(all.ItemLinks) != 1 {
		shown := all.ItemLinks[:min(len(all.ItemLinks), 5)]
		return "", Config("set redfish_system_id to one of them", "the service has %d Systems: %s", len(all.ItemLinks),
			c.cleaned(strings.Join(shown, ", ")))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.single = all.ItemLinks[0]
	return c.single, nil
}

// mostSystems is how many are looked at to find out which ones are machines.
const mostSystems = 8

// machines are the systems that can be booted, out of several; all if none seems to be. Some controllers show a part of
// the machine, such as a board of accelerators, as a system.
func machines(api *gofish.APIClient, all []string) (out []string, _ error) {
	if len(all) < 2 || len(all) > mostSystems {
		return all, nil
	}
	for _, path := range all {
		var s System
		_, err := read(api, path, &s)
		if err != nil && Status(err) == 0 {
			return nil, err
		}
		if err != nil || s.Actions.Reset.Target != "" && s.Boot.BootSourceOverrideEnabled != "" {
			out = append(out, path)
		}
	}
	if len(out) == 0 {
		return all, nil
	}
	return out, nil
}

// facts identifies a machine and finds the rows for it.
func (c *Controller) facts(ctx context.Context, api *gofish.APIClient, s *System) (facts, error) {
	c.mu.Lock()
	f, ok := c.systems[s.Path]
	c.mu.Unlock()
	if ok && time.Since(f.read) < factsTime {
		return f, nil
	}
	id := quirk.Identity{Vendor: api.Service.Vendor, Product: api.Service.Product, Manufacturer: s.Manufacturer,
		Model: s.Model}
	if by := s.Links.ManagedBy.ToStrings(); len(by) > 0 {
		var m struct{ Model, FirmwareVersion string }
		// A service that does not show its manager is used without what depends on its firmware.
		if _, err := read(api, by[0], &m); err != nil && Status(err) == 0 {
			return facts{}, err
		}
		id.Manager, id.Firmware = m.Model, m.FirmwareVersion
	}
	f = facts{quirks: quirk.Match(c.pool.opt.Quirks, id), vendor: c.cleaned(id.Manufacturer), read: time.Now()}
	if f.vendor == "" {
		f.vendor = c.cleaned(id.Vendor)
	}
	for _, row := range f.quirks {
		c.log.Debug("the controller has a row", "row", row.Name)
	}
	c.closeConnections.Store(f.quirks.Has(quirk.CloseConnections))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.systems[s.Path] = f
	return f, ctx.Err()
}

// read gets a resource and its ETag.
func read(api *gofish.APIClient, path string, into any) (etag string, err error) {
	resp, err := api.Get(path)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return "", err
	}
	return resp.Header.Get("ETag"), nil
}

// Reset asks for a power action. One that does no harm twice is sent again when the answer was lost.
func (c *Controller) Reset(ctx context.Context, s *System, t schemas.ResetType, twice bool) error {
	if twice {
		ctx = context.WithValue(ctx, harmless{}, true)
	}
	target := s.Actions.Reset.Target
	if target == "" {
		return &power.Error{Kind: power.Unsupported, Err: errors.New("the controller has no action to reset the machine")}
	}
	return c.Post(ctx, target, map[string]schemas.ResetType{"ResetType": t})
}

// Post calls an action: without If-Match, since nothing is overwritten and some controllers decline it.
func (c *Controller) Post(ctx context.Context, target string, body any) error {
	api, err := c.client(ctx)
	if err != nil {
		return err
	}
	resp, err := api.Post(target, body)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Patch changes a resource: with its ETag as the service gives it, as a strong one where it is weak, and without, until
// one is taken. An ETag of "" is read first.
func (c *Controller) Patch(ctx context.Context, path, etag string, change any) error {
	api, err := c.client(ctx)
	if err != nil {
		return err
	}
	tags := []string{etag}
	if strong, weak := strings.CutPrefix(etag, "W/"); weak {
		tags = append(tags, strong)
	}
	if etag != "" {
		tags = append(tags, "")
	}
	for _, tag := range tags {
		header := map[string]string{}
		if tag != "" {
			header["If-Match"] = tag
		}
		resp, perr := api.PatchWithHeaders(path, change, header)
		if perr == nil {
			return resp.Body.Close()
		}
		if err = perr; Status(err) != http.StatusPreconditionFailed {
			return err
		}
		c.log.Debug("the ETag was declined", "etag", tag)
	}
	return err
}

// Root reads the service root.
func (c *Controller) Root(ctx context.Context, into any) error {
	_, err := c.Read(ctx, serviceRoot+"/", into)
	return err
}

// Read gets a resource, and its ETag.
func (c *Controller) Read(ctx context.Context, path string, into any) (etag string, err error) {
	api, err := c.client(ctx)
	if err != nil {
		return "", err
	}
	return read(api, path, into)
}
