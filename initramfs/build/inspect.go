package build

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/ingot-metal/ingot/initramfs/archive"
)

// Inspect reads a ramdisk directory and compares its files with the manifest; the error lists every difference.
func Inspect(dir string) (*Report, error) {
	m, err := ReadManifest(dir)
	if err != nil {
		return nil, err
	}
	kernel, kerr := readFile(dir, "kernel", m.Kernel)
	if kerr == nil && (len(kernel) < 0x206 || string(kernel[0x202:0x206]) != "HdrS") {
		kerr = fmt.Errorf("the kernel %s is not a Linux kernel for x86", m.Kernel.File)
	}
	data, ierr := readFile(dir, "initramfs", m.Initramfs)
	faults := []error{kerr, ierr}
	for _, l := range m.Loaders {
		_, err := readFile(dir, "boot loader", l)
		faults = append(faults, err)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("inspect the ramdisk in %s: %w", dir, err)
	}
	entries, unpacked, err := archive.Read(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("inspect the ramdisk in %s: %w", dir, err)
	}
	r := &Report{Dir: dir, Manifest: m, Parts: parts(entries)}
	if err := check(m, entries, unpacked); err != nil {
		return nil, fmt.Errorf("inspect the ramdisk in %s: %w", dir, err)
	}
	return r, nil
}

func readFile(dir, what string, f File) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(dir, f.File))
	if err != nil {
		return nil, fmt.Errorf("read the %s: %w", what, err)
	}
	if int64(len(data)) != f.Size {
		return nil, fmt.Errorf("the %s %s has %d bytes, the manifest says %d: the file is damaged or of another build",
			what, f.File, len(data), f.Size)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != f.SHA256 {
		return nil, fmt.Errorf(
			"the %s %s has SHA-256 %x, the manifest says %s: the file is damaged or of another build", what, f.File,
			sum, f.SHA256)
	}
	return data, nil
}

// check compares the content of the initramfs with the manifest.
func check(m *Manifest, entries map[string]archive.Entry, unpacked int64) error {
	var errs []error
	if unpacked != m.Initramfs.UnpackedSize {
		errs = append(errs,
			fmt.Errorf("the initramfs unpacks to %d bytes, the manifest says %d", unpacked, m.Initramfs.UnpackedSize))
	}
	init, ok := entries["init"]
	if sum := sha256.Sum256(init.Data); !ok || hex.EncodeToString(sum[:]) != m.Agent.SHA256 {
		errs = append(errs, errors.New("/init of the initramfs is not the agent that the manifest names"))
	}
	found := map[string]int64{}
	for name, e := range entries {
		if strings.HasSuffix(name, ".ko") {
			found[strings.ReplaceAll(strings.TrimSuffix(path.Base(name), ".ko"), "-", "_")] = int64(len(e.Data))
			if !strings.HasPrefix(name, "lib/modules/"+m.KernelRelease+"/") {
				errs = append(errs, fmt.Errorf("module %s is not where kernel %s looks", name, m.KernelRelease))
			}
		}
	}
	for _, mod := range m.Modules {
		if size, ok := found[mod.Name]; !ok || size != mod.Size {
			errs = append(errs,
				fmt.Errorf("module %s of %d bytes is in the manifest, in the initramfs it has %d", mod.Name, mod.Size,
					size))
		}
		delete(found, mod.Name)
	}
	for name := range found {
		errs = append(errs, fmt.Errorf("module %s is in the initramfs, not in the manifest", name))
	}
	return errors.Join(errs...)
}

// parts computes the size of each kind of content, largest first.
func parts(entries map[string]archive.Entry) []Part {
	sums := map[string]Part{}
	for name, e := range entries {
		if len(e.Data) == 0 || !e.Mode.IsRegular() {
			continue
		}
		kind := "other files"
		switch {
		case name == "init":
			kind = "agent"
		case strings.HasSuffix(name, ".ko"):
			kind = "kernel modules"
		case strings.HasPrefix(name, "lib/modules/"):
			kind = "module indices"
		case strings.HasPrefix(name, "lib/firmware/"):
			kind = "firmware"
		case name == "bin/bb":
			kind = "shell"
		}
		p := sums[kind]
		sums[kind] = Part{kind, p.Files + 1, p.Size + int64(len(e.Data))}
	}
	return slices.SortedFunc(maps.Values(sums), func(a, b Part) int {
		return cmp.Or(cmp.Compare(b.Size, a.Size), strings.Compare(a.Name, b.Name))
	})
}

// Print writes a report for a person: what was built, the sizes of its parts, the largest modules; with all, every
// module and the names of missing firmware.
func (r *Report) Print(w io.Writer, all bool) error {
	m := r.Manifest
	var out bytes.Buffer // no write to it fails
	t := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "folder\t%s\nprofile\t%s\nkernel\t%s (%s %s)\nagent\t%s\nsteps\t%s\n", r.Dir, m.Profile,
		m.KernelRelease, m.KernelPackage, m.KernelPackageVersion, m.Agent.Version, m.StepsDigest)
	if r.Took > 0 {
		fmt.Fprintf(t, "took\t%.1f s\n", r.Took.Seconds())
	}
	if len(r.Absent) > 0 {
		fmt.Fprintf(t, "not in this kernel\t%s\n", strings.Join(r.Absent, " "))
	}
	_ = t.Flush()
	t = tabwriter.NewWriter(&out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\n\tfiles\tMB\t SHA-256\n%s\t1\t%s\t %s\n%s\t1\t%s\t %s\nunpacked\t\t%s\t\n", m.Kernel.File,
		mb(m.Kernel.Size), m.Kernel.SHA256, m.Initramfs.File, mb(m.Initramfs.Size), m.Initramfs.SHA256,
		mb(m.Initramfs.UnpackedSize))
	for _, p := range r.Parts {
		fmt.Fprintf(t, "%s\t%d\t%s\t\n", p.Name, p.Files, mb(p.Size))
	}
	_ = t.Flush()
	mods := slices.SortedFunc(slices.Values(m.Modules), func(a, b Module) int {
		return cmp.Or(cmp.Compare(b.Size, a.Size), strings.Compare(a.Name, b.Name))
	})
	rest := 0
	if !all && len(mods) > 10 {
		mods, rest = mods[:10], len(mods)-10
	}
	t = tabwriter.NewWriter(&out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\nmodule\tMB\t\n")
	for _, mod := range mods {
		fmt.Fprintf(t, "%s\t%s\t\n", mod.Name, mb(mod.Size))
	}
	if rest > 0 {
		fmt.Fprintf(t, "and %d more\t\t\n", rest)
	}
	_ = t.Flush()
	if len(r.Firmware) > 0 {
		names := ""
		if all {
			names = ": " + strings.Join(r.Firmware, " ")
		}
		fmt.Fprintf(&out, "\n%d firmware files that these modules may ask for are not included%s\n", len(r.Firmware),
			names)
	}
	if _, err := out.WriteTo(w); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	return nil
}

func mb(n int64) string { return fmt.Sprintf("%.2f", float64(n)/1e6) }
