package netboot

import (
	"github.com/insomniacslk/dhcp/dhcpv4"
)

// A machine that tries the network first, and whose node has an instance on its disk, is sent on to that disk: without
// an answer its firmware asks again for a minute, for each of its ways to boot from the network.

// diskScript sends iPXE back to the firmware. The exit code matters under UEFI: after a boot option that succeeded the
// firmware shows a menu, after one that failed it takes the next. "sanboot" does not fit: it takes the first disk,
// whichever holds the system, and Debian's iPXE knows no disks under UEFI.
const diskScript = `#!ipxe
echo Ingot: the system of this machine is on its disk, and is started now
exit 1
`

// localBoot makes PXE firmware boot from its disk without a boot program (PXE 2.1, option 43): a menu (9) whose only
// item has the boot server type 0, "boot from local disk", and a prompt (10) of 0 seconds, which selects it at once.
var localBoot = dhcpv4.OptGeneric(dhcpv4.OptionVendorSpecificInformation,
	[]byte{6, 1, 3, 9, 7, 0, 0, 4, 'd', 'i', 's', 'k', 10, 2, 0, 'd', 255})

// offered is the file that a machine is offered, "" for none.
func (a admission) offered(q request, c Config) string {
	if a.boot || a.disk && (q.firmware == ipxe || q.firmware == uefiHTTP) {
		return bootFile(q, c)
	}
	return ""
}

// sentToDisk reports whether the requesting firmware is sent to its disk by localBoot.
func (a admission) sentToDisk(q request) bool {
	return !a.boot && a.disk && (q.firmware == biosPXE || q.firmware == uefiPXE)
}
