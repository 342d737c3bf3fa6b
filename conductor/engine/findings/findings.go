// Package findings applies the results of an inspection: it runs hooks and rules on them, and their changes go into the
// node, its ports and its stored inventory, all or nothing.
//
// Requests of rules are made before the transaction in which the rules are applied, because no transaction may wait for
// them.
package findings

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"

	"github.com/ingot-metal/ingot/conductor/guard/dial"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/inspect"
	"github.com/ingot-metal/ingot/conductor/inspect/hook"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// Taker takes findings in.
type Taker struct {
	Store   Store
	Enabled func(*node.Node) bool // reports whether a node's driver exists
	Options inspect.Options       // hooks and the site's own rules
	Guard   *dial.Guard           // what requests of rules go through; nil exempts nothing
	Log     *slog.Logger
	// OutOfBand means that the findings are a controller's and not an agent's.
	OutOfBand bool
}

// Store is the part of the store that findings needs.
type Store interface {
	Node(ctx context.Context, ident string) (*node.Node, error)
	PortByMAC(ctx context.Context, mac string) (*node.Port, error)
	PortsOf(ctx context.Context, nodeUUID string) ([]*node.Port, error)
	Inventory(ctx context.Context, nodeUUID string) ([]byte, error)
	Rules(ctx context.Context) ([]*node.InspectionRule, error)
}

// unreadable means that an agent's result can't be read.
type unreadable struct{ reason string }

func (u *unreadable) Error() string { return u.reason }

// Keys of a stored inventory beside those of the agent: what inspections wrote, for the next to know, and the disks
// that the last inspection found that did not fail.
const (
	keyWrote     = "inspection_wrote"
	keyLastDisks = "inspection_last_disks"
)

// Take stores an inventory and the results of hooks and rules with the node: all of it or, when one of them fails,
// nothing but the inventory. The job is to fail with failure, unless that is "": an unreadable inventory is not
// dropped. The notes are for the history.
func (t Taker) Take(ctx context.Context, n *node.Node, effects *node.SideEffects,
	s *node.JobStep) (notes []hook.Note, failure string, err error) {
	f, err := t.found(ctx, n, s.Result)
	var bad *unreadable
	if errors.As(err, &bad) {
		return nil, bad.reason, nil
	}
	if err != nil {
		return nil, "", err
	}
	was := make([]node.Port, len(f.Ports))
	for i, p := range f.Ports {
		was[i] = *p
	}
	rules, err := t.Store.Rules(ctx)
	if err != nil {
		return nil, "", err
	}
	lastDisks := hook.Serials(f.Inventory)
	o := t.Options
	o.Call = calledBefore(ctx)
	ruleErr := inspect.Run(f, rules, o)
	if ruleErr == nil {
		ruleErr = t.acceptable(ctx, n, f.Node)
	}
	if ruleErr != nil { // what there was to compare with stays
		lastDisks = f.LastSerials
	}

	doc := make(map[string]any, len(f.PluginData)+3)
	maps.Copy(doc, f.PluginData)
	// The inventory as the agent wrote it: numbers are not passed through anything.
	var raw struct {
		Inventory json.RawMessage `json:"inventory"`
	}
	if err := json.Unmarshal(s.Result, &raw); err != nil {
		return nil, "", fmt.Errorf("store inventory: %w", err)
	}
	doc["inventory"], doc[keyWrote], doc[keyLastDisks] = raw.Inventory, f.Wrote, lastDisks
	if effects.Inventory, err = json.Marshal(doc); err != nil {
		return nil, "", fmt.Errorf("store inventory: %w", err)
	}
	s.Result = nil // it is in the inventory
	if ruleErr != nil {
		return f.Notes, ruleErr.Error(), nil
	}

	job, boot := n.Job, n.Boot
	*n = *f.Node
	n.Job, n.Boot = job, boot
	if boot, _ := f.Inventory["boot"].(map[string]any); boot != nil {
		if mode, _ := boot["current_boot_mode"].(string); mode == "bios" || mode == "uefi" {
			n.BootMode = mode
		}
	}
	effects.GonePorts = f.Gone
	for _, p := range f.Ports {
		i := slices.IndexFunc(was, func(w node.Port) bool { return w.UUID == p.UUID })
		switch {
		case p.UUID == "":
			effects.Ports = append(effects.Ports, *p)
		case i >= 0 && !reflect.DeepEqual(was[i], *p):
			effects.PortEdits = append(effects.PortEdits, node.PortEdit{Was: was[i], Is: *p})
		}
	}
	return f.Notes, "", nil
}

// found brings together what hooks and rules work on. The error is an *unreadable when the agent's result can't be
// read.
func (t Taker) found(ctx context.Context, n *node.Node, result json.RawMessage) (*hook.Found, error) {
	f, err := Found(n, result)
	if err != nil {
		return nil, &unreadable{
			fmt.Sprintf("the inventory can't be read: %v; use the ramdisk that belongs to this version", err)}
	}
	f.OutOfBand = t.OutOfBand
	if f.Ports, err = t.Store.PortsOf(ctx, n.UUID); err != nil {
		return nil, err
	}
	_, interfaces := hook.Interfaces(f.Inventory)
	for _, i := range interfaces {
		mac, _ := i["mac_address"].(string)
		switch p, err := t.Store.PortByMAC(ctx, mac); {
		case errors.Is(err, node.ErrNotFound):
		case err != nil:
			return nil, err
		case p.NodeUUID != n.UUID:
			f.Foreign[mac] = p.NodeUUID
		}
	}
	before, err := t.Store.Inventory(ctx, n.UUID)
	if err != nil && !errors.Is(err, node.ErrNotFound) {
		return nil, err
	}
	if err == nil {
		if err := Remember(f, before); err != nil {
			t.Log.Warn("the inventory before this one can't be read", "node", n.UUID, "err", err)
		}
	}
	if errs, _ := f.PluginData["errors"].([]any); len(errs) > 0 {
		f.Notes = append(f.Notes,
			hook.Note{Severity: "WARNING",
				Text: fmt.Sprintf("the agent could not read all of the machine: %v", errs[0]) +
					map[bool]string{
						true: fmt.Sprintf(" (and %d more, see plugin_data of the inventory)", len(errs)-1)}[len(
						errs) > 1]})
	}
	return f, nil
}

// Found reads the result of an inspection, or a stored inventory: what hooks and rules work on, but for the node's
// ports.
func Found(n *node.Node, result json.RawMessage) (*hook.Found, error) {
	var doc map[string]any
	if err := exact.Unmarshal(result, &doc); err != nil {
		return nil, err
	}
	inventory, ok := doc["inventory"].(map[string]any)
	if !ok {
		return nil, errors.New("it has no object inventory")
	}
	for _, own := range []string{"inventory", keyWrote, keyLastDisks} {
		delete(doc, own)
	}
	return &hook.Found{Node: n.Clone(), Inventory: inventory, PluginData: doc, Foreign: map[string]string{},
		Wrote: map[string]any{}}, nil
}

// Remember adds the results of the previous inspection, from the inventory that it stored.
func Remember(f *hook.Found, before []byte) error {
	var doc struct {
		Inventory map[string]any `json:"inventory"`
		Wrote     map[string]any `json:"inspection_wrote"`
		LastDisks *[]string      `json:"inspection_last_disks"`
	}
	if err := exact.Unmarshal(before, &doc); err != nil {
		return err
	}
	if doc.Wrote != nil {
		f.Wrote = doc.Wrote
	}
	switch {
	case doc.LastDisks != nil:
		f.LastSerials = *doc.LastDisks
	case doc.Inventory != nil:
		f.LastSerials = append([]string{}, hook.Serials(doc.Inventory)...)
	}
	return nil
}

// acceptable refuses what hooks and rules made of a node and what could not be stored, or used.
func (t Taker) acceptable(ctx context.Context, was, n *node.Node) error {
	if err := limit.Oversized(attributes(n), []string{"description", "driver_info", "extra", "properties"},
		limit.DocumentSize(attributes(was))); err != nil {
		return fmt.Errorf("an inspection rule or hook made the node too large: %w", err)
	}
	if n.Name != was.Name && n.Name != "" {
		switch other, err := t.Store.Node(ctx, n.Name); {
		case errors.Is(err, node.ErrNotFound):
		case err != nil:
			return err
		case other.UUID != n.UUID:
			return fmt.Errorf("an inspection rule gave the node the name %s, which is that of node %s", n.Name,
				other.UUID)
		}
	}
	if n.Driver != was.Driver && !t.Enabled(n) {
		return fmt.Errorf("an inspection rule gave the node the driver %q, which is not enabled", n.Driver)
	}
	if n.Maintenance && !was.Maintenance && n.MaintenanceReason == "" {
		n.MaintenanceReason = "set by an inspection rule"
	}
	return nil
}

// attributes are those that an inspection can make larger.
func attributes(n *node.Node) map[string]any {
	return map[string]any{"description": n.Description, "driver_info": n.DriverInfo, "extra": n.Extra,
		"instance_info": n.InstanceInfo, "properties": n.Properties}
}
