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

// TestDebian makes the Debian image, has ingot-agent write it, and boots the disk: cloud-init takes the config drive,
// and the root has grown. It does so with sectors of 4096 bytes; with those of 512, TestDemo boots it by BIOS,
// TestZeroRebootServer by UEFI, and make test-full by both here.
func TestDebian(t *testing.T) {
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "apt-get", "mmdebstrap", "mke2fs", "mkfs.vfat", "mcopy", "grub-mkimage", "qemu-system-x86_64",
		"qemu-img", "losetup", "sgdisk")
	type boot struct {
		name string
		uefi bool
	}
	boots := map[int][]boot{4096: {{"UEFI, sectors of 4096", true}}}
	if os.Getenv("INGOT_FULL") != "" {
		boots[512] = []boot{{"BIOS", false}, {"UEFI", true}}
	}
	for sector, boots := range boots {
		o := build.Options{Out: t.TempDir(), RootPassword: "secret", Sector: sector}
		r, err := build.Debian(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", r)
		if again, err := build.Debian(t.Context(), o); err != nil || !again.Reused {
			t.Errorf("second run = %+v, %v", again, err)
		}
		for _, b := range boots {
			t.Run(b.name, func(t *testing.T) {
				disk := debianDisk(t, r, sector)
				check := regexp.MustCompile(`CHECK (\S+) root=(\d+)M keys=(\d+) ssh=(\S+)`)
				got := check.FindStringSubmatch(
					bootDebian(t, disk, sector, b.uefi, `(?s)CHECK .*login: |login: .*CHECK [^\n]*\n`))
				if len(got) == 0 || got[1] != "debian-one" || got[3] != "2" || got[4] != "active" || len(got[2]) < 4 {
					t.Errorf("console says %q", got)
				}
			})
		}
	}
}

// debianDisk writes an image onto a larger disk as a user does.
func debianDisk(t *testing.T, r *build.Result, sector int) string {
	t.Helper()
	drive, err := json.Marshal(map[string]any{
		"meta_data": map[string]any{"uuid": "0b0e1f3c-52a5-4a55-9f44-8a4f2a2f6a11", "hostname": "debian-one",
			"name":        "debian",
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
	web := httptest.NewServer(http.FileServer(http.Dir(filepath.Dir(r.Zst))))
	defer web.Close()
	disk := kit.TempDisk(t, r.VirtualSize+1<<30)
	loop := kit.Loop(t, disk, "--direct-io=on", "--sector-size", fmt.Sprint(sector))
	kit.Run(t, made.Program(t, "ingot-agent"), "write", "--image", web.URL+"/"+filepath.Base(r.Zst), "--sha256",
		r.File(r.Zst).SHA256, "--disk", loop, "--yes", "--quiet", "--configdrive", config)
	if out := kit.Run(t, "sgdisk", "-v", loop); !strings.Contains(out, "No problems found") {
		t.Errorf("sgdisk: %s", out)
	}
	return disk
}

func bootDebian(t *testing.T, disk string, sector int, uefi bool, until string) string {
	t.Helper()
	return kit.Boot(t,
		kit.VM{UEFI: uefi, MemoryMiB: 1024, Until: until, Timeout: 15 * time.Minute, Disks: []string{disk},
			Sector: sector})
}
