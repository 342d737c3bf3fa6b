package boot

import (
	"bytes"
	"strings"
	"testing"
	"unicode"

	"github.com/ingot-metal/ingot/images/fs/fat"
)

// FuzzCSV holds that with any BOOTX64.CSV an existing loader for this machine is found, with a label that a boot entry
// can hold and a menu can show.
func FuzzCSV(f *testing.F) {
	for _, s := range []string{
		"shimx64.efi,Debian GNU/Linux,,This is the boot entry for Debian\n", "\\shimx64.efi,x\r\ngrubx64.efi,y",
		"shimaa64.efi,arm\nSHIMX64.EFI,x64", "gone.efi,x", "BOOTX64.CSV,itself", "sub,a folder", ",,,", "\n\n", "",
		"..\\BOOT\\BOOTX64.EFI,out", "shimx64.efi," + strings.Repeat("long ", 50), "shimx64.efi,\x1b[31m",
		"shimx64.efi,\U0001f600", "shimx64.efi,\u0080",
	} {
		f.Add([]byte(s))
		f.Add([]byte(csv(s)))
		f.Add([]byte(csv(s))[2:])
	}
	f.Add([]byte("\xfe\xff\x00s\x00h"))
	f.Add([]byte("\xff\xfe\x00\xd8\x00"))
	f.Add([]byte("shimx64.efi,\xff\xc0"))
	a := archs["amd64"]
	f.Fuzz(func(t *testing.T, b []byte) {
		img, err := fat.Make([]fat.File{
			{Path: "EFI/os/shimaa64.efi", Data: []byte("a")}, {Path: "EFI/os/shimx64.efi", Data: []byte("s")},
			{Path: "EFI/os/grubx64.efi", Data: []byte("g")}, {Path: "EFI/os/sub/file", Data: []byte("f")},
			{Path: "EFI/os/BOOTX64.CSV", Data: b}, {Path: "EFI/BOOT/BOOTX64.EFI", Data: []byte("b")},
		}, fat.Options{Sector: 512})
		if err != nil {
			return // too large
		}
		fs, err := fat.Open(memory(img.Bytes()), img.Size)
		if err != nil {
			t.Fatal(err)
		}
		l, fallback, err := findLoader(fs, a)
		if err != nil || !fallback {
			t.Fatalf("findLoader = %+v, %v, %v", l, fallback, err)
		}
		parts := strings.Split(strings.TrimPrefix(l.path, `\`), `\`)
		there, err := fs.Find(parts...)
		if err != nil || there == nil || there.Dir || len(parts) != 3 || parts[1] != "os" || foreign(parts[2], a) {
			t.Errorf("a loader that is not there or for another machine: %+v, %v", l, err)
		}
		if l.label == "" || len([]rune(l.label)) > 60 ||
			strings.ContainsFunc(l.label, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("label %q", l.label)
		}
		option, err := loadOption(l.label, l.path, espPart, 0)
		if err != nil {
			t.Fatal(err)
		}
		if description(option) != l.label {
			t.Errorf("a boot entry with label %q reads as %q", l.label, description(option))
		}
	})
}

// FuzzLoadOption holds that a malformed boot entry of the firmware never makes its parser panic or read beyond its end.
func FuzzLoadOption(f *testing.F) {
	option, err := loadOption("debian", `\EFI\debian\shimx64.efi`, espPart, 0)
	if err != nil {
		f.Fatal(err)
	}
	with := append(bytes.Clone(option), "optional data"...)
	for _, b := range [][]byte{nil, option, with, option[:5], option[:6], option[:7], option[:15],
		option[:len(option)-1], bytes.Repeat([]byte{0xff}, 40), make([]byte, 40)} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		name, path := description(b), devicePath(b)
		if len(path) > len(b) || !bytes.Contains(b, path) || len(name) > 2*len(b) {
			t.Errorf("%q and %d bytes of device path from %d bytes", name, len(path), len(b))
		}
		if got := sameTarget(b, b); got != (len(path) > 0) {
			t.Errorf("sameTarget with itself = %v, with a device path of %d bytes", got, len(path))
		}
		if longer := append(bytes.Clone(b), 0, 0); len(path) > 0 && !sameTarget(b, longer) {
			t.Error("optional data makes it another target")
		}
		if sameTarget(b, option) && !bytes.Equal(path, devicePath(option)) {
			t.Error("it is taken for an entry of another file")
		}
	})
}
