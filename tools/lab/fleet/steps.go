package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/agent"
	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/disk/raid"
	"github.com/ingot-metal/ingot/agent/inventory"
	"github.com/ingot-metal/ingot/agent/step"
)

// imageSize is the size of every image, in bytes.
const imageSize = 4 << 30

// steps returns the agent's table with functions that pretend to work, in a boot that lasts as long as alive.
func (b *boot) steps(alive context.Context) []step.Step {
	table := make([]step.Step, len(b.m.f.table))
	for i, s := range b.m.f.table {
		table[i] = step.Step{Row: s.Row, Run: func(ctx context.Context, c *step.Call) (step.Outcome, error) {
			return b.pretend(alive, ctx, s.Name, c)
		}}
	}
	return table
}

// withOwn returns the agent's table with a site's own steps, none of which does anything here.
func withOwn(own []step.Row) []step.Step {
	table := agent.Steps(nil, nil)
	for _, r := range own {
		table = append(table, step.Step{Row: r})
	}
	return table
}

// ticks is the least number of reports of a step's progress.
const ticks = 10

// pretend takes the time of a step, reports progress, and returns its result.
func (b *boot) pretend(alive, ctx context.Context, name string, c *step.Call) (step.Outcome, error) {
	if seen := b.m.f.o.Seen; seen != nil {
		seen(Event{Machine: b.m, Boot: b.number, Step: name})
		defer seen(Event{Machine: b.m, Boot: b.number, Step: name, End: true})
	}
	whole := b.m.f.o.Step
	if name == "write_image" {
		whole = b.m.f.o.Write
		b.m.setInstalled(false)
		if image := b.m.f.o.Image; image != nil {
			if err := image(ctx, c); err != nil {
				return step.Outcome{}, err
			}
		}
	}
	whole = b.m.about(whole)
	every := min(whole/ticks, 2*time.Second)
	what, at := b.m.mishap()
	began := time.Now()
	for {
		spent := min(time.Since(began), whole)
		c.Report(step.Progress{Phase: "simulated", Bytes: uint64(imageSize * spent.Seconds() / whole.Seconds()),
			Total: imageSize})
		if what != none && spent.Seconds() >= at*whole.Seconds() {
			b.befall(what)
			what = none
		}
		if spent == whole {
			break
		}
		select {
		case <-time.After(min(every, whole-spent)):
		case <-ctx.Done():
			return step.Outcome{}, ctx.Err()
		case <-alive.Done():
			return step.Outcome{}, errDead
		}
	}
	return step.Outcome{Result: b.result(name, c.Args)}, nil
}

// result makes the result of a step, and changes the machine as the step would.
func (b *boot) result(name string, args json.RawMessage) any {
	m := b.m
	switch name {
	case "inspect":
		return b.inventory()
	case "write_image":
		m.setInstalled(true)
		m.f.count(&m.f.images, 1)
		var image struct {
			Value string `json:"image_os_hash_value"`
		}
		_ = json.Unmarshal(args, &image) // the table has checked them
		return map[string]any{"bytes_fetched": int64(imageSize), "bytes_written": int64(imageSize),
			"digest": "sha256:" + image.Value, "disk": map[string]any{"name": "/dev/nvme0n1", "size": int64(diskSize)}}
	case "prepare_instance_boot":
		return map[string]any{"committed": true}
	case "create_configuration":
		return arrays(args)
	case "delete_configuration":
		return raid.Result{RAIDConfig: raid.Made{LogicalDisks: []raid.MadeDisk{}}}
	case "load_kernel":
		b.mu.Lock()
		b.loaded = true
		b.mu.Unlock()
	}
	if slices.ContainsFunc(m.f.o.Own, func(r step.Row) bool { return r.Name == name }) {
		m.setInstalled(true)
	}
	if strings.HasPrefix(name, "erase_") {
		m.setInstalled(false)
		return map[string]any{"devices": []string{}}
	}
	return map[string]any{}
}

// arrays is the result of software RAID that was made as the arguments ask.
func arrays(args json.RawMessage) raid.Result {
	var a struct {
		Config raid.Config `json:"target_raid_config"`
	}
	_ = json.Unmarshal(args, &a) // the conductor has checked them
	r := raid.Result{RAIDConfig: raid.Made{LogicalDisks: []raid.MadeDisk{}}}
	for i, l := range a.Config.LogicalDisks {
		made := raid.MadeDisk{Level: l.Level, SizeGB: diskSize >> 30, Controller: "software", VolumeName: l.VolumeName,
			Root: l.Root, PhysicalDisks: []string{"/dev/nvme0n1", "/dev/nvme1n1"},
			Device: fmt.Sprintf("/dev/md%d", 127-i), UUID: uuid.NewString()}
		_ = json.Unmarshal(l.Size, &made.SizeGB) // or MAX
		if i == 0 {
			made.Hint = map[string]string{"serial": made.UUID}
			r.RootDevice = made.Hint
		}
		r.RAIDConfig.LogicalDisks = append(r.RAIDConfig.LogicalDisks, made)
	}
	return r
}

// diskSize is the size of each machine's disk, in bytes.
const diskSize = 960 << 30

// inventory is the result of an inspection.
func (b *boot) inventory() *inventory.Report {
	// no address of loopback, which the inspection ignores
	mac, at := b.m.MAC, "10"+strings.TrimPrefix(b.m.Addr.String(), "127")
	speed := 25_000
	r := &inventory.Report{BootInterface: &mac, Errors: []string{}}
	r.Inventory = inventory.Inventory{
		Interfaces: []inventory.Interface{{Name: "eth0", MACAddress: mac, IPv4Address: &at, HasCarrier: true,
			SpeedMbps: &speed}},
		CPU: inventory.CPU{ModelName: "Simulated", Count: 64, SocketCount: 2, Architecture: "x86_64",
			Flags: []string{"aes"}},
		Memory:       inventory.Memory{Total: 256 << 30, PhysicalMB: 256 << 10},
		Disks:        []disk.Disk{{Name: "/dev/nvme0n1", Model: "Simulated", Size: diskSize, Serial: b.m.Name}},
		SystemVendor: inventory.SystemVendor{Manufacturer: "Ingot", ProductName: "Fleet", SerialNumber: b.m.Name},
		Boot:         inventory.Boot{CurrentBootMode: "bios", PXEInterface: &mac},
		Hostname:     b.m.Name,
	}
	if change := b.m.f.o.Inventory; change != nil {
		change(r)
	}
	return r
}
