package kernel

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
)

// Loader is a program that starts the ramdisk from an ISO image.
type Loader struct {
	File string // its name in a ramdisk directory
	Data []byte

	pkg, path string
}

// Loaders of ISO images: Debian's own, which firmware with Secure Boot accepts, and the one for a BIOS.
var loaders = []Loader{
	{File: "shimx64.efi", pkg: "shim-signed", path: "usr/lib/shim/shimx64.efi.signed"},
	{File: "grubx64.efi", pkg: "grub-efi-amd64-signed", path: "usr/lib/grub/x86_64-efi-signed/gcdx64.efi.signed"},
	{File: "isolinux.bin", pkg: "isolinux", path: "usr/lib/ISOLINUX/isolinux.bin"},
	{File: "ldlinux.c32", pkg: "syslinux-common", path: "usr/lib/syslinux/modules/bios/ldlinux.c32"},
}

// largestLoader bounds a loader, which is kept in memory.
const largestLoader = 8 << 20

// Loaders fetches the loaders' packages from apt into cache if missing, and returns the loaders.
func Loaders(ctx context.Context, cache string, log *slog.Logger) ([]Loader, error) {
	versions := map[string]string{}
	for _, l := range loaders {
		versions[l.pkg] = ""
	}
	debs, err := FetchPackages(ctx, versions, cache, log)
	if err != nil {
		return nil, fmt.Errorf("fetch the boot loaders of ISO images: %w", err)
	}
	var out []Loader
	for i, pkg := range slices.Sorted(maps.Keys(versions)) {
		for _, l := range loaders {
			if l.pkg != pkg {
				continue
			}
			if l.Data, err = fileOf(debs[i], l.path); err != nil {
				return nil, err
			}
			out = append(out, l)
		}
	}
	return out, nil
}

// fileOf returns a file of a package.
func fileOf(deb, path string) (data []byte, err error) {
	err = readDeb(deb, func(archive string, h *tar.Header, r io.Reader) error {
		if archive != "data" || strings.TrimPrefix(h.Name, "./") != path {
			return nil
		}
		if h.Size > largestLoader {
			return fmt.Errorf("%s has %d bytes", path, h.Size)
		}
		if data, err = io.ReadAll(r); err != nil {
			return err
		}
		return errStop
	})
	if err == nil && data == nil {
		err = errors.New("package " + deb + " has no " + path)
	}
	return data, err
}
