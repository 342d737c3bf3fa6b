package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab"
)

// TestPartitionImage is the same through the conductor: it is given a file system, with swap and a partition of its own for data beside
// it, and a config drive.
func TestPartitionImage(t *testing.T) {
	kit.NeedPrograms(t, "losetup", "sfdisk", "debugfs", "e2fsck", "dd", "zstd")
	r := newRig(t, []lab.NodeSpec{{Name: "part", Firmware: lab.UEFI, MemoryMiB: 1024, Disks: disk6()}})
	m := r.lab.Node("part")
	dir := t.TempDir()
	raw := filepath.Join(dir, "tiny.raw")
	kit.Run(t, "zstd", "-q", "-d", "-o", raw, filepath.Join(r.art.images, r.art.tiny.file))
	img := image{file: "root.img"}
	file := filepath.Join(r.art.images, img.file)
	kit.PartitionImage(t, raw, 512, file)
	t.Cleanup(func() { os.Remove(file) })
	img.sha256 = strings.Fields(kit.Run(t, "sha256sum", file))[0]

	r.enrol(m)
	r.source("part", r.ours(img), img.sha256, "root_gb", 3, "swap_mb", "64", "ephemeral_gb", 1, "image_type", "partition")
	from := m.ConsoleSize()
	r.provision("part", "active", hostname("part-1"))
	r.wait("part", "active", bootLimit)
	r.boots(m, from, "part-1")
	table := kit.Run(t, "sfdisk", "--json", m.DiskFile(0))
	for _, name := range []string{"ephemeral0", "swap1", "config-2"} {
		if !strings.Contains(table, name) && !strings.Contains(kit.Run(t, "sgdisk", "--print", m.DiskFile(0)), name) {
			t.Errorf("the disk has no partition %s:\n%s", name, table)
		}
	}
}
