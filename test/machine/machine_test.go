// Package machine holds tests of the agent in a QEMU machine, without a conductor's engine: the machine is booted directly from kernel and
// ramdisk, or from a disk that ingot-agent wrote. Needs root.
package machine

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/images/build"
	ramdisk "github.com/ingot-metal/ingot/initramfs/build"
)

// Machines are emulated on processors that others use too: limits are many times what is usual.
const (
	bootLimit = 10 * time.Minute // boot of the agent and its steps
	osLimit   = 8 * time.Minute  // from power-on to the login prompt of the tiny system
)

// artifacts are built once for all tests of this package.
type artifacts struct {
	ramdisk string // folder, lab profile
	images  string // folder with the tiny system
	tiny    build.File
}

var shared = sync.OnceValues(func() (*artifacts, error) {
	dir, err := filepath.Abs("../../build/machine")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	a := &artifacts{ramdisk: filepath.Join(dir, "ramdisk"), images: filepath.Join(dir, "tiny")}
	if _, err := ramdisk.Build(context.Background(), ramdisk.Options{Profile: "lab", Out: a.ramdisk}); err != nil {
		return nil, err
	}
	res, err := build.Tiny(context.Background(), build.Options{Out: a.images})
	if err != nil {
		return nil, err
	}
	a.tiny = res.File(res.Zst)
	return a, nil
})
