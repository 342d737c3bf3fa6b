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
failed=
while read -r pkg name; do
	printf '%s %s, %s\n' "${pkg#github.com/ingot-metal/ingot/}" "$name" "$each"
	# Before 1.27 the go tool sometimes takes the end of the time itself for a failure (go.dev/issue/75804). It then names nothing but
	# the deadline, and has written no input: only such a run is made again.
	for again in yes yes no; do
		go test -run '^$' -fuzz "^$name\$" -fuzztime "$each" -fuzzminimizetime 5x "$pkg" >"$log" 2>&1 && break
		if [ "$again" = no ] || ! grep -qx ' *context deadline exceeded' "$log" || grep -Eq 'Failing input|panic|_test\.go' "$log"; then
			cat "$log"
			failed="$failed $name"
			break
		fi
		echo "  only the end of the time was reported: once more"
	done
	n=$((n + 1))
done <"$list"
if [ -n "$failed" ]; then
	echo "fuzz: $n targets, $each each; failed:$failed" >&2
	exit 1
fi
echo "fuzz: $n targets, $each each, nothing found"
