// Package build makes the agent's ramdisk: a directory with a kernel, an initramfs and a manifest of their content.
//
// The kernel and its modules come from a Debian kernel package, the agent is /init, and the module indices let it load
// by modalias. The same inputs give the same bytes. Sizes are bytes, digests SHA-256 in hex. The manifest is written
// last, so that the files it names exist.
package build
