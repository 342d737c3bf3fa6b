package machine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// TestPartitionImageBoots takes the root file system out of a whole-disk image, with nothing around it but shim and
// GRUB as packages install them, writes it onto a dirty disk, and lets OVMF find it: first by the fallback loader, with
// variables that know no entry.
func TestPartitionImageBoots(t *testing.T) {
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "qemu-system-x86_64", "losetup", "sfdisk", "debugfs", "e2fsck", "sgdisk", "dd")
	systems := map[string]struct {
		images map[int]string // by size of sectors
		until  string
	}{"tiny": {map[int]string{512: made.Tiny, 4096: made.Tiny4096},
		`INGOT-TINY .*host=web-1 .*root=/dev/vda3 cfg=/dev/vda2 efi=1`}}
	if os.Getenv("INGOT_FULL") != "" {
		systems["debian"] = struct {
			images map[int]string
			until  string
		}{map[int]string{512: made.Debian, 4096: made.Debian4096}, `web-1 login:`}
	}
	for name, sys := range systems {
		for _, sector := range []int{512, 4096} {
			t.Run(fmt.Sprintf("%s, sectors of %d", name, sector), func(t *testing.T) {
				r := made.Image(t, sys.images[sector])
				dir := t.TempDir()
				image := filepath.Join(dir, "root.img")
				kit.PartitionImage(t, r.Raw, sector, image)
				sum := strings.Fields(kit.Run(t, "sha256sum", image))[0]

				target := kit.TempDisk(t, r.VirtualSize+1<<30)
				dirtyEnds(t, target)
				loop := kit.Loop(t, target, "--direct-io=on", "--sector-size", fmt.Sprint(sector))
				out := kit.Run(t, made.Program(t, "ingot-agent"), "write", "--image", serveFolder(t, dir)+"/root.img",
					"--sha256", sum, "--disk", loop, "--yes", "--json", "--quiet", "--configdrive",
					driveFor(t, "web-1"))
				var result struct {
					Partitions []struct {
						Name  string
						Start int64
					}
				}
				if err := json.Unmarshal([]byte(out), &result); err != nil || len(result.Partitions) != 3 ||
					result.Partitions[2].Name != "root" {
					t.Fatalf("ingot-agent write says %s (%v)", out, err)
				}
				if sector == 512 {
					if out := kit.Run(t, "sgdisk", "-v", target); !strings.Contains(out, "No problems found") {
						t.Errorf("sgdisk: %s", out)
					}
				}
				kit.Run(t, "e2fsck", "-f", "-n", fmt.Sprintf("%s?offset=%d", target, result.Partitions[2].Start))
				kit.Boot(t, kit.VM{UEFI: true, MemoryMiB: 1024, Until: sys.until, Timeout: 15 * time.Minute,
					Disks: []string{target}, Sector: sector})
			})
		}
	}
}
