// Package pid1 does the duties of the ramdisk's first process: mounts, consoles, kernel modules, random numbers, and
// supervising the worker, which is the same program started again.
//
// Whatever a parser of foreign bytes does to the worker, the first process stays: it starts the worker again and hands
// it the reason (EnvRestarts, EnvReason). It parses nothing that comes over a network or from a disk. Everything the
// worker writes to its standard output is a status line for people and goes to all consoles; its standard error is the
// log, and goes to LogFile. Modules are found by the modalias of what the kernel has found (modules.alias and
// modules.dep as depmod writes them), both for what is there at start and for what appears later. The kernel's own
// requests (file systems, character sets) reach the same index through /sbin/modprobe, which is this program too.
// u-root mounts and loads modules. Its libinit is not used: it runs programs one after the other and starts none again,
// loads the modules that a list names instead of those the hardware asks for, and mounts and sets what u-root's own
// commands want (GOPATH, debugfs, cgroups).
package pid1
