package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/initramfs/kernel"
)

const debianSuite = "bookworm"

// debianPackages are the packages of a small server that is configured by cloud-init.
var debianPackages = []string{
	"systemd-sysv", "udev", "dbus", "systemd-resolved", "systemd-timesyncd", "initramfs-tools", "zstd", "kmod",
	"procps", "cloud-init", "cloud-guest-utils", "fdisk", "e2fsprogs", "netplan.io", "iproute2", "iputils-ping",
	"openssh-server", "sudo", "ca-certificates", "less", "vim-tiny",
}

// debianFiles are added to the root file system; an empty text makes an empty file.
var debianFiles = map[string]string{
	// ConfigDrive first and only: no wait for missing metadata servers. None lets a machine without a config drive come
	// up. One host key, no locale to generate, no GRUB package to set up: each costs seconds on a slow machine.
	"etc/cloud/cloud.cfg.d/90_ingot.cfg": "datasource_list: [ ConfigDrive, None ]\nssh_genkeytypes: [ ed25519 ]\nlocale: false\n" +
		"grub_dpkg: { enabled: false }\napt: { preserve_sources_list: true }\n",
	"etc/default/locale": "LANG=C.UTF-8\n",
	"etc/hostname":       "debian\n",
	"etc/hosts":          "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n",
	"etc/machine-id":     "", // made at the first boot
	"etc/systemd/network/90-ingot.network": "# Without a configuration from cloud-init every wired interface asks for an address.\n" +
		"[Match]\nName=en* eth*\n\n[Network]\nDHCP=yes\n",
}

// debianMasked are units that delay the boot or wait for devices that may not exist.
var debianMasked = []string{
	"apt-daily.timer", "apt-daily-upgrade.timer", "systemd-networkd-wait-online.service", "e2scrub_reap.service",
	"dpkg-db-backup.timer",
}

// initramfsConf makes an initial ramdisk that finds its root on any machine, not only on the build machine. This level
// makes it a seventh larger than the default of 9, and faster to build.
const initramfsConf = "MODULES=most\nCOMPRESS=zstd\nCOMPRESSLEVEL=3\n"

// Debian makes a Debian 12 with cloud-init (ConfigDrive), openssh and a login on the serial console. It needs root, for
// mmdebstrap.
//
// Packages come from the apt sources of this machine, or from o.Sources. Their versions are not part of the inputs: an
// existing image is used until o.Fresh requests a new one.
func Debian(ctx context.Context, o Options) (*Result, error) {
	tools := needed{"mmdebstrap": "mmdebstrap", "chroot": "coreutils", "tar": "tar"}
	maps.Copy(tools, diskTools)
	if err := tools.check(); err != nil {
		return nil, err
	}
	o, err := o.complete("debian-12", kernel.Cloud)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(o.Kernel, ".deb") {
		return nil, fmt.Errorf("make image debian-12: %s: its kernel is installed by apt, name a package", o.Kernel)
	}
	if o.Sources == nil {
		if o.Sources, err = hostSources(); err != nil {
			return nil, err
		}
	}
	sources, err := sourcesOf(o.Sources, debianSuite)
	if err != nil {
		return nil, err
	}
	packages := slices.Concat(debianPackages, []string{o.Kernel}, o.Packages)
	inputs, err := inputsOf("debian", sources, packages, debianFiles, debianMasked, initramfsConf, o.RootPassword,
		o.SizeMiB, file(grubBoot), file(grubEFI), file(shimEFI), o.Qcow2, o.Sector)
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		if r, err := Load(o.Out); err != nil || r.Inputs != inputs || o.Fresh {
			return nil, errors.New("making the Debian image needs root: run it with sudo")
		}
	}
	img := &Image{Name: "debian-12", OS: "Debian 12 (" + debianSuite + ")"}
	return o.produce(ctx, inputs, img, func(raw, tmp string) error {
		root := filepath.Join(tmp, "root")
		if err := o.unpackDebian(ctx, root, sources); err != nil {
			return fmt.Errorf("install Debian: %w", err)
		}
		size, err := treeSize(root)
		if err != nil {
			return err
		}
		l := layout{image: "debian-12", root: root, label: "root", espSize: 62 * mib, sector: int64(o.Sector)}
		l.rootSize = max((size*5/4+96*mib)/mib*mib, int64(o.SizeMiB)*mib-l.espSize-3*mib)
		if img.Kernel, err = settle(ctx, root, l, o.RootPassword); err != nil {
			return fmt.Errorf("set Debian up: %w", err)
		}
		return l.write(ctx, raw)
	})
}

// treeAge is how long a root directory with installed packages is reused for other images, such as one with another
// kernel.
const treeAge = 24 * time.Hour

// unpackDebian fills root with installed packages: from a cached archive of the same sources and packages that is at
// most a day old, else from a new one. The kernel is installed on top of the part common to all kernels.
func (o Options) unpackDebian(ctx context.Context, root, sources string) error {
	settings, err := aptSettings(ctx)
	if err != nil {
		return err
	}
	d := installer{o: o, cache: filepath.Join(o.Cache, "debian"), sources: sources,
		settings: "APT::Install-Recommends \"false\";\n" + settings}
	if err := os.MkdirAll(d.cache, 0o755); err != nil {
		return err
	}
	unlock, err := lock(ctx, d.cache, o.Log)
	if err != nil {
		return err
	}
	defer unlock()
	old, err := filepath.Glob(filepath.Join(d.cache, "*.tar"))
	if err != nil {
		return err
	}
	for _, name := range old {
		if st, err := os.Stat(name); err == nil && time.Since(st.ModTime()) > treeAge {
			if err := os.Remove(name); err != nil {
				return err
			}
		}
	}
	base, err := d.tree(ctx, "", slices.Concat(debianPackages, o.Packages))
	if err != nil {
		return err
	}
	tree, err := d.tree(ctx, base, []string{o.Kernel})
	if err != nil {
		return err
	}
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	return run(ctx, nil, "tar", append(untar(tree), "--directory", root)...)
}

func untar(archive string) []string {
	return []string{"--extract", "--file", archive, "--same-permissions", "--numeric-owner", "--xattrs",
		"--xattrs-include=*"}
}

// installer makes archives of root directories with installed packages.
type installer struct {
	o                        Options
	cache, sources, settings string
}

// tree returns an archive of a root directory with packages, installed on top of the archive base if given.
func (d installer) tree(ctx context.Context, base string, packages []string) (string, error) {
	made, err := inputsOf(d.sources, d.settings, filepath.Base(base), packages, initramfsConf, d.args("", "", nil))
	if err != nil {
		return "", err
	}
	tree := filepath.Join(d.cache, made[:20]+".tar")
	if _, err := os.Stat(tree); err == nil && !d.o.Fresh {
		return tree, nil
	}
	start := time.Now()
	if err := d.bootstrap(ctx, tree, base, packages); err != nil {
		return "", err
	}
	d.o.Log.Info("Debian's packages are installed", "took", time.Since(start).Round(time.Second), "packages",
		len(packages))
	return tree, nil
}

// args returns mmdebstrap's arguments except for its output. Packages are downloaded once: they are kept as long as the
// sources have them.
func (d installer) args(conf, base string, packages []string) []string {
	args := []string{"--mode=root", "--format=tar", "--include=" + strings.Join(packages, ","), "--aptopt=" + conf}
	if base == "" {
		args = append(args, "--variant=minbase", "--skip=essential/unlink")
	} else {
		args = append(args, "--variant=custom", "--setup-hook=tar --directory \"$1\" "+strings.Join(untar(base), " "),
			// Before the kernel's installation, so that the initial ramdisk is made only once.
			`--setup-hook=mkdir -p "$1/etc/initramfs-tools/conf.d" && cp "$INGOT_INITRAMFS" "$1/etc/initramfs-tools/conf.d/ingot"`)
	}
	args = append(args,
		`--setup-hook=mkdir -p "$1/var/cache/apt/archives" && find "$INGOT_DEBS" -name '*.deb' -exec cp -l -t "$1/var/cache/apt/archives" {} +`,
		`--customize-hook=chroot "$1" apt-get -qq autoclean && rm -rf "$INGOT_DEBS" && cp -r -l "$1/var/cache/apt/archives" "$INGOT_DEBS"`)
	for _, p := range []string{"doc", "man", "locale", "info"} {
		args = append(args, "--dpkgopt=path-exclude=/usr/share/"+p+"/*")
	}
	return append(args, "--dpkgopt=path-include=/usr/share/doc/*/copyright", debianSuite)
}

// bootstrap installs packages into a root directory and writes it as an archive.
func (d installer) bootstrap(ctx context.Context, tree, base string, packages []string) error {
	tmp, err := os.MkdirTemp(d.cache, "install-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	conf, early := filepath.Join(tmp, "apt.conf"), filepath.Join(tmp, "initramfs.conf")
	for name, text := range map[string]string{conf: d.settings, early: initramfsConf} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	debs := filepath.Join(d.cache, "debs")
	if err := os.MkdirAll(debs, 0o755); err != nil {
		return err
	}
	made := filepath.Join(tmp, "root.tar")
	cmd := exec.CommandContext(ctx, "mmdebstrap", append(d.args(conf, base, packages), made, "-")...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TMPDIR="+tmp, "INGOT_DEBS="+debs, "INGOT_INITRAMFS="+early)
	cmd.Stdin = strings.NewReader(d.sources)
	// Its mounts below root stay in their own namespace, so that removing root never removes anything else.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		text := strings.TrimSpace(said.String())
		if len(text) > 3000 {
			text = "... " + text[len(text)-3000:]
		}
		_ = os.RemoveAll(debs) // it may be one of them
		return fmt.Errorf("mmdebstrap: %w: %s", err, text)
	}
	return os.Rename(made, tree)
}

// settle makes the installed packages a bootable system that can be copied; it returns the kernel's name.
func settle(ctx context.Context, root string, l layout, password string) (string, error) {
	in := func(name string) string { return filepath.Join(root, name) }
	linux, err := filepath.Glob(in("boot/vmlinuz-*"))
	if err != nil {
		return "", err
	}
	if len(linux) != 1 {
		return "", fmt.Errorf("there are %d kernels in /boot, want 1", len(linux))
	}
	release := strings.TrimPrefix(filepath.Base(linux[0]), "vmlinuz-")
	for _, link := range []string{"vmlinuz", "initrd.img"} {
		if _, err := os.Stat(in(link)); err != nil {
			return "", fmt.Errorf("the kernel package made no /%s: %w", link, err)
		}
	}
	files := map[string]string{
		"etc/fstab": "UUID=" + l.rootUUID() + " / ext4 rw,relatime,errors=remount-ro 0 1\n" +
			"LABEL=ESP /boot/efi vfat umask=0077,noauto 0 0\n",
		// Without no_timer_check the kernel panics in an emulated machine that gets no processor for a while: it takes
		// the timer for broken. Hypervisors disable the check themselves. Debian keeps the links /vmlinuz and
		// /initrd.img on the newest kernel, so that this file need not change.
		"boot/grub/grub.cfg": "serial --unit=0 --speed=115200\nterminal_output serial\nset timeout=0\n" +
			"linux /vmlinuz root=UUID=" + l.rootUUID() + " ro no_timer_check console=tty0 console=ttyS0,115200n8\n" +
			"initrd /initrd.img\nboot\n",
	}
	maps.Copy(files, debianFiles)
	errs := []error{os.MkdirAll(in("boot/efi"), 0o755)}
	for name, text := range files {
		errs = append(errs, os.MkdirAll(filepath.Dir(in(name)), 0o755), os.WriteFile(in(name), []byte(text), 0o644))
	}
	// Files that must differ between machines, and traces of the build machine.
	for _, name := range []string{
		"etc/resolv.conf", "var/lib/dbus/machine-id", "etc/apt/apt.conf.d/99mmdebstrap",
		"etc/dpkg/dpkg.cfg.d/99mmdebstrap", "var/lib/systemd/random-seed",
	} {
		if err := os.Remove(in(name)); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	keys, err := filepath.Glob(in("etc/ssh/ssh_host_*"))
	errs = append(errs, err)
	for _, k := range keys {
		errs = append(errs, os.Remove(k))
	}
	if err := errors.Join(append(errs,
		os.Symlink("../run/systemd/resolve/stub-resolv.conf", in("etc/resolv.conf")))...); err != nil {
		return "", err
	}
	if err := run(ctx, nil, "chroot",
		append([]string{root, "systemctl", "--quiet", "mask"}, debianMasked...)...); err != nil {
		return "", err
	}
	if err := run(ctx, nil, "chroot", root, "systemctl", "--quiet", "enable", "systemd-networkd.service",
		"systemd-resolved.service"); err != nil || password == "" {
		return release, err
	}
	return release, run(ctx, strings.NewReader("root:"+password+"\n"), "chroot", root, "chpasswd")
}

// treeSize returns the size of the files below dir in blocks of 4 KiB, with an inode for each.
func treeSize(dir string) (int64, error) {
	var n int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		n += 256
		if info.Mode().IsRegular() || info.IsDir() {
			n += (info.Size() + 4095) / 4096 * 4096
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("measure the root file system: %w", err)
	}
	return n, nil
}
