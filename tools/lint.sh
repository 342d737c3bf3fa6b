#!/bin/sh
# What `make lint` checks: formatting, go vet, staticcheck, shell syntax. Packages may be named, or "none": vet and staticcheck then look at
# those only.
set -eu
[ $# -gt 0 ] || set -- ./...
bad=$(gofmt -l $(git ls-files -co --exclude-standard '*.go' | grep -v 'pb\.go$' | while read -r f; do [ ! -f "$f" ] || echo "$f"; done))
if [ -n "$bad" ]; then
	echo "not formatted (run gofmt -w):" $bad >&2
	exit 1
fi
if [ "$*" != none ]; then
	go vet "$@"
	go tool staticcheck "$@"
fi
for f in tools/*.sh .ci/run; do sh -n "$f"; done
echo "lint: clean"
