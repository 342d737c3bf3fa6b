package e2e

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/initramfs/archive"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab"
)

// workloadInit is the first process of a workload that runs from memory: it says on the console what it was given.
const workloadInit = `#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
seed=/var/lib/cloud/seed/config_drive
host=$(tr -d '\n' <$seed/openstack/latest/meta_data.json 2>/dev/null | sed -n 's/.*"hostname" *: *"\([^"]*\)".*/\1/p')
iso=$(dd if=/config-2.iso bs=1 skip=32769 count=5 2>/dev/null)
mode=$(stat -c %a $seed 2>/dev/null)
efi=0
[ -d /sys/firmware/efi ] && efi=1
echo "INGOT-WORKLOAD host=${host:-none} iso=${iso:-none} mode=${mode:-none} efi=$efi up=$(cut -d' ' -f1 /proc/uptime) cmdline=$(cat /proc/cmdline) end" >/dev/console
while :; do sleep 3600; done
`

// workload makes a kernel and an initramfs in dir, which is a folder that the conductor serves.
func (r *rig) workload() (kernel, ramdisk string) {
	r.t.Helper()
	var manifest struct {
		Kernel struct{ File string }
	}
	b, err := os.ReadFile(filepath.Join(r.art.ramdisk, "manifest.json"))
	if err == nil {
		err = json.Unmarshal(b, &manifest)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	kernel, ramdisk = "workload-vmlinuz", "workload.cpio.zst"
	linux, err := os.ReadFile(filepath.Join(r.art.ramdisk, manifest.Kernel.File))
	if err != nil {
		r.t.Fatal(err)
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		r.t.Fatalf("the workload needs busybox (package busybox-static): %v", err)
	}
	a := archive.New()
	for _, err := range []error{a.File("bin/busybox", busybox, 0o755), a.File("init", []byte(workloadInit), 0o755),
		a.Dir("proc", 0o755), a.Dir("sys", 0o755), a.Dir("dev", 0o755), a.CharDev("dev/console", 0o600, 5, 1),
		os.WriteFile(filepath.Join(r.folder, kernel), linux, 0o644)} {
		if err != nil {
			r.t.Fatal(err)
		}
	}
	f, err := os.Create(filepath.Join(r.folder, ramdisk))
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := a.Write(f); err != nil {
		r.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		r.t.Fatal(err)
	}
	return kernel, ramdisk
}

// liveISO makes an ISO image that boots by BIOS and UEFI into a kernel with its initramfs.
func (r *rig) liveISO(kernel, ramdisk string) string {
	r.t.Helper()
	dir := r.t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			r.t.Fatal(err)
		}
		return file
	}
	copied := func(from, to string) {
		b, err := os.ReadFile(from)
		if err != nil {
			r.t.Fatal(err)
		}
		write(to, string(b))
	}
	const serial = "serial --unit=0 --speed=115200\nterminal_output serial\n"
	write("root/boot/grub/grub.cfg", serial+"linux /boot/vmlinuz "+labParams+" from=iso\ninitrd /boot/initrd\nboot\n")
	copied(filepath.Join(r.folder, kernel), "root/boot/vmlinuz")
	copied(filepath.Join(r.folder, ramdisk), "root/boot/initrd")
	early := write("early.cfg",
		serial+"search --file --set=root /boot/grub/grub.cfg\nconfigfile ($root)/boot/grub/grub.cfg\n")
	modules := []string{"iso9660", "linux", "serial", "terminal", "normal", "search", "search_fs_file", "configfile",
		"boot"}
	kit.Run(r.t, "grub-mkimage",
		append([]string{"-O", "i386-pc-eltorito", "-p", "/boot/grub", "-c", early, "-o",
			filepath.Join(dir, "root/boot/bios.img"), "biosdisk"}, modules...)...)
	kit.Run(r.t, "grub-mkimage",
		append([]string{"-O", "x86_64-efi", "-p", "/boot/grub", "-c", early, "-o", filepath.Join(dir, "bootx64.efi"),
			"part_msdos", "part_gpt", "fat"}, modules...)...)
	efi := filepath.Join(dir, "root/boot/efi.img")
	kit.Run(r.t, "mformat", "-C", "-i", efi, "-f", "2880", "::")
	kit.Run(r.t, "mmd", "-i", efi, "::/EFI", "::/EFI/BOOT")
	kit.Run(r.t, "mcopy", "-i", efi, filepath.Join(dir, "bootx64.efi"), "::/EFI/BOOT/BOOTX64.EFI")
	iso := "workload.iso"
	kit.Run(r.t, "genisoimage", "-quiet", "-R", "-o", filepath.Join(r.folder, iso), "-b", "boot/bios.img", "-c",
		"boot/boot.cat", "-no-emul-boot", "-boot-load-size", "4", "-boot-info-table", "-eltorito-alt-boot", "-e",
		"boot/efi.img", "-no-emul-boot", filepath.Join(dir, "root"))
	return iso
}

// saidWorkload waits until the workload has reported its identity after an offset, and returns its output.
func (r *rig) saidWorkload(m *lab.Machine, from int64, host string) string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), bootLimit)
	defer cancel()
	if err := m.WaitConsole(ctx, from, "INGOT-WORKLOAD host="+host+" "); err != nil {
		r.t.Fatalf("the workload does not say host=%s: %v", host, err)
	}
	// the console may be in the middle of the line
	whole := regexp.MustCompile("INGOT-WORKLOAD host=" + regexp.QuoteMeta(host) + " .* end\\b")
	var said string
	kit.Eventually(r.t, bootLimit, "the workload has said all of its line", func() bool {
		said = whole.FindString(console(r.t, m, from))
		return said != ""
	})
	return said
}

// testWorkload runs an ISO image, then a kernel with its initramfs and a config drive, at each start of the machine,
// then the same by kexec from an agent that is there.
func testWorkload(t *testing.T, firmware lab.Firmware, efi string) {
	r := newRig(t, []lab.NodeSpec{{Name: "mem-1", Firmware: firmware, MemoryMiB: 1024, Disks: disk6()}})
	m := r.lab.Node("mem-1")
	kit.NeedPrograms(t, "busybox", "grub-mkimage", "mformat", "genisoimage")
	kernel, ramdisk := r.workload()
	r.enrol(m)
	set := func(ops ...object) { r.t.Helper(); r.must("PATCH", "/v1/nodes/mem-1", ops) }
	put := func(path string, value any) object { return object{"op": "add", "path": path, "value": value} }
	// An ISO image first: its loader gets kernel and initramfs through the firmware.
	set(put("/deploy_interface", "ramdisk"), put("/instance_info", object{"boot_iso": r.liveISO(kernel, ramdisk)}))
	from := m.ConsoleSize()
	r.provision("mem-1", "active", nil)
	r.wait("mem-1", "active", bootLimit)
	if said := r.saidWorkload(m, from, "none"); !strings.Contains(said, " from=iso ") ||
		!strings.Contains(said, " efi="+efi+" ") {
		t.Errorf("the ISO image's system says %q", said)
	}

	set(put("/instance_info",
		object{"kernel": kernel, "ramdisk": ramdisk, "kernel_append_params": labParams + " from=here"}))
	from = m.ConsoleSize()
	r.provision("mem-1", "rebuild", hostname("worker-1"))
	r.wait("mem-1", "active", bootLimit)
	said := r.saidWorkload(m, from, "worker-1")
	for _, want := range []string{" iso=CD001 ", " mode=700 ", " efi=" + efi + " ", " from=here ",
		"BOOTIF=01-" + strings.ReplaceAll(m.MAC, ":", "-")} {
		if !strings.Contains(said, want) {
			t.Errorf("the workload says %q, without %q", said, want)
		}
	}
	// Each start is one of the workload, with the config drive as it is then.
	set(put("/instance_info/kernel_append_params", labParams+" from=there"))
	from = m.ConsoleSize()
	r.must("PUT", "/v1/nodes/mem-1/states/power", object{"target": "rebooting"})
	if said := r.saidWorkload(m, from, "worker-1"); !strings.Contains(said, " from=there ") {
		t.Errorf("after a restart the workload says %q", said)
	}
	if head, err := readAt(m.DiskFile(0), 0, 1<<20); err != nil || !zero(head) {
		t.Errorf("the disk was written (%v)", err)
	}
	kit.Eventually(t, stateLimit, "the restart is over", func() bool {
		return r.must("GET", "/v1/nodes/mem-1", nil)["target_power_state"] == nil
	})

	// The end of the instance; the agent that cleans up stays, and starts the next one without any firmware.
	set(put("/automated_clean", true), put("/driver_info/fast_track", true))
	r.provision("mem-1", "deleted", nil)
	if info, _ := r.wait("mem-1", "available", bootLimit)["instance_info"].(map[string]any); len(info) != 0 {
		t.Errorf("after the end instance_info is %v", info)
	}
	sum := func(file string) string {
		return strings.Fields(kit.Run(t, "sha256sum", filepath.Join(r.folder, file)))[0]
	}
	set(put("/instance_info",
		object{"kernel": kernel, "ramdisk": ramdisk, "kernel_append_params": labParams + " from=agent",
			"kernel_checksum": sum(kernel), "ramdisk_checksum": "sha256:" + sum(ramdisk)}))
	from = m.ConsoleSize()
	starts := m.Starts()
	r.provision("mem-1", "active", hostname("worker-2"))
	r.wait("mem-1", "active", bootLimit)
	said = r.saidWorkload(m, from, "worker-2")
	for _, want := range []string{" iso=CD001 ", " efi=" + efi + " ", " from=agent ",
		"BOOTIF=01-" + strings.ReplaceAll(m.MAC, ":", "-")} {
		if !strings.Contains(said, want) {
			t.Errorf("after kexec the workload says %q, without %q", said, want)
		}
	}
	if strings.Contains(said, "initrd=") || m.Starts() != starts || !m.On() {
		t.Errorf("the workload was not started by kexec alone: the machine was started %d times, %q", m.Starts()-starts,
			said)
	}
	if os.Getenv("INGOT_FULL") == "" {
		return
	}
	// The ISO image, by an agent that is booted for it.
	set(put("/instance_info", object{"boot_iso": "workload.iso", "boot_instance": "kexec"}))
	from, starts = m.ConsoleSize(), m.Starts()
	r.provision("mem-1", "rebuild", nil)
	r.wait("mem-1", "active", bootLimit)
	if said := r.saidWorkload(m, from, "none"); !strings.Contains(said, " from=iso ") || m.Starts() != starts+1 {
		t.Errorf("the ISO image's system says %q; the machine was started %d times, want 1 for the agent", said,
			m.Starts()-starts)
	}
}

// TestWorkload runs a workload from memory; with INGOT_FULL by UEFI too.
func TestWorkload(t *testing.T) {
	t.Parallel()
	t.Run("bios", func(t *testing.T) { testWorkload(t, lab.BIOS, "0") })
	if os.Getenv("INGOT_FULL") != "" {
		t.Run("uefi", func(t *testing.T) { testWorkload(t, lab.UEFI, "1") })
	}
}
