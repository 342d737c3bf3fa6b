package machine

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/kexec"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit"
)

// kernelSays is what a kernel prints on a console that is to be quiet: errors.
var kernelSays = regexp.MustCompile(`(?m)^\[ *\d+\.\d+\] (.*?)\r?$`)

// TestKexec writes the tiny image, loads its kernel from the disk and jumps: the system comes up without firmware (QEMU ends at a reset),
// with its network, and its kernel complains of nothing that it does not complain of after a cold boot from the same disk.
func TestKexec(t *testing.T) {
	for _, uefi := range []bool{false, true} {
		t.Run(map[bool]string{false: "bios", true: "uefi"}[uefi], func(t *testing.T) {
			kit.NeedPrograms(t, "qemu-system-x86_64")
			art, err := shared()
			if err != nil {
				t.Fatal(err)
			}
			files := httptest.NewServer(http.FileServer(http.Dir(art.images)))
			defer files.Close()
			args, err := json.Marshal(map[string]any{
				"image_source": "http://" + host(files.Listener.Addr().String()) + "/" + art.tiny.File, "image_os_hash_algo": "sha256",
				"image_os_hash_value": art.tiny.SHA256,
			})
			if err != nil {
				t.Fatal(err)
			}
			d := newDesk(t, plan("deploy-1", node.PhaseDeploy, node.PlanStep{Interface: "deploy", Name: "write_image", Args: args},
				node.PlanStep{Interface: "deploy", Name: "prepare_instance_boot"},
				node.PlanStep{Interface: "deploy", Name: "load_kernel", Args: json.RawMessage(`{"kernel_append_params":"ingot.test=1"}`)}))
			d.last = func() error { return d.srv.Kexec(context.Background(), d.node.UUID, time.Second) }
			target := kit.TempDisk(t, 5<<30)
			nic := []string{"-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0,mac=52:54:00:aa:00:01"}
			const up = `INGOT-TINY-NET`
			console := kit.Boot(t, kit.VM{
				Kernel: filepath.Join(art.ramdisk, "vmlinuz"), Initrd: filepath.Join(art.ramdisk, "initramfs.cpio.zst"), Append: d.cmdline(),
				UEFI: uefi, Disks: []string{target}, Timeout: bootLimit + osLimit, Args: nic, Until: up,
			})
			var r kexec.Result
			d.result("load_kernel", &r)
			if !r.Loaded || r.From != "grub.cfg" || !strings.HasPrefix(r.Cmdline, "BOOT_IMAGE=/boot/vmlinuz root=UUID=") || !strings.HasSuffix(r.Cmdline, " ingot.test=1") ||
				len(r.Initrd) != 1 || r.Bytes < 10<<20 {
				t.Errorf("load_kernel = %+v", r)
			}
			t.Logf("%d bytes were loaded in %d ms", r.Bytes, r.TookMS)
			const jump = "ingot: the agent: jump into the loaded kernel"
			_, after, ok := strings.Cut(console, jump)
			if !ok {
				t.Fatalf("the console does not say %q:\n%s", jump, console)
			}
			if !strings.Contains(after, "boots=1") || strings.Contains(after, "root=none") || uefi != strings.Contains(after, "efi=1") {
				t.Errorf("the system that was started by kexec says:\n%s", after)
			}
			cold := kit.Boot(t, kit.VM{UEFI: uefi, Disks: []string{target}, Until: up, Timeout: osLimit, Args: nic})
			usual := map[string]bool{}
			for _, m := range kernelSays.FindAllStringSubmatch(cold, -1) {
				usual[m[1]] = true
			}
			whole := after[:strings.LastIndexByte(after, '\n')+1] // the machine was ended in the middle of a line
			for _, m := range kernelSays.FindAllStringSubmatch(whole, -1) {
				if !usual[m[1]] && !kit.OfSlowness(m[1]) {
					t.Errorf("the kernel complains only after kexec: %s", m[1])
				}
			}
			if !strings.Contains(cold, "boots=2") {
				t.Errorf("the disk, started by the firmware, says:\n%s", cold)
			}
		})
	}
}

// TestKexecLocked installs on a machine whose kernel is locked down as under Secure Boot: a kernel whose signature is not trusted is not loaded,
// and the result says what stands in the way. The deployment is done all the same.
func TestKexecLocked(t *testing.T) {
	kit.NeedPrograms(t, "qemu-system-x86_64")
	art, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	files := httptest.NewServer(http.FileServer(http.Dir(art.images)))
	defer files.Close()
	args, err := json.Marshal(map[string]any{
		"image_source": "http://" + host(files.Listener.Addr().String()) + "/" + art.tiny.File, "image_os_hash_algo": "sha256", "image_os_hash_value": art.tiny.SHA256,
	})
	if err != nil {
		t.Fatal(err)
	}
	d := newDesk(t, plan("deploy-1", node.PhaseDeploy, node.PlanStep{Interface: "deploy", Name: "write_image", Args: args},
		node.PlanStep{Interface: "deploy", Name: "prepare_instance_boot"}, node.PlanStep{Interface: "deploy", Name: "load_kernel"}))
	console := kit.Boot(t, kit.VM{
		Kernel: filepath.Join(art.ramdisk, "vmlinuz"), Initrd: filepath.Join(art.ramdisk, "initramfs.cpio.zst"), Append: d.cmdline() + " lockdown=integrity",
		Disks: []string{kit.TempDisk(t, 5<<30)}, Timeout: bootLimit,
		Args: []string{"-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0,mac=52:54:00:aa:00:01"},
	})
	var r kexec.Result
	d.result("load_kernel", &r)
	// The lab's firmware has no keys, so that the agent's kernel trusts none but those it was built with.
	if r.Loaded || !strings.Contains(r.Reason, "the agent's kernel is locked down") || !strings.Contains(r.Reason, "its signature") || r.Kernel == "" {
		t.Errorf("load_kernel = %+v", r)
	}
	if !strings.Contains(console, "the conductor ends this boot: off") {
		t.Errorf("the console:\n%s", console)
	}
}
