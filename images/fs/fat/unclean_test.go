package fat

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
)

// TestUnclean knows both marks of a file system in use, of Linux and of others, and takes a new one for clean.
func TestUnclean(t *testing.T) {
	kit.NeedPrograms(t, "mkfs.fat")
	for _, c := range []struct {
		bits  string
		mib   int64
		linux int64          // where Linux has its mark
		entry map[byte]int64 // bytes of the FAT's second entry without the bit for clean, and for sound
	}{
		{"12", 4, 0x25, nil},
		{"16", 16, 0x25, map[byte]int64{0x7f: 3, 0xbf: 3}},
		{"32", 48, 0x41, map[byte]int64{0x07: 7, 0x0b: 7}},
	} {
		t.Run(c.bits, func(t *testing.T) {
			img := kit.TempDisk(t, c.mib<<20)
			kit.Run(t, "mkfs.fat", "-F", c.bits, img)
			f, err := os.OpenFile(img, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			unclean := func() bool {
				t.Helper()
				w, err := OpenWriter(f, c.mib<<20, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				return w.Unclean()
			}
			if unclean() {
				t.Error("a new file system is taken for one in use")
			}
			with := func(at int64, value byte) bool {
				t.Helper()
				was := make([]byte, 1)
				_, err := f.ReadAt(was, at)
				_, err2 := f.WriteAt([]byte{value}, at)
				is := unclean()
				_, err3 := f.WriteAt(was, at)
				if err := errors.Join(err, err2, err3); err != nil {
					t.Fatal(err)
				}
				return is
			}
			if !with(c.linux, 1) {
				t.Error("the mark in the boot sector is not seen")
			}
			fs, err := Open(f, c.mib<<20)
			if err != nil {
				t.Fatal(err)
			}
			for value, at := range c.entry {
				if !with(fs.table+at, value) {
					t.Errorf("the second entry with %#x at %d is taken for clean", value, at)
				}
			}
			if unclean() {
				t.Error("it does not become clean again")
			}
		})
	}
}
