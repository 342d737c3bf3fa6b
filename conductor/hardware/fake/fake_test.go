package fake

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware"
	powerfake "github.com/ingot-metal/ingot/conductor/hardware/power/fake"
	"github.com/ingot-metal/ingot/conductor/node"
)

func newSet(now func() time.Time) *hardware.Set {
	f := New(new(powerfake.Machines), now)
	return hardware.New(func(n *node.Node, kind string) string { return n.Interfaces[kind] }, f.Plugs())
}

func fakeNode(info map[string]any) *node.Node {
	n := &node.Node{UUID: "7cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1c", Driver: "fake-hardware", DriverInfo: info,
		Interfaces: map[string]string{}}
	for _, kind := range []string{"console", "management", "raid", "vendor", "deploy", "inspect", "bios", "firmware",
		"rescue"} {
		n.Interfaces[kind] = "fake"
	}
	return n
}

// run does a step that is due at once and applies what it did.
func run(t *testing.T, set *hardware.Set, n *node.Node, iface, name string, args map[string]any) (
	*node.SideEffects, error) {
	t.Helper()
	s, ok := set.Step(n, iface, name)
	if !ok {
		t.Fatalf("there is no step %s.%s", iface, name)
	}
	if err := s.CheckArgs(n, args); err != nil {
		return nil, err
	}
	o, err := s.Run(context.Background(), hardware.Call{Node: n, Args: args, Begun: time.Now(), ID: "job/0"})
	if err != nil {
		return nil, err
	}
	if o.After > 0 || o.Hold {
		t.Fatalf("step %s.%s is not done: %+v", iface, name, o)
	}
	effects := new(node.SideEffects)
	if o.Apply != nil {
		if err := o.Apply(n, effects); err != nil {
			t.Fatal(err)
		}
	}
	return effects, nil
}

func TestBIOS(t *testing.T) {
	set, n := newSet(nil), fakeNode(nil)
	apply := func(pairs ...string) {
		t.Helper()
		var list []any
		for i := 0; i < len(pairs); i += 2 {
			list = append(list, map[string]any{"name": pairs[i], "value": pairs[i+1]})
		}
		if _, err := run(t, set, n, "bios", "apply_configuration", map[string]any{"settings": list}); err != nil {
			t.Fatal(err)
		}
	}
	apply("virt", "on", "boot", "pxe")
	apply("virt", "off", "boot", "pxe")
	if len(n.BIOS) != 2 || n.BIOS[0].Name != "boot" || !n.BIOS[0].UpdatedAt.IsZero() || n.BIOS[1].Value != "off" ||
		n.BIOS[1].UpdatedAt.IsZero() {
		t.Errorf("settings after a change = %+v", n.BIOS)
	}
	apply("virt", "off")
	if len(n.BIOS) != 1 {
		t.Errorf("settings = %+v, want those not named forgotten", n.BIOS)
	}
	if _, err := run(t, set, n, "bios", "factory_reset", nil); err != nil || len(n.BIOS) != 0 {
		t.Errorf("settings after a reset = %+v, %v", n.BIOS, err)
	}
	for _, bad := range []map[string]any{nil, {"settings": "x"}, {"settings": []any{map[string]any{"name": "a"}}},
		{"settings": []any{}, "more": 1},
		{"settings": []any{map[string]any{"name": "a", "value": "1"}, map[string]any{"name": "a", "value": "2"}}}} {
		var invalid *hardware.InvalidError
		if _, err := run(t, set, n, "bios", "apply_configuration", bad); !errors.As(err, &invalid) {
			t.Errorf("apply_configuration(%v) = %v, want it refused", bad, err)
		}
	}
}

func TestRAID(t *testing.T) {
	set, n := newSet(nil), fakeNode(nil)
	var invalid *hardware.InvalidError
	if _, err := run(t, set, n, "raid", "create_configuration", nil); !errors.As(err, &invalid) {
		t.Errorf("create without a target = %v", err)
	}
	disk := func(level string, root bool) any {
		return map[string]any{"size_gb": 100.0, "raid_level": level, "is_root_volume": root}
	}
	n.TargetRAID = map[string]any{"logical_disks": []any{disk("1", true), disk("5", false)}}
	if err := set.RAID(n).Check(n, n.TargetRAID); err != nil {
		t.Fatal(err)
	}
	disks := func() int {
		list, _ := n.RAIDConfig["logical_disks"].([]any)
		return len(list)
	}
	if _, err := run(t, set, n, "raid", "create_configuration",
		map[string]any{"create_nonroot_volumes": false}); err != nil || disks() != 1 {
		t.Fatalf("root volume only: %v, %v", n.RAIDConfig, err)
	}
	if _, err := run(t, set, n, "raid", "create_configuration", map[string]any{"delete_existing": true}); err != nil ||
		disks() != 2 {
		t.Fatalf("all: %v, %v", n.RAIDConfig, err)
	}
	if _, err := run(t, set, n, "raid", "delete_configuration", nil); err != nil || disks() != 0 {
		t.Fatalf("after deletion: %v, %v", n.RAIDConfig, err)
	}
	if _, ok := set.Step(n, "raid", "apply_configuration"); !ok {
		t.Error("there is no deploy step raid.apply_configuration")
	}
	if _, ok := n.TargetRAID["logical_disks"].([]any)[0].(map[string]any)["volume_name"]; ok {
		t.Error("the target was changed")
	}
	err := set.RAID(n).Check(n,
		map[string]any{"logical_disks": []any{map[string]any{"size_gb": "bogus", "raid_level": "99"}}})
	if want := "RAID config validation error: '99' is not one of ['JBOD', '0', '1', '2', '5', '6', '1+0', '5+0', '6+0']"; err == nil || err.Error() != want {
		t.Errorf("Check = %v, want %s", err, want)
	}
}

func TestFirmware(t *testing.T) {
	set, n := newSet(nil), fakeNode(nil)
	args := map[string]any{"settings": []any{map[string]any{"component": "bios", "url": "http://x/bios-2.1.bin"}}}
	if _, err := run(t, set, n, "firmware", "update", args); err != nil || len(n.Firmware) != 1 ||
		n.Firmware[0].CurrentVersion != "bios-2.1.bin" {
		t.Errorf("firmware = %+v, %v", n.Firmware, err)
	}
	args = map[string]any{
		"settings": []any{map[string]any{"component": "nic:A1B2", "url": "http://x/nic"},
			map[string]any{"component": "bmc", "url": "http://x/bmc"},
			map[string]any{"component": "bios", "url": "http://x/bios-2.2.bin"}}}
	if _, err := run(t, set, n, "firmware", "update", args); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range n.Firmware {
		got = append(got, strings.Join([]string{c.Component, c.Vendor, c.Model, c.SerialNumber}, "|"))
	}
	if want := []string{"bios|||", "nic:A1B2|Ingot|Fake NIC|A1B2", "bmc||Fake BMC|"}; !slices.Equal(got, want) {
		t.Errorf("components = %q, want %q", got, want)
	}
	n = fakeNode(map[string]any{"fake_inventory": map[string]any{"cpus": 0.0}})
	if _, err := run(t, set, n, "firmware", "update", args); err == nil ||
		!strings.Contains(err.Error(), "fake_inventory") {
		t.Errorf("update of a machine that can not be: %v", err)
	}
}

func TestInspection(t *testing.T) {
	set, n := newSet(nil), fakeNode(nil)
	effects, err := run(t, set, n, "inspect", "inspect_hardware", nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(n.Properties) != 0 || len(effects.Ports) != 0 || !json.Valid(effects.Inventory) {
		t.Errorf("a machine without a description: properties %v, ports %v, inventory %s", n.Properties, effects.Ports,
			effects.Inventory)
	}
	n = fakeNode(map[string]any{
		"fake_inventory": map[string]any{"cpus": 96.0, "memory_mb": 1024.0, "disks_gb": []any{10.0, 20.0},
			"macs": []any{"52:54:00:AA:00:01", "52:54:00:aa:00:02"}}})
	if effects, err = run(t, set, n, "inspect", "inspect_hardware", nil); err != nil {
		t.Fatal(err)
	}
	if n.Properties["cpus"] != 96 || n.Properties["local_gb"] != 9 || len(effects.Ports) != 2 ||
		effects.Ports[0].Address != "52:54:00:aa:00:01" || effects.Ports[1].PXEEnabled {
		t.Errorf("properties %v, ports %+v", n.Properties, effects.Ports)
	}
	for _, bad := range []any{"x", map[string]any{"cpu": 1.0}, map[string]any{"macs": []any{"nonsense"}},
		map[string]any{"cpus": 0.0}, map[string]any{"boot_mode": "x"}} {
		if _, err := run(t, set, fakeNode(map[string]any{"fake_inventory": bad}), "inspect", "inspect_hardware",
			nil); err == nil {
			t.Errorf("fake_inventory %v was taken", bad)
		}
	}
	if got := letters(0) + letters(25) + letters(26) + letters(52); got != "azaaba" {
		t.Errorf("letters = %s", got)
	}
}

// A step takes the configured time, the same for every observer, and fails as configured.
func TestDelayAndFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := newSet(nil)
		n := fakeNode(map[string]any{
			"fake_deploy_delay": "1,5",
			"fake_fail":         map[string]any{"deploy.write_image": "no space", "rescue.rescue": 1.0}})
		var names []string
		for _, s := range set.Steps(n) {
			if s.Priority[node.PhaseDeploy] > 0 {
				names = append(names, s.Name)
			}
		}
		if !slices.Equal(names, []string{"deploy", "write_image", "prepare_instance_boot"}) {
			t.Errorf("steps of a deployment = %v", names)
		}
		s, _ := set.Step(n, "deploy", "deploy")
		c := hardware.Call{Node: n, Begun: time.Now(), ID: "job/0"}
		first, err := s.Run(context.Background(), c)
		if err != nil || first.After < time.Second || first.After > 5*time.Second {
			t.Fatalf("first look: %+v, %v", first, err)
		}
		time.Sleep(500 * time.Millisecond)
		again, _ := newSet(nil).Step(n, "deploy", "deploy")
		if o, err := again.Run(context.Background(), c); err != nil || o.After != first.After-500*time.Millisecond {
			t.Errorf("another process waits for %v, %v, want %v", o.After, err, first.After-500*time.Millisecond)
		}
		time.Sleep(first.After)
		if o, err := s.Run(context.Background(), c); err != nil || o.After != 0 {
			t.Errorf("after its time: %+v, %v", o, err)
		}
		w, _ := set.Step(n, "deploy", "write_image")
		c.Begun = time.Now().Add(-time.Minute)
		if _, err := w.Run(context.Background(), c); err == nil || !strings.Contains(err.Error(), "no space") {
			t.Errorf("write_image = %v, want its failure", err)
		}
		r, _ := set.Step(n, "rescue", "rescue")
		if _, err := r.Run(context.Background(), c); err == nil {
			t.Error("the first rescue worked")
		}
		if _, err := r.Run(context.Background(), c); err != nil {
			t.Errorf("the second rescue: %v", err)
		}
	})
	n := fakeNode(nil)
	for _, s := range newSet(nil).Steps(n) {
		if s.Name == "write_image" {
			t.Error("without delays or failures a deployment has the step write_image")
		}
	}
}

func TestManagement(t *testing.T) {
	ctx, set, n := context.Background(), newSet(nil), fakeNode(nil)
	m := set.Management(n)
	if err := m.SetBootMode(ctx, n, "uefi"); err != nil {
		t.Error(err)
	}
	var invalid *hardware.InvalidError
	if err := m.SetBootMode(ctx, n, "bogus"); !errors.As(err, &invalid) {
		t.Errorf("SetBootMode(bogus) = %v", err)
	}
	var not *hardware.UnsupportedError
	if err := m.InjectNMI(ctx, n); !errors.As(err, &not) ||
		err.Error() != "Driver fake-hardware does not support inject_nmi (disabled or not implemented)." {
		t.Errorf("InjectNMI = %v", err)
	}
	if err := m.SetIndicator(ctx, n, "system", "led", "BLINKING"); err != nil {
		t.Error(err)
	}
	if s, err := m.Indicator(ctx, n, "system", "led"); err != nil || s != "blinking" {
		t.Errorf("Indicator = %s, %v", s, err)
	}
	for _, bad := range [][3]string{{"chassis", "led-0", "off"}, {"x", "led", "on"}, {"system", "x", "on"},
		{"system", "led", "x"}} {
		if err := m.SetIndicator(ctx, n, bad[0], bad[1], bad[2]); !errors.As(err, &invalid) {
			t.Errorf("SetIndicator(%v) = %v", bad, err)
		}
	}
	if err := m.AttachMedia(ctx, n, "cdrom", "http://x/y.iso"); err != nil {
		t.Error(err)
	}
	if list, err := m.VirtualMedia(ctx, n); err != nil || !list[0].Inserted || list[1].Inserted {
		t.Errorf("VirtualMedia = %v, %v", list, err)
	}
	if err := m.DetachMedia(ctx, n, nil); err != nil {
		t.Error(err)
	}
	if list, _ := m.VirtualMedia(ctx, n); list[0].Inserted {
		t.Error("the image is still in the drive")
	}
	n.Interfaces["management"] = "noop"
	if err := set.Management(n).SetBootMode(ctx, n, "uefi"); !errors.As(err, &not) || not.Feature != "set_boot_mode" {
		t.Errorf("SetBootMode of noop = %v", err)
	}
}

func TestVendorAndConsole(t *testing.T) {
	ctx, set, n := context.Background(), newSet(nil),
		fakeNode(map[string]any{"fake_fail": map[string]any{"console.start": "no console today"}})
	v := set.Vendor(n)
	if got, err := v.Call(ctx, n, "third_method_sync", map[string]any{"bar": "meow"}); err != nil || got != true {
		t.Errorf("Call = %v, %v", got, err)
	}
	if got, err := v.Call(ctx, n, "second_method", map[string]any{"bar": "x"}); err != nil || got != false {
		t.Errorf("Call = %v, %v", got, err)
	}
	if err := v.Check(n, "second_method", nil); err == nil ||
		err.Error() != "Parameter 'bar' not passed to method 'second_method'." {
		t.Errorf("Check = %v", err)
	}
	if err := v.Check(n, "no_such", nil); err == nil || err.Error() != "No handler for method no_such" {
		t.Errorf("Check = %v", err)
	}
	if err := set.Console(n).Start(ctx, n); err == nil || err.Error() != "no console today" {
		t.Errorf("Start = %v", err)
	}
	if err := set.Console(fakeNode(nil)).Start(ctx, fakeNode(nil)); err != nil {
		t.Error(err)
	}
	none := &node.Node{
		Driver: "ipmi", Interfaces: map[string]string{"console": "no-console", "vendor": "no-vendor",
			"raid": "no-raid"}}
	if _, err := set.Console(none).Info(ctx, none); err == nil ||
		err.Error() != "Driver ipmi does not support console (disabled or not implemented)." {
		t.Errorf("Info of no-console = %v", err)
	}
	if m, err := set.Vendor(none).Methods(none); err != nil || len(m) != 0 {
		t.Errorf("Methods of no-vendor = %v, %v", m, err)
	}
	if err := set.RAID(none).Check(none, map[string]any{"logical_disks": 1}); err == nil {
		t.Error("no-raid takes a RAID configuration")
	}
	if err := set.RAID(none).Check(none, map[string]any{}); err != nil {
		t.Errorf("no-raid does not let a RAID configuration be cleared: %v", err)
	}
}

func TestFractionSpreads(t *testing.T) {
	low := 0
	for i := range 1000 {
		f := fraction("job/" + string(rune('a'+i%26)) + time.Duration(i).String())
		if f < 0 || f >= 1 {
			t.Fatalf("fraction = %v", f)
		}
		if f < 0.5 {
			low++
		}
	}
	if low < 400 || low > 600 {
		t.Errorf("%d of 1000 fractions are below a half", low)
	}
}
