package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	ramdisk "github.com/ingot-metal/ingot/initramfs/build"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/tools/lab"
)

// TestServerProfile discovers and cleans a machine that looks like a server, with the ramdisk for servers:
// distribution kernel, SATA and NVMe disks with world-wide names, Intel network card, controller reached from inside
// over KCS. It burns the machine in, makes an array of its disks, and deploys onto that, by the agent that is still
// there.
func TestServerProfile(t *testing.T) {
	t.Parallel()
	dir := made.Ramdisk(t, made.RamdiskServer)
	manifest, err := ramdisk.ReadManifest(dir)
	if err != nil {
		t.Fatal(err)
	}
	if size := manifest.Initramfs.Size; size > 40<<20 {
		t.Errorf("the server ramdisk has %d bytes, the goal is 40 MiB", size)
	}
	r := newRig(t, []lab.NodeSpec{
		{Name: "srv", MemoryMiB: 1024, NICs: []lab.NICSpec{{Model: "e1000"}}, Disks: []lab.DiskSpec{
			{SizeBytes: 6 << 30, Bus: "sata", Serial: "SATA-1", WWN: "5000c500a1b2c3d4"},
			{SizeBytes: 5 << 30, Bus: "nvme", Serial: "NVME-1"},
		}}}, set("netboot.ramdisk_dir", dir), set("netboot.kernel_params", labParams+" ingot.shell=1"),
		set("discovery.enabled", true), set("discovery.driver", "ipmi"),
		set("discovery.interfaces", []string{"network=noop"}))
	m := r.lab.Node("srv")
	from := m.ConsoleSize()
	keys := m.Attach()
	defer keys.Close()
	inv := r.discover(m, "srv", func() { // its shell is tried while the agent goes on
		ctx, cancel := context.WithTimeout(t.Context(), bootLimit)
		defer cancel()
		if err := m.WaitConsole(ctx, from, "$ "); err != nil {
			t.Errorf("no shell on the console, although the boot parameters open it: %v", err)
		}
		answers := func() error {
			keys.Write([]byte(sum))
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			return m.WaitConsole(ctx, from, "OK2")
		}
		for err := answers(); err != nil; err = answers() { // typed before it listens, or in the midst of its prompt
			if ctx.Err() != nil {
				t.Fatalf("the shell on the console does not work: %v", err)
			}
		}
	})
	found := map[string]object{}
	for _, d := range inv["disks"].([]any) {
		o := object(d.(map[string]any))
		found[o.str("serial")] = o
	}
	sata, nvme := found["SATA-1"], found["NVME-1"]
	if sata == nil || nvme == nil {
		t.Fatalf("disks = %v, want SATA-1 and NVME-1", inv["disks"])
	}
	if !strings.Contains(sata.str("wwn"), "5000c500a1b2c3d4") || sata.str("hctl") == "" ||
		!strings.Contains(sata.str("by_path"), "ata") {
		t.Errorf("SATA disk = %v, want its wwn, hctl and by_path", sata)
	}
	if len(found) != 2 {
		t.Errorf("disks = %v, want two", inv["disks"])
	}
	nics := inv["interfaces"].([]any)
	if len(nics) != 1 || nics[0].(map[string]any)["mac_address"] != m.MAC ||
		nics[0].(map[string]any)["has_carrier"] != true {
		t.Errorf("interfaces = %v", nics)
	}

	// The same ramdisk, without the boot parameter: typed text is never read.
	ctx, cancel := context.WithTimeout(t.Context(), bootLimit)
	defer cancel()
	if err := r.con.Terminate(ctx); err != nil {
		t.Fatal(err)
	}
	r.configure(set("netboot.kernel_params", labParams))
	if err := r.con.Start(ctx); err != nil {
		t.Fatal(err)
	}
	r.provision("srv", "manage", nil)
	r.wait("srv", "manageable", stateLimit)
	r.must("PATCH", "/v1/nodes/srv", []object{{"op": "add", "path": "/raid_interface", "value": "agent"},
		{"op": "add", "path": "/driver_info/fast_track", "value": true}})
	from = m.ConsoleSize()
	r.must("PUT", "/v1/nodes/srv/states/raid",
		object{"logical_disks": []object{
			{"raid_level": "1", "size_gb": "MAX", "is_root_volume": true, "controller": "software"}}})
	r.provision("srv", "clean", object{"clean_steps": []object{
		{"interface": "deploy", "step": "burnin_cpu", "args": object{"runtime": 0}},
		{"interface": "deploy", "step": "burnin_memory", "args": object{"runtime": 0, "max_mib": 64}},
		{"interface": "deploy", "step": "burnin_disk",
			"args": object{"loops": 1, "sequential_mib": 64, "random_reads": 64, "destructive": true}},
		{"interface": "deploy", "step": "erase_devices_metadata"},
		{"interface": "raid", "step": "create_configuration"},
	}})
	if err := m.WaitConsole(ctx, from, "ingot: agent "); err != nil {
		t.Fatal(err)
	}
	typed := 0
	state := func() string { return r.must("GET", "/v1/nodes/srv", nil).str("provision_state") }
	for s := state(); s == "cleaning" || s == "clean wait"; s = state() {
		keys.Write([]byte("\r" + sum))
		typed++
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("cleaning takes too long")
		}
	}
	r.wait("srv", "manageable", bootLimit)
	if n := m.Starts(); n != 2 || !m.On() {
		t.Errorf("the machine was started %d times, want 2: for its discovery, and for its cleaning", n)
	}
	if said := console(t, m, from); strings.Contains(said, "OK2") || strings.Contains(said, "Enter for a shell") {
		t.Errorf("a shell answers on the console, although the boot parameters don't open it:\n%s", said)
	}
	t.Logf("typed at the closed console %d times", typed)
	r.measured("srv")
	r.deployArray(m)
}

// measured checks what burn-in measured of the machine's parts.
func (r *rig) measured(name string) {
	results := map[string]object{}
	for _, j := range r.must("GET", "/ingot/v1/nodes/"+name+"/steps", nil)["past"].([]any) {
		for _, s := range j.(map[string]any)["steps"].([]any) {
			o := object(s.(map[string]any))
			if res, ok := o["result"].(map[string]any); ok {
				results[o.str("step")] = res
			}
		}
	}
	if p, ok := results["burnin_cpu"]["cores"].([]any); !ok || len(p) != 1 {
		r.t.Errorf("burnin_cpu says %v, want one core", results["burnin_cpu"])
	}
	if results["burnin_memory"] == nil {
		r.t.Errorf("burnin_memory has no result: %v", results)
	}
	if d, ok := results["burnin_disk"]["disks"].([]any); !ok || len(d) != 2 {
		r.t.Errorf("burnin_disk says %v, want two disks", results["burnin_disk"])
	}
}

// deployArray puts a system onto the array that cleaning has made of the machine's two disks, and starts it.
func (r *rig) deployArray(m *lab.Machine) {
	name := m.Spec.Name
	n := r.must("GET", "/v1/nodes/"+name, nil)
	made, _ := n["raid_config"].(map[string]any)
	disks, _ := made["logical_disks"].([]any)
	root, _ := n["properties"].(map[string]any)["root_device"].(map[string]any)
	if len(disks) != 1 || root["serial"] == nil || disks[0].(map[string]any)["uuid"] != root["serial"] {
		r.t.Fatalf("raid_config = %v, root_device = %v; want one array, which is the root device", made, root)
	}
	r.must("PATCH", "/v1/nodes/"+name, []object{{"op": "add", "path": "/automated_clean", "value": false}})
	r.provision(name, "provide", nil)
	r.wait(name, "available", stateLimit)
	r.source(name, r.ours(r.art.tiny), r.art.tiny.sha256)
	from := m.ConsoleSize()
	r.provision(name, "active", hostname("array-1"))
	r.wait(name, "active", bootLimit)
	if n := m.Starts(); n != 3 {
		r.t.Errorf("the machine was started %d times, want 3: the agent that made the array was kept", n)
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), osLimit)
	defer cancel()
	// The tiny system's kernel has no driver for SATA: it finds the NVMe disk alone.
	if err := m.WaitConsole(ctx, from, "raid=raid1"); err != nil {
		r.t.Errorf("the system on the array does not start: %v", err)
	}
	if said := console(r.t, m, from); !strings.Contains(said, "host=array-1") ||
		!strings.Contains(said, "root=/dev/md0p") {
		r.t.Errorf("the system on the array says:\n%s", said)
	}
}

// sum is typed at a shell, which answers OK2; a console that only echoes the input does not.
const sum = "echo OK$((1+1))\r"
