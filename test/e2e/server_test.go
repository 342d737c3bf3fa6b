package e2e

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ramdisk "github.com/ingot-metal/ingot/initramfs/build"
	"github.com/ingot-metal/ingot/tools/lab"
)

// TestServerProfile inspects and cleans a machine that looks like a server, with the ramdisk for servers: distribution kernel, SATA and
// NVMe disks with world-wide names, Intel network card, controller reached from inside over KCS.
func TestServerProfile(t *testing.T) {
	art, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(filepath.Dir(art.ramdisk), "ramdisk-server")
	report, err := ramdisk.Build(t.Context(), ramdisk.Options{Profile: "server", Out: dir})
	if err != nil {
		t.Fatal(err)
	}
	if size := report.Manifest.Initramfs.Size; size > 40<<20 {
		t.Errorf("the server ramdisk has %d bytes, the goal is 40 MiB", size)
	}
	r := newRig(t, []lab.NodeSpec{{Name: "srv", MemoryMiB: 1024, NICs: []lab.NICSpec{{Model: "e1000"}}, Disks: []lab.DiskSpec{
		{SizeBytes: 6 << 30, Bus: "sata", Serial: "SATA-1", WWN: "5000c500a1b2c3d4"},
		{SizeBytes: 5 << 30, Bus: "nvme", Serial: "NVME-1"},
	}}}, set("netboot.ramdisk_dir", dir), set("netboot.kernel_params", "console=ttyS0,115200n8 ingot.shell=1"))
	m := r.lab.Node("srv")
	r.must("POST", "/v1/nodes", object{"name": "srv", "driver": "ipmi", "driver_info": controller(m)})
	r.provision("srv", "manage", nil)
	r.wait("srv", "manageable", time.Minute)
	from := m.ConsoleSize()
	r.provision("srv", "inspect", nil)
	ctx, cancel := context.WithTimeout(t.Context(), bootLimit)
	defer cancel()
	if err := m.WaitConsole(ctx, from, "$ "); err != nil {
		t.Errorf("no shell on the console, although the boot parameters open it: %v", err)
	}
	keys := m.Attach()
	defer keys.Close()
	keys.Write([]byte(sum))
	if err := m.WaitConsole(ctx, from, "OK2"); err != nil {
		t.Errorf("the shell on the console does not work: %v", err)
	}
	r.wait("srv", "manageable", bootLimit)

	inv := r.must("GET", "/v1/nodes/srv/inventory", nil)["inventory"].(map[string]any)
	if inv["bmc_address"] != m.BMCAddress {
		t.Errorf("bmc_address = %v, want %s", inv["bmc_address"], m.BMCAddress)
	}
	found := map[string]object{}
	for _, d := range inv["disks"].([]any) {
		o := object(d.(map[string]any))
		found[o.str("serial")] = o
	}
	sata, nvme := found["SATA-1"], found["NVME-1"]
	if sata == nil || nvme == nil {
		t.Fatalf("disks = %v, want SATA-1 and NVME-1", inv["disks"])
	}
	if !strings.Contains(sata.str("wwn"), "5000c500a1b2c3d4") || sata.str("hctl") == "" || !strings.Contains(sata.str("by_path"), "ata") {
		t.Errorf("SATA disk = %v, want its wwn, hctl and by_path", sata)
	}
	nics := inv["interfaces"].([]any)
	if len(nics) != 1 || nics[0].(map[string]any)["mac_address"] != m.MAC || nics[0].(map[string]any)["has_carrier"] != true {
		t.Errorf("interfaces = %v", nics)
	}

	// The same ramdisk, without the boot parameter: whatever is typed, whenever, nobody reads it.
	ctx, cancel = context.WithTimeout(t.Context(), bootLimit)
	defer cancel()
	if err := r.con.Terminate(ctx); err != nil {
		t.Fatal(err)
	}
	r.configure(set("netboot.kernel_params", "console=ttyS0,115200n8"))
	if err := r.con.Start(ctx); err != nil {
		t.Fatal(err)
	}
	from = m.ConsoleSize()
	r.provision("srv", "provide", nil)
	if err := m.WaitConsole(ctx, from, "ingot: agent "); err != nil {
		t.Fatal(err)
	}
	typed := 0
	for m.On() {
		keys.Write([]byte("\r" + sum))
		typed++
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("cleaning takes too long")
		}
	}
	r.wait("srv", "available", bootLimit)
	if said := console(t, m, from); strings.Contains(said, "OK2") || strings.Contains(said, "Enter for a shell") {
		t.Errorf("a shell answers on the console, although the boot parameters don't open it:\n%s", said)
	}
	t.Logf("typed at the closed console %d times", typed)
}

// sum is typed at a shell, which answers OK2; a console that only shows what is typed does not.
const sum = "echo OK$((1+1))\r"
