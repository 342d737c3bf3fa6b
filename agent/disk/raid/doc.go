// Package raid creates, finds and removes arrays of disks with the kernel's md driver.
//
// An array's members are partitions; every disk with a member also has an EFI system partition, and a boot record by
// which a BIOS starts the system in a RAID 1. The metadata, format 1.2, is written here (as mdadm would write it); the
// kernel assembles arrays from it through sysfs, so that no program is needed. Only arrays with this package's mark in
// their name ("ingot:") are assembled: arrays made by a tenant are data, to be erased, not used.
//
// Sizes are bytes, except in superblocks and sysfs, which count sectors of 512. The format follows
// include/uapi/linux/raid/md_p.h, sysfs Documentation/admin-guide/md.rst in the kernel's sources.
package raid
