package build

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// Files of a ramdisk directory.
const (
	KernelFile    = "vmlinuz"
	InitramfsFile = "initramfs.cpio.zst"
	ManifestFile  = "manifest.json"
)

// Format is the version of the manifest's format.
const Format = 1

// Manifest describes a ramdisk directory.
type Manifest struct {
	Format               int             `json:"format"`
	Profile              string          `json:"profile"`
	KernelPackage        string          `json:"kernel_package"`
	KernelPackageVersion string          `json:"kernel_package_version"`
	KernelRelease        string          `json:"kernel_release"`
	Kernel               File            `json:"kernel"`
	Initramfs            File            `json:"initramfs"`
	Loaders              []File          `json:"loaders,omitempty"` // of ISO images; none: no images can be made
	Agent                Agent           `json:"agent"`
	Modules              []Module        `json:"modules"`
	Steps                json.RawMessage `json:"steps"`        // the agent's table of steps, as printed by the agent
	StepsDigest          string          `json:"steps_digest"` // as computed by the agent
	Cmdline              string          `json:"cmdline"`      // required on any machine
}

// File is one file of the directory.
type File struct {
	File         string `json:"file"`
	Size         int64  `json:"size"`
	SHA256       string `json:"sha256"`
	UnpackedSize int64  `json:"unpacked_size,omitempty"`
}

// Agent is the program that runs as /init.
type Agent struct {
	Version string `json:"version"`
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256"`
}

// Module is one kernel module in the ramdisk.
type Module struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

var hex64 = regexp.MustCompile(`^[0-9a-f]{64}$`)

// ReadManifest reads the manifest of a ramdisk directory and checks its form; Inspect checks the files it names.
func ReadManifest(dir string) (*Manifest, error) {
	file := filepath.Join(dir, ManifestFile)
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s holds no ramdisk: %w (make one with: ingot ramdisk build --out %s)", dir, err, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("read the ramdisk's manifest: %w", err)
	}
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("read %s: it is not a ramdisk's manifest: %w", file, err)
	}
	if m.Format != Format {
		return nil, fmt.Errorf("read %s: its format is %d, this program knows %d: build the ramdisk again", file,
			m.Format, Format)
	}
	files := map[string]File{"kernel": m.Kernel, "initramfs": m.Initramfs}
	for _, f := range m.Loaders {
		files["boot loader "+f.File] = f
	}
	for what, f := range files {
		if f.Size <= 0 || !hex64.MatchString(f.SHA256) {
			return nil, fmt.Errorf(
				"read %s: size or SHA-256 of the %s is missing or malformed: build the ramdisk again", file, what)
		}
		if f.File == "" || filepath.Base(f.File) != f.File {
			return nil, fmt.Errorf("read %s: the name of the %s, %q, is not a plain file name", file, what, f.File)
		}
	}
	return &m, nil
}
