package disk

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// where is a disk's location in the machine.
type where struct {
	path string   // as named by udev's path_id builtin, without the directory
	also []string // older names of the same
	hctl string
	tran string
}

var (
	hctlName = regexp.MustCompile(`^\d+:\d+:\d+:\d+$`)
	pciName  = regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	usbName  = regexp.MustCompile(`^\d+-([0-9.]+:\d+\.\d+)$`)
	nvmeName = regexp.MustCompile(`^nvme\d+n\d+$`)
)

// topology derives the persistent path of the block device at real, a directory below base (sysfs), from the
// directories above it, nearest first. The names of buses follow systemd's src/udev/udev-builtin-path_id.c, so that
// hints and identities from other sources match. An unknown part leaves the whole path empty.
func topology(base, real string) where {
	rel, err := filepath.Rel(base, real)
	if err != nil {
		return where{}
	}
	parts := strings.Split(rel, "/")
	var w where
	var path, compat []string // nearest last
	compatDiffers, known := false, false
	add := func(s string) { path, compat = append(path, s), append(compat, s) }
	for i, part := range slices.Backward(parts) {
		dir := attributes(filepath.Join(base, filepath.Join(parts[:i+1]...)))
		switch {
		case nvmeName.MatchString(part) && i == len(parts)-1:
			add("nvme-" + cmp.Or(dir.text("nsid"), part[strings.LastIndex(part, "n")+1:]))
			w.tran, known = "nvme", true
		case hctlName.MatchString(part) && w.hctl == "":
			w.hctl = part
			scsi, old, tran := scsiPath(base, parts[:i+1])
			if scsi == "" {
				return where{hctl: w.hctl, tran: tran}
			}
			path, compat = append(path, scsi), append(compat, old)
			compatDiffers = compatDiffers || scsi != old
			w.tran, known = tran, true
		// virtioN/block/vda: the disk itself, not a SCSI host
		case strings.HasPrefix(part, "virtio") && i == len(parts)-3:
			w.tran, known = "virtio", true
		case strings.HasPrefix(part, "mmc_host"):
			w.tran, known = "mmc", true
		case usbName.MatchString(part) && w.tran != "usb":
			add("usb-0:" + usbName.FindStringSubmatch(part)[1])
			w.tran, known = "usb", true
		case pciName.MatchString(part):
			add("pci-" + part)
			return w.finish(path, compat, compatDiffers, known)
		case strings.HasPrefix(parts[0], "devices") && i == 2 && parts[1] == "platform":
			add("platform-" + part)
			return w.finish(path, compat, compatDiffers, known)
		}
	}
	return where{hctl: w.hctl, tran: w.tran}
}

func (w where) finish(path, compat []string, compatDiffers, known bool) where {
	if !known {
		return where{hctl: w.hctl, tran: w.tran}
	}
	join := func(p []string) string {
		p = slices.Clone(p)
		slices.Reverse(p)
		return strings.Join(p, "-")
	}
	w.path = join(path)
	if compatDiffers {
		w.also = append(w.also, join(compat))
	}
	return w
}

// scsiPath returns path, older path and transport of the SCSI device whose directory is parts.
func scsiPath(base string, parts []string) (path, old, tran string) {
	at := func(n int) attributes { return attributes(filepath.Join(base, filepath.Join(parts[:n]...))) }
	index := func(prefix string) int {
		return slices.IndexFunc(parts, func(p string) bool {
			rest, ok := strings.CutPrefix(p, prefix)
			return ok && rest != "" && (rest[0] >= '0' && rest[0] <= '9')
		})
	}
	hctl := strings.Split(parts[len(parts)-1], ":")
	lun := "lun-" + hctl[3]
	if n, err := strconv.ParseUint(hctl[3], 10, 64); err == nil && n >= 256 {
		// Flat and extended addressing are shown as the raw 64-bit number with its 16-bit words swapped.
		lun = fmt.Sprintf("lun-0x%04x%04x00000000", n&0xffff, n>>16&0xffff)
	}
	host := index("host")
	if host < 0 {
		return "", "", ""
	}
	if i := index("rport-"); i >= 0 {
		if name := at(i + 1).text("fc_remote_ports/" + parts[i] + "/port_name"); name != "" {
			p := "fc-" + name + "-" + lun
			return p, p, "fc"
		}
		return "", "", "fc"
	}
	if i := index("end_device-"); i > 0 {
		end := at(i + 1)
		address, phy := end.text("sas_device/"+parts[i]+"/sas_address"),
			end.text("sas_device/"+parts[i]+"/phy_identifier")
		var p string
		switch {
		case address == "":
			return "", "", "sas"
		case at(i).text("sas_port/"+parts[i-1]+"/num_phys") != "1": // a wide port: no single phy identifies it
			p = "sas-" + address + "-" + lun
		default:
			p = "sas-phy" + phy + "-" + lun
			if e := index("expander-"); e >= 0 {
				expander := at(i - 1) // the nearest expander is the parent of the port
				p = "sas-exp" + expander.text("sas_device/"+parts[i-2]+"/sas_address") + "-phy" + phy + "-" + lun
			}
		}
		return p, p, "sas"
	}
	if i := index("session"); i >= 0 {
		return "", "", "iscsi"
	}
	if i := index("ata"); i >= 0 {
		port := cmp.Or(at(i+1).text("ata_port/"+parts[i]+"/port_no"), strings.TrimPrefix(parts[i], "ata"))
		if hctl[1] != "0" { // at a port multiplier
			return "ata-" + port + "." + hctl[1] + ".0", "ata-" + port, "sata"
		}
		return "ata-" + port + "." + hctl[2], "ata-" + port, "sata"
	}
	// Host numbers depend on the order in which drivers load; relative to the controller's first host they are stable.
	number, err := strconv.Atoi(strings.TrimPrefix(parts[host], "host"))
	if err != nil {
		return "", "", ""
	}
	first := number
	siblings, _ := os.ReadDir(string(at(host)))
	for _, s := range siblings {
		if rest, ok := strings.CutPrefix(s.Name(), "host"); ok {
			if n, err := strconv.Atoi(rest); err == nil {
				first = min(first, n)
			}
		}
	}
	p := fmt.Sprintf("scsi-%d:%s:%s:%s", number-first, hctl[1], hctl[2], hctl[3])
	return p, p, ""
}
