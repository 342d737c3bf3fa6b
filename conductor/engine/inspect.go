package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/ingot-metal/ingot/conductor/engine/findings"
	"github.com/ingot-metal/ingot/conductor/engine/record"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
)

// useResult applies the result of a step.
func (e *Engine) useResult(ctx context.Context, n *node.Node, effects *node.SideEffects, s *node.JobStep) error {
	if record.MakesArrays(s) {
		if len(s.Result) > limit.Attribute {
			return e.fail(n, effects,
				fmt.Sprintf("step %s reports arrays in %d bytes, more than the %d that raid_config may have", s.Name,
					len(s.Result), limit.Attribute))
		}
		return record.UseRAID(n, s)
	}
	switch s.Name {
	case "inspect":
		_, err := e.useInspection(ctx, e.taker(), n, effects, s)
		return err
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
			e.history(n, effects, "provisioning", "INFO",
				fmt.Sprintf("the image was written ahead to %s (serial %s), in this boot of the agent", r.Disk.Name,
					cmp.Or(r.Disk.Serial, "not known")), "")
		case r.VirtualSize > 0:
			e.history(n, effects, "provisioning", "INFO",
				fmt.Sprintf("image of %d bytes (sha256 %s) was written to %s (serial %s)",
					r.VirtualSize, cmp.Or(r.SHA256, "not known"), r.Disk.Name, cmp.Or(r.Disk.Serial, "not known")), "")
		}
		if r.Warning != "" {
			e.history(n, effects, "boot", "WARNING", r.Warning, "")
		}
	}
	return nil
}

// taker returns the Taker for the results of inspections.
func (e *Engine) taker() findings.Taker {
	return findings.Taker{Store: e.db, Options: e.cfg.Inspection, Guard: e.cfg.Guard, Log: e.log,
		Enabled: func(n *node.Node) bool { return e.drivers.Interface(n, "power") != "" }}
}

// takeFound ends a step of an interface that inspected the machine, with what hooks and rules make of it.
func (p *pass) takeFound(ctx context.Context, found json.RawMessage) error {
	t := p.e.taker()
	t.OutOfBand = true
	ctx, err := t.CallOutFor(ctx, p.n, found)
	if err != nil {
		return err
	}
	_, err = p.change(ctx, func(n *node.Node, effects *node.SideEffects) error {
		failed, err := p.e.useInspection(ctx, t, n, effects, &node.JobStep{Result: found})
		if err != nil || failed {
			return err
		}
		return p.e.stepDone(n, effects, nil)
	})
	return err
}

// useInspection stores what an inspection found, and fails the job if hooks or rules say so.
func (e *Engine) useInspection(ctx context.Context, t findings.Taker, n *node.Node, effects *node.SideEffects,
	s *node.JobStep) (failed bool, err error) {
	notes, failure, err := t.Take(ctx, n, effects, s)
	if err != nil {
		return false, err
	}
	for _, note := range notes {
		if note.Severity == "" {
			e.log.Debug(note.Text, "node", n.UUID)
			continue
		}
		e.history(n, effects, "monitoring", note.Severity, note.Text, "")
	}
	if failure != "" {
		return true, e.fail(n, effects, failure)
	}
	return false, nil
}
