package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/images/build"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab"
)

// Where Debian's packages put what boots by UEFI.
const (
	shimSigned = "/usr/lib/shim/shimx64.efi.signed"
	grubSigned = "/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed"
)

// TestPartitionImageBoots takes the root file system out of a whole-disk image, with nothing around it but shim and GRUB as packages install
// them, writes it onto a dirty disk, and lets OVMF find it: first by the fallback loader, with variables that know no entry.
func TestPartitionImageBoots(t *testing.T) {
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "qemu-system-x86_64", "losetup", "sfdisk", "debugfs", "e2fsck", "sgdisk", "dd")
	kit.NeedFiles(t, "shim-signed", shimSigned)
	kit.NeedFiles(t, "grub-efi-amd64-signed", grubSigned)
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	agent := filepath.Join(t.TempDir(), "ingot-agent")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", agent, "./agent/cmd/ingot-agent")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the agent: %v\n%s", err, out)
	}
	systems := map[string]struct {
		make  func(sector int) (*build.Result, error)
		until string
	}{
		"tiny": {func(sector int) (*build.Result, error) {
			return build.Tiny(t.Context(), build.Options{Out: filepath.Join(root, "build", "images", fmt.Sprintf("tiny-%d", sector)), Sector: sector})
		}, `INGOT-TINY .*host=web-1 .*root=/dev/vda3 cfg=/dev/vda2 efi=1`},
	}
	if os.Getenv("INGOT_FULL") != "" {
		systems["debian"] = struct {
			make  func(sector int) (*build.Result, error)
			until string
		}{func(sector int) (*build.Result, error) {
			out := map[int]string{512: "debian", 4096: "debian-4096"}[sector]
			return build.Debian(t.Context(), build.Options{Out: filepath.Join(root, "build", "images", out), Sector: sector})
		}, `web-1 login:`}
	}
	for name, sys := range systems {
		for _, sector := range []int{512, 4096} {
			t.Run(fmt.Sprintf("%s, sectors of %d", name, sector), func(t *testing.T) {
				r, err := sys.make(sector)
				if err != nil {
					t.Fatal(err)
				}
				dir := t.TempDir()
				image := filepath.Join(dir, "root.img")
				rootOf(t, r.Raw, sector, image)
				sum := strings.Fields(kit.Run(t, "sha256sum", image))[0]

				target := kit.TempDisk(t, r.VirtualSize+1<<30)
				dirtyEnds(t, target)
				loop := kit.Loop(t, target, "--direct-io=on", "--sector-size", fmt.Sprint(sector))
				out := kit.Run(t, agent, "write", "--image", serveFolder(t, dir)+"/root.img", "--sha256", sum, "--disk", loop, "--yes", "--json", "--quiet",
					"--configdrive", driveFor(t, "web-1"))
				var result struct {
					Partitions []struct {
						Name  string
						Start int64
					}
				}
				if err := json.Unmarshal([]byte(out), &result); err != nil || len(result.Partitions) != 3 || result.Partitions[2].Name != "root" {
					t.Fatalf("ingot-agent write says %s (%v)", out, err)
				}
				if sector == 512 {
					if out := kit.Run(t, "sgdisk", "-v", target); !strings.Contains(out, "No problems found") {
						t.Errorf("sgdisk: %s", out)
					}
				}
				kit.Run(t, "e2fsck", "-f", "-n", fmt.Sprintf("%s?offset=%d", target, result.Partitions[2].Start))
				kit.Boot(t, kit.VM{UEFI: true, MemoryMiB: 1024, Until: sys.until, Timeout: 10 * time.Minute, Args: []string{
					"-drive", "if=none,format=raw,cache=unsafe,id=d0,file=" + kit.Quote(target),
					"-device", fmt.Sprintf("virtio-blk-pci,drive=d0,bootindex=1,logical_block_size=%d,physical_block_size=%d", sector, sector),
				}})
			})
		}
	}
}

// TestPartitionImage is the same through the conductor: it is given a file system, with swap and a partition of its own for data beside
// it, and a config drive.
func TestPartitionImage(t *testing.T) {
	kit.NeedPrograms(t, "losetup", "sfdisk", "debugfs", "e2fsck", "dd", "zstd")
	kit.NeedFiles(t, "shim-signed", shimSigned)
	kit.NeedFiles(t, "grub-efi-amd64-signed", grubSigned)
	r := newRig(t, []lab.NodeSpec{{Name: "part", Firmware: lab.UEFI, MemoryMiB: 1024, Disks: disk6()}})
	m := r.lab.Node("part")
	dir := t.TempDir()
	raw := filepath.Join(dir, "tiny.raw")
	kit.Run(t, "zstd", "-q", "-d", "-o", raw, filepath.Join(r.art.images, r.art.tiny.file))
	img := image{file: "root.img"}
	file := filepath.Join(r.art.images, img.file)
	rootOf(t, raw, 512, file)
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

// rootOf copies the last partition of a whole-disk image, and puts the boot loader's files where their packages would.
func rootOf(t *testing.T, raw string, sector int, image string) {
	t.Helper()
	var table struct {
		PartitionTable struct {
			Partitions []struct{ Start, Size int64 }
		} `json:"partitiontable"`
	}
	loop := kit.Loop(t, raw, "--read-only", "--sector-size", fmt.Sprint(sector))
	if err := json.Unmarshal([]byte(kit.Run(t, "sfdisk", "--json", loop)), &table); err != nil || len(table.PartitionTable.Partitions) == 0 {
		t.Fatalf("partitions of %s: %+v, %v", raw, table, err)
	}
	p := table.PartitionTable.Partitions[len(table.PartitionTable.Partitions)-1]
	kit.Run(t, "dd", "if="+raw, "of="+image, "bs=1M", "iflag=skip_bytes,count_bytes", "conv=sparse", "status=none",
		fmt.Sprintf("skip=%d", p.Start*int64(sector)), fmt.Sprintf("count=%d", p.Size*int64(sector)))
	if err := os.Truncate(image, p.Size*int64(sector)); err != nil {
		t.Fatal(err)
	}
	var commands strings.Builder
	for _, d := range []string{"/usr", "/usr/lib", "/usr/lib/shim", "/usr/lib/grub", "/usr/lib/grub/x86_64-efi-signed"} {
		fmt.Fprintf(&commands, "mkdir %s\n", d) // says so where it is there
	}
	fmt.Fprintf(&commands, "write %s %s\nwrite %s %s\n", shimSigned, shimSigned, grubSigned, grubSigned)
	script := filepath.Join(t.TempDir(), "commands")
	if err := os.WriteFile(script, []byte(commands.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	kit.Run(t, "debugfs", "-w", "-f", script, image)
	kit.Run(t, "e2fsck", "-f", "-n", image)
}
