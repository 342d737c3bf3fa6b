#!/bin/sh
# What `make lint` checks: formatting, go vet, staticcheck, shell syntax.
set -eu
bad=$(gofmt -l $(git ls-files '*.go' | grep -v 'pb\.go$'))
if [ -n "$bad" ]; then
	echo "not formatted (run gofmt -w):" $bad >&2
	exit 1
fi
go vet ./...
go tool staticcheck ./...
for f in tools/*.sh .ci/run; do sh -n "$f"; done
echo "lint: clean"
