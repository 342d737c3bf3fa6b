package kit

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Where Debian's packages put what boots by UEFI.
const (
	shimSigned = "/usr/lib/shim/shimx64.efi.signed"
	grubSigned = "/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed"
)

// PartitionImage copies the last partition of a whole-disk image into a file, and puts the boot loader's files where
// their packages would.
func PartitionImage(t testing.TB, raw string, sector int, image string) {
	t.Helper()
	NeedPrograms(t, "losetup", "sfdisk", "debugfs", "e2fsck", "dd")
	NeedFiles(t, "shim-signed", shimSigned)
	NeedFiles(t, "grub-efi-amd64-signed", grubSigned)
	var table struct {
		PartitionTable struct {
			Partitions []struct{ Start, Size int64 }
		} `json:"partitiontable"`
	}
	loop := Loop(t, raw, "--read-only", "--sector-size", fmt.Sprint(sector))
	if err := json.Unmarshal([]byte(Run(t, "sfdisk", "--json", loop)), &table); err != nil ||
		len(table.PartitionTable.Partitions) == 0 {
		t.Fatalf("partitions of %s: %+v, %v", raw, table, err)
	}
	p := table.PartitionTable.Partitions[len(table.PartitionTable.Partitions)-1]
	Run(t, "dd", "if="+raw, "of="+image, "bs=1M", "iflag=skip_bytes,count_bytes", "conv=sparse", "status=none",
		fmt.Sprintf("skip=%d", p.Start*int64(sector)), fmt.Sprintf("count=%d", p.Size*int64(sector)))
	if err := os.Truncate(image, p.Size*int64(sector)); err != nil {
		t.Fatal(err)
	}
	var commands strings.Builder
	for _, d := range []string{"/usr", "/usr/lib", "/usr/lib/shim", "/usr/lib/grub",
		"/usr/lib/grub/x86_64-efi-signed"} {
		fmt.Fprintf(&commands, "mkdir %s\n", d) // says so where it is there
	}
	fmt.Fprintf(&commands, "write %s %s\nwrite %s %s\n", shimSigned, shimSigned, grubSigned, grubSigned)
	script := filepath.Join(t.TempDir(), "commands")
	if err := os.WriteFile(script, []byte(commands.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	Run(t, "debugfs", "-w", "-f", script, image)
	Run(t, "e2fsck", "-f", "-n", image)
}
