// Package placement counts machines in OpenStack's Placement: each node with a resource class is a resource provider
// with an inventory of one, reserved while the node can't be given to anyone. It is for schedulers other than Nova,
// whose Ironic driver reports the same machines itself: both must not do it at once.
//
// A provider has the UUID of its node, and a trait of this installation's own (Config.Mark) by which it is found again:
// one without it is somebody else's, and is not touched. What a provider should be (desired) is a pure function of its
// node. Report compares that with what Placement has and mends the difference, so it can be repeated at any time, and
// mends also what was missed while either side was down. Placement refuses a change of what was changed meanwhile
// (generations); then it is read again. What has its generation since it was last in order is not read.
package placement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/placement/v1/resourceclasses"
	"github.com/gophercloud/gophercloud/v2/openstack/placement/v1/resourceproviders"
	"github.com/gophercloud/gophercloud/v2/openstack/placement/v1/traits"

	"github.com/ingot-metal/ingot/conductor/guard/oscloud"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/observe/events"
	"github.com/ingot-metal/ingot/conductor/schedule/rounds"
	"github.com/ingot-metal/ingot/conductor/store"
)

// Duty is the name in the store of what one conductor does at a time.
const Duty = "placement"

// Warm is the trait of available machines whose agent is up: a deployment of one needs no firmware.
const Warm = "CUSTOM_INGOT_WARM"

// Header has the version of Placement's API in which it is asked.
var Header = map[string]string{"OpenStack-API-Version": "placement 1.30"}

const ours = "Placement"

// db is the part of the store that a Service needs.
type db interface {
	Nodes(ctx context.Context, q store.Query) ([]*node.Node, error)
	Promises(ctx context.Context) ([]node.Promise, error)
	TakeDuty(ctx context.Context, name, conductor string,
		during time.Duration) (holder string, until time.Time, err error)
}

// Config is the configuration of a Service.
type Config struct {
	Client   *gophercloud.ServiceClient
	Hostname string            // of this conductor
	Mark     string            // hexadecimal digits that only this installation has
	Groups   map[string]string // UUIDs of the aggregates that nodes are in, by conductor group; nil: left alone
	Interval time.Duration
	Now      func() time.Time // nil: time.Now
}

// Service reports nodes to Placement.
type Service struct {
	db   db
	cfg  Config
	hub  *events.Hub
	log  *slog.Logger
	mark string
	// what is known to be there, which Placement would refuse to be made twice
	classes, traits map[string]bool
	inOrder         map[string]state // by provider: what it was when it was last as it should be
	said            string           // the error of the look before
}

// state is a provider that is in order, with its generation.
type state struct {
	generation int
	want       string
}

// New makes a Service; Run starts it. With a nil hub it looks from time to time only. A nil log is silent.
func New(st db, hub *events.Hub, cfg Config, log *slog.Logger) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Service{db: st, cfg: cfg, hub: hub, log: cmp.Or(log, slog.New(slog.DiscardHandler)),
		mark: "CUSTOM_INGOT_" + strings.ToUpper(cfg.Mark), classes: map[string]bool{}, traits: map[string]bool{},
		inOrder: map[string]state{}}
}

// Run works until ctx ends or the hub is closed.
func (s *Service) Run(ctx context.Context) {
	(&rounds.Rounds{
		Name: "resource providers", Hub: s.hub, Interval: s.cfg.Interval, Now: s.cfg.Now, Log: s.log,
		Matters: func(e node.Event, _ bool) bool { return e.Kind == "node" || e.Kind == "reservation" },
		Look: func(ctx context.Context) (time.Time, bool, error) {
			holder, until, err := s.db.TakeDuty(ctx, Duty, s.cfg.Hostname, max(time.Minute, 3*s.cfg.Interval))
			if err != nil || holder != s.cfg.Hostname {
				clear(s.inOrder) // another conductor changes them
				return until, false, err
			}
			return time.Time{}, false, s.news(s.Report(ctx))
		},
	}).Run(ctx)
}

// news returns an error unless it is the same as in the look before: nodes change all the time, and the log is for
// people.
func (s *Service) news(err error) error {
	was := s.said
	if s.said = ""; err != nil {
		s.said = err.Error()
	}
	if s.said == was {
		return nil
	}
	return err
}

// desired is a provider as it should be.
type desired struct {
	Class     string
	Reserved  int
	Traits    []string // sorted, with the mark
	Aggregate string   // UUID; empty: in none
}

var notInNames = regexp.MustCompile(`[^A-Z0-9_]`)

// ClassName is the name of a resource class in Placement, as Nova writes it.
func ClassName(class string) string {
	return "CUSTOM_" + notInNames.ReplaceAllString(strings.ToUpper(class), "_")
}

// traitName matches the traits that Placement knows or takes.
var traitName = regexp.MustCompile(`^[A-Z0-9_]{1,255}$`)

// desired returns what the provider of a node should be; ok is false for one without a resource class, which has none.
func (s *Service) desired(n *node.Node, promised bool) (d desired, ok bool) {
	if n.ResourceClass == "" {
		return d, false
	}
	d.Class, d.Aggregate = ClassName(n.ResourceClass), s.cfg.Groups[n.ConductorGroup]
	if n.Provision != node.Available || n.InstanceUUID != "" || n.Maintenance || n.Fault != "" || n.Retired ||
		n.Power == "" || promised {
		d.Reserved = 1
	}
	d.Traits = append(d.Traits, s.mark)
	for _, t := range n.Traits {
		if traitName.MatchString(t) {
			d.Traits = append(d.Traits, t)
		}
	}
	if n.Provision == node.Available && n.IsWarm() {
		d.Traits = append(d.Traits, Warm)
	}
	slices.Sort(d.Traits)
	d.Traits = slices.Compact(d.Traits)
	return d, true
}

// Report makes Placement's providers be as the nodes are. A node whose provider can't be mended keeps no other from it.
func (s *Service) Report(ctx context.Context) error {
	err := s.report(ctx)
	if err != nil { // Placement may have forgotten what it had, as after a restore
		clear(s.traits)
		clear(s.classes)
	}
	return err
}

func (s *Service) report(ctx context.Context) error {
	nodes, err := s.db.Nodes(ctx, store.Query{})
	if err != nil {
		return err
	}
	promises, err := s.db.Promises(ctx)
	if err != nil {
		return err
	}
	promised := map[string]bool{}
	for _, p := range promises {
		promised[p.NodeUUID] = true // at any time: what takes a machine from Placement has no end
	}
	if err := s.known(ctx); err != nil {
		return err
	}
	present, err := s.list(ctx, resourceproviders.ListOpts{Required: s.mark})
	if err != nil {
		return err
	}
	var faults []error
	fail := func(what string, err error) {
		if err != nil && ctx.Err() == nil {
			faults = append(faults, fmt.Errorf("%s: %w", what, err))
		}
	}
	wanted := map[string]bool{}
	for _, n := range nodes {
		d, ok := s.desired(n, promised[n.UUID])
		if !ok {
			continue
		}
		wanted[n.UUID] = true
		fail("report node "+n.UUID, s.provide(ctx, n.UUID, present[n.UUID], d))
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	for _, id := range slices.Sorted(maps.Keys(present)) {
		if !wanted[id] {
			fail("remove the resource provider of node "+id+", which is gone", s.remove(ctx, id, present[id].Generation))
		}
	}
	return errors.Join(faults...)
}

type provider = resourceproviders.ResourceProvider

func (s *Service) list(ctx context.Context, opts resourceproviders.ListOpts) (map[string]*provider, error) {
	page, err := resourceproviders.List(s.cfg.Client, opts).AllPages(ctx)
	var all []provider
	if err == nil {
		all, err = resourceproviders.ExtractResourceProviders(page)
	}
	if err != nil {
		return nil, oscloud.Explain(ours, "list resource providers", err)
	}
	out := map[string]*provider{}
	for i := range all {
		out[all[i].UUID] = &all[i]
	}
	return out, nil
}

// known makes sure that the mark exists, by which providers are found, and reads which traits there are.
func (s *Service) known(ctx context.Context) error {
	if s.traits[s.mark] {
		return nil
	}
	page, err := traits.List(s.cfg.Client, nil).AllPages(ctx)
	var names []string
	if err == nil {
		names, err = traits.ExtractTraits(page)
	}
	if err != nil {
		return oscloud.Explain(ours, "list traits", err)
	}
	for _, name := range names {
		s.traits[name] = true
	}
	return s.trait(ctx, s.mark)
}

// trait makes a trait of the site's own.
func (s *Service) trait(ctx context.Context, name string) error {
	if s.traits[name] {
		return nil
	}
	if err := traits.Create(ctx, s.cfg.Client, name).ExtractErr(); err != nil {
		return oscloud.Explain(ours, "make trait "+name, err)
	}
	s.traits[name] = true
	return nil
}

// again is how often a change that met another is tried.
const again = 4

// provide mends one provider; p is nil if there is none with the mark.
func (s *Service) provide(ctx context.Context, id string, p *provider, d desired) error {
	// Placement refuses standard traits that it does not know.
	d.Traits = slices.DeleteFunc(d.Traits, func(t string) bool {
		return !s.traits[t] && !strings.HasPrefix(t, "CUSTOM_")
	})
	want := fmt.Sprintf("%+v", d)
	if p != nil && s.inOrder[id] == (state{p.Generation, want}) {
		return nil
	}
	delete(s.inOrder, id)
	for _, t := range d.Traits {
		if err := s.trait(ctx, t); err != nil {
			return err
		}
	}
	if !s.classes[d.Class] {
		if err := resourceclasses.Update(ctx, s.cfg.Client, d.Class).ExtractErr(); err != nil {
			return oscloud.Explain(ours, "make resource class "+d.Class, err)
		}
		s.classes[d.Class] = true
	}
	if p == nil {
		if err := s.create(ctx, id); err != nil {
			return err
		}
	}
	for range again {
		generation, err := s.mend(ctx, id, d)
		if err == nil {
			s.inOrder[id] = state{generation, want}
			return nil
		}
		if !gophercloud.ResponseCodeIs(err, http.StatusConflict) {
			return oscloud.Explain(ours, "change the resource provider", err)
		}
	}
	return errors.New("it is changed by others all the time; it is tried again")
}

// create makes a provider with the mark and nothing else: without that it would not be found again. One that is there
// already was left by a conductor that was stopped in between, if it is empty; else it is somebody else's.
func (s *Service) create(ctx context.Context, id string) error {
	p, err := resourceproviders.Create(ctx, s.cfg.Client, resourceproviders.CreateOpts{Name: id, UUID: id}).Extract()
	generation := 0
	switch {
	case err == nil:
		generation = p.Generation
	case gophercloud.ResponseCodeIs(err, http.StatusConflict):
		have, ierr := resourceproviders.GetInventories(ctx, s.cfg.Client, id).Extract()
		if gophercloud.ResponseCodeIs(ierr, http.StatusNotFound) {
			return oscloud.Explain(ours, "make the resource provider", err)
		}
		if ierr != nil {
			return oscloud.Explain(ours, "read the resource provider", ierr)
		}
		if len(have.Inventories) > 0 {
			return errors.New("there is a resource provider with its UUID that Ingot did not make: Nova's Ironic driver reports it, or another installation of Ingot. Only one may; unset placement.url here, or take the node from the other")
		}
		generation = have.ResourceProviderGeneration
	default:
		return oscloud.Explain(ours, "make the resource provider", err)
	}
	_, err = resourceproviders.UpdateTraits(ctx, s.cfg.Client, id, resourceproviders.UpdateTraitsOpts{
		ResourceProviderGeneration: generation, Traits: []string{s.mark}}).Extract()
	return oscloud.Explain(ours, "mark the resource provider", err)
}

// mend changes what differs, and returns the provider's generation then.
func (s *Service) mend(ctx context.Context, id string, d desired) (int, error) {
	have, err := resourceproviders.GetInventories(ctx, s.cfg.Client, id).Extract()
	if err != nil {
		return 0, err
	}
	generation := have.ResourceProviderGeneration
	want := map[string]resourceproviders.Inventory{d.Class: {AllocationRatio: 1, MaxUnit: 1, MinUnit: 1, StepSize: 1,
		Total: 1, Reserved: d.Reserved}}
	if !maps.Equal(have.Inventories, want) {
		now, err := resourceproviders.UpdateInventories(ctx, s.cfg.Client, id, resourceproviders.UpdateInventoriesOpts{
			ResourceProviderGeneration: generation, Inventories: want}).Extract()
		if err != nil {
			return 0, err
		}
		generation = now.ResourceProviderGeneration
	}
	marks, err := resourceproviders.GetTraits(ctx, s.cfg.Client, id).Extract()
	if err != nil {
		return 0, err
	}
	slices.Sort(marks.Traits)
	if !slices.Equal(marks.Traits, d.Traits) {
		now, err := resourceproviders.UpdateTraits(ctx, s.cfg.Client, id, resourceproviders.UpdateTraitsOpts{
			ResourceProviderGeneration: generation, Traits: d.Traits}).Extract()
		if err != nil {
			return 0, err
		}
		generation = now.ResourceProviderGeneration
	}
	if s.cfg.Groups == nil {
		return generation, nil
	}
	in, err := resourceproviders.GetAggregates(ctx, s.cfg.Client, id).Extract()
	if err != nil {
		return 0, err
	}
	aggregates := []string{}
	if d.Aggregate != "" {
		aggregates = append(aggregates, d.Aggregate)
	}
	if !slices.Equal(in.Aggregates, aggregates) {
		now, err := resourceproviders.UpdateAggregates(ctx, s.cfg.Client, id, resourceproviders.UpdateAggregatesOpts{
			ResourceProviderGeneration: &generation, Aggregates: aggregates}).Extract()
		if err != nil {
			return 0, err
		}
		if now.ResourceProviderGeneration != nil {
			generation = *now.ResourceProviderGeneration
		}
	}
	return generation, nil
}

// remove deletes the provider of a node that is gone. While something is allocated from it, it is reserved instead.
func (s *Service) remove(ctx context.Context, id string, generation int) error {
	err := resourceproviders.Delete(ctx, s.cfg.Client, id).ExtractErr()
	switch {
	case err == nil, gophercloud.ResponseCodeIs(err, http.StatusNotFound):
		delete(s.inOrder, id)
		s.log.Info("a resource provider is removed: its node is gone", "node", id)
		return nil
	case !gophercloud.ResponseCodeIs(err, http.StatusConflict):
		return oscloud.Explain(ours, "delete it", err)
	}
	held := state{generation, "gone"}
	if s.inOrder[id] == held {
		return nil // it was said, and nothing has changed
	}
	have, ierr := resourceproviders.GetInventories(ctx, s.cfg.Client, id).Extract()
	if ierr != nil {
		return oscloud.Explain(ours, "read it", ierr)
	}
	for class, inventory := range have.Inventories {
		inventory.Reserved = inventory.Total
		have.Inventories[class] = inventory
	}
	now, uerr := resourceproviders.UpdateInventories(ctx, s.cfg.Client, id, *have).Extract()
	if uerr != nil {
		return oscloud.Explain(ours, "reserve it", uerr)
	}
	s.inOrder[id] = state{now.ResourceProviderGeneration, "gone"}
	return oscloud.Explain(ours, "delete it: something is still allocated from it in Placement", err)
}
