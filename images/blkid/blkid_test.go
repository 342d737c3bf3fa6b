package blkid

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
)

// TestEverySignature: each one is found, and has a description.
func TestEverySignature(t *testing.T) {
	for _, s := range head {
		b := make([]byte, HeadSize)
		copy(b[s.Off:], s.Magic)
		if got, ok := Find(b); !ok || got != s {
			t.Errorf("%+v: found %+v", s, got)
		}
		if got := Detect(b[:s.Off+int64(len(s.Magic))-1]); got == s.Kind {
			t.Errorf("%+v: found in a beginning that is cut off", s)
		}
		if d := s.Kind.Description(); d == string(s.Kind) || !strings.Contains(d, " ") {
			t.Errorf("%s has no description", s.Kind)
		}
	}
	if got := Detect(nil); got != "" {
		t.Errorf("nothing is %s", got)
	}
	if got := Detect(make([]byte, HeadSize)); got != "" {
		t.Errorf("zeros are %s", got)
	}
}

// TestMadeByOthers: what the usual tools make is found under the name that libblkid has for it.
func TestMadeByOthers(t *testing.T) {
	kit.NeedPrograms(t, "mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "mkfs.vfat", "mkswap", "blkid")
	for _, c := range [][]string{
		{"mkfs.ext4", "-q"}, {"mkfs.ext4", "-q", "-b", "1024"}, {"mkfs.xfs", "-q"}, {"mkfs.btrfs", "-q"}, {"mkfs.vfat"},
		{"mkfs.vfat", "-F", "32"}, {"mkswap"},
	} {
		file := filepath.Join(t.TempDir(), "part")
		f, err := os.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(320 << 20); err != nil {
			t.Fatal(err)
		}
		kit.Run(t, c[0], append(c[1:], file)...)
		b := make([]byte, HeadSize)
		if _, err := f.ReadAt(b, 0); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if got, want := string(Detect(b)),
			strings.TrimSpace(kit.Run(t, "blkid", "-p", "-o", "value", "-s", "TYPE", file)); got != want {
			t.Errorf("%s: %q, but blkid says %q", strings.Join(c, " "), got, want)
		}
	}
}
