// Command buses replaces ingot-agent in a virtual machine with one disk on each kind of bus: it lists them, erases
// them, and deploys an image with a config drive onto each, all through agent/machine/linux, and prints the results on
// the console.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/disk/erase"
	"github.com/ingot-metal/ingot/agent/image"
	"github.com/ingot-metal/ingot/agent/image/configdrive"
	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/test/standin"
)

func main() { standin.Main(work) }

func work(ctx context.Context, m linux.Machine) error {
	call := func(facts *step.Facts, args any) *step.Call {
		raw, err := json.Marshal(args)
		if err != nil {
			panic(err)
		}
		return &step.Call{Args: raw, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Facts: facts,
			Report: func(step.Progress) {}}
	}
	out, err := erase.MetadataStep(m)(ctx,
		call(&step.Facts{}, map[string]any{"skip_block_devices": []any{map[string]any{"serial": "spare"}}}))
	if err != nil {
		return err
	}
	standin.Say("ERASED", out.Result)
	disks, err := disk.List(ctx, m.Root())
	if err != nil {
		return err
	}
	standin.Say("DISKS", disks)
	url, err := standin.Serve()
	if err != nil {
		return err
	}
	for _, d := range disks {
		if d.Serial == "spare" {
			continue
		}
		facts := &step.Facts{}
		out, err := image.WriteStep(m)(ctx, call(facts, map[string]any{
			"image_source": fmt.Sprintf("%s/image-%d.zst", url, d.LogicalSectors), "allow_unverified": true,
			"verify": true, "root_device": map[string]any{"by_path": d.ByPath},
		}))
		if err != nil {
			return err
		}
		standin.Say("WROTE", out.Result)
		if out, err = configdrive.WriteStep(m)(ctx,
			call(facts, map[string]any{"configdrive": map[string]any{"user_data": "for " + d.Serial}})); err != nil {
			return err
		}
		done, err := disk.Commit(ctx, facts, m, nil)
		if err != nil {
			return err
		}
		text, err := readDrive(done.Disk.Name, done.Partitions[len(done.Partitions)-1].Number)
		if err != nil {
			return err
		}
		standin.Say("DRIVE", map[string]any{"serial": d.Serial, "drive": out.Result, "user_data": text})
	}
	return nil
}

// readDrive mounts a config drive as an operating system does: by the partition that the kernel found.
func readDrive(disk string, number int) (string, error) {
	node := fmt.Sprintf("%s%d", disk, number)
	if last := disk[len(disk)-1]; last >= '0' && last <= '9' {
		node = fmt.Sprintf("%sp%d", disk, number)
	}
	const at = "/run/drive"
	if err := os.MkdirAll(at, 0o755); err != nil {
		return "", err
	}
	var err error
	for _, fs := range []string{"iso9660", "vfat"} {
		if err = unix.Mount(node, at, fs, unix.MS_RDONLY, ""); err == nil {
			break
		}
	}
	if err != nil {
		return "", fmt.Errorf("mount %s: %w", node, err)
	}
	defer unix.Unmount(at, 0)
	b, err := os.ReadFile(at + "/openstack/latest/user_data")
	return string(b), err
}
