package agent

import (
	"context"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/u-root/u-root/pkg/efivarfs"

	"github.com/ingot-metal/ingot/agent/boot"
	"github.com/ingot-metal/ingot/agent/boot/kexec"
	"github.com/ingot-metal/ingot/agent/boot/ramdisk"
	"github.com/ingot-metal/ingot/agent/burnin"
	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/disk/erase"
	"github.com/ingot-metal/ingot/agent/disk/raid"
	"github.com/ingot-metal/ingot/agent/image"
	"github.com/ingot-metal/ingot/agent/image/configdrive"
	"github.com/ingot-metal/ingot/agent/image/inject"
	"github.com/ingot-metal/ingot/agent/inventory"
	"github.com/ingot-metal/ingot/agent/machine/passthru"
	"github.com/ingot-metal/ingot/agent/rescue"
	"github.com/ingot-metal/ingot/agent/step"
)

// Machine is what the steps ask of the machine, taken together: agent/machine/linux and agent/machine/fake have it.
type Machine interface {
	passthru.Door
	Root() string
	OpenExclusive(ctx context.Context, path string) (disk.Device, error)
	Addresses(ifname string) ([]netip.Prefix, error)
	CPUs() ([]int, error)
	OnCPU(cpu int, work func(used func() time.Duration)) error
	Memory(ctx context.Context, size int64) (burnin.Memory, error)
	Segments(c *net.TCPConn) (sent, again int64, err error)
	IPMI(ctx context.Context, netFn, command byte, data []byte) ([]byte, error)
	Settle(ctx context.Context) error
	Variables() (efivarfs.EFIVar, error)
	ReadRaw(ctx context.Context, path string, p []byte, off int64) error
	LoadModule(ctx context.Context, name string) error
	LoadKernel(ctx context.Context, kernel, initrd *os.File, cmdline string) error
}

// arrayed is a machine whose arrays of disks are disks, in place of those that they are made of.
type arrayed struct{ Machine }

// Disks are the machine's disks and arrays.
func (m arrayed) Disks(ctx context.Context) ([]disk.Disk, error) { return raid.Disks(ctx, m.Machine) }

// withArrays lets steps see arrays, unless the machine itself says what disks it has.
func withArrays(m Machine) Machine {
	if _, ok := m.(interface {
		Disks(ctx context.Context) ([]disk.Disk, error)
	}); ok {
		return m
	}
	return arrayed{m}
}

// Steps is the agent's table of steps, the only list of them. Names and priorities follow Ironic where it has the step.
// bootIF is the interface the firmware booted from; nil when that is not known.
func Steps(bare Machine, bootIF net.HardwareAddr) []step.Step {
	m := withArrays(bare)
	return []step.Step{
		{Interface: "deploy", Name: "write_image", Args: image.WriteArgs, Stall: image.Stall, Abortable: true,
			Priority: step.In{Deploy: 80}, Run: image.WriteStep(m)},
		{Interface: "deploy", Name: "write_configdrive", Args: configdrive.WriteArgs, Stall: 5 * time.Minute,
			Abortable: true, Priority: step.In{Deploy: 70}, Run: configdrive.WriteStep(m)},
		{Interface: "deploy", Name: "inject_files", Args: inject.Args, Stall: 10 * time.Minute, Abortable: true,
			// asked for, or given a priority, as in Ironic
			Priority: step.In{Service: step.Asked}, Run: inject.Step(m)},
		{Interface: "deploy", Name: "prepare_instance_boot", Args: boot.PrepareArgs, Stall: 5 * time.Minute,
			Priority: step.In{Deploy: 60}, Run: boot.PrepareStep(m)},
		{Interface: "deploy", Name: "load_kernel", Args: kexec.LoadArgs, Stall: kexec.Stall, Abortable: true,
			Run: kexec.LoadStep(m)}, // the conductor asks for it where the system is to be started by kexec
		{Interface: "deploy", Name: "load_ramdisk", Args: ramdisk.Args, Stall: ramdisk.Stall, Abortable: true,
			Run: ramdisk.LoadStep(bare, bootIF)}, // likewise, of a workload that runs from memory
		{Interface: "inspect", Name: "inspect", Args: inventory.InspectArgs, Stall: 2 * time.Minute, Abortable: true,
			Priority: step.In{Inspect: 100}, Run: inventory.InspectStep(bare, bootIF)},
		{Interface: "deploy", Name: "erase_devices_metadata", Args: erase.MetadataArgs, Stall: 5 * time.Minute,
			Abortable: true, Priority: step.In{Clean: 99}, Run: erase.MetadataStep(m)},
		{Interface: "deploy", Name: "erase_devices", Args: erase.DevicesArgs, Stall: 10 * time.Minute, Abortable: true,
			// Ironic has it in every cleaning, which costs hours: here it is asked for, or given a priority
			Run: erase.DevicesStep(m)},
		{Interface: "deploy", Name: "erase_devices_express", Args: erase.ExpressArgs, Stall: 10 * time.Minute,
			Abortable: true, Run: erase.ExpressStep(m)},
		{Interface: "deploy", Name: "erase_pstore", Args: erase.PstoreArgs, Stall: 5 * time.Minute, Abortable: true,
			Run: erase.PstoreStep(m)},
		{Interface: "deploy", Name: "clean_uefi_nvram", Args: boot.CleanNVRAMArgs, Stall: 5 * time.Minute,
			Run: boot.CleanNVRAMStep(m)},
		{Interface: "deploy", Name: "burnin_cpu", Args: burnin.CPUArgs, Stall: 5 * time.Minute, Abortable: true,
			Priority: step.In{Service: step.Asked}, Run: burnin.CPUStep(m)},
		{Interface: "deploy", Name: "burnin_disk", Args: burnin.DiskArgs, Stall: 5 * time.Minute, Abortable: true,
			Run: burnin.DiskStep(m)},
		{Interface: "deploy", Name: "burnin_memory", Args: burnin.MemoryArgs, Stall: 5 * time.Minute, Abortable: true,
			Priority: step.In{Service: step.Asked}, Run: burnin.MemoryStep(m)},
		{Interface: "deploy", Name: "burnin_network", Args: burnin.NetworkArgs, Stall: 5 * time.Minute, Abortable: true,
			Priority: step.In{Service: step.Asked}, Run: burnin.NetworkStep(m)},
		{Interface: "rescue", Name: "rescue", Args: rescue.Args, Stall: 2 * time.Minute, Abortable: true,
			Priority: step.In{Rescue: 100}, Run: rescue.Step()},
		{Interface: "raid", Name: "create_configuration", Args: raid.CreateArgs, Stall: 5 * time.Minute,
			Run: raid.CreateStep(bare)},
		{Interface: "raid", Name: "delete_configuration", Stall: 5 * time.Minute, Run: raid.DeleteStep(bare)},
		{Interface: "raid", Name: "apply_configuration", Args: raid.ApplyArgs, Stall: 5 * time.Minute,
			Run: raid.ApplyStep(bare)},
	}
}
