package pid1

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, s string
		want       bool
	}{
		{"virtio:d00000001v*", "virtio:d00000001v00001AF4", true},
		{"virtio:d00000001v*", "virtio:d00000002v00001AF4", false},
		{"pci:v00008086d000010D3sv*sd*bc*sc*i*", "pci:v00008086d000010D3sv00008086sd00000000bc02sc00i00", true},
		{"pci:v*d*sv*sd*bc01sc08i02*", "pci:v00001B36d00000010sv00001AF4sd00001100bc01sc08i02", true},
		{"pci:v*d*sv*sd*bc01sc06i01*", "pci:v00001B36d00000010sv00001AF4sd00001100bc01sc08i02", false},
		{"acpi*:IPI0001:*", "acpi:IPI0001:", true},
		{"usb:v*p*d*dc*dsc*dp*ic08isc06ip50in*", "usb:v46F4p0001d0000dc00dsc00dp00ic08isc06ip50in00", true},
		{"scsi:t-0x00*", "scsi:t-0x00", true},
		{"dmi*:[bs]vn*:pn[A-Z]?x:*", "dmi:svnQEMU:pnQ3x:rest", true},
		{"dmi*:[bs]vn*:pn[A-Z]?x:*", "dmi:svnQEMU:pn3Qx:rest", false},
		{"a*b*c", "aXbXbYc", true},
		{"a*b*c", "aXbXbYd", false},
		{"platform:x/y*", "platform:x/yz/w", true},
		{"", "", true},
		{"*", "", true},
		{"[", "[", false},
	} {
		if got := glob(c.pattern, c.s); got != c.want {
			t.Errorf("glob(%q, %q) = %v, want %v", c.pattern, c.s, got, c.want)
		}
	}
}

func FuzzGlob(f *testing.F) {
	f.Add("pci:v*d[0-9]?*", "pci:v1d22")
	f.Add("[a-]*[", "a")
	f.Fuzz(func(t *testing.T, p, s string) { glob(p, s) })
}

// index writes a module index as depmod would.
func index(t *testing.T) *Modules {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"modules.dep": "kernel/drivers/virtio/virtio.ko:\n" +
			"kernel/drivers/net/virtio_net.ko: kernel/drivers/virtio/virtio.ko\n" +
			"kernel/fs/fat/vfat.ko: kernel/fs/fat/fat.ko\nkernel/fs/fat/fat.ko:\nkernel/fs/nls/nls_cp437.ko:\n" +
			"kernel/lib/crc32c-intel.ko:\n",
		"modules.alias": "# Aliases extracted from modules themselves.\nalias virtio:d00000001v* virtio_net\nalias fs-vfat vfat\n" +
			"alias acpi*:IPI0001:* ipmi_si\nalias crc32c crc32c-intel\n",
		"modules.softdep": "# soft\nsoftdep vfat pre: nls-cp437 absent post: fat\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m, err := readModules(dir)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestModules(t *testing.T) {
	m := index(t)
	for name, want := range map[string][]string{
		"virtio:d00000001v00001AF4": {"virtio_net"},
		"virtio:d00000009v00001AF4": nil,
		"acpi:IPI0001:":             {"ipmi_si"},
		"fs-vfat":                   {"vfat"},
		"nls_cp437":                 {"nls_cp437"},
		"crc32c":                    {"crc32c_intel"},
	} {
		if got := m.Match(name); !slices.Equal(got, want) {
			t.Errorf("Match(%s) = %v, want %v", name, got, want)
		}
	}
	var loaded []string
	m.probe = func(name string) error { loaded = append(loaded, name); return nil }
	if _, err := m.LoadFor("fs-vfat"); err != nil {
		t.Error(err)
	}
	_ = m.Load("vfat")
	if want := []string{"nls_cp437", "vfat"}; !slices.Equal(loaded, want) {
		t.Errorf("loaded %v, want %v: soft dependencies first, and once", loaded, want)
	}
	if err := m.Load("nouveau"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Load of a module that is not there = %v", err)
	}
	m = index(t)
	m.probe = func(string) error { return unix.ENODEV }
	if _, err := m.LoadFor("fs-vfat"); err != nil {
		t.Errorf("a driver that finds nothing is an error: %v", err)
	}
}

func TestNoModules(t *testing.T) {
	m, err := OpenModules(t.TempDir())
	if err != nil || len(m.Match("fs-vfat")) != 0 {
		t.Errorf("a ramdisk without modules: %v", err)
	}
	if err := m.Load("x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Load = %v", err)
	}
}

func TestParseUevent(t *testing.T) {
	u := parseUevent([]byte("add@/devices/x\x00ACTION=add\x00SUBSYSTEM=block\x00MODALIAS=a=b\x00"))
	if u["ACTION"] != "add" || u["MODALIAS"] != "a=b" || u["SUBSYSTEM"] != "block" {
		t.Errorf("parseUevent = %v", u)
	}
}

func TestPowerButton(t *testing.T) {
	msg := make([]byte, 16+4+4)
	msg = append(msg, "button/power\x00\x00\x00\x00\x00\x00\x00\x00LNXPWRBN:00\x00"...)
	if !isPowerButton(msg) {
		t.Error("a power button event is not recognised")
	}
	if isPowerButton(msg[:30]) ||
		isPowerButton(append(make([]byte, 24), "ac_adapter\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"...)) {
		t.Error("another event passes for the power button")
	}
}
