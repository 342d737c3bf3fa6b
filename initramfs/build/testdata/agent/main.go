// Command agent replaces ingot-agent in tests of the ramdisk: as the first process it loads modules through the
// ramdisk's indices, reports them on the console and switches the machine off.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/u-root/u-root/pkg/kmodule"
	"golang.org/x/sys/unix"
)

var version = "unset"

func main() {
	switch strings.Join(os.Args[1:], " ") {
	case "version":
		fmt.Println(version)
		return
	case "steps --json":
		fmt.Println(`{"steps":[{"interface":"deploy","step":"nothing","priority":{}}],"digest":"` +
			strings.Repeat("5", 64) + `"}`)
		return
	}
	if os.Getpid() == 1 {
		fmt.Println("STAND-IN", work())
		_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
}

func work() string {
	for _, dir := range []string{"/proc", "/sys"} {
		if err := unix.Mount("none", dir, map[string]string{"/proc": "proc", "/sys": "sysfs"}[dir], 0, ""); err != nil {
			return err.Error()
		}
	}
	p, err := kmodule.NewProber(kmodule.ProbeOpts{IgnoreProcMods: true})
	if err != nil {
		return err.Error()
	}
	// Soft dependencies first: some modules fail to load without them, and the kernel's own requests are not answered
	// here.
	soft, err := filepath.Glob("/lib/modules/*/modules.softdep")
	if err != nil || len(soft) != 1 {
		return fmt.Sprint("modules.softdep: ", soft, err)
	}
	data, err := os.ReadFile(soft[0])
	if err != nil {
		return err.Error()
	}
	for line := range strings.Lines(string(data)) {
		_, words, _ := strings.Cut(line, " pre:")
		for word := range strings.FieldsSeq(words) {
			_ = p.Probe(word, "")
		}
	}
	for _, name := range []string{"virtio_pci", "virtio_net", "virtio_blk", "xfs", "vfat"} {
		if err := p.Probe(name, ""); err != nil {
			return name + ": " + err.Error()
		}
	}
	links, err := os.ReadDir("/sys/class/net")
	if err != nil {
		return err.Error()
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Name())
	}
	said := "links=" + strings.Join(names, ",")
	if _, err := os.Stat("/bin/sh"); err == nil {
		cmd := exec.Command("/bin/sh", "-c", "echo shell on $(uname -s) | tee /tmp/said")
		cmd.Env = []string{"PATH=/bin"}
		out, err := cmd.CombinedOutput()
		said += fmt.Sprintf(" %s (%v)", bytes.TrimSpace(out), err)
	}
	return said
}
