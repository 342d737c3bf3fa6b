package inventory

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/passthru"
	"github.com/ingot-metal/ingot/agent/step"
)

// InspectArgs declares the arguments of the step inspect.
var InspectArgs = []step.Arg{
	{Name: "root_device", Type: "object",
		Description: "hints for the root disk, as in the node's properties; the result names the disk they choose"},
	{Name: "lldp_timeout", Type: "integer",
		Description: "seconds to wait for LLDP frames on every link with a carrier; default 0: only frames received since the start of the agent"},
}

type inspectArgs struct {
	RootDevice  json.RawMessage `json:"root_device"`
	LLDPTimeout int             `json:"lldp_timeout"`
}

// maxLLDP is less than the step's stall time, in seconds; by default switches send a frame every 30.
const maxLLDP = 90

// InspectStep takes the inventory. It writes nothing, so it may be stopped and repeated at any time. Parts that could
// not be read are listed in the result's errors; the step fails only when it is stopped.
func InspectStep(m machine, bootIF net.HardwareAddr) step.Func {
	return step.With(func(ctx context.Context, c *step.Call, args inspectArgs) (step.Outcome, error) {
		hints, err := disk.ParseHints(args.RootDevice)
		if err != nil {
			return step.Outcome{}, step.Fail("correct root_device in the node's properties", err)
		}
		if args.LLDPTimeout < 0 || args.LLDPTimeout > maxLLDP {
			return step.Outcome{},
				step.Failf(fmt.Sprintf("give lldp_timeout from 0 to %d seconds", maxLLDP), "lldp_timeout is %d",
					args.LLDPTimeout)
		}
		c.Report(step.Progress{Phase: "inspect"})
		r, err := Collect(ctx, m,
			Options{BootIF: bootIF, LLDP: time.Duration(args.LLDPTimeout) * time.Second, Log: c.Log})
		if err != nil {
			return step.Outcome{}, err
		}
		for i := range r.DiskHealth {
			if h := r.DiskHealth[i]; h.Status == passthru.Failing {
				c.Log.Warn("a disk says that it is failing", "disk", h.Name, "serial", h.Serial, "why",
					strings.Join(h.Warnings, "; "))
			}
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
	})
}
