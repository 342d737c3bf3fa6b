package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/netboot/bootiso"
	initramfs "github.com/ingot-metal/ingot/initramfs/build"
	"github.com/ingot-metal/ingot/proto/netdata"
)

func (p *program) ramdiskISO() *cobra.Command {
	var dir, out, params, network, words string
	return local(&cobra.Command{
		Use: "iso", Short: "Write a ramdisk as an ISO image that machines boot",
		Long: "Write a ramdisk as an ISO image that a BIOS and UEFI boot, as the conductor composes it for virtual media.\n" +
			"Boot parameters with secrets (ingot.token=...) belong into --params: they go into the ramdisk,\n" +
			"not onto the kernel's command line.",
		Example: `  ingot ramdisk iso --ramdisk /var/lib/ingot/ramdisk --params params --out agent.iso`,
	}, []option{
		opt("ramdisk", &dir, "folder of the ramdisk"),
		opt("out", &out, "file to write, which must not exist"),
		opt("append", &words, "words for the kernel's command line"),
		opt("params", &params, "file with boot parameters for the agent (docs/howto/ramdisk.md)"),
		opt("network-data", &network, "file with the machine's network_data.json: addresses without DHCP (docs/reference/network-data.md)"),
	}, func(ctx context.Context, _ []string) error {
		if dir == "" || out == "" {
			return usage("give --ramdisk and --out")
		}
		n := bootiso.Node{CommandLine: strings.TrimSpace("console=tty0 console=ttyS0,115200n8 " + words)}
		if params != "" {
			b, err := os.ReadFile(params)
			if err != nil {
				return fmt.Errorf("write ISO image: %w", err)
			}
			n.Params = strings.Join(strings.Fields(string(b)), " ")
		}
		if network != "" {
			var err error
			if n.NetworkData, err = os.ReadFile(network); err == nil {
				_, err = netdata.Parse(n.NetworkData)
			}
			if err != nil {
				return fmt.Errorf("write ISO image: %w", err)
			}
		}
		size, err := writeISO(ctx, dir, out, n)
		if err != nil {
			return fmt.Errorf("write ISO image: %w", err)
		}
		_, err = fmt.Fprintf(p.stdout, "%s: %d bytes\n", out, size)
		return err
	})
}

// forIronic is the value of --for.
const forIronic = "ironic"

// ironicISO is the file beside a ramdisk for Ironic.
const ironicISO = "ironic.iso"

// writeForIronic writes an ISO image for machines of an Ironic into a ramdisk's folder.
func (p *program) writeForIronic(ctx context.Context, dir, api string) error {
	// Virtual media without a token of ours is an Ironic's, which multicast DNS finds.
	words := "boot_method=vmedia"
	if api != "" {
		u, err := url.Parse(api)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return usage("--api-url %q is no http or https URL", api)
		}
		words = "ipa-api-url=" + api
	}
	out := filepath.Join(dir, ironicISO)
	if err := os.Remove(out); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("replace the ISO image: %w", err)
	}
	size, err := writeISO(ctx, dir, out, bootiso.Node{CommandLine: "console=tty0 console=ttyS0,115200n8 " + words})
	if err != nil {
		return fmt.Errorf("write ISO image: %w", err)
	}
	_, err = fmt.Fprintf(p.stdout, "%s: %d bytes\n", out, size)
	return err
}

// writeISO writes the image of the ramdisk in dir.
func writeISO(ctx context.Context, dir, out string, n bootiso.Node) (int64, error) {
	r, err := initramfs.Inspect(dir)
	if err != nil {
		return 0, err
	}
	file := func(f initramfs.File) bootiso.File {
		path := filepath.Join(dir, f.File)
		return bootiso.File{Size: f.Size, Open: func() (bootiso.Content, error) { return os.Open(path) }}
	}
	parts := bootiso.Parts{Kernel: file(r.Manifest.Kernel), Initramfs: file(r.Manifest.Initramfs),
		Loaders: map[string][]byte{}, Time: time.Now()}
	for _, l := range r.Manifest.Loaders {
		if parts.Loaders[l.File], err = os.ReadFile(filepath.Join(dir, l.File)); err != nil {
			return 0, err
		}
	}
	t, err := bootiso.New(parts)
	if err != nil {
		return 0, err
	}
	img, err := t.Image(n)
	if err != nil {
		return 0, err
	}
	from, err := img.Open()
	if err != nil {
		return 0, err
	}
	defer from.Close()
	// The file may have a token.
	to, err := os.OpenFile(out, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	_, err = from.CopyTo(stopping{ctx, to}, img.Size())
	if err = errors.Join(err, to.Close()); err != nil {
		return 0, errors.Join(err, os.Remove(out))
	}
	return img.Size(), nil
}

// stopping is a writer that ends with a context.
type stopping struct {
	ctx context.Context
	w   io.Writer
}

func (s stopping) Write(b []byte) (int, error) {
	if err := context.Cause(s.ctx); err != nil {
		return 0, err
	}
	return s.w.Write(b)
}
