#!/bin/sh
# Fuzzes every parser for a while: tools/fuzz.sh [TIME for each, 10s]. What it finds it leaves in the package's testdata/fuzz, as a seed.
set -eu
each=${1:-10s}
list=$(mktemp)
log=$(mktemp)
trap 'rm -f "$list" "$log"' EXIT
for pkg in $(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...); do
	dir=$(go list -f '{{.Dir}}' "$pkg")
	for name in $(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$dir"/*_test.go); do
		echo "$pkg $name" >>"$list"
	done
done
n=0
while read -r pkg name; do
	printf '%s %s, %s\n' "${pkg#github.com/ingot-metal/ingot/}" "$name" "$each"
	if ! go test -run '^$' -fuzz "^$name\$" -fuzztime "$each" -fuzzminimizetime 5x "$pkg" >"$log" 2>&1; then
		cat "$log"
		exit 1
	fi
	n=$((n + 1))
done <"$list"
echo "fuzz: $n targets, $each each, nothing found"
