package compat

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/initramfs/kernel"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab/site"
)

// unpack gives folders with Debian packages and with what they need beyond what is installed. Nothing is installed.
func unpack(t *testing.T, names ...string) []string {
	t.Helper()
	kit.NeedPrograms(t, "apt-get", "dpkg-deb")
	cache, err := kernel.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	var dirs []string
	for _, name := range names {
		dir, err := site.Fetch(t.Context(), name, cache, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
	}
	return dirs
}

const modules = "usr/lib/python3/dist-packages"

// pythonPath is the setting with which Debian's Python finds the modules of unpacked packages.
func pythonPath(dirs []string) string {
	var paths []string
	for _, d := range dirs {
		paths = append(paths, filepath.Join(d, modules))
	}
	return "PYTHONPATH=" + strings.Join(paths, ":")
}
