// Package waivers has waivers that are findings themselves.
package waivers

import "os"

func useless(f *os.File) error {
	//nolint:errcheck there is an error to check
	return f.Sync()
}

func unexplained(f *os.File) {
	f.Sync() //nolint:errcheck
}

var _ = []any{useless, unexplained}
