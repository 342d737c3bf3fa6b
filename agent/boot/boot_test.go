package boot

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/images/fs/fat"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/u-root/u-root/pkg/efivarfs"
	"golang.org/x/sys/unix"
)

var espPart = disk.Partition{Number: 2, Type: disk.TypeESP, GUID: "00112233-4455-6677-8899-AABBCCDDEEFF",
	StartLBA: 0x1000, Sectors: 0x1f000, Start: 0x1000 * 512, Size: 0x1f000 * 512}

// debianEntry is the load option as efibootmgr writes it, taken apart by the UEFI specification.
const debianEntry = "01000000" + "6200" + // active; 98 bytes of device path
	"6400650062006900 61006e000000" + // "debian"
	"04012a00" + "02000000" + "0010000000000000" + "00f0010000000000" + // HD(2, ..., 0x1000, 0x1f000)
	"33221100554477668899aabbccddeeff" + "0202" +
	"04043400" + "5c00450046004900 5c00640065006200690061006e00 5c007300680069006d007800360034002e006500660069000000" +
	"7fff0400"

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestLoadOption(t *testing.T) {
	got, err := loadOption("debian", `\EFI\debian\shimx64.efi`, espPart, 0)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(hex.EncodeToString(unhex(t, debianEntry)), hex.EncodeToString(got)); diff != "" {
		t.Error(diff)
	}
	if d := description(got); d != "debian" {
		t.Errorf("description = %q", d)
	}
	if _, err := loadOption("x", "", espPart, 0); err == nil {
		t.Error("an empty path passes")
	}
	if _, err := loadOption("x", `\a`, disk.Partition{GUID: "no"}, 0); err == nil {
		t.Error("a partition without GUID passes")
	}
}

// nvram is a firmware in memory.
type nvram struct {
	t   *testing.T
	efi *fake.Variables
}

func newNVRAM(t *testing.T) *nvram { return &nvram{t, &fake.Variables{}} }

func (n *nvram) vars() vars { return vars{n.efi} }

func (n *nvram) put(name string, value []byte) {
	n.t.Helper()
	if err := n.efi.Set(global(name), bootAttributes, value); err != nil {
		n.t.Fatal(err)
	}
}

func (n *nvram) order() (out []uint16) {
	n.t.Helper()
	b, err := n.vars().read("BootOrder")
	if err != nil {
		n.t.Fatal(err)
	}
	for ; len(b) >= 2; b = b[2:] {
		out = append(out, binary.LittleEndian.Uint16(b))
	}
	return out
}

func TestInstall(t *testing.T) {
	pxe := append(unhex(t, "010000000400"), append(utf16z("UEFI PXEv4"), 0x7f, 0xff, 4, 0)...)
	debian := unhex(t, debianEntry)
	n := newNVRAM(t)
	n.put("Boot0000", pxe)
	n.put("Boot0002", debian)
	n.put("Boot0007", debian)
	n.put("BootOrder", []byte{0, 0, 2, 0, 7, 0, 1, 0}) // 1 is named but hidden
	n.put("Timeout", []byte{5, 0})
	// A variable of a vendor's with the name of a boot entry.
	foreign := efivarfs.VariableDescriptor{Name: "Boot0003", GUID: uuid.MustParse(espPart.GUID)}
	if err := n.efi.Set(foreign, bootAttributes, debian); err != nil {
		t.Fatal(err)
	}
	num, err := n.vars().install("debian", debian)
	if err != nil {
		t.Fatal(err)
	}
	if want := []uint16{2, 0, 1}; num != 2 || fmt.Sprint(n.order()) != fmt.Sprint(want) {
		t.Errorf("entry %d, order %v, want 2, %v", num, n.order(), want)
	}
	all, err := n.vars().entries()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 || string(all[2]) != string(debian) {
		t.Errorf("entries: %d, want PXE and the new one", len(all))
	}
	// The same again changes nothing.
	if num, err = n.vars().install("debian", debian); err != nil || num != 2 || len(n.order()) != 3 {
		t.Errorf("again: %d %v %v", num, n.order(), err)
	}
	// An empty NVRAM.
	n = newNVRAM(t)
	if num, err := n.vars().install("debian", debian); err != nil || num != 0 || fmt.Sprint(n.order()) != "[0]" {
		t.Errorf("empty: %d %v %v", num, n.order(), err)
	}
}

func TestFirmwareThatForgets(t *testing.T) {
	n := newNVRAM(t)
	n.efi.Forgets = true
	if err := n.vars().write("Boot0000", []byte{1, 2}); err == nil {
		t.Error("a variable that does not read back passes")
	}
	if r := remedy(fmt.Errorf("x: %w", unix.ENOSPC)); !strings.Contains(r, "full") {
		t.Errorf("remedy for a full NVRAM: %s", r)
	}
}

// espImage makes a FAT file system of so many MiB with mtools, from paths to contents.
func espImage(t *testing.T, mib int, format []string, files map[string]string) *fat.FS {
	t.Helper()
	kit.NeedPrograms(t, "mformat", "mmd", "mcopy")
	img := kit.TempDisk(t, int64(mib)<<20)
	kit.Run(t, "mformat", append(append([]string{"-i", img}, format...), "::")...)
	made := map[string]bool{}
	for path, text := range files {
		dir := ""
		parts := strings.Split(path, "/")
		for _, p := range parts[:len(parts)-1] {
			dir += "/" + p
			if !made[dir] {
				made[dir] = true
				kit.Run(t, "mmd", "-i", img, "::"+dir)
			}
		}
		src := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(src, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		kit.Run(t, "mcopy", "-i", img, src, "::/"+path)
	}
	f, err := os.Open(img)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	fs, err := fat.Open(f, int64(mib)<<20)
	if err != nil {
		t.Fatal(err)
	}
	return fs
}

func csv(s string) string {
	b := []byte{0xff, 0xfe}
	for _, u := range utf16.Encode([]rune(s)) {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return string(b)
}

func TestFindLoader(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 20000) // several clusters
	for name, c := range map[string]struct {
		mib      int
		format   []string
		bits     int
		files    map[string]string
		want     loader
		fallback bool
		err      error
	}{
		"BOOTX64.CSV, FAT16": {62, nil, 16, map[string]string{
			"EFI/debian/shimx64.efi": big, "EFI/debian/grubx64.efi": "g", "EFI/BOOT/BOOTX64.EFI": "b",
			"EFI/debian/BOOTX64.CSV": csv("shimx64.efi,Debian GNU/Linux,,This is the boot entry for Debian\n"),
		}, loader{`\EFI\debian\shimx64.efi`, "Debian GNU/Linux"}, true, nil},
		"names, FAT32": {300, []string{"-F"}, 32, map[string]string{
			"EFI/a long folder name/grubx64.efi": "g", "EFI/a long folder name/other.efi": "o",
		}, loader{`\EFI\a long folder name\grubx64.efi`, "a long folder name"}, false, nil},
		"CSV names a file that is not there, FAT12": {2, nil, 12, map[string]string{
			"EFI/x/BOOTX64.CSV": csv("gone.efi,x"), "EFI/BOOT/bootx64.efi": "b",
		}, loader{`\EFI\BOOT\bootx64.efi`, "Ingot"}, true, nil},
		"nothing": {4, nil, 12, map[string]string{"README.TXT": "r"}, loader{}, false, errNoLoader},
	} {
		t.Run(name, func(t *testing.T) {
			fs := espImage(t, c.mib, c.format, c.files)
			if fs.Bits() != c.bits {
				t.Errorf("FAT%d, want %d", fs.Bits(), c.bits)
			}
			got, fallback, err := findLoader(fs, archs["amd64"])
			if got.path != c.want.path && !strings.EqualFold(got.path, c.want.path) || got.label != c.want.label ||
				fallback != c.fallback || !errors.Is(err, c.err) {
				t.Errorf("findLoader = %+v, %v, %v, want %+v, %v, %v", got, fallback, err, c.want, c.fallback, c.err)
			}
		})
	}
}

func TestDecodeUTF16(t *testing.T) {
	for in, want := range map[string]string{
		"\xff\xfea\x00b\x00": "ab", "\xfe\xff\x00a\x00b": "ab", "a\x00b\x00": "ab", "plain,text": "plain,text",
		"\xff\xfe": "", "": "",
	} {
		if got := decodeUTF16([]byte(in)); got != want {
			t.Errorf("decodeUTF16(%q) = %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{" a\x1b[31mb\n": "a[31mb", "a\u009b31mb": "a31mb", "\u202ea": "a",
		"\u0080 \u0080": "", "Débian 12": "Débian 12"} {
		if got := cleanLabel(in); got != want {
			t.Errorf("cleanLabel(%q) = %q, want %q", in, got, want)
		}
	}
}

// memory is a disk in memory for the fuzzer.
type memory []byte

func (m memory) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off >= int64(len(m)) {
		return 0, errors.New("outside")
	}
	return copy(p, m[off:]), nil
}

// FuzzFAT holds that no file system, however broken, makes the reader panic or run away.
func FuzzFAT(f *testing.F) {
	boot := make([]byte, 64<<10)
	copy(boot[11:], []byte{0, 2, 1, 1, 0, 1, 16, 0, 128, 0, 0xf8, 1, 0})
	boot[510], boot[511] = 0x55, 0xaa
	copy(boot[512:], []byte{0xf8, 0xff, 0xff, 0x03, 0x40, 0x00, 0xff, 0x0f})
	copy(boot[1024:], "EFI        \x10")
	boot[1024+26] = 2
	f.Add(boot)
	f.Fuzz(func(t *testing.T, b []byte) {
		fs, err := fat.Open(memory(b), int64(len(b)))
		if err != nil {
			return
		}
		_, _, _ = findLoader(fs, archs["amd64"])
	})
}
