package passthru

import (
	"os"
	"path/filepath"
	"strings"
)

// kindOf reads a device's command set from sysfs. SATA disks are SCSI disks of vendor "ATA" to Linux (SAT-4, 10.2.2).
func kindOf(root, device string) Kind {
	name := strings.ReplaceAll(strings.TrimPrefix(device, "/dev/"), "/", "!")
	dir := filepath.Join(root, "sys/block", name)
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return None
	}
	if strings.HasPrefix(name, "nvme") {
		return NVMe
	}
	if !strings.HasPrefix(name, "sd") {
		return None
	}
	vendor, _ := os.ReadFile(filepath.Join(real, "device/vendor"))
	if strings.TrimSpace(string(vendor)) == "ATA" {
		return ATA
	}
	return SCSI
}
