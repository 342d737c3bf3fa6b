#!/bin/sh
# What `make lint` checks: formatting, go vet, staticcheck, the linters of tools/lint, shell syntax. Packages may be named,
# or "none": vet, staticcheck and the linters that need types then look at those only.
set -eu
[ $# -gt 0 ] || set -- ./...
present() { git ls-files -co --exclude-standard "$@" | while read -r f; do [ ! -f "$f" ] || echo "$f"; done; }
sources=$(present '*.go')
bad=$(gofmt -l $(echo "$sources" | grep -v 'pb\.go$'))
if [ -n "$bad" ]; then
	echo "not formatted (run gofmt -w):" $bad >&2
	exit 1
fi
linters=$PWD/bin/lint
go -C tools/lint build -o "$linters" .
go -C tools/lint vet .
go -C tools/bundle vet ./...
go -C tools/package vet .
go -C test/packages/helm vet .
go -C tools/lint test . >/dev/null || go -C tools/lint test .
"$linters" text $sources $(present '*.md')
"$linters" twins $sources
if [ "$*" != none ]; then
	go vet "$@"
	go tool staticcheck "$@"
	go vet -vettool="$linters" "$@"
fi
for f in tools/*.sh .ci/run; do sh -n "$f"; done
echo "lint: clean"
