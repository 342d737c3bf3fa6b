#!/bin/sh
# Fuzzes every parser for a while: tools/fuzz.sh [TIME for each, 10s]. What it finds it leaves in the package's testdata/fuzz, as a seed.
# A package is built once for all its targets; as many packages as there are processors run side by side, each with one worker.
set -eu

# package WORK TIME NAME DIR TARGET... fuzzes the targets of one package, and notes in WORK what failed.
package() {
	work=$1 each=$2 name=$3 dir=$4
	shift 4
	cd "$dir"
	tmp=$(mktemp -d "$work/XXXXXX")
	# The coverage that guides the fuzzer is that of Ingot's own packages. What -fuzz does, watching the libraries and Go's own as well, compiles
	# all of them once more, and makes half as many tries.
	if ! GOGC=400 go test -c -vet=off -gcflags='github.com/ingot-metal/ingot/...=-d=libfuzzer' -o "$tmp/test" . >"$tmp/log" 2>&1; then
		echo "$name" >>"$work/failed"
		cat "$tmp/log"
		return
	fi
	for target; do
		# Before 1.27 the testing package sometimes takes the end of the time itself for a failure (go.dev/issue/75804). It then names nothing
		# but the deadline, and has written no input: only such a run is made again.
		said="$name $target, $each"
		for again in yes yes no; do
			"$tmp/test" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$each" -test.fuzzminimizetime 5x -test.parallel 1 \
				-test.fuzzcachedir "$tmp/cache" >"$tmp/log" 2>&1 && break
			if [ "$again" = no ] || ! grep -qx ' *context deadline exceeded' "$tmp/log" || grep -Eq 'Failing input|panic|_test\.go' "$tmp/log"; then
				echo "$target" >>"$work/failed"
				said="$said
$(cat "$tmp/log")"
				break
			fi
			said="$said: only the end of the time was reported, once more"
		done
		echo "$said"
		echo "$target" >>"$work/done"
	done
	rm -rf "$tmp"
}

if [ "${1:-}" = --package ]; then
	shift
	package "$@"
	exit
fi

each=${1:-10s}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
touch "$work/list" "$work/done" "$work/failed"
go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' ./... | while read -r pkg dir; do
	targets=$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$dir"/*_test.go | paste -sd " " -)
	[ -z "$targets" ] || echo "$work $each ${pkg#github.com/ingot-metal/ingot/} $dir $targets" >>"$work/list"
done
xargs -a "$work/list" -L 1 -P "$(nproc)" sh "$0" --package || echo "a package" >>"$work/failed"
n=$(wc -l <"$work/done")
if [ -s "$work/failed" ] || [ "$n" = 0 ]; then
	echo "fuzz: $n targets, $each each; failed:" $(cat "$work/failed") >&2
	exit 1
fi
echo "fuzz: $n targets, $each each, nothing found"
