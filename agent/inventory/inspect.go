package inventory

import (
	"context"
	"encoding/json"
	"net"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/step"
)

// InspectArgs declares the arguments of the step inspect.
var InspectArgs = []step.Arg{
	{Name: "root_device", Type: "object", Description: "hints for the root disk, as in the node's properties; the result names the disk they choose"},
}

// InspectStep takes the inventory. It writes nothing anywhere, so it may be stopped and run again at will. Parts that could not be
// read are named in the result's errors; the step fails only when it is stopped.
func InspectStep(m machine, bootIF net.HardwareAddr) step.Func {
	return func(ctx context.Context, c *step.Call) (step.Outcome, error) {
		var args struct {
			RootDevice json.RawMessage `json:"root_device"`
		}
		if err := c.Decode(&args); err != nil {
			return step.Outcome{}, err
		}
		hints, err := disk.ParseHints(args.RootDevice)
		if err != nil {
			return step.Outcome{}, step.Fail("correct root_device in the node's properties", err)
		}
		c.Report(step.Progress{Phase: "inspect"})
		r, err := Collect(ctx, m, bootIF, c.Log)
		if err != nil {
			return step.Outcome{}, err
		}
		choice, err := disk.Choose(r.Inventory.Disks, hints)
		if err != nil {
			r.Errors = append(r.Errors, "root disk: "+err.Error())
			c.Log.Warn("no root disk", "err", err)
		} else {
			r.RootDisk = choice
			c.Log.Info("root disk", "disk", choice.Disk.Name, "why", choice.Why)
		}
		inv := r.Inventory
		c.Log.Info("inventory taken", "interfaces", len(inv.Interfaces), "disks", len(inv.Disks), "cpus", inv.CPU.Count,
			"memory_mb", inv.Memory.PhysicalMB, "errors", len(r.Errors))
		return step.Outcome{Result: r}, nil
	}
}
