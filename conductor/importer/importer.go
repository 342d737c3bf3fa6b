// Package importer takes over the nodes of a running Ironic: it reads Ironic's API and writes Ingot's store, and
// touches no machine.
//
// Nodes keep their UUIDs, and their provision states if no work is under way in them; others are refused and named.
// Values that Ironic's API hides, passwords above all, must be given in addition; a node that lacks any of them arrives
// in maintenance, so that its controller, which can't be read, is not taken for broken. A later run that brings the
// missing secrets ends that. Existing values stay unchanged: a second run changes nothing.
package importer

import (
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
	Version string         // of the API that was read
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
	src     *Source
	st      *store.Store
	types   *driver.Table
	secrets Secrets
	rep     *Report
	gone    map[string]bool // nodes that were refused: what belongs to them is left out too
}

// Run imports the nodes of src into st. It stops at the first fault of either; its work up to there stays, and the next
// run goes on.
func Run(ctx context.Context, src *Source, st *store.Store, types *driver.Table, secrets Secrets) (*Report, error) {
	r := &run{ctx: ctx, src: src, st: st, types: types, secrets: secrets,
		rep: &Report{Made: map[string]int{}, Kept: map[string]int{}}, gone: map[string]bool{}}
	if err := src.open(ctx); err != nil {
		return r.rep, err
	}
	r.rep.Version = src.version
	detail := url.Values{"detail": {"true"}}
	for _, part := range []struct {
		path, member string
		query        url.Values
		take         func(items []json.RawMessage) error
	}{
		{"/v1/chassis/detail", "chassis", nil, each(r, r.chassis)},
		{"/v1/nodes/detail", "nodes", nil, r.nodes},
		{"/v1/portgroups/detail", "portgroups", nil, each(r, r.portgroup)},
		{"/v1/ports/detail", "ports", nil, each(r, r.port)},
		{"/v1/volume/connectors", "connectors", detail, each(r, r.connector)},
		{"/v1/volume/targets", "targets", detail, each(r, r.target)},
		{"/v1/allocations", "allocations", nil, each(r, r.allocation)},
		{"/v1/deploy_templates", "deploy_templates", detail, each(r, r.template)},
		{"/v1/runbooks", "runbooks", detail, each(r, r.runbook)},
	} {
		items, err := src.list(ctx, part.path, part.member, part.query)
		if err != nil {
			return r.rep, err
		}
		if err := part.take(items); err != nil {
			return r.rep, fmt.Errorf("take over %s: %w", strings.ReplaceAll(part.member, "_", " "), err)
		}
	}
	return r.rep, nil
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
	n, why := r.convert(shown, raw)
	if why != "" {
		r.gone[shown.UUID] = true
		r.refuse("%s: %s", called(shown), why)
		return nil
	}
	before := len(r.rep.Refused)
	err = r.outcome("nodes", called(shown), r.st.CreateNode(r.ctx, n))
	r.gone[shown.UUID] = len(r.rep.Refused) > before
	return err
}

// convert makes a node of the API's representation, or returns why that is impossible.
func (r *run) convert(s *rest.Node, raw map[string]any) (n *node.Node, why string) {
	state := node.State(s.ProvisionState)
	known := slices.ContainsFunc(node.Transitions(),
		func(t node.Transition) bool { return t.From == state || t.To == state })
	switch {
	case !known:
		return nil, fmt.Sprintf("it is in state %q, which Ingot does not know", state)
	case !state.IsStable():
		return nil, fmt.Sprintf("it is in state %q: wait until that is over, then import again", state)
	case s.Reservation != "":
		return nil, fmt.Sprintf("it is locked by %s: wait until that is over, then import again", s.Reservation)
	case s.TargetPowerState != "":
		return nil, "its power is being changed: wait until that is over, then import again"
	}
	hw, ok := r.types.ByName(s.Driver)
	if !ok {
		return nil, fmt.Sprintf(
			"Ingot has no hardware type %q, but %s: change its driver in Ironic if one of these can be used", s.Driver,
			strings.Join(r.types.Names(), ", "))
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
		Shard: string(s.Shard), NetworkData: s.NetworkData, Traits: s.Traits, RAIDConfig: s.RAIDConfig,
		TargetRAID: s.TargetRAIDConfig, BootMode: string(s.BootMode), SecureBoot: s.SecureBoot,
	}
	if n.InstanceName == "" {
		n.InstanceName, _ = s.InstanceInfo["display_name"].(string)
	}
	if s.ConductorGroup != "" {
		r.note("%s: conductor group %q is left out, Ingot has no groups", called(s), s.ConductorGroup)
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
	n.DriverInfo, missing = r.unmask(n, s.DriverInfo)
	var hidden []string
	n.InstanceInfo, hidden = drop(s.InstanceInfo)
	if len(hidden) > 0 {
		r.note("%s: %s of instance_info can't be read through the API and must be given again for a rebuild", called(s),
			strings.Join(hidden, ", "))
	}
	if len(missing) > 0 {
		r.note("%s: the API does not tell %s: give them with --secrets in another run, or set them; until then the node is in maintenance", called(s), strings.Join(missing, ", "))
		if !n.Maintenance {
			n.Maintenance, n.MaintenanceReason = true, importedWithout+strings.Join(missing, ", ")
		}
	}
	return n, ""
}

// unmask copies driver_info with its secrets, and names those that are missing and left out.
func (r *run) unmask(n *node.Node, info map[string]any) (out map[string]any, missing []string) {
	out, hidden := drop(info)
	for _, key := range hidden {
		if v, ok := r.secrets.of(n, key); ok {
			out[key] = v
			continue
		}
		missing = append(missing, key)
	}
	return out, missing
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
	if !slices.ContainsFunc(lacks(have), func(key string) bool { _, ok := r.secrets.of(have, key); return ok }) {
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
