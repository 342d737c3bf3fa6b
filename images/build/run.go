package build

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// epoch is the fixed time of file systems of images, for reproducible images.
const epoch = 1700000000

// needed lists the tools for building an image, with the Debian package of each.
type needed map[string]string

var diskTools = needed{
	"mke2fs": "e2fsprogs", "debugfs": "e2fsprogs",
	"grub-mkimage": "grub-common", grubBoot: "grub-pc-bin", grubEFI: "grub-efi-amd64-signed", shimEFI: "shim-signed",
}

// check reports all missing tools together.
func (n needed) check() error {
	missing := map[string]bool{}
	for what, pkg := range n {
		var err error
		if strings.HasPrefix(what, "/") {
			_, err = os.Stat(what)
		} else {
			_, err = exec.LookPath(what)
		}
		if err != nil {
			missing[pkg] = true
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("programs to make images with are missing: apt-get install %s",
		strings.Join(slices.Sorted(maps.Keys(missing)), " "))
}

// run runs a program with a plain environment; an error has the end of its output.
func run(ctx context.Context, stdin io.Reader, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	now := fmt.Sprint(epoch)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC", "SOURCE_DATE_EPOCH="+now, "E2FSPROGS_FAKE_TIME="+now)
	cmd.Stdin = stdin
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		text := strings.TrimSpace(said.String())
		if len(text) > 3000 {
			text = "... " + text[len(text)-3000:]
		}
		return fmt.Errorf("%s: %w: %s", name, err, text)
	}
	return nil
}
