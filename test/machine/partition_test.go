package machine

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
)

// TestPartitionImageBoots takes the root file system out of a whole-disk image, with nothing around it but shim and GRUB as packages install
// them, writes it onto a dirty disk, and lets OVMF find it: first by the fallback loader, with variables that know no entry.
func TestPartitionImageBoots(t *testing.T) {
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "qemu-system-x86_64", "losetup", "sfdisk", "debugfs", "e2fsck", "sgdisk", "dd")
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
				kit.PartitionImage(t, r.Raw, sector, image)
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
				kit.Boot(t, kit.VM{UEFI: true, MemoryMiB: 1024, Until: sys.until, Timeout: 15 * time.Minute, Args: []string{
					"-drive", "if=none,format=raw,cache=unsafe,id=d0,file=" + kit.Quote(target),
					"-device", fmt.Sprintf("virtio-blk-pci,drive=d0,bootindex=1,logical_block_size=%d,physical_block_size=%d", sector, sector),
				}})
			})
		}
	}
}
