// Package debian has programs and Python modules from Debian's packages, unpacked into a cache: nothing is installed.
package debian

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/ingot-metal/ingot/initramfs/kernel"
	"github.com/ingot-metal/ingot/tools/lab/site"
)

// Python is Debian's own, whichever else is first in the path: the modules belong to it.
const Python = "/usr/bin/python3"

// Tree is a folder with packages.
type Tree struct {
	Root string   // has usr/bin and so on
	Env  []string // settings with which its programs find their modules and libraries
}

// Unpack returns the packages with their dependencies beyond the installed ones.
func Unpack(ctx context.Context, log *slog.Logger, packages ...string) (Tree, error) {
	cache, err := kernel.DefaultCache()
	if err != nil {
		return Tree{}, err
	}
	root, err := site.Fetch(ctx, cache, log, packages...)
	if err != nil {
		return Tree{}, err
	}
	libraries, err := site.Libraries(root)
	if err != nil {
		return Tree{}, err
	}
	t := Tree{Root: root}
	t.Env = []string{"PYTHONPATH=" + t.Modules(), "LD_LIBRARY_PATH=" + libraries}
	return t, nil
}

// Modules is the folder of Python's modules.
func (t Tree) Modules() string { return filepath.Join(t.Root, "usr/lib/python3/dist-packages") }

// Program is the path of one of usr/bin.
func (t Tree) Program(name string) string { return filepath.Join(t.Root, "usr/bin", name) }
