#!/bin/sh
# Runs all tests. A skipped test is a failure: everything is meant to run.
#
# Two groups: first everything under the race detector but for what starts no goroutine; then that, and packages that do little else than boot
# machines or run programs, without it: the longest first, and one more at a time than there are processors, because machines that boot also
# wait. The longest of all, test/e2e, has its tests side by side besides, or they would be all that is left in the end, with one processor idle.
# Three are tested twice, because the race detector is too slow for all of them: the engine, with a conductor that dies at every single write of
# a deployment, the reader of qcow2, with its corpus of hundreds of images, and the eraser of metadata, with ten thousand random disks.
set -eu
if [ "$(id -u)" != 0 ]; then
	echo "make test needs root: it makes network namespaces, loop devices and virtual machines. (make test-fast does not.)" >&2
	exit 1
fi
export INGOT_MUST_RUN=1
plain='/agent/(ext4|fat|kexec)$|/images/(qcow2/inflate|vhd)$|/proto/drive$'
most='/test/(e2e|machine|memory|compat)$|/tools/(demo|lab|cli)$|/(images|initramfs)/build$'
# SQLite and the C library beneath it are C made into Go, with a heap outside of Go's, where the race detector does not look: with it they are
# three times as slow, and so is whatever has a store. The driver, and the Go of all others, it does watch.
translated='-gcflags=modernc.org/sqlite/lib=-race=false -gcflags=modernc.org/libc=-race=false'
{
	go test -json -race $translated -timeout 25m $(go list ./... | grep -Ev "$plain|$most") || true
	CGO_ENABLED=0 go test -json -p $(($(nproc) + 1)) -timeout 50m ./test/e2e ./test/machine ./tools/demo ./images/build ./test/compat ./agent/erase ./conductor/engine ./images/qcow2 $(go list ./... | grep -E "$plain|$most") || true
} | go run ./test/count
