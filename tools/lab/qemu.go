package lab

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/tools/lab/bmc"
)

// Descriptors that a QEMU process inherits.
const (
	fdConsole = 3 + iota
	fdQMP
)

const (
	ovmfCode = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	ovmfVars = "/usr/share/OVMF/OVMF_VARS_4M.fd"
)

// files are what a QEMU process uses besides disks.
type files struct {
	vars string // the machine's own UEFI variables
	kcs  string // socket of the controller's system interface
	// discs are the drives for discs.
	discs []discFile
}

// qemuArgs is QEMU's command line for one start of a machine.
//
// The whole line is made anew for each start, because the boot order is part of it: bootindex for both kinds of
// firmware.
func qemuArgs(n NodeSpec, accel Accel, boot bmc.Boot, f files, taps []string) []string {
	uefi := n.Firmware == UEFI || boot.UEFI
	args := []string{
		"-name", n.Name,
		// graphics=off: SeaBIOS and iPXE then use the serial port, which is the only thing to look at.
		"-M", "q35,graphics=off",
		"-nodefaults", "-no-user-config", "-display", "none",
		// A reset inside the guest ends QEMU, and the machine is started again with the boot flags of that moment.
		"-no-reboot",
		"-smp", "1", "-m", strconv.Itoa(n.MemoryMiB),
		"-uuid", n.UUID.String(),
		"-smbios", "type=1,manufacturer=Ingot,product=Virtual machine,serial=" + comma(n.Serial) + ",uuid=" +
			n.UUID.String(),
		"-smbios", "type=3,manufacturer=Ingot,asset=" + comma(n.Name),
		"-chardev", fmt.Sprintf("socket,id=con,fd=%d", fdConsole), "-serial", "chardev:con",
		"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d", fdQMP), "-mon", "chardev=qmp,mode=control",
		// With reconnect QEMU connects once all devices exist. Connected earlier, ipmi-bmc-extern (QEMU 7.2) crashes.
		"-chardev", "socket,id=ipmi,reconnect=1,path=" + comma(f.kcs),
		"-device", "ipmi-bmc-extern,id=bmc,chardev=ipmi", "-device", "isa-ipmi-kcs,bmc=bmc",
		// Without a source of random numbers the guest's kernel waits for minutes before it gives out any.
		"-device", "virtio-rng-pci",
	}
	if accel == KVM {
		args = append(args, "-accel", "kvm", "-cpu", "host")
	} else {
		args = append(args, "-accel", "tcg,thread=multi", "-cpu", "qemu64,+rdrand")
	}
	net := !n.NoNetBoot && (boot.Device == bmc.PXE || boot.Device == bmc.HTTP || boot.Device == bmc.Default)
	if uefi {
		onOff := map[bool]string{true: "y", false: "n"}
		args = append(args,
			"-drive", "if=pflash,unit=0,format=raw,readonly=on,file="+ovmfCode,
			"-drive", "if=pflash,unit=1,format=raw,file="+comma(f.vars),
			"-fw_cfg", "name=opt/org.tianocore/IPv4PXESupport,string="+onOff[net && !n.HTTPOnly && boot.Device != bmc.HTTP],
			// Without an answer, OVMF spends 80 seconds on PXE over IPv6.
			"-fw_cfg", "name=opt/org.tianocore/IPv6PXESupport,string="+onOff[net && n.IPv6PXE],
		)
	}

	// The first index boots first. A forced disk is alone; a forced network or drive for discs is followed by the
	// disks, as firmware does; the default is disks, then network. Devices stay in their order on the line, and so in
	// their slots, whatever boots first.
	firstNIC, firstDisk := len(n.Disks)+1, 1
	switch boot.Device {
	case bmc.PXE, bmc.HTTP:
		firstNIC, firstDisk = 1, len(n.NICs)+1
	case bmc.CDROM:
		firstDisk = len(f.discs) + 1
	}
	for i, nic := range n.NICs {
		model := map[string]string{"virtio": "virtio-net-pci", "e1000": "e1000", "e1000e": "e1000e"}[nic.Model]
		dev := fmt.Sprintf("%s,netdev=net%d,mac=%s", model, i, nic.MAC)
		if net && !nic.Elsewhere {
			dev += fmt.Sprintf(",bootindex=%d", firstNIC+i)
		}
		if !net || nic.ROM == ROMNone || nic.Elsewhere {
			dev += ",romfile="
		}
		netdev := fmt.Sprintf("tap,id=net%d,ifname=%s,script=no,downscript=no", i, taps[i])
		if nic.Socket != "" {
			if nic.Model == "virtio" { // without a speed it is in no LAG
				dev += ",speed=10000,duplex=full"
			}
			netdev = fmt.Sprintf("stream,id=net%d,server=off,addr.type=unix,addr.path=%s", i, comma(nic.Socket))
		}
		args = append(args, "-netdev", netdev, "-device", dev)
	}
	for i, d := range n.Disks {
		id, serial, bootindex := fmt.Sprintf("disk%d", i), ",serial="+comma(d.Serial),
			fmt.Sprintf(",bootindex=%d", firstDisk+i)
		wwn := strings.TrimPrefix(d.WWN, "0x")
		// cache=unsafe: what the guest flushes need not survive the host, and it outlives the process in any case.
		args = append(args, "-drive",
			fmt.Sprintf("if=none,id=%s,file=%s,format=raw,cache=unsafe,discard=unmap,detect-zeroes=off",
				id, comma(d.File)))
		switch {
		case d.Bus == "virtio":
			args = append(args, "-device", "virtio-blk-pci,drive="+id+serial+bootindex)
		case d.Bus == "sata" && wwn == "":
			args = append(args, "-device",
				fmt.Sprintf("ide-hd,bus=ide.%d,drive=%s,rotation_rate=1%s%s", i, id, serial, bootindex))
		case d.Bus == "sata":
			args = append(args, "-device",
				fmt.Sprintf("ide-hd,bus=ide.%d,drive=%s,rotation_rate=1%s,wwn=0x%s%s", i, id, serial, wwn, bootindex))
		case d.Bus == "nvme" && wwn == "":
			args = append(args, "-device", "nvme,drive="+id+serial+bootindex)
		case d.Bus == "nvme":
			args = append(args, "-device", fmt.Sprintf("nvme,id=nvme%d%s", i, serial),
				"-device", fmt.Sprintf("nvme-ns,bus=nvme%d,drive=%s,eui64=0x%s%s", i, id, wwn, bootindex))
		}
	}
	args = append(args, discArgs(f.discs, boot)...)
	if n.Kernel != "" && boot.Device != bmc.Disk {
		args = append(args, "-kernel", n.Kernel, "-append", n.Append)
		if n.Initrd != "" {
			args = append(args, "-initrd", n.Initrd)
		}
	}
	if boot.Device == bmc.Disk {
		// Says "no bootable device" and stops, instead of trying what was not asked for.
		args = append(args, "-boot", "strict=on")
	}
	return args
}

// discArgs are the drives for discs: drives of a USB controller of their own, as a server's firmware sees the media of
// its controller. (usb-storage would make hard disks of them, and needs a medium.)
func discArgs(discs []discFile, boot bmc.Boot) (args []string) {
	for i, d := range discs {
		device, node := disc(i)
		drive := fmt.Sprintf("scsi-cd,id=%s,bus=bay%d.0", device, i)
		if i == 0 {
			args = append(args, "-device", "qemu-xhci,id=media,p2=15,p3=15")
		}
		if d.full {
			args = append(args, "-blockdev", source(i, d.socket).line())
			drive += ",drive=" + node
		}
		if boot.Device == bmc.CDROM {
			drive += fmt.Sprintf(",bootindex=%d", i+1)
		}
		args = append(args, "-device", fmt.Sprintf("usb-bot,id=bay%d,bus=media.0", i), "-device", drive)
	}
	return args
}

// comma doubles the commas of a value, as QEMU's options want it.
func comma(s string) string { return strings.ReplaceAll(s, ",", ",,") }
