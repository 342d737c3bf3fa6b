package cli

import (
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
	cmd := &cobra.Command{Use: "ramdisk", Short: "Build and show the ramdisk that the agent runs in"}
	cmd.AddCommand(p.ramdiskBuild(), p.ramdiskInspect())
	return cmd
}

func (p *program) ramdiskBuild() *cobra.Command {
	var o initramfs.Options
	var all, quiet bool
	profiles := initramfs.Profiles()
	var about []string
	for _, name := range slices.Sorted(maps.Keys(profiles)) {
		about = append(about, fmt.Sprintf("  %-8s %s", name, profiles[name]))
	}
	cmd := &cobra.Command{
		Use: "build", Short: "Build a ramdisk", Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		Long: "Build a ramdisk: a folder with a kernel, an initramfs and a manifest, for the conductor's netboot.ramdisk_dir.\n" +
			"The kernel and its modules come from a Debian kernel package; the agent is compiled from Ingot's source.\n\nProfiles:\n" + strings.Join(about, "\n"),
		Example: `  ingot ramdisk build --profile server --out /var/lib/ingot/ramdisk`,
	}
	f := cmd.Flags()
	f.StringVar(&o.Profile, "profile", "lab", "profile: lab or server")
	f.StringVar(&o.Out, "out", "ramdisk", "folder to write")
	f.BoolVar(&o.Shell, "shell", false, "include the interactive shell, which a rescue needs, if the profile has none")
	f.StringVar(&o.Kernel, "kernel", "", "Debian kernel package, or .deb file (default: the profile's)")
	f.StringVar(&o.Firmware, "firmware", "", "folder with firmware files, to put at /lib/firmware")
	f.StringVar(&o.CA, "ca", "",
		"certificate (PEM) of the conductor's CA to pin (default: the boot parameters name it)")
	f.StringArrayVar(&o.Overlay, "overlay", nil, "folder to put over the root; may be repeated")
	f.StringArrayVar(&o.Steps, "step", nil, "folder with a step of your own (docs/howto/site-steps.md); may be repeated")
	f.StringArrayVar(&o.Modules, "module", nil, "one more kernel module; NAME? for one that may be absent")
	f.StringVar(&o.Agent, "agent", "", "a built ingot-agent, instead of compiling one")
	f.StringVar(&o.Source, "source", "", "folder of Ingot's source (default: found)")
	f.StringVar(&o.Version, "version", "", "version to compile into the agent")
	f.StringVar(&o.Cache, "cache", "", "folder that keeps packages between builds")
	f.BoolVar(&all, "all", false, "list all modules")
	f.BoolVarP(&quiet, "quiet", "q", false, "only the result")
	complete(cmd, "profile", slices.Sorted(maps.Keys(profiles))...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if _, ok := profiles[o.Profile]; !ok {
			return usage("--profile %q is none of %s", o.Profile,
				strings.Join(slices.Sorted(maps.Keys(profiles)), ", "))
		}
		// The compiler works in the source's folder.
		for _, path := range []*string{&o.Out, &o.Agent, &o.Firmware, &o.CA, &o.Cache} {
			if err := absolute(path); err != nil {
				return err
			}
		}
		for i := range o.Steps { // the folder's name is that of its place
			if err := absolute(&o.Steps[i]); err != nil {
				return err
			}
		}
		o.Log = p.buildLog(quiet)
		r, err := initramfs.Build(cmd.Context(), o)
		if err != nil {
			return fmt.Errorf("build ramdisk: %w", err)
		}
		return p.showRamdisk(r, all)
	}
	return cmd
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
	cmd := &cobra.Command{
		Use: "inspect FOLDER", Short: "Show what is in a ramdisk, and check its files against its manifest",
		Args: oneArg("the folder of one ramdisk"),
	}
	cmd.Flags().BoolVar(&all, "all", false, "list all modules")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		r, err := initramfs.Inspect(args[0])
		if err != nil {
			return fmt.Errorf("inspect ramdisk: %w", err)
		}
		return p.showRamdisk(r, all)
	}
	return cmd
}

func (p *program) showRamdisk(r *initramfs.Report, all bool) error {
	if p.output == "json" {
		return p.printJSON(r.Manifest)
	}
	return r.Print(p.stdout, all)
}

func (p *program) imageCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "image", Short: "Build, inspect, publish and verify operating-system images"}
	cmd.AddCommand(p.imageBuild(), p.imageInspect(), p.imagePublish(), p.imageVerify())
	return cmd
}

func (p *program) imageBuild() *cobra.Command {
	var o images.Options
	var quiet bool
	kinds := map[string]func(context.Context, images.Options) (*images.Result, error){
		"debian": images.Debian, "tiny": images.Tiny}
	cmd := &cobra.Command{
		Use: "build debian|tiny", Short: "Build an image to deploy",
		Long: `Build a whole-disk image that boots from BIOS and UEFI:

  debian   Debian 12 with cloud-init (needs root and mmdebstrap)
  tiny     a system that starts in seconds and says on its console what it was given, for tests`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || kinds[args[0]] == nil {
				return usage("%s wants debian or tiny", cmd.CommandPath())
			}
			return nil
		},
		ValidArgs: []string{"debian", "tiny"},
	}
	f := cmd.Flags()
	f.StringVar(&o.Out, "out", "images", "folder to write")
	f.StringVar(&o.Kernel, "kernel", "", "Debian kernel package, or .deb file")
	f.StringVar(&o.Cache, "cache", "", "folder that keeps packages between builds")
	f.BoolVar(&o.Qcow2, "qcow2", false, "as compressed qcow2, too")
	f.BoolVar(&o.Fresh, "fresh", false, "build it again even if it exists")
	f.StringArrayVar(&o.Packages, "package", nil, "one more package (debian)")
	f.StringArrayVar(&o.Sources, "sources", nil, "file with apt sources of Debian 12 (default: this machine's)")
	f.StringVar(&o.RootPassword, "root-password", "",
		"password of root on the console (debian; default: no login with one)")
	f.IntVar(&o.Sector, "sector-size", 512, "sector size of the target disks: 512 or 4096 (4096 boots by UEFI only)")
	f.IntVar(&o.SizeMiB, "size", 0, "least size of the disk in MiB")
	f.BoolVarP(&quiet, "quiet", "q", false, "only the result")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.Log = p.buildLog(quiet)
		r, err := kinds[args[0]](cmd.Context(), o)
		if err != nil {
			return fmt.Errorf("build %s image: %w", args[0], err)
		}
		if p.output == "json" {
			return p.printJSON(r.Image)
		}
		return r.Print(p.stdout)
	}
	return cmd
}
