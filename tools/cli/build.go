package cli

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	images "github.com/ingot-metal/ingot/images/build"
	initramfs "github.com/ingot-metal/ingot/initramfs/build"
)

// buildLog shows what a build does while it does it.
func (p *program) buildLog(quiet bool) *slog.Logger {
	if quiet {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(
		slog.NewTextHandler(p.stderr, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey && a.Value.Any() == slog.LevelInfo {
				return slog.Attr{}
			}
			return a
		}}))
}

func (p *program) ramdiskCommand() *cobra.Command {
	return group(&cobra.Command{Use: "ramdisk", Short: "Build and show the ramdisk that the agent runs in"},
		p.ramdiskBuild(), p.ramdiskInspect(), p.ramdiskISO())
}

func (p *program) ramdiskBuild() *cobra.Command {
	o := initramfs.Options{Out: "ramdisk"}
	var all, quiet bool
	var site, api string
	profiles := initramfs.Profiles()
	names := slices.Sorted(maps.Keys(profiles))
	about := mapped(names, func(name *string) string { return fmt.Sprintf("  %-8s %s", *name, profiles[*name]) })
	return local(&cobra.Command{
		Use: "build", Short: "Build a ramdisk",
		Long: "Build a ramdisk: a folder with a kernel, an initramfs and a manifest, for the conductor's netboot.ramdisk_dir.\n" +
			"The kernel and its modules come from a Debian kernel package; the agent is compiled from Ingot's source.\n\nProfiles:\n" + strings.Join(about, "\n"),
		Example: `  ingot ramdisk build --profile server --out /var/lib/ingot/ramdisk
  ingot ramdisk build --for ironic --api-url http://192.0.2.1:6385`,
	}, []option{
		opt("profile", &o.Profile, "profile: lab or server (default lab; with --for server)", names...),
		opt("for", &site, "ironic: for an OpenStack Ironic, with an ISO image beside it (docs/howto/under-ironic.md)", forIronic),
		opt("api-url", &api, "with --for: URL of Ironic's API for the ISO image (default: found by multicast DNS)"),
		opt("out", &o.Out, "folder to write"),
		opt("shell", &o.Shell, "include the interactive shell, which a rescue needs, if the profile has none"),
		opt("no-iso", &o.NoISO, "leave out the boot loaders of ISO images, which virtual media need"),
		opt("kernel", &o.Kernel, "Debian kernel package, or .deb file (default: the profile's)"),
		opt("firmware", &o.Firmware, "folder with firmware files, to put at /lib/firmware"),
		opt("ca", &o.CA, "certificate (PEM) of the conductor's CA to pin (default: the boot parameters name it)"),
		opt("overlay", &o.Overlay, "folder to put over the root; may be repeated"),
		opt("step", &o.Steps, "folder with a step of your own (docs/howto/site-steps.md); may be repeated"),
		opt("module", &o.Modules, "one more kernel module; NAME? for one that may be absent"),
		opt("agent", &o.Agent, "a built ingot-agent, instead of compiling one"),
		opt("source", &o.Source, "folder of Ingot's source (default: found)"),
		opt("version", &o.Version, "version to compile into the agent"),
		opt("cache", &o.Cache, "folder that keeps packages between builds"),
		opt("all", &all, "list all modules"),
		opt("quiet,q", &quiet, "only the result"),
	}, func(ctx context.Context, _ []string) error {
		switch {
		case site != "" && site != forIronic:
			return usage("--for %q is not %s", site, forIronic)
		case api != "" && site == "":
			return usage("--api-url is for --for %s", forIronic)
		case site != "" && o.NoISO:
			return usage("--for %s writes an ISO image: leave out --no-iso", forIronic)
		}
		o.Profile = cmp.Or(o.Profile, map[string]string{"": "lab", forIronic: "server"}[site])
		if _, ok := profiles[o.Profile]; !ok {
			return usage("--profile %q is none of %s", o.Profile, strings.Join(names, ", "))
		}
		// The compiler works in the source's folder.
		paths := []*string{&o.Out, &o.Agent, &o.Firmware, &o.CA, &o.Cache}
		for i := range o.Steps { // the folder's name is that of its place
			paths = append(paths, &o.Steps[i])
		}
		for _, path := range paths {
			if err := absolute(path); err != nil {
				return err
			}
		}
		o.Log = p.buildLog(quiet)
		r, err := initramfs.Build(ctx, o)
		if err != nil {
			return fmt.Errorf("build ramdisk: %w", err)
		}
		if err := p.showRamdisk(r, all); err != nil || site == "" {
			return err
		}
		return p.writeForIronic(ctx, o.Out, api)
	})
}

// absolute makes a path that was given relative to this program's folder.
func absolute(path *string) error {
	if *path == "" {
		return nil
	}
	a, err := filepath.Abs(*path)
	if err != nil {
		return fmt.Errorf("folder %s: %w", *path, err)
	}
	*path = a
	return nil
}

func (p *program) ramdiskInspect() *cobra.Command {
	var all bool
	return local(&cobra.Command{
		Use: "inspect FOLDER", Short: "Show what is in a ramdisk, and check its files against its manifest",
		Args: oneArg("the folder of one ramdisk"),
	}, []option{opt("all", &all, "list all modules")}, func(_ context.Context, args []string) error {
		r, err := initramfs.Inspect(args[0])
		if err != nil {
			return fmt.Errorf("inspect ramdisk: %w", err)
		}
		return p.showRamdisk(r, all)
	})
}

func (p *program) showRamdisk(r *initramfs.Report, all bool) error {
	if p.values() {
		return p.print(r.Manifest)
	}
	return r.Print(p.stdout, all)
}

func (p *program) imageCommand() *cobra.Command {
	return group(&cobra.Command{Use: "image", Short: "Build, inspect, publish and verify operating-system images"},
		p.imageBuild(), p.imageInspect(), p.imagePublish(), p.imageVerify())
}

func (p *program) imageBuild() *cobra.Command {
	o := images.Options{Out: "images", Sector: 512}
	var quiet bool
	kinds := map[string]func(context.Context, images.Options) (*images.Result, error){
		"debian": images.Debian, "tiny": images.Tiny}
	return local(&cobra.Command{
		Use: "build debian|tiny", Short: "Build an image to deploy",
		Long: `Build a whole-disk image that boots from BIOS and UEFI:

  debian   Debian 12 with cloud-init (needs root and mmdebstrap)
  tiny     a system that starts in seconds and says on its console what it was given, for tests`,
		Args:      wants("debian or tiny", func(args []string) bool { return len(args) == 1 && kinds[args[0]] != nil }),
		ValidArgs: []string{"debian", "tiny"},
	}, []option{
		opt("out", &o.Out, "folder to write"),
		opt("kernel", &o.Kernel, "Debian kernel package, or .deb file"),
		opt("cache", &o.Cache, "folder that keeps packages between builds"),
		opt("qcow2", &o.Qcow2, "as compressed qcow2, too"),
		opt("fresh", &o.Fresh, "build it again even if it exists"),
		opt("package", &o.Packages, "one more package (debian)"),
		opt("sources", &o.Sources, "file with apt sources of Debian 12 (default: this machine's)"),
		opt("root-password", &o.RootPassword, "password of root on the console (debian; default: no login with one)"),
		opt("sector-size", &o.Sector, "sector size of the target disks: 512 or 4096 (4096 boots by UEFI only)"),
		opt("size", &o.SizeMiB, "least size of the disk in MiB"),
		opt("quiet,q", &quiet, "only the result"),
	}, func(ctx context.Context, args []string) error {
		o.Log = p.buildLog(quiet)
		r, err := kinds[args[0]](ctx, o)
		if err != nil {
			return fmt.Errorf("build %s image: %w", args[0], err)
		}
		if p.values() {
			return p.print(r.Image)
		}
		return r.Print(p.stdout)
	})
}
