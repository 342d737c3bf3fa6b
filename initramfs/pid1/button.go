package pid1

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// powerButton sends on each press of the ACPI power button, by which a BMC also requests a soft power-off. The events
// come from the kernel's generic netlink family acpi_event: no input driver is needed, only the module button.
func powerButton(pressed chan<- struct{}) error {
	fam, err := netlink.GenlFamilyGet("acpi_event")
	if err != nil {
		return fmt.Errorf("find the kernel's ACPI events: %w", err)
	}
	if len(fam.Groups) == 0 {
		return errors.New("the kernel's ACPI events have no group")
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, int(fam.Groups[0].ID)); err != nil {
		return fmt.Errorf("listen to ACPI events: %w", err)
	}
	buf := make([]byte, 4096)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOBUFS) {
			continue
		}
		if err != nil {
			return fmt.Errorf("listen to ACPI events: %w", err)
		}
		if isPowerButton(buf[:n]) {
			pressed <- struct{}{}
		}
	}
}

// isPowerButton parses one message: netlink header (16 bytes), generic header (4), attribute header (4), then the
// event, which begins with the device's class, 20 bytes (drivers/acpi/event.c in Linux).
func isPowerButton(msg []byte) bool {
	const class = 16 + 4 + 4
	if len(msg) < class+20 {
		return false
	}
	name, _, _ := strings.Cut(string(msg[class:class+20]), "\x00")
	return name == "button/power"
}
