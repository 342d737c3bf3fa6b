// Package kernel reads Debian kernel packages: it finds and fetches one through apt, unpacks it into a cache, and
// selects modules with all their dependencies, as indices in the format of depmod.
//
// Nothing is read from the running system's /boot or /lib/modules, so that the same package gives the same result on
// every machine. Dependencies, aliases and firmware names come from the .modinfo section of the modules themselves; the
// package has no modules.dep. Sizes are bytes. Module names are written with underscores, as in the kernel.
//
// The package format is deb(5), the indices are modules.dep(5), modprobe.d(5) for alias and softdep lines.
package kernel
