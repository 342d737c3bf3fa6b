package erase

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
)

// TestNoDiskIsHidden: a superblock written by a tenant hides no disk from the erase. An array replaces its disks only
// if the conductor knows it.
func TestNoDiskIsHidden(t *testing.T) {
	const array, uuid = "/dev/md127", "5f6c7c0e-5f0d-4d0b-9a3e-0c5a4b1f2d3c"
	m := fake.NewDisks(t.TempDir())
	for _, name := range []string{"vda", "vdb", "vdc"} {
		m.Add(fake.DiskSpec{Name: name, Size: 16 << 20, Serial: "serial-" + name, Fill: 0x11})
	}
	// vda and vdb have a partition each that is in the array.
	slaves := filepath.Join(m.Root(), "sys/block/md127/slaves")
	if err := os.MkdirAll(slaves, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"vda", "vdb"} {
		real, err := filepath.EvalSymlinks(filepath.Join(m.Root(), "sys/block", name))
		if err != nil {
			t.Fatal(err)
		}
		part := filepath.Join(real, name+"2")
		if err := os.Mkdir(part, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(part, "start"), []byte("2048\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(part, filepath.Join(slaves, name+"2")); err != nil {
			t.Fatal(err)
		}
	}
	md := &disk.Disk{Name: array, Serial: uuid, Size: 8 << 20, LogicalSectors: 512}
	for _, c := range []struct {
		name   string
		hidden []string
		array  *disk.Disk
		known  []string
		want   string // part of the error; empty: none
	}{
		{"no arrays", nil, nil, nil, ""},
		{"an array that is known", []string{"/dev/vda", "/dev/vdb"}, md, []string{uuid}, ""},
		{"an array that is not known", []string{"/dev/vda", "/dev/vdb"}, md, nil, uuid},
		{"another is known", []string{"/dev/vda", "/dev/vdb"}, md, []string{"another"}, uuid},
		{"a disk that left its array", []string{"/dev/vdc"}, nil, []string{uuid}, "/dev/vdc"},
		{"a disk beside an array", []string{"/dev/vda", "/dev/vdb", "/dev/vdc"}, md, []string{uuid}, "/dev/vdc"},
	} {
		t.Run(c.name, func(t *testing.T) {
			all, err := disk.List(t.Context(), m.Root())
			if err != nil {
				t.Fatal(err)
			}
			all = slices.DeleteFunc(all, func(d disk.Disk) bool { return slices.Contains(c.hidden, d.Name) })
			if c.array != nil {
				all = append(all, *c.array)
			}
			err = Common{Arrays: c.known}.nothingHidden(t.Context(), m, all)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error = %v, want %q", err, c.want)
			}
		})
	}
}
