package build

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/initramfs/kernel"
)

// profile is a kind of machine.
type profile struct {
	about   string
	kernel  string // package
	modules []string
	shell   bool
}

// base has the modules of every ramdisk: the file systems of images and config drives, partitions of any disk, EFI
// variables. A question mark marks a module that some kernel packages lack.
const base = `
	ext4 xfs vfat nls_cp437 nls_ascii isofs efivarfs? loop
	sd_mod sr_mod? sg? button? af_packet
	ipmi_si? ipmi_devintf? ipmi_ssif?`

// virtual has the drivers of virtual machines, so that every ramdisk can be tried in one.
const virtual = `
	virtio_pci virtio_net virtio_blk virtio_scsi virtio_rng virtio_console?
	nvme ahci? ata_piix? e1000? e1000e? qemu_fw_cfg? tpm_tis? tpm_crb?`

// server has the drivers for rack servers of the last twelve years, with Debian's full kernel.
const server = `
	bnx2 bnx2x bnxt_en tg3 mlx4_core mlx4_en mlx5_core ixgbe ixgbevf i40e iavf ice igb igbvf igc e1000 e1000e
	r8169 realtek be2net qede qlcnic cxgb4 sfc ena enic atlantic bna nfp ionic? gve? vmxnet3 hv_netvsc
	cdc_ether cdc_ncm cdc_subset? rndis_host r8152 ax88179_178a asix
	ahci ata_piix mpt3sas mptsas mptspi megaraid_sas hpsa smartpqi aacraid 3w_sas 3w_9xxx arcmsr isci mvsas pm80xx
	qla2xxx lpfc vmd vmw_pvscsi hv_storvsc nvme_tcp? nvme_rdma?
	xhci_pci ehci_pci uhci_hcd ohci_pci usb_storage uas usbhid hid_generic sdhci_pci mmc_block
	ipmi_si ipmi_devintf ipmi_ssif i2c_i801
	tpm_tis tpm_crb
	md_mod raid0 raid1 raid10 raid456 linear dm_mod dm_crypt dm_raid dm_mirror dm_snapshot
	8021q bonding target_core_iblock iscsi_target_mod
	iTCO_wdt hpwdt i6300esb sp5100_tco
	btrfs squashfs overlay`

var profiles = map[string]profile{
	"lab": {
		about: "virtual machines: small and quick to boot", kernel: kernel.Cloud,
		modules: strings.Fields(base + virtual),
	},
	"server": {
		about:  "rack servers: common network cards, disk controllers, RAID, IPMI, TPM; with a shell",
		kernel: kernel.Full, modules: strings.Fields(base + virtual + server), shell: true,
	},
}

// Profiles returns the names of the profiles and the purpose of each.
func Profiles() map[string]string {
	out := map[string]string{}
	for name, p := range profiles {
		out[name] = p.about
	}
	return out
}

func profileNamed(name string) (profile, error) {
	p, ok := profiles[name]
	if !ok {
		return p, fmt.Errorf("there is no ramdisk profile %q: choose one of %s", name,
			strings.Join(slices.Sorted(maps.Keys(profiles)), ", "))
	}
	return p, nil
}
