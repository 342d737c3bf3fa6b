package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/engine/record"
	"github.com/ingot-metal/ingot/conductor/inspect"
	"github.com/ingot-metal/ingot/conductor/inspect/hook"
	"github.com/ingot-metal/ingot/conductor/node"
)

// inspected is what is asked of the store when an inspection's result comes in.
type inspected interface {
	PortsOf(ctx context.Context, nodeUUID string) ([]*node.Port, error)
	Inventory(ctx context.Context, nodeUUID string) ([]byte, error)
	Rules(ctx context.Context) ([]*node.InspectionRule, error)
}

// useResult applies what a step found out.
func (e *Engine) useResult(ctx context.Context, n *node.Node, also *node.Also, s *node.JobStep) error {
	if record.MakesArrays(s) {
		return record.UseRAID(n, s)
	}
	switch s.Name {
	case "inspect":
		return e.useInspection(ctx, n, also, s)
	case "write_image", "prepare_instance_boot":
		// Only what an operator wants to find again later.
		var r struct {
			Disk struct {
				Name   string `json:"name"`
				Serial string `json:"serial"`
			} `json:"disk"`
			VirtualSize int64  `json:"virtual_size"`
			SHA256      string `json:"sha256"`
			Staged      bool   `json:"staged"`
			Warning     string `json:"warning"`
		}
		if err := json.Unmarshal(s.Result, &r); err != nil {
			return nil // a result without details is no less a result
		}
		switch {
		case r.Staged:
			e.history(n, also, "provisioning", "INFO", fmt.Sprintf("the image was written ahead to %s (serial %s), in this boot of the agent", r.Disk.Name, orElse(r.Disk.Serial, "not known")), "")
		case r.VirtualSize > 0:
			e.history(n, also, "provisioning", "INFO", fmt.Sprintf("image of %d bytes (sha256 %s) was written to %s (serial %s)",
				r.VirtualSize, orElse(r.SHA256, "not known"), r.Disk.Name, orElse(r.Disk.Serial, "not known")), "")
		}
		if r.Warning != "" {
			e.history(n, also, "boot", "WARNING", r.Warning, "")
		}
	}
	return nil
}

// Keys of a stored inventory beside those of the agent: what inspections wrote, for the next to know, and the disks that the last inspection
// found that did not fail.
const (
	keyWrote     = "inspection_wrote"
	keyLastDisks = "inspection_last_disks"
)

// useInspection stores an inventory and what the hooks and rules make of it, all of it or, when one of them fails, nothing but the inventory.
// An inventory that can't be read fails the job rather than being dropped.
func (e *Engine) useInspection(ctx context.Context, n *node.Node, also *node.Also, s *node.JobStep) error {
	f, err := e.found(ctx, n, s.Result)
	var unreadable *failure
	if errors.As(err, &unreadable) {
		return e.fail(n, also, unreadable.reason)
	}
	if err != nil {
		return err
	}
	was := make([]node.Port, len(f.Ports))
	for i, p := range f.Ports {
		was[i] = *p
	}
	rules, err := e.db.Rules(ctx)
	if err != nil {
		return err
	}
	lastDisks := hook.Serials(f.Inventory)
	o := e.cfg.Inspection
	o.Call = calledBefore(ctx)
	ruleErr := inspect.Run(f, rules, o)
	if ruleErr == nil {
		ruleErr = e.acceptable(ctx, n, f.Node)
	}
	if ruleErr != nil { // what there was to compare with stays
		lastDisks = f.LastSerials
	}

	doc := make(map[string]any, len(f.PluginData)+3)
	for k, v := range f.PluginData {
		doc[k] = v
	}
	// The inventory as the agent wrote it: numbers are not passed through anything.
	var raw struct {
		Inventory json.RawMessage `json:"inventory"`
	}
	if err := json.Unmarshal(s.Result, &raw); err != nil {
		return fmt.Errorf("store inventory: %w", err)
	}
	doc["inventory"], doc[keyWrote], doc[keyLastDisks] = raw.Inventory, f.Wrote, lastDisks
	if also.Inventory, err = json.Marshal(doc); err != nil {
		return fmt.Errorf("store inventory: %w", err)
	}
	s.Result = nil // it is in the inventory
	for _, note := range f.Notes {
		if note.Severity == "" {
			e.log.Debug(note.Text, "node", n.UUID)
			continue
		}
		e.history(n, also, "monitoring", note.Severity, note.Text, "")
	}
	if ruleErr != nil {
		return e.fail(n, also, ruleErr.Error())
	}

	job, boot := n.Job, n.Boot
	*n = *f.Node
	n.Job, n.Boot = job, boot
	if boot, _ := f.Inventory["boot"].(map[string]any); boot != nil {
		if mode, _ := boot["current_boot_mode"].(string); mode == "bios" || mode == "uefi" {
			n.BootMode = mode
		}
	}
	also.GonePorts = f.Gone
	for _, p := range f.Ports {
		i := slices.IndexFunc(was, func(w node.Port) bool { return w.UUID == p.UUID })
		switch {
		case p.UUID == "":
			also.Ports = append(also.Ports, *p)
		case i >= 0 && !reflect.DeepEqual(was[i], *p):
			also.PortEdits = append(also.PortEdits, node.PortEdit{Was: was[i], Is: *p})
		}
	}
	return nil
}

// found brings together what hooks and rules work on. The error is a *failure when the agent's result can't be read.
func (e *Engine) found(ctx context.Context, n *node.Node, result json.RawMessage) (*hook.Found, error) {
	f, err := Found(n, result)
	if err != nil {
		return nil, failf("the agent's inventory can't be read: %v; use the ramdisk that belongs to this version", err)
	}
	if f.Ports, err = e.db.PortsOf(ctx, n.UUID); err != nil {
		return nil, err
	}
	_, interfaces := hook.Interfaces(f.Inventory)
	for _, i := range interfaces {
		mac, _ := i["mac_address"].(string)
		switch p, err := e.db.PortByMAC(ctx, mac); {
		case errors.Is(err, node.ErrNotFound):
		case err != nil:
			return nil, err
		case p.NodeUUID != n.UUID:
			f.Foreign[mac] = p.NodeUUID
		}
	}
	before, err := e.db.Inventory(ctx, n.UUID)
	if err != nil && !errors.Is(err, node.ErrNotFound) {
		return nil, err
	}
	if err == nil {
		if err := Remember(f, before); err != nil {
			e.log.Warn("the inventory before this one can't be read", "node", n.UUID, "err", err)
		}
	}
	if errs, _ := f.PluginData["errors"].([]any); len(errs) > 0 {
		f.Notes = append(f.Notes, hook.Note{Severity: "WARNING", Text: fmt.Sprintf("the agent could not read all of the machine: %v", errs[0]) +
			map[bool]string{true: fmt.Sprintf(" (and %d more, see plugin_data of the inventory)", len(errs)-1)}[len(errs) > 1]})
	}
	return f, nil
}

// Found reads the result of an inspection, or a stored inventory: what hooks and rules work on, but for the node's ports.
func Found(n *node.Node, result json.RawMessage) (*hook.Found, error) {
	var doc map[string]any
	if err := json.Unmarshal(result, &doc); err != nil {
		return nil, err
	}
	inventory, ok := doc["inventory"].(map[string]any)
	if !ok {
		return nil, errors.New("it has no object inventory")
	}
	for _, own := range []string{"inventory", keyWrote, keyLastDisks} {
		delete(doc, own)
	}
	return &hook.Found{Node: n.Clone(), Inventory: inventory, PluginData: doc, Foreign: map[string]string{}, Wrote: map[string]any{}}, nil
}

// Remember tells what was found of the inspection before, by the inventory that it stored.
func Remember(f *hook.Found, before []byte) error {
	var doc struct {
		Inventory map[string]any `json:"inventory"`
		Wrote     map[string]any `json:"inspection_wrote"`
		LastDisks *[]string      `json:"inspection_last_disks"`
	}
	if err := json.Unmarshal(before, &doc); err != nil {
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

// acceptable refuses what rules made of a node and what could not be stored, or used.
func (e *Engine) acceptable(ctx context.Context, was, n *node.Node) error {
	if n.Name != was.Name && n.Name != "" {
		switch other, err := e.db.Node(ctx, n.Name); {
		case errors.Is(err, node.ErrNotFound):
		case err != nil:
			return err
		case other.UUID != n.UUID:
			return fmt.Errorf("an inspection rule gave the node the name %s, which is that of node %s", n.Name, other.UUID)
		}
	}
	if n.Driver != was.Driver && e.drivers.Interface(n, "power") == "" {
		return fmt.Errorf("an inspection rule gave the node the driver %q, which is not enabled", n.Driver)
	}
	if n.Maintenance && !was.Maintenance && n.MaintenanceReason == "" {
		n.MaintenanceReason = "set by an inspection rule"
	}
	return nil
}

// Requests of rules are made before the transaction in which the rules are applied: nobody may have to wait for them there. Should the
// conductor die in between, or the transaction fail, they are made again.

type callsKey struct{}

// calls are the outcomes of requests, in order.
type calls struct {
	made []inspect.Call
	errs []error
}

// callTime is how long all requests for one inspection may take.
const callTime = time.Minute

// callOut makes the requests of the rules that will be applied to the result of an inspection, and keeps their outcomes in the context that
// it returns.
func (e *Engine) callOut(ctx context.Context, ev node.AgentEvent) (context.Context, error) {
	r := ev.StepFinished
	if r == nil || r.Name != "inspect" || r.Outcome != node.OutcomeDone {
		return ctx, nil
	}
	rules, err := e.db.Rules(ctx)
	if err != nil || !inspect.Calls(rules) && !inspect.Calls(e.cfg.Inspection.BuiltIn) {
		return ctx, err
	}
	n, err := e.db.Node(ctx, ev.NodeUUID)
	if err != nil || n.Job == nil || n.Job.PlanID != r.PlanID {
		return ctx, err
	}
	f, err := e.found(ctx, n, r.Result)
	var unreadable *failure
	if errors.As(err, &unreadable) {
		return ctx, nil // which fails the job later
	}
	if err != nil {
		return ctx, err
	}
	var c calls
	o := e.cfg.Inspection
	limit, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	o.Call = func(want inspect.Call) error {
		err := get(limit, want)
		c.made, c.errs = append(c.made, want), append(c.errs, err)
		return err
	}
	// A rule that fails here fails there as well, and is told there.
	_ = inspect.Run(f, rules, o)
	return context.WithValue(ctx, callsKey{}, &c), ctx.Err()
}

// calledBefore gives the outcomes of requests that were made before, each once.
func calledBefore(ctx context.Context) func(inspect.Call) error {
	c, _ := ctx.Value(callsKey{}).(*calls)
	at := 0
	return func(want inspect.Call) error {
		if c == nil || at >= len(c.made) || !reflect.DeepEqual(c.made[at], want) {
			return errors.New("the node was changed while it was inspected, and the request would be another one now; inspect it again")
		}
		at++
		return c.errs[at-1]
	}
}

// get makes a request of a rule, again when that may help.
func get(ctx context.Context, c inspect.Call) error {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true
	if len(c.Proxies) > 0 {
		transport.Proxy = func(r *http.Request) (*url.URL, error) {
			if p := c.Proxies[r.URL.Scheme]; p != "" {
				return url.Parse(p)
			}
			return nil, nil
		}
	}
	client := &http.Client{Transport: transport, Timeout: c.Timeout}
	pause := time.Duration(0) // before the first retry there is none, as in Ironic
	for try := 0; ; try++ {
		again, err := getOnce(ctx, client, c)
		if err == nil || !again || try >= c.Retries || ctx.Err() != nil {
			return err
		}
		wait := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			wait.Stop()
			return err
		case <-wait.C:
		}
		pause = max(c.Backoff, 2*pause)
	}
}

func getOnce(ctx context.Context, client *http.Client, c inspect.Call) (again bool, err error) {
	shown := instance.Redact(c.URL)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, nil)
	if err != nil {
		return false, fmt.Errorf("request to %s can't be made", shown)
	}
	for k, v := range c.Headers {
		req.Header.Set(k, v)
	}
	res, err := client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the URL, which may hold a secret
		}
		return true, fmt.Errorf("request to %s: %w", shown, err)
	}
	defer res.Body.Close()
	switch {
	case res.StatusCode < 400:
		return false, nil
	case res.StatusCode == http.StatusTooManyRequests || res.StatusCode >= 500:
		again = true
	}
	return again, fmt.Errorf("request to %s: %s", shown, strings.TrimSpace(res.Status))
}
