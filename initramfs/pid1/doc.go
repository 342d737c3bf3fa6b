// Package pid1 is the ramdisk's first process: mounts, consoles, kernel modules, random numbers, and supervision of the
// worker, which is the same program in a second process.
//
// The first process survives every crash of the worker's parsers: it starts the worker again with the reason
// (EnvRestarts, EnvReason). It parses no data from a network or a disk. The worker's standard output is a status line
// for people and goes to all consoles; its standard error is the log, and goes to LogFile. Modules are found by the
// modalias of the devices in the kernel (modules.alias and modules.dep as depmod writes them), both for those present
// at start and those that appear later. The kernel's own requests (file systems, character sets) use the same index
// through /sbin/modprobe, which is this program too. u-root mounts and loads modules. Its libinit is not used: it runs
// programs in sequence and restarts none, loads the modules of a list instead of those for the present hardware, and
// makes the mounts and settings of u-root's own commands (GOPATH, debugfs, cgroups).
package pid1
