// Package build makes the agent's ramdisk: a folder with a kernel, an initramfs and a manifest that says what is in
// them.
//
// The kernel and its modules come from a Debian kernel package, the agent is /init, and the module indices let it load
// by modalias. The same inputs give the same bytes. Sizes are bytes, digests SHA-256 in hex. The folder is written so
// that whoever reads the manifest finds the files it names: files first, the manifest last.
package build
