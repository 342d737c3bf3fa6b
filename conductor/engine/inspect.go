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
		return e.useInspection(ctx, n, effects, s)
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

// useInspection stores what an inspection found.
func (e *Engine) useInspection(ctx context.Context, n *node.Node, effects *node.SideEffects, s *node.JobStep) error {
	notes, failure, err := e.taker().Take(ctx, n, effects, s)
	if err != nil {
		return err
	}
	for _, note := range notes {
		if note.Severity == "" {
			e.log.Debug(note.Text, "node", n.UUID)
			continue
		}
		e.history(n, effects, "monitoring", note.Severity, note.Text, "")
	}
	if failure != "" {
		return e.fail(n, effects, failure)
	}
	return nil
}
