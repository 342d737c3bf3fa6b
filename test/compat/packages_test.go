package compat

import (
	"log/slog"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/debian"
)

// unpack returns Debian packages with their dependencies beyond the installed ones. Nothing is installed.
func unpack(t *testing.T, names ...string) debian.Tree {
	t.Helper()
	kit.NeedPrograms(t, "apt-get", "dpkg-deb")
	tree, err := debian.Unpack(t.Context(), slog.New(slog.DiscardHandler), names...)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}
