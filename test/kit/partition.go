package kit

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
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
	loop := Loop(t, raw, "--read-only", "--sector-size", fmt.Sprint(sector))
	if err := CutPartition(raw, loop, sector, image); err != nil {
		t.Fatal(err)
	}
}

// CutPartition is PartitionImage without a test. device has the image's sectors; for 512 bytes it is the image itself.
func CutPartition(raw, device string, sector int, image string) error {
	run := func(name string, args ...string) (string, error) {
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%s: %w: %s", name, err, out)
		}
		return string(out), nil
	}
	text, err := run("sfdisk", "--json", device)
	if err != nil {
		return err
	}
	var table struct {
		PartitionTable struct {
			Partitions []struct{ Start, Size int64 }
		} `json:"partitiontable"`
	}
	if err := json.Unmarshal([]byte(text), &table); err != nil || len(table.PartitionTable.Partitions) == 0 {
		return fmt.Errorf("partitions of %s: %+v, %w", raw, table, err)
	}
	p := table.PartitionTable.Partitions[len(table.PartitionTable.Partitions)-1]
	if _, err := run("dd", "if="+raw, "of="+image, "bs=1M", "iflag=skip_bytes,count_bytes", "conv=sparse",
		"status=none", fmt.Sprintf("skip=%d", p.Start*int64(sector)),
		fmt.Sprintf("count=%d", p.Size*int64(sector))); err != nil {
		return err
	}
	if err := os.Truncate(image, p.Size*int64(sector)); err != nil {
		return err
	}
	var commands strings.Builder
	for _, d := range []string{"/usr", "/usr/lib", "/usr/lib/shim", "/usr/lib/grub",
		"/usr/lib/grub/x86_64-efi-signed"} {
		fmt.Fprintf(&commands, "mkdir %s\n", d) // says so where it is there
	}
	fmt.Fprintf(&commands, "write %s %s\nwrite %s %s\n", shimSigned, shimSigned, grubSigned, grubSigned)
	script := image + ".commands"
	if err := os.WriteFile(script, []byte(commands.String()), 0o644); err != nil {
		return err
	}
	defer os.Remove(script)
	if _, err := run("debugfs", "-w", "-f", script, image); err != nil {
		return err
	}
	_, err = run("e2fsck", "-f", "-n", image)
	return err
}
