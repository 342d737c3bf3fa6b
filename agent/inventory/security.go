package inventory

import (
	"os"
	"path/filepath"
	"strconv"
)

// TPM is the machine's trusted platform module.
type TPM struct {
	Present bool `json:"present"`
	// Version is "2.0" or "1.2"; empty when unknown to the kernel. A module that the firmware announces but that has no
	// driver is present without a device.
	Version     string `json:"version,omitempty"`
	Device      string `json:"device,omitempty"`      // "/dev/tpm0"
	Driver      string `json:"driver,omitempty"`      // "tpm_tis", "tpm_crb"
	Description string `json:"description,omitempty"` // the firmware's name of it
	Interface   string `json:"acpi_id,omitempty"`     // "MSFT0101"
}

// tpm looks for a module that the kernel drives, then for one that ACPI announces.
func tpm(root string) TPM {
	if entries, _ := os.ReadDir(filepath.Join(root, "sys/class/tpm")); len(entries) > 0 {
		name := entries[0].Name()
		p := filepath.Join(root, "sys/class/tpm", name)
		t := TPM{Present: true, Device: "/dev/" + name, Driver: linkName(p, "device/driver"),
			Description: read(p, "device/description"), Interface: read(p, "device/firmware_node/hid")}
		switch major := read(p, "tpm_version_major"); {
		case major == "2":
			t.Version = "2.0"
		case major == "1" || read(p, "caps") != "" || read(p, "device/caps") != "":
			t.Version = "1.2"
		}
		return t
	}
	for table, version := range map[string]string{"TPM2": "2.0", "TCPA": "1.2"} {
		if _, err := os.Stat(filepath.Join(root, "sys/firmware/acpi/tables", table)); err == nil {
			return TPM{Present: true, Version: version}
		}
	}
	return TPM{}
}

// efiGlobal is the vendor GUID of the variables that the UEFI specification defines.
const efiGlobal = "8be4df61-93ca-11d2-aa0d-00e098032b8c"

// efiFlag reads a variable of one byte, after four bytes of attributes; nil if it does not exist.
func efiFlag(root, name string) *bool {
	b, err := os.ReadFile(filepath.Join(root, "sys/firmware/efi/efivars", name+"-"+efiGlobal))
	if err != nil || len(b) != 5 {
		return nil
	}
	return new(b[4] == 1)
}

// firmwareBits returns the width of the firmware's code, 32 or 64; zero on machines without UEFI. A 64-bit kernel on
// 32-bit firmware needs other loaders.
func firmwareBits(root string) int {
	n, _ := strconv.Atoi(read(root, "sys/firmware/efi/fw_platform_size"))
	return n
}
