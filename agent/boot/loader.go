package boot

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/ingot-metal/ingot/images/fs/fat"
)

// loader is the target of a boot entry.
type loader struct {
	path  string // in the ESP: \EFI\debian\shimx64.efi
	label string
}

// arch holds an architecture's names in boot loaders.
type arch struct {
	name   string
	suffix string // of files
	grub   string // of GRUB's folder
}

// archs by Go's name. Firmware runs only loaders of its own architecture.
var archs = map[string]arch{
	"amd64": {"x86-64", "x64", "x86_64-efi"},
	"arm64": {"arm64", "aa64", "arm64-efi"},
}

// fallback is the file in EFI/BOOT that firmware starts when no boot entry works. UEFI 2.10, section 3.5.1.1.
func (a arch) fallback() string { return "BOOT" + strings.ToUpper(a.suffix) + ".EFI" }

// csv is the file that names the loader for the entry. It is written for shim's fallback program.
func (a arch) csv() string { return "BOOT" + strings.ToUpper(a.suffix) + ".CSV" }

// loaders known by name, best first: shim before the loader it starts, so that Secure Boot works.
func (a arch) loaders() []string {
	return []string{"shim" + a.suffix + ".efi", "grub" + a.suffix + ".efi", "systemd-boot" + a.suffix + ".efi",
		"bootmgfw.efi", "loader.efi"}
}

// maxCSV is more than any BOOTX64.CSV needs.
const maxCSV = 64 << 10

var errNoLoader = errors.New("the EFI system partition has no boot loader")

// findLoader finds the loader that the image intends: from a BOOTX64.CSV (made for shim's fallback program for this
// purpose; BOOT.CSV on older systems), then loaders of known names, then the fallback loader. hasFallback reports
// whether the machine would boot without an entry.
func findLoader(f *fat.FS, a arch) (l loader, hasFallback bool, err error) {
	fb, err := f.Find("EFI", "BOOT", a.fallback())
	if err != nil {
		return loader{}, false, err
	}
	hasFallback = fb != nil && !fb.Dir
	efi, err := f.Find("EFI")
	if err != nil {
		return loader{}, hasFallback, err
	}
	if efi == nil || !efi.Dir {
		return loader{}, hasFallback, errNoLoader
	}
	dirs, err := f.List(efi)
	if err != nil {
		return loader{}, hasFallback, err
	}
	// The order of entries in a FAT directory is arbitrary.
	slices.SortFunc(dirs, func(a, b fat.Entry) int {
		return strings.Compare(strings.ToLower(a.Name), strings.ToLower(b.Name))
	})
	var byName []loader
	for _, d := range dirs {
		if !d.Dir || strings.EqualFold(d.Name, "BOOT") {
			continue
		}
		files, err := f.List(&d)
		if err != nil {
			return loader{}, hasFallback, err
		}
		for _, name := range []string{a.csv(), "BOOT.CSV"} {
			for _, e := range files {
				if strings.EqualFold(e.Name, name) && !e.Dir {
					if l, ok := fromCSV(f, d.Name, e, files, a); ok {
						return l, hasFallback, nil
					}
				}
			}
		}
		for _, k := range a.loaders() {
			for _, e := range files {
				if strings.EqualFold(e.Name, k) && !e.Dir {
					byName = append(byName, loader{`\EFI\` + d.Name + `\` + e.Name, d.Name})
				}
			}
		}
	}
	if len(byName) > 0 {
		return byName[0], hasFallback, nil
	}
	if hasFallback {
		return loader{`\EFI\BOOT\` + fb.Name, "Ingot"}, true, nil
	}
	return loader{}, false, errNoLoader
}

// fromCSV reads a BOOTX64.CSV: UTF-16, each line "file,label,optional data,comment". A line counts if its file is in
// the same directory and not named for another architecture.
func fromCSV(f *fat.FS, dir string, csv fat.Entry, beside []fat.Entry, a arch) (loader, bool) {
	raw, err := f.Read(&csv, maxCSV)
	if err != nil {
		return loader{}, false
	}
	for _, line := range strings.Split(decodeUTF16(raw), "\n") {
		fields := strings.Split(strings.TrimSpace(line), ",")
		name := strings.TrimLeft(fields[0], `\/`)
		i := slices.IndexFunc(beside, func(e fat.Entry) bool { return !e.Dir && strings.EqualFold(e.Name, name) })
		if i < 0 || foreign(name, a) {
			continue
		}
		label := ""
		if len(fields) > 1 {
			label = cleanLabel(fields[1])
		}
		return loader{`\EFI\` + dir + `\` + beside[i].Name, cmp.Or(label, dir)}, true
	}
	return loader{}, false
}

// foreign reports whether a loader is named for another architecture: BOOT.CSV of some systems lists shim for each.
func foreign(name string, a arch) bool {
	stem := strings.TrimSuffix(strings.ToLower(name), ".efi")
	return !strings.HasSuffix(stem, a.suffix) && slices.ContainsFunc(
		[]string{"x64", "ia32", "aa64", "arm", "ia64", "riscv64"},
		func(s string) bool { return strings.HasSuffix(stem, s) })
}

// cleanLabel makes an image's label printable: it appears in firmware menus, logs and terminals.
func cleanLabel(s string) string {
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return -1
		}
		return r
	}, s))
	if r := []rune(s); len(r) > 60 {
		s = strings.TrimSpace(string(r[:60]))
	}
	return s
}

// decodeUTF16 decodes UTF-16 of either byte order, little-endian without a mark; plain ASCII is returned unchanged.
func decodeUTF16(b []byte) string {
	order := binary.ByteOrder(binary.LittleEndian)
	switch {
	case bytes.HasPrefix(b, []byte{0xff, 0xfe}):
		b = b[2:]
	case bytes.HasPrefix(b, []byte{0xfe, 0xff}):
		b, order = b[2:], binary.BigEndian
	case !bytes.Contains(b, []byte{0}):
		return string(b)
	}
	u := make([]uint16, len(b)/2)
	for i := range u {
		u[i] = order.Uint16(b[2*i:])
	}
	return string(utf16.Decode(u))
}

// checkPath refuses a path that does not fit into a file path node.
func checkPath(p string) error {
	if len(p) == 0 || len(p) > 1000 || strings.ContainsRune(p, 0) {
		return fmt.Errorf("the path of the boot loader is impossible: %.60q", p)
	}
	return nil
}
