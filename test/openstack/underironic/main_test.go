package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
)

// TestUnderIronic runs, with INGOT_FULL, what `make demo-under-ironic` runs.
func TestUnderIronic(t *testing.T) {
	if os.Getenv("INGOT_FULL") == "" {
		return
	}
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "qemu-system-x86_64", "ip", "ipmitool", "dnsmasq", "qemu-img", "sfdisk", "debugfs", "e2fsck")
	t.Chdir("../../..") // where make runs it
	var out bytes.Buffer
	if err := run(t.Context(), nil, &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	t.Log(out.String())
	for _, want := range []string{`bios-raw login:`, `bios-qcow2 login:`, `uefi-raw login:`, `uefi-qcow2 login:`,
		`uefi-partition login:`, `ssh rescue@10\.\d+\.\d+\.\d+ cat /proc/meminfo: MemTotal`,
		`deploy partition +uefi +\d+\.\d s +\d+\.\d s`, `RAM of the machine +512 MiB +3 GiB or more`} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("it does not say %q", want)
		}
	}
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "ui-*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestFirmwareThatIsNotThere(t *testing.T) {
	err := (&demo{out: &bytes.Buffer{}}).nodes("coreboot")
	if err == nil || err.Error() != `firmware "coreboot": there are bios, uefi, and bios,uefi` {
		t.Errorf("an unknown firmware: %v", err)
	}
}
