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
	"github.com/ingot-metal/ingot/agent/disk/export"
	"github.com/ingot-metal/ingot/agent/disk/raid"
	"github.com/ingot-metal/ingot/agent/image"
	"github.com/ingot-metal/ingot/agent/image/configdrive"
	"github.com/ingot-metal/ingot/agent/image/inject"
	"github.com/ingot-metal/ingot/agent/inventory"
	"github.com/ingot-metal/ingot/agent/machine/passthru"
	"github.com/ingot-metal/ingot/agent/rescue"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// Machine is the union of the steps' interfaces to the machine: agent/machine/linux and agent/machine/fake implement
// it.
type Machine interface {
	passthru.Transport
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
	Export(ctx context.Context, t export.Target) (remove func() error, err error)
	LoadKernel(ctx context.Context, kernel, initrd *os.File, cmdline string) error
}

// arrayed is a machine whose arrays replace their member disks.
type arrayed struct{ Machine }

// Disks returns the machine's disks and arrays.
func (m arrayed) Disks(ctx context.Context) ([]disk.Disk, error) { return raid.Disks(ctx, m.Machine) }

// withArrays makes arrays visible to steps, unless the machine lists its own disks.
func withArrays(m Machine) Machine {
	if _, ok := m.(interface {
		Disks(ctx context.Context) ([]disk.Disk, error)
	}); ok {
		return m
	}
	return arrayed{m}
}

// Steps returns the agent's table of steps, the only list of them. Names and priorities follow Ironic if it has the
// step. bootIF is the interface the firmware booted from; nil if unknown.
func Steps(bare Machine, bootIF net.HardwareAddr) []step.Step {
	m := withArrays(bare)
	return []step.Step{
		{Run: image.WriteStep(m), Row: step.Row{Interface: "deploy", Name: "write_image", Args: image.WriteArgs,
			Priority: step.In{step.Deploy: 80}, When: steparg.WhenDisk, Provides: []string{"image"},
			Repeatable: true, Abortable: true, Stall: image.Stall}},
		// on request, where the configuration allows it
		{Run: export.Step(m), Row: step.Row{Interface: "deploy", Name: "export_disk", Args: export.Args,
			When: steparg.WhenDisk, Provides: []string{"image"}, Abortable: true, Stall: export.Stall,
			After:  []string{"burnin_disk", "erase_devices", "erase_devices_express", "erase_devices_metadata"},
			Before: []string{"inject_files", "write_configdrive"}}},
		{Run: configdrive.WriteStep(m), Row: step.Row{Interface: "deploy", Name: "write_configdrive",
			Args: configdrive.WriteArgs, Priority: step.In{step.Deploy: 70}, When: steparg.WhenDrive,
			After: []string{"write_image"}, Before: []string{"prepare_instance_boot"},
			Repeatable: true, Abortable: true, Stall: 5 * time.Minute}},
		{Run: inject.Step(m), Row: step.Row{Interface: "deploy", Name: "inject_files", Args: inject.Args,
			// on request, or with a configured priority, as in Ironic
			Priority: step.In{step.Service: step.OnRequest},
			After:    []string{"write_image"}, Before: []string{"prepare_instance_boot"},
			Repeatable: true, Abortable: true, Stall: 10 * time.Minute}},
		{Run: boot.PrepareStep(m), Row: step.Row{Interface: "deploy", Name: "prepare_instance_boot",
			Args: boot.PrepareArgs, Priority: step.In{step.Deploy: 60}, When: steparg.WhenDisk,
			From: []string{"image"}, Provides: []string{"system"}, Repeatable: true, Stall: 5 * time.Minute}},
		{Run: kexec.LoadStep(m), Row: step.Row{Interface: "deploy", Name: "load_kernel", Args: kexec.LoadArgs,
			Priority: step.In{step.Deploy: 50}, When: steparg.WhenKexec, After: []string{"prepare_instance_boot"},
			Before: []string{"tear_down_agent"}, Repeatable: true, Abortable: true, Stall: kexec.Stall}},
		{Run: ramdisk.LoadStep(bare, bootIF), Row: step.Row{Interface: "deploy", Name: "load_ramdisk",
			Args: ramdisk.Args, Priority: step.In{step.Deploy: 50}, When: steparg.WhenLoaded,
			Provides: []string{"system"}, Before: []string{"tear_down_agent"},
			Repeatable: true, Abortable: true, Stall: ramdisk.Stall}},
		{Run: inventory.InspectStep(bare, bootIF), Row: step.Row{Interface: "inspect", Name: "inspect",
			Args: inventory.InspectArgs, Priority: step.In{step.Inspect: 100},
			Repeatable: true, Abortable: true, Stall: 2 * time.Minute}},
		{Run: erase.MetadataStep(m), Row: step.Row{Interface: "deploy", Name: "erase_devices_metadata",
			Args: erase.MetadataArgs, Priority: step.In{step.Clean: 99}, Before: []string{"write_image"},
			Repeatable: true, Abortable: true, Stall: 5 * time.Minute}},
		{Run: erase.DevicesStep(m), Row: step.Row{Interface: "deploy", Name: "erase_devices", Args: erase.DevicesArgs,
			// Ironic runs it in every cleaning, which takes hours: here only on request, or with a configured priority
			Before: []string{"write_image"}, Abortable: true, Stall: 10 * time.Minute}},
		{Run: erase.ExpressStep(m), Row: step.Row{Interface: "deploy", Name: "erase_devices_express",
			Args: erase.ExpressArgs, Before: []string{"write_image"}, Abortable: true, Stall: 10 * time.Minute}},
		{Run: erase.PstoreStep(m), Row: step.Row{Interface: "deploy", Name: "erase_pstore", Args: erase.PstoreArgs,
			Repeatable: true, Abortable: true, Stall: 5 * time.Minute}},
		{Run: boot.CleanNVRAMStep(m), Row: step.Row{Interface: "deploy", Name: "clean_uefi_nvram",
			Args: boot.CleanNVRAMArgs, Repeatable: true, Stall: 5 * time.Minute}},
		{Run: burnin.CPUStep(m), Row: step.Row{Interface: "deploy", Name: "burnin_cpu", Args: burnin.CPUArgs,
			Priority: step.In{step.Service: step.OnRequest}, Abortable: true, Stall: 5 * time.Minute}},
		{Run: burnin.DiskStep(m), Row: step.Row{Interface: "deploy", Name: "burnin_disk", Args: burnin.DiskArgs,
			Before: []string{"write_image"}, Abortable: true, Stall: 5 * time.Minute}},
		{Run: burnin.MemoryStep(m), Row: step.Row{Interface: "deploy", Name: "burnin_memory", Args: burnin.MemoryArgs,
			Priority: step.In{step.Service: step.OnRequest}, Abortable: true, Stall: 5 * time.Minute}},
		{Run: burnin.NetworkStep(m), Row: step.Row{Interface: "deploy", Name: "burnin_network",
			Args:     burnin.NetworkArgs,
			Priority: step.In{step.Service: step.OnRequest}, Abortable: true, Stall: 5 * time.Minute}},
		{Run: rescue.Step(), Row: step.Row{Interface: "rescue", Name: "rescue", Args: rescue.Args,
			Priority: step.In{step.Rescue: 100}, Repeatable: true, Abortable: true, Stall: 2 * time.Minute}},
		{Run: raid.CreateStep(bare), Row: step.Row{Interface: "raid", Name: "create_configuration",
			Args: raid.CreateArgs, Repeatable: true, Stall: 5 * time.Minute}},
		{Run: raid.DeleteStep(bare), Row: step.Row{Interface: "raid", Name: "delete_configuration",
			Repeatable: true, Stall: 5 * time.Minute}},
		{Run: raid.ApplyStep(bare), Row: step.Row{Interface: "raid", Name: "apply_configuration",
			Args: raid.ApplyArgs, Repeatable: true, Stall: 5 * time.Minute}},
	}
}
