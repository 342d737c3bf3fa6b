package build

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/test/kit"
)

func TestSourcesOf(t *testing.T) {
	dir := t.TempDir()
	list, deb822 := filepath.Join(dir, "a.list"), filepath.Join(dir, "b.sources")
	for file, text := range map[string]string{
		list: "# deb http://old/debian bookworm main\n" +
			"deb [arch=amd64 signed-by=/k.gpg] http://one/debian bookworm main contrib # ours\n" +
			"deb-src http://one/debian bookworm main\n" +
			"deb http://others/apt sdk-bookworm main\ndeb http://others/docker bookworm stable\n",
		deb822: "Types: deb deb-src\n# a comment\nURIs: http://two/debian\n http://three/debian\nSuites: bookworm bookworm-updates trixie\n" +
			"Components: main non-free\nSigned-By: /usr/share/keyrings/x.gpg\n\n" +
			"Types: deb\nURIs: http://off/debian\nSuites: bookworm\nComponents: main\nEnabled: no\n\n" +
			"Types: deb\nURIs: http://key/debian\nSuites: bookworm-security\nComponents: main\nSigned-By:\n -----BEGIN PGP\n .\n abc\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := sourcesOf([]string{list, deb822}, "bookworm")
	if err != nil {
		t.Fatal(err)
	}
	want := `deb [arch=amd64 signed-by=/k.gpg] http://one/debian bookworm main
deb [signed-by=/usr/share/keyrings/x.gpg] http://three/debian bookworm main
deb [signed-by=/usr/share/keyrings/x.gpg] http://three/debian bookworm-updates main
deb [signed-by=/usr/share/keyrings/x.gpg] http://two/debian bookworm main
deb [signed-by=/usr/share/keyrings/x.gpg] http://two/debian bookworm-updates main
deb http://key/debian bookworm-security main
`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if _, err := sourcesOf([]string{list}, "trixie"); err == nil || !strings.Contains(err.Error(), "name a file") {
		t.Errorf("error = %v", err)
	}
}

func TestPatchGRUBRefuses(t *testing.T) {
	p := partition{start: mib, size: mib}
	jump := make([]byte, sector)
	jump[0x66] = 0xEB
	for name, tc := range map[string]struct{ boot, core []byte }{
		"other boot sector": {make([]byte, sector), make([]byte, 4096)},
		"core too small":    {jump, make([]byte, 100)},
		"core too large":    {jump, make([]byte, 2*mib)},
	} {
		if err := patchGRUB(tc.boot, tc.core, p); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestDebian makes the Debian image and boots it as if deployed: cloud-init takes the config drive, and the root has grown.
func TestDebian(t *testing.T) {
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "apt-get", "mmdebstrap", "mke2fs", "mkfs.vfat", "mcopy", "grub-mkimage", "qemu-system-x86_64", "e2fsck", "sgdisk")
	kit.NeedFiles(t, "grub-pc-bin", grubBoot)
	kit.NeedFiles(t, "grub-efi-amd64-signed", grubEFI)
	kit.NeedFiles(t, "shim-signed", shimEFI)
	dir := t.TempDir()
	o := Options{Out: dir, RootPassword: "secret"}
	r, err := Debian(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", r)
	if again, err := Debian(t.Context(), o); err != nil || !again.Reused {
		t.Errorf("second run = %+v, %v", again, err)
	}
	parts, _ := layout{image: "debian-12", espSize: 62 * mib, rootSize: r.VirtualSize - 65*mib}.parts()
	cfg := filepath.Join(drive(t), "openstack/latest/user_data")
	cfg = filepath.Dir(filepath.Dir(filepath.Dir(cfg)))
	if err := os.WriteFile(filepath.Join(cfg, "openstack/latest/user_data"), []byte(
		"#cloud-config\nruncmd:\n - 'echo \"CHECK $(hostname) root=$(df -m --output=size / | tail -1 | tr -d \" \")M keys=$(wc -l </home/debian/.ssh/authorized_keys) ssh=$(systemctl is-active ssh)\" >/dev/ttyS0'\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	fat := kit.TempDisk(t, 4*mib)
	kit.Run(t, "mkfs.vfat", "-n", "config-2", fat)
	kit.Run(t, "mcopy", "-i", fat, "-s", filepath.Join(cfg, "openstack"), "::/")
	check := regexp.MustCompile(`CHECK (\S+) root=(\d+)M keys=(\d+) ssh=(\S+)`)
	// The tiny image starts by UEFI in the same way; this one does where time is no matter.
	boots := map[string]bool{"BIOS": false}
	if os.Getenv("INGOT_FULL") != "" {
		boots["UEFI"] = true
	}
	for name, uefi := range boots {
		t.Run(name, func(t *testing.T) {
			const grown = 1 << 30
			disk := deployed(t, r.Raw, "debian-12", parts, fat, grown)
			got := check.FindStringSubmatch(kit.Boot(t, kit.VM{
				Disks: []string{disk}, UEFI: uefi, MemoryMiB: 1024, Until: `(?s)CHECK .*login: |login: .*CHECK [^\n]*\n`, Timeout: 15 * time.Minute,
			}))
			if len(got) == 0 || got[1] != "tiny-one" || got[3] != "2" || got[4] != "active" || len(got[2]) < 4 {
				t.Errorf("console says %q", got)
			}
		})
	}
}
