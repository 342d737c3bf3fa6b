// Package raid makes arrays of disks with the kernel's md driver, finds those that are there, and takes them apart.
//
// An array's members are partitions; every disk that has one also has an EFI system partition, and a boot record by
// which a BIOS starts the system in a RAID 1. The metadata, format 1.2, is written here (what mdadm would write); the
// kernel puts arrays together from it through sysfs, so that no program is needed. Only arrays that bear this package's
// mark in their name ("ingot:") are put together: what a tenant made of the disks is data, to be erased, not used.
//
// Sizes are bytes, but in superblocks and sysfs, which count sectors of 512. The format follows
// include/uapi/linux/raid/md_p.h, sysfs Documentation/admin-guide/md.rst in the kernel's sources.
package raid
