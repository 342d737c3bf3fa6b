package build

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/initramfs/archive"
	"github.com/ingot-metal/ingot/initramfs/kernel"
)

// cmdline is the kernel command line for any machine: the screen and the serial line as consoles.
const cmdline = "console=tty0 console=ttyS0,115200n8"

// Options of Build. Out is required; zero values of the rest suit most cases.
type Options struct {
	Profile string // "lab" (the default) or "server"; see Profiles
	Out     string // directory to write; created if missing
	Kernel  string // Debian package or .deb file; empty: the profile's, in the newest version apt knows
	Cache   string // folder that keeps packages between builds; empty: kernel.DefaultCache
	Source  string // folder of Ingot's source, to compile the agent; empty: FindSource
	Agent   string // a built agent, instead of compiling one
	Version string // version to compile into the agent; empty: "dev"
	// file with the certificate (PEM) of the conductor's CA to pin; empty: the boot parameters name it
	CA       string
	Firmware string   // folder to put at /lib/firmware
	Overlay  []string // folders to put over the root, the last one winning
	Steps    []string // folders with steps of the site's own, see agent/step/site; they may also lie in overlays
	Modules  []string // more kernel modules; "name?" for one that may be absent
	NoShell  bool     // leave the shell out where the profile has one
	Shell    bool     // put it in where the profile has none
	NoISO    bool     // leave the boot loaders of ISO images out, which are fetched from apt
	Log      *slog.Logger
}

// Report describes a ramdisk that Build made or Inspect read.
type Report struct {
	Dir      string
	Manifest *Manifest
	Parts    []Part        // shares of the unpacked initramfs, largest first
	Absent   []string      // optional modules the kernel package does not have (Build only)
	Firmware []string      // firmware files that modules may ask for and that are not included (Build only)
	Took     time.Duration // Build only
}

// Part is one kind of content of the initramfs.
type Part struct {
	Name  string
	Files int
	Size  int64
}

// Build makes a ramdisk directory.
func Build(ctx context.Context, o Options) (*Report, error) {
	start := time.Now()
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Profile = cmp.Or(o.Profile, "lab")
	if o.Out == "" {
		return nil, fmt.Errorf("build the ramdisk: no folder to write it to was given")
	}
	prof, err := profileNamed(o.Profile)
	if err != nil {
		return nil, err
	}
	o.Kernel = cmp.Or(o.Kernel, prof.kernel)
	o.Version = cmp.Or(o.Version, "dev")
	if o.Cache == "" {
		if o.Cache, err = kernel.DefaultCache(); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return nil, fmt.Errorf("make the ramdisk's folder: %w", err)
	}
	tmp, err := os.MkdirTemp(o.Out, ".build-*")
	if err != nil {
		return nil, fmt.Errorf("build the ramdisk: %w", err)
	}
	defer os.RemoveAll(tmp)

	deb, err := kernel.Fetch(ctx, o.Kernel, o.Cache, o.Log)
	if err != nil {
		return nil, err
	}
	tree, err := kernel.Open(ctx, deb, o.Cache)
	if err != nil {
		return nil, err
	}
	set, err := tree.Select(slices.Concat(prof.modules, o.Modules))
	if err != nil {
		return nil, fmt.Errorf("choose the modules of profile %s: %w", o.Profile, err)
	}

	m := &Manifest{
		Format: Format, Profile: o.Profile, KernelPackage: tree.Package, KernelPackageVersion: tree.Version,
		KernelRelease: tree.Release, Kernel: File{File: KernelFile}, Initramfs: File{File: InitramfsFile},
		Cmdline: cmdline,
	}
	a := archive.New()
	if err := skeleton(a); err != nil {
		return nil, err
	}
	if err := addModules(a, tree, set, m); err != nil {
		return nil, err
	}
	if (prof.shell || o.Shell) && !o.NoShell {
		if err := addShell(ctx, a, o); err != nil {
			return nil, err
		}
	}
	if err := addFiles(a, o); err != nil {
		return nil, err
	}
	// After the overlays, so that none replaces the agent.
	if err := addAgent(ctx, a, o, filepath.Join(tmp, "agent"), m); err != nil {
		return nil, err
	}

	if m.Kernel.Size, m.Kernel.SHA256, err = writeSummed(filepath.Join(tmp, KernelFile), func(w io.Writer) error {
		f, err := os.Open(tree.Vmlinuz())
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	}); err != nil {
		return nil, fmt.Errorf("write the kernel: %w", err)
	}
	if m.Initramfs.Size, m.Initramfs.SHA256, err = writeSummed(filepath.Join(tmp, InitramfsFile),
		func(w io.Writer) (err error) {
			m.Initramfs.UnpackedSize, err = a.Write(w)
			return err
		}); err != nil {
		return nil, fmt.Errorf("write the initramfs: %w", err)
	}
	files := []string{KernelFile, InitramfsFile}
	if !o.NoISO {
		loaders, err := kernel.Loaders(ctx, o.Cache, o.Log)
		if err != nil {
			return nil, fmt.Errorf("%w (or leave them out: --no-iso)", err)
		}
		for _, l := range loaders {
			f := File{File: l.File}
			if f.Size, f.SHA256, err = writeSummed(filepath.Join(tmp, l.File), func(w io.Writer) error {
				_, err := w.Write(l.Data)
				return err
			}); err != nil {
				return nil, fmt.Errorf("write the boot loader %s: %w", l.File, err)
			}
			m.Loaders = append(m.Loaders, f)
			files = append(files, l.File)
		}
	}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the manifest: %w", err)
	}
	if err := os.WriteFile(filepath.Join(tmp, ManifestFile), append(data, '\n'), 0o644); err != nil {
		return nil, fmt.Errorf("write the manifest: %w", err)
	}
	for _, f := range append(files, ManifestFile) {
		if err := os.Rename(filepath.Join(tmp, f), filepath.Join(o.Out, f)); err != nil {
			return nil, fmt.Errorf("put the ramdisk in place: %w", err)
		}
	}
	r, err := Inspect(o.Out)
	if err != nil {
		return nil, fmt.Errorf("read back the result: %w", err)
	}
	r.Absent, r.Firmware, r.Took = set.Absent, missingFirmware(set, o.Firmware), time.Since(start)
	return r, nil
}

// skeleton adds what the first process needs before it has mounted anything. Without /dev/null Go's runtime exits at
// start; without /dev/console its output is lost.
func skeleton(a *archive.Tree) error {
	var errs []error
	for _, dir := range []string{"bin", "dev", "etc", "lib/modules", "proc", "root", "run", "sbin", "sys", "usr/bin",
		"var"} {
		errs = append(errs, a.Dir(dir, 0o755))
	}
	errs = append(errs, a.Dir("tmp", 0o777|fs.ModeSticky))
	for _, d := range []struct {
		name         string
		mode         fs.FileMode
		major, minor uint64
	}{{"console", 0o600, 5, 1}, {"null", 0o666, 1, 3}, {"kmsg", 0o644, 1, 11}, {"urandom", 0o666, 1, 9}} {
		errs = append(errs, a.CharDev("dev/"+d.name, d.mode, d.major, d.minor))
	}
	// Go's user and host look-ups need these.
	for name, text := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "etc/group": "root:x:0:\n",
		"etc/hosts": "127.0.0.1 localhost\n::1 localhost\n", "etc/nsswitch.conf": "hosts: files dns\n",
	} {
		errs = append(errs, a.File(name, []byte(text), 0o644))
	}
	return errors.Join(errs...)
}

func addModules(a *archive.Tree, tree *kernel.Tree, set kernel.Set, m *Manifest) error {
	dir := path.Join("lib/modules", tree.Release)
	m.Modules = []Module{}
	for _, mod := range set.Modules {
		data, err := tree.Read(mod)
		if err != nil {
			return err
		}
		if err := a.File(path.Join(dir, mod.File), data, 0o644); err != nil {
			return err
		}
		m.Modules = append(m.Modules, Module{mod.Name, mod.Size})
	}
	for name, data := range map[string][]byte{
		"modules.dep": set.Dep(), "modules.alias": set.Alias(), "modules.softdep": set.Softdep(),
		"modules.builtin": []byte(strings.Join(tree.Builtin, "\n") + "\n"),
	} {
		if err := a.File(path.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func addFiles(a *archive.Tree, o Options) error {
	if o.Firmware != "" {
		if err := a.Folder("lib/firmware", o.Firmware); err != nil {
			return err
		}
	}
	for _, dir := range o.Overlay {
		if err := a.Folder("", dir); err != nil {
			return err
		}
	}
	for _, dir := range o.Steps {
		name, err := stepName(dir)
		if err != nil {
			return err
		}
		if err := a.Folder(path.Join(stepsFolder, name), dir); err != nil {
			return err
		}
	}
	if o.CA == "" {
		return nil
	}
	data, err := os.ReadFile(o.CA)
	if err != nil {
		return fmt.Errorf("read the CA certificate to pin: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" {
		return fmt.Errorf("read the CA certificate to pin: %s does not begin with a certificate in PEM", o.CA)
	}
	if _, err := x509.ParseCertificate(block.Bytes); err != nil {
		return fmt.Errorf("read the CA certificate to pin: %s: %w", o.CA, err)
	}
	// Encoded again, so that a private key in the same file stays out.
	return a.File("etc/ingot/ca.pem", pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes}), 0o644)
}

func addAgent(ctx context.Context, a *archive.Tree, o Options, tmp string, m *Manifest) error {
	file := o.Agent
	if file == "" {
		source := o.Source
		if source == "" {
			var err error
			if source, err = FindSource(); err != nil {
				return err
			}
		}
		o.Log.Info("compiling the agent")
		if err := compileAgent(ctx, source, o.Version, tmp); err != nil {
			return err
		}
		file = tmp
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the agent: %w", err)
	}
	sum := sha256.Sum256(data)
	m.Agent = Agent{Size: int64(len(data)), SHA256: hex.EncodeToString(sum[:])}
	steps := tmp + "-steps"
	if err := gatherSteps(o, steps); err != nil {
		return err
	}
	if m.Agent.Version, m.Steps, m.StepsDigest, err = describeAgent(ctx, file, steps); err != nil {
		return err
	}
	return a.File("init", data, 0o755)
}

// stepsFolder is where the agent looks for the site's steps.
const stepsFolder = "usr/lib/ingot/steps"

// stepName returns the name of a step's folder in the ramdisk: that of dir, also if dir is written as "." or "x/.".
func stepName(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	return filepath.Base(dir), err
}

// gatherSteps collects the site's steps in their layout in the ramdisk, so that the agent can be asked about them.
func gatherSteps(o Options, to string) error {
	type source struct{ dir, place string }
	var sources []source
	for _, dir := range o.Overlay {
		if dir := filepath.Join(dir, stepsFolder); exists(dir) {
			sources = append(sources, source{dir, to})
		}
	}
	for _, dir := range o.Steps {
		if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
			return fmt.Errorf("add the site's step %s: it is not a folder with a step (%v)", dir, err)
		}
		name, err := stepName(dir)
		if err != nil {
			return err
		}
		sources = append(sources, source{dir, filepath.Join(to, name)})
	}
	for _, s := range sources {
		err := filepath.WalkDir(s.dir, func(file string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(s.dir, file)
			if err != nil {
				return err
			}
			target := filepath.Join(s.place, rel)
			info, err := d.Info()
			switch {
			case err != nil:
				return err
			case d.IsDir():
				return os.MkdirAll(target, 0o755)
			case info.Mode()&fs.ModeSymlink != 0:
				link, err := os.Readlink(file)
				if err != nil {
					return err
				}
				_ = os.Remove(target) // the last one wins
				return os.Symlink(link, target)
			}
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			_ = os.Remove(target)
			return os.WriteFile(target, data, info.Mode().Perm())
		})
		if err != nil {
			return fmt.Errorf("add the site's steps in %s: %w", s.dir, err)
		}
	}
	return nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// missingFirmware lists the firmware that modules may load and dir does not have.
func missingFirmware(set kernel.Set, dir string) []string {
	return slices.DeleteFunc(set.Firmware(), func(f string) bool {
		return dir != "" && exists(filepath.Join(dir, filepath.FromSlash(f)))
	})
}

// writeSummed writes a file and returns its size and digest.
func writeSummed(file string, fill func(io.Writer) error) (int64, string, error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, "", err
	}
	h := sha256.New()
	err = fill(io.MultiWriter(f, h))
	size, seekErr := f.Seek(0, io.SeekCurrent)
	return size, hex.EncodeToString(h.Sum(nil)), errors.Join(err, seekErr, f.Close())
}
