// Package importer takes over the nodes of an Ironic: it reads Ironic's API or database and writes Ingot's store, and
// touches no machine. It writes the store and does not call Ingot's API, because there a node becomes active only by a
// request to its controller.
//
// Nodes keep their UUIDs, and their provision states if no work is under way in them; others are refused and named.
// Values that Ironic's API hides, passwords above all, must be given in addition; a node that lacks any of them arrives
// in maintenance, so that its controller, which can't be read, is not taken for broken. A later run that brings the
// missing secrets ends that. Existing values stay unchanged: a second run changes nothing.
package importer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
	"github.com/ingot-metal/ingot/conductor/store"
)

// Secrets are values of driver_info by node (its UUID or name; "*" for all) that replace those that the API masks.
type Secrets map[string]map[string]any

// of returns a secret for a node.
func (s Secrets) of(n *node.Node, key string) (any, bool) {
	for _, who := range []string{n.UUID, n.Name, "*"} {
		if v, ok := s[who][key]; ok && who != "" {
			return v, true
		}
	}
	return nil, false
}

// Report is the result of a run.
type Report struct {
	Source  string         // that was read, without credentials
	Version string         // of it
	Made    map[string]int // by kind, in the plural
	Kept    map[string]int // were there before
	Changed []string       // completed parts of existing nodes
	Notes   []string       // remarks about imported objects
	Refused []string       // objects that were not imported, and why
}

// importedWithout begins the reason of the maintenance that an import orders, and ends.
const importedWithout = "imported without "

// run is one import.
type run struct {
	ctx     context.Context
	src     Source
	st      *store.Store
	types   *driver.Table
	secrets Secrets
	ask     func(nodeName, key string) (secret string, err error)
	rep     *Report
	gone    map[string]bool // nodes that were refused: what belongs to them is left out too
}

// Options say how to import.
type Options struct {
	Types   *driver.Table
	Secrets Secrets
	// Ask, unless nil, is asked for a secret of driver_info that is masked and not in Secrets; "" leaves it out.
	Ask func(nodeName, key string) (secret string, err error)
	// DryRun reports what a run would do, and leaves the store as it is. Nothing is asked.
	DryRun bool
}

// Run imports the nodes of src into st. It stops at the first fault of either; its work up to there stays, and the next
// run goes on.
func Run(ctx context.Context, src Source, st *store.Store, o Options) (rep *Report, err error) {
	rep = &Report{Made: map[string]int{}, Kept: map[string]int{}}
	if o.DryRun {
		copied, remove, cerr := copyOf(ctx, st)
		if cerr != nil {
			return rep, fmt.Errorf("copy what is here, for a dry run: %w", cerr)
		}
		defer func() { err = errors.Join(err, remove()) }()
		st, o.Ask = copied, nil
	}
	r := &run{ctx: ctx, src: src, st: st, types: o.Types, secrets: o.Secrets, ask: o.Ask, rep: rep,
		gone: map[string]bool{}}
	if rep.Version, err = src.open(ctx); err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, src.close()) }()
	rep.Source = src.name()
	detail := url.Values{"detail": {"true"}}
	for _, part := range []struct {
		collection
		take func(items []json.RawMessage) error
	}{
		{collection{"chassis", "/v1/chassis/detail", "chassis", nil}, each(r, r.chassis)},
		{collection{"nodes", "/v1/nodes/detail", "nodes", nil}, r.nodes},
		{collection{"portgroups", "/v1/portgroups/detail", "portgroups", nil}, each(r, r.portgroup)},
		{collection{"ports", "/v1/ports/detail", "ports", nil}, each(r, r.port)},
		{collection{"volume_connectors", "/v1/volume/connectors", "connectors", detail}, each(r, r.connector)},
		{collection{"volume_targets", "/v1/volume/targets", "targets", detail}, each(r, r.target)},
		{collection{"allocations", "/v1/allocations", "allocations", nil}, each(r, r.allocation)},
		{collection{"deploy_templates", "/v1/deploy_templates", "deploy_templates", detail}, each(r, r.template)},
		{collection{"runbooks", "/v1/runbooks", "runbooks", detail}, each(r, r.runbook)},
		{collection{"inspection_rules", "/v1/inspection_rules", "inspection_rules", detail}, each(r, r.rule)},
	} {
		items, err := src.list(ctx, part.collection)
		if err != nil {
			return rep, err
		}
		if err := part.take(items); err != nil {
			return rep, fmt.Errorf("take over %s: %w", strings.ReplaceAll(part.table, "_", " "), err)
		}
	}
	return rep, nil
}

// each decodes every item of a list and passes it on. What belongs to a node that was refused is refused with it: there
// is nothing to say about it.
func each[T interface{ goneWith(map[string]bool) bool }](r *run, take func(T) error) func([]json.RawMessage) error {
	return func(items []json.RawMessage) error {
		for _, raw := range items {
			var v T
			if err := exact.Unmarshal(raw, &v); err != nil {
				return fmt.Errorf("decode %.200s: %w", raw, err)
			}
			if v.goneWith(r.gone) {
				continue
			}
			if err := take(v); err != nil {
				return err
			}
		}
		return nil
	}
}

func (r *run) refuse(format string, args ...any) {
	r.rep.Refused = append(r.rep.Refused, fmt.Sprintf(format, args...))
}

func (r *run) note(format string, args ...any) {
	r.rep.Notes = append(r.rep.Notes, fmt.Sprintf(format, args...))
}

// outcome counts the result for one object. A conflict with an existing object is refused, and no fault of the run.
func (r *run) outcome(kind, what string, err error) error {
	var dup *store.DuplicateError
	var ref *store.ReferenceError
	switch {
	case err == nil:
		r.rep.Made[kind]++
		return nil
	case errors.As(err, &dup) && dup.Field == "uuid":
		r.rep.Kept[kind]++
		return nil
	case errors.As(err, &dup), errors.As(err, &ref), errors.Is(err, store.ErrNotFound):
		r.refuse("%s: %v", what, err)
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// nodes takes parents before their children.
func (r *run) nodes(items []json.RawMessage) error {
	type one struct {
		shown rest.Node
		raw   map[string]any
	}
	var waiting []one
	for _, raw := range items {
		var o one
		if err := errors.Join(exact.Unmarshal(raw, &o.shown), exact.Unmarshal(raw, &o.raw)); err != nil {
			return fmt.Errorf("decode %.200s: %w", raw, err)
		}
		waiting = append(waiting, o)
	}
	done := map[string]bool{}
	for len(waiting) > 0 {
		var later []one
		for _, o := range waiting {
			if p := string(o.shown.ParentNode); p != "" && !done[p] &&
				slices.ContainsFunc(waiting, func(w one) bool { return w.shown.UUID == p }) {
				later = append(later, o)
				continue
			}
			if err := r.node(&o.shown, o.raw); err != nil {
				return err
			}
			done[o.shown.UUID] = true
		}
		if len(later) == len(waiting) {
			return errors.New("nodes are each other's parents")
		}
		waiting = later
	}
	return nil
}

func called(n *rest.Node) string {
	if n.Name != "" {
		return fmt.Sprintf("node %s (%s)", n.UUID, n.Name)
	}
	return "node " + n.UUID
}

func (r *run) node(shown *rest.Node, raw map[string]any) error {
	have, err := r.st.Node(r.ctx, shown.UUID)
	if err == nil && have.UUID == strings.ToLower(shown.UUID) {
		r.rep.Kept["nodes"]++
		return r.complete(have, shown)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	n, why, err := r.convert(shown, raw)
	if err != nil {
		return err
	}
	if why != "" {
		r.gone[shown.UUID] = true
		r.refuse("%s: %s", called(shown), why)
		return nil
	}
	before := len(r.rep.Refused)
	err = r.outcome("nodes", called(shown), r.st.CreateNode(r.ctx, n))
	r.gone[shown.UUID] = len(r.rep.Refused) > before
	if err != nil || r.gone[shown.UUID] {
		return err
	}
	return r.history(shown.UUID)
}

// convert makes a node of the API's representation, or returns why that is impossible.
func (r *run) convert(s *rest.Node, raw map[string]any) (n *node.Node, why string, err error) {
	state := node.State(s.ProvisionState)
	known := slices.ContainsFunc(node.Transitions(),
		func(t node.Transition) bool { return t.From == state || t.To == state })
	switch {
	case !known:
		return nil, fmt.Sprintf("it is in state %q, which Ingot does not know", state), nil
	case !state.IsStable():
		return nil, fmt.Sprintf("it is in state %q: wait until that is over, then import again", state), nil
	case s.Reservation != "":
		return nil, fmt.Sprintf("it is locked by %s: wait until that is over, then import again", s.Reservation), nil
	case s.TargetPowerState != "":
		return nil, "its power is being changed: wait until that is over, then import again", nil
	}
	hw, ok := r.types.ByName(s.Driver)
	if !ok {
		return nil, fmt.Sprintf(
			"Ingot has no hardware type %q, but %s: change its driver in Ironic if one of these can be used", s.Driver,
			strings.Join(r.types.Names(), ", ")), nil
	}
	n = &node.Node{
		UUID: s.UUID, Name: string(s.Name), Driver: s.Driver, Properties: s.Properties, Extra: s.Extra,
		InstanceUUID: string(s.InstanceUUID), InstanceName: string(s.InstanceName),
		Provision: state, TargetProvision: node.State(s.TargetProvisionState),
		ProvisionUpdatedAt: s.ProvisionUpdatedAt.Time, Power: string(s.PowerState), LastError: string(s.LastError),
		Maintenance: s.Maintenance, MaintenanceReason: string(s.MaintenanceReason), Fault: string(s.Fault),
		InspectionStartedAt: s.InspectionStartedAt.Time, InspectionFinishedAt: s.InspectionFinishedAt.Time,
		ResourceClass: string(s.ResourceClass), Owner: string(s.Owner), Lessee: string(s.Lessee),
		Description: string(s.Description), Protected: s.Protected, ProtectedReason: string(s.ProtectedReason),
		Retired: s.Retired, RetiredReason: string(s.RetiredReason), AutomatedClean: s.AutomatedClean,
		DisablePowerOff: s.DisablePowerOff, ChassisUUID: string(s.ChassisUUID), ParentNode: string(s.ParentNode),
		Shard: string(s.Shard), ConductorGroup: s.ConductorGroup, NetworkData: s.NetworkData, Traits: s.Traits,
		RAIDConfig: s.RAIDConfig,
		TargetRAID: s.TargetRAIDConfig, BootMode: string(s.BootMode), SecureBoot: s.SecureBoot,
	}
	if n.InstanceName == "" {
		n.InstanceName, _ = s.InstanceInfo["display_name"].(string)
	}
	if s.ConsoleEnabled {
		r.note("%s: its console was on: switch it on again", called(s))
	}
	for _, kind := range driver.Kinds {
		name, _ := raw[kind+"_interface"].(string)
		switch {
		case name == "" || name == hw.Default(kind):
		case slices.Contains(hw.Enabled(kind), name):
			n.Interfaces = node.With(n.Interfaces, kind, name)
		default:
			r.note("%s: %s has no %s interface %s, so it gets %s", called(s), s.Driver, kind, name, hw.Default(kind))
		}
	}
	var missing []string
	if n.DriverInfo, missing, err = r.unmask(n, s.DriverInfo); err != nil {
		return nil, "", err
	}
	var hidden []string
	n.InstanceInfo, hidden = drop(s.InstanceInfo)
	if len(hidden) > 0 {
		r.note("%s: %s of instance_info can't be read through the API and must be given again for a rebuild", called(s),
			strings.Join(hidden, ", "))
	}
	if len(missing) > 0 {
		r.note("%s: the API does not tell %s: give them with --secrets or --ask in another run, or set them; until then the node is in maintenance", called(s), strings.Join(missing, ", "))
		if !n.Maintenance {
			n.Maintenance, n.MaintenanceReason = true, importedWithout+strings.Join(missing, ", ")
		}
	}
	return n, "", nil
}

// unmask copies driver_info with its secrets, and names those that are missing and left out.
func (r *run) unmask(n *node.Node, info map[string]any) (out map[string]any, missing []string, err error) {
	out, hidden := drop(info)
	for _, key := range hidden {
		v, ok, err := r.secret(n, key)
		if err != nil {
			return nil, nil, err
		}
		if !ok {
			missing = append(missing, key)
			continue
		}
		out[key] = v
	}
	return out, missing, nil
}

// secret returns a value that the API masks, from the file or from the operator.
func (r *run) secret(n *node.Node, key string) (v any, ok bool, err error) {
	if v, ok = r.secrets.of(n, key); ok || r.ask == nil {
		return v, ok, nil
	}
	given, err := r.ask(cmp.Or(n.Name, n.UUID), key)
	if err != nil || given == "" {
		return nil, false, err
	}
	if r.secrets == nil {
		r.secrets = Secrets{}
	}
	if r.secrets[n.UUID] == nil {
		r.secrets[n.UUID] = map[string]any{}
	}
	r.secrets[n.UUID][key] = given
	return given, true, nil
}

// drop copies a map without the values that are masked, and names these.
func drop(m map[string]any) (out map[string]any, hidden []string) {
	out = maps.Clone(m)
	if out == nil {
		out = map[string]any{}
	}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if masked(m[key]) {
			delete(out, key)
			hidden = append(hidden, key)
		}
	}
	return out, hidden
}

// masked reports whether a value is a mask or holds one.
func masked(v any) bool {
	switch x := v.(type) {
	case string:
		return strings.Contains(x, rest.Masked) // also a URL whose password is masked
	case map[string]any:
		return slices.ContainsFunc(slices.Collect(maps.Values(x)), masked)
	case []any:
		return slices.ContainsFunc(x, masked)
	}
	return false
}

// movedSince reports whether a secret of driver_info would be sent to another place than the one it came from.
func movedSince(there, here map[string]any, key string, v any) bool {
	was, now := maps.Clone(there), maps.Clone(here)
	if was == nil || now == nil {
		return true
	}
	was[key], now[key] = v, v
	_, kept := rest.Moved(nil, nil, was, now, true)
	return slices.Contains(kept, key)
}

// complete adds missing secrets to a node that was imported before, and ends its maintenance once it has all. A secret
// is sent where its Ironic sent it, and not to an address that was set here since.
func (r *run) complete(have *node.Node, shown *rest.Node) error {
	lacks := func(n *node.Node) []string {
		list, ours := strings.CutPrefix(n.MaintenanceReason, importedWithout)
		if !ours || !n.Maintenance {
			return nil
		}
		return strings.Split(list, ", ")
	}
	some := false
	for _, key := range lacks(have) {
		_, ok, err := r.secret(have, key)
		if err != nil {
			return err
		}
		some = some || ok
	}
	if !some {
		return nil
	}
	var given, still, moved []string
	_, err := r.st.Change(r.ctx, have.UUID, func(n *node.Node, effects *node.SideEffects) error {
		given, still, moved = nil, nil, nil
		for _, key := range lacks(n) {
			v, ok := r.secrets.of(n, key)
			if ok && movedSince(shown.DriverInfo, n.DriverInfo, key, v) {
				moved, ok = append(moved, key), false
			}
			if !ok {
				still = append(still, key)
				continue
			}
			if _, set := n.DriverInfo[key]; !set {
				n.DriverInfo = node.With(n.DriverInfo, key, v)
			}
			given = append(given, key)
		}
		if len(given) == 0 {
			return nil
		}
		n.MaintenanceReason = importedWithout + strings.Join(still, ", ")
		if len(still) == 0 {
			n.Maintenance, n.MaintenanceReason = false, ""
		}
		effects.History = append(effects.History,
			node.HistoryEntry{Type: "provisioning", At: time.Now().UTC(), Event: "the import was given " +
				strings.Join(given, ", ")})
		return nil
	})
	if err != nil {
		return fmt.Errorf("node %s: %w", have.UUID, err)
	}
	if len(moved) > 0 {
		r.note("%s is not given %s: driver_info sends it elsewhere than the other Ironic does; look at who changed it, and set it by hand", called(shown), strings.Join(moved, ", "))
	}
	if len(given) == 0 {
		return nil
	}
	line := fmt.Sprintf("node %s was given %s", have.UUID, strings.Join(given, ", "))
	if len(still) == 0 {
		line += " and is out of maintenance"
	}
	r.rep.Changed = append(r.rep.Changed, line)
	return nil
}
