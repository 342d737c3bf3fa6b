// Guest is the first process of a test machine: it loads the modules that /modules lists, asks the controller over the
// kernel's IPMI interface for its address, prints it, and turns the machine off.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/agent/machine/linux"
)

func main() {
	if err := run(); err != nil {
		fmt.Println("GUEST failed:", err)
	}
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func run() error {
	if err := unix.Mount("devtmpfs", "/dev", "devtmpfs", 0, ""); err != nil && err != unix.EBUSY {
		return err
	}
	list, err := os.ReadFile("/modules")
	if err != nil {
		return err
	}
	for _, m := range strings.Fields(string(list)) {
		f, err := os.Open(m)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && err != unix.EEXIST {
			return fmt.Errorf("load %s: %w", m, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	for {
		// Get LAN Configuration Parameters, channel 1: 3 is the IP address, 5 the MAC.
		ip, err := linux.Machine{}.IPMI(ctx, 0x0c, 0x02, []byte{1, 3, 0, 0})
		if err == nil {
			mac, err := linux.Machine{}.IPMI(ctx, 0x0c, 0x02, []byte{1, 5, 0, 0})
			if err != nil {
				return err
			}
			fmt.Printf("GUEST controller is %s %s\n", net.IP(ip[2:6]), net.HardwareAddr(mac[2:8]))
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}
