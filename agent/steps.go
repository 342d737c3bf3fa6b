package agent

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/ingot-metal/ingot/agent/boot"
	"github.com/ingot-metal/ingot/agent/configdrive"
	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/erase"
	"github.com/ingot-metal/ingot/agent/image"
	"github.com/ingot-metal/ingot/agent/inventory"
	"github.com/ingot-metal/ingot/agent/step"
)

// Machine is what the steps ask of the machine, taken together: agent/linux and agent/fake have it.
type Machine interface {
	Root() string
	OpenExclusive(ctx context.Context, path string) (disk.Device, error)
	Addresses(ifname string) ([]netip.Prefix, error)
	IPMI(ctx context.Context, netFn, command byte, data []byte) ([]byte, error)
	Settle(ctx context.Context) error
	SetImmutable(file string, on bool) error
}

// Steps is the agent's table of steps, the only list of them. Names and priorities follow Ironic where it has the step. bootIF is the
// interface the firmware booted from; nil when that is not known.
func Steps(m Machine, bootIF net.HardwareAddr) []step.Step {
	return []step.Step{
		{Interface: "deploy", Name: "write_image", Args: image.WriteArgs, Stall: image.Stall, Abortable: true,
			Priority: step.In{Deploy: 80}, Run: image.WriteStep(m)},
		{Interface: "deploy", Name: "write_configdrive", Args: configdrive.WriteArgs, Stall: 5 * time.Minute, Abortable: true,
			Priority: step.In{Deploy: 70}, Run: configdrive.WriteStep(m)},
		{Interface: "deploy", Name: "prepare_instance_boot", Args: boot.PrepareArgs, Stall: 5 * time.Minute,
			Priority: step.In{Deploy: 60}, Run: boot.PrepareStep(m)},
		{Interface: "inspect", Name: "inspect", Args: inventory.InspectArgs, Stall: 2 * time.Minute, Abortable: true,
			Priority: step.In{Inspect: 100}, Run: inventory.InspectStep(m, bootIF)},
		{Interface: "deploy", Name: "erase_devices_metadata", Args: erase.MetadataArgs, Stall: 5 * time.Minute, Abortable: true,
			Priority: step.In{Clean: 99}, Run: erase.MetadataStep(m)},
		{Interface: "deploy", Name: "erase_devices", Args: erase.DevicesArgs, Stall: 10 * time.Minute, Abortable: true,
			Run: erase.DevicesStep(m)}, // Ironic has it in every cleaning, which costs hours: here it is asked for, or given a priority
		{Interface: "deploy", Name: "erase_devices_express", Args: erase.ExpressArgs, Stall: 10 * time.Minute, Abortable: true, Run: erase.ExpressStep(m)},
		{Interface: "deploy", Name: "erase_pstore", Args: erase.PstoreArgs, Stall: 5 * time.Minute, Abortable: true, Run: erase.PstoreStep(m)},
		{Interface: "deploy", Name: "clean_uefi_nvram", Args: boot.CleanNVRAMArgs, Stall: 5 * time.Minute, Run: boot.CleanNVRAMStep(m)},
	}
}
