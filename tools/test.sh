#!/bin/sh
# Runs all tests. Those of packages without machines run under the race detector; those with machines run one package at a time,
# so that two rows of QEMU machines never fight for the processors. A skipped test is a failure: everything is meant to run.
set -eu
if [ "$(id -u)" != 0 ]; then
	echo "make test needs root: it makes network namespaces, loop devices and virtual machines. (make test-fast does not.)" >&2
	exit 1
fi
export INGOT_MUST_RUN=1
machines='/test/e2e$|/test/compat$|/tools/lab$|/images/build$|/initramfs/build$'
{
	go test -json -race -timeout 15m $(go list ./... | grep -Ev "$machines") || true
	CGO_ENABLED=0 go test -json -p 1 -timeout 45m $(go list ./... | grep -E "$machines") || true
} | go run ./test/count
