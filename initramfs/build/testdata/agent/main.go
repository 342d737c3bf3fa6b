// Command agent stands in for ingot-agent where only the ramdisk around it is tested: as the first process it loads modules through
// the ramdisk's indices, says so on the console and switches the machine off.
package main

import (
	"fmt"
	"os"
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
		fmt.Println(`{"steps":[{"interface":"deploy","step":"nothing","priority":{}}],"digest":"` + strings.Repeat("5", 64) + `"}`)
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
	return "links=" + strings.Join(names, ",")
}
