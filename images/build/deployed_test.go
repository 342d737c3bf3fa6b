package build_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/images/build"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// TestDebian makes the Debian image, has ingot-agent write it, and boots the disk: cloud-init takes the config drive, and the root has grown.
func TestDebian(t *testing.T) {
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "apt-get", "mmdebstrap", "mke2fs", "mkfs.vfat", "mcopy", "grub-mkimage", "qemu-system-x86_64", "qemu-img", "losetup", "sgdisk")
	o := build.Options{Out: t.TempDir(), RootPassword: "secret"}
	r, err := build.Debian(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", r)
	if again, err := build.Debian(t.Context(), o); err != nil || !again.Reused {
		t.Errorf("second run = %+v, %v", again, err)
	}
	disk := debianDisk(t, r, 512)
	if out := kit.Run(t, "sgdisk", "-v", disk); !strings.Contains(out, "No problems found") {
		t.Errorf("sgdisk: %s", out)
	}
	t.Run("BIOS", func(t *testing.T) {
		check := regexp.MustCompile(`CHECK (\S+) root=(\d+)M keys=(\d+) ssh=(\S+)`)
		got := check.FindStringSubmatch(bootDebian(t, disk, 512, false, `(?s)CHECK .*login: |login: .*CHECK [^\n]*\n`))
		if len(got) == 0 || got[1] != "debian-one" || got[3] != "2" || got[4] != "active" || len(got[2]) < 4 {
			t.Errorf("console says %q", got)
		}
	})
	t.Run("UEFI", func(t *testing.T) { bootDebian(t, disk, 512, true, "debian-one login:") })
	t.Run("UEFI, sectors of 4096", func(t *testing.T) {
		r, err := build.Debian(t.Context(), build.Options{Out: t.TempDir(), Sector: 4096})
		if err != nil {
			t.Fatal(err)
		}
		bootDebian(t, debianDisk(t, r, 4096), 4096, true, "debian-one login:")
	})
}

// debianDisk writes an image onto a larger disk as a user does.
func debianDisk(t *testing.T, r *build.Result, sector int) string {
	t.Helper()
	dir := t.TempDir()
	kit.Run(t, "qemu-img", "convert", "-O", "qcow2", "-c", "-W", "-o", "compression_type=zstd", r.Raw, filepath.Join(dir, "image.qcow2"))
	sum, _, _ := strings.Cut(kit.Run(t, "sha256sum", filepath.Join(dir, "image.qcow2")), " ")
	drive, err := json.Marshal(map[string]any{
		"meta_data": map[string]any{"uuid": "0b0e1f3c-52a5-4a55-9f44-8a4f2a2f6a11", "hostname": "debian-one", "name": "debian",
			"public_keys": map[string]string{"a": "ssh-ed25519 AAAAC3Nz one", "b": "ssh-rsa AAAAB3Nz two"}},
		"user_data": "#cloud-config\nruncmd:\n - 'echo \"CHECK $(hostname) root=$(df -m --output=size / | tail -1 | tr -d \" \")M " +
			"keys=$(wc -l </home/debian/.ssh/authorized_keys) ssh=$(systemctl is-active ssh)\" >/dev/ttyS0'\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "drive.json")
	if err := os.WriteFile(config, drive, 0o600); err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer web.Close()
	disk := kit.TempDisk(t, r.VirtualSize+1<<30)
	loop := kit.Loop(t, disk, "--direct-io=on", "--sector-size", fmt.Sprint(sector))
	kit.Run(t, made.Program(t, "ingot-agent"), "write", "--image", web.URL+"/image.qcow2", "--sha256", sum, "--disk", loop, "--yes", "--quiet", "--configdrive", config)
	return disk
}

func bootDebian(t *testing.T, disk string, sector int, uefi bool, until string) string {
	t.Helper()
	return kit.Boot(t, kit.VM{UEFI: uefi, MemoryMiB: 1024, Until: until, Timeout: 15 * time.Minute, Disks: []string{disk}, Sector: sector})
}
