// Package build makes the operating system images of demo and tests: a tiny one that prints its configuration on its
// console, and Debian 12 with cloud-init.
//
// Both are whole disks: GPT with a BIOS boot partition, an EFI system partition and an ext4 root at the end, so that
// the root can grow and a config drive can follow it. They boot from BIOS (GRUB in the boot partition) and from UEFI
// (shim and GRUB as Debian signed them, at the fallback path and at Debian's own). No loop device and no mount is
// needed: mke2fs and images/fs/fat write into the file. Sizes are bytes unless a name says otherwise; digests are
// SHA-256 in hex.
//
// The places to patch in GRUB's two BIOS parts are documented in boot/i386/pc/boot.S and diskboot.S of its sources; the
// partition table follows chapter 5 of the UEFI specification.
package build
