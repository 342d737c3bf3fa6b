// Command raidvm stands in for ingot-agent in a virtual machine with four disks: it makes arrays of every level and
// takes them apart, then deploys an image onto a RAID 1, all with the agent's own steps, and says on the console what
// came of it.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/ingot-metal/ingot/agent"
	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/disk/raid"
	"github.com/ingot-metal/ingot/agent/inventory"
	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/test/standin"
)

func main() { standin.Main(work) }

type object = map[string]any

func work(ctx context.Context, m linux.Machine) error {
	table := agent.Steps(m, nil)
	run := func(facts *step.Facts, iface, name string, args any) (step.Outcome, error) {
		raw, err := json.Marshal(args)
		if err != nil {
			return step.Outcome{}, err
		}
		s, ok := step.Find(table, iface, name)
		if !ok {
			return step.Outcome{}, fmt.Errorf("the agent has no step %s.%s", iface, name)
		}
		if err := s.CheckArgs(raw); err != nil {
			return step.Outcome{}, err
		}
		out, err := s.Run(ctx, &step.Call{Args: raw, Log: slog.New(slog.NewTextHandler(os.Stdout, nil)), Facts: facts,
			Report: func(step.Progress) {}})
		if err != nil {
			return out, fmt.Errorf("%s: %w", name, err)
		}
		return out, nil
	}
	facts := &step.Facts{}
	for _, level := range []string{"0", "1+0", "5", "6"} {
		config := object{
			"logical_disks": []any{
				object{"raid_level": "1", "size_gb": 1, "is_root_volume": true, "volume_name": "root"},
				object{"raid_level": level, "size_gb": "MAX", "controller": "software"}}}
		out, err := run(facts, "raid", "create_configuration", object{"target_raid_config": config})
		if err != nil {
			return err
		}
		disks, err := raid.Disks(ctx, m)
		if err != nil {
			return err
		}
		if err := use(ctx, m, disks); err != nil {
			return fmt.Errorf("level %s: %w", level, err)
		}
		if err := report(ctx, m, "RUNNING", level); err != nil {
			return err
		}
		if _, err := run(facts, "raid", "create_configuration", object{"target_raid_config": config}); err == nil {
			return errors.New("arrays in use were replaced unasked")
		}
		// As after a restart: what the disks say of themselves is enough.
		if err := stop(); err != nil {
			return fmt.Errorf("level %s: %w", level, err)
		}
		if err := report(ctx, m, "STOPPED", level); err != nil {
			return err
		}
		stopped, err := raid.Disks(ctx, m)
		if err != nil {
			return fmt.Errorf("level %s: %w", level, err)
		}
		standin.Say("LEVEL", object{"level": level, "made": out.Result, "disks": disks, "again": stopped})
		if _, err := run(facts, "raid", "delete_configuration", object{}); err != nil {
			return err
		}
		left, err := raid.Disks(ctx, m)
		if err != nil {
			return err
		}
		standin.Say("LEFT", left)
	}

	url, err := standin.Serve()
	if err != nil {
		return err
	}
	out, err := run(facts, "raid", "create_configuration",
		object{"target_raid_config": object{"logical_disks": []any{object{"raid_level": "1",
			"size_gb": "MAX", "is_root_volume": true, "controller": "software",
			"physical_disks": []any{object{"serial": "d0"}, object{"serial": "d1"}}}}}})
	if err != nil {
		return err
	}
	standin.Say("ROOT", out.Result)
	// The step that made the array says which disk is meant: its UUID could not be known before.
	if out, err = run(facts, "deploy", "write_image",
		object{"image_source": url + "/tiny.zst", "allow_unverified": true}); err != nil {
		return err
	}
	standin.Say("WROTE", out.Result)
	if _, err = run(facts, "deploy", "write_configdrive",
		object{"configdrive": object{"meta_data": object{"hostname": "raid-1", "uuid": "u"}}}); err != nil {
		return err
	}
	if out, err = run(facts, "deploy", "prepare_instance_boot", object{}); err != nil {
		return err
	}
	standin.Say("PREPARED", out.Result)
	// The disks' caches are the host's, but the arrays' superblocks are to be as an orderly end leaves them or not: the
	// kill is the harder case.
	return nil
}

// use writes to each array and reads back.
func use(ctx context.Context, m linux.Machine, disks []disk.Disk) error {
	for _, d := range disks {
		dev, err := m.OpenExclusive(ctx, d.Name)
		if err != nil {
			return err
		}
		for _, off := range []int64{0, 8 << 20, dev.Size() - 1<<20} {
			want := bytes.Repeat([]byte(d.Serial[:8]), 1<<17)
			if _, err := dev.WriteAt(want, off); err != nil {
				return err
			}
			if err := dev.Sync(); err != nil {
				return err
			}
			got := make([]byte, len(want))
			if _, err := dev.ReadAt(got, off); err != nil || !bytes.Equal(got, want) {
				return fmt.Errorf("%s at byte %d reads back different (%w)", d.Name, off, err)
			}
		}
		if err := dev.Close(); err != nil {
			return err
		}
	}
	return nil
}

// stop stops all arrays; what the disks say of themselves is left.
func stop() error {
	states, err := filepath.Glob("/sys/block/md*/md/array_state")
	if err != nil {
		return err
	}
	for _, f := range states {
		if err := os.WriteFile(f, []byte("clear"), 0); err != nil {
			return err
		}
	}
	return nil
}

// report says what an inspection makes of the arrays.
func report(ctx context.Context, m linux.Machine, what, level string) error {
	r, err := inventory.Collect(ctx, m, inventory.Options{})
	if err != nil {
		return err
	}
	root, err := disk.Choose(r.Inventory.Disks, nil)
	if err != nil {
		return err
	}
	standin.Say(what, object{"level": level, "arrays": r.SoftwareRAID, "disks": r.Inventory.Disks, "root": root,
		"errors": r.Errors})
	return nil
}
