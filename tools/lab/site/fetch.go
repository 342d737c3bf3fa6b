package site

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/initramfs/kernel"
)

// Packages are those of Debian that have the site's programs.
func (s Site) Packages() []string {
	var out []string
	p := s.Plan(netip.MustParsePrefix("10.0.0.0/24")) // any
	if s.DHCP != "" {
		out = append(out, s.Server(p, "").Package)
	}
	if s.Relay != "" {
		out = append(out, s.RelayProgram(p, "").Package)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// inst is a line of `apt-get -s install`: a package, the version that is installed in brackets, and the one that would
// be.
var inst = regexp.MustCompile(`(?m)^Inst ([a-z0-9][a-z0-9.+-]*)(?::\w+)?( \[\S+\])? \((\S+) `)

// Fetch gives a folder in cache with Debian packages, unpacked with what they need that this host does not have.
// Nothing is installed: an installed DHCP server starts as a service, and serves the host's own network.
func Fetch(ctx context.Context, cache string, log *slog.Logger, names ...string) (string, error) {
	name := names[0]
	out, err := run(ctx, "apt-get", append([]string{"-s", "--no-install-recommends", "install"}, names...)...)
	if err != nil {
		return "", fmt.Errorf("look up what %s needs: %w", strings.Join(names, ", "), err)
	}
	versions := map[string]string{}
	for _, n := range names {
		versions[n] = "" // the newest that apt knows
	}
	for _, m := range inst.FindAllStringSubmatch(out, -1) {
		// What is there in another version is used as it is: mixing in a second libc ends badly.
		if m[2] == "" {
			versions[m[1]] = m[3]
		}
	}
	debs, err := kernel.FetchPackages(ctx, versions, cache, log)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, deb := range debs {
		fmt.Fprintln(sum, filepath.Base(deb))
	}
	parent := filepath.Join(cache, "programs")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", fmt.Errorf("unpack %s: %w", name, err)
	}
	dir := filepath.Join(parent, name+"-"+hex.EncodeToString(sum.Sum(nil))[:12])
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	tmp, err := os.MkdirTemp(parent, "unpack-*")
	if err != nil {
		return "", fmt.Errorf("unpack %s: %w", name, err)
	}
	defer os.RemoveAll(tmp)
	for _, deb := range debs {
		if _, err := run(ctx, "dpkg-deb", "--extract", deb, tmp); err != nil {
			return "", fmt.Errorf("unpack %s: %w", deb, err)
		}
	}
	err = errors.Join(os.Chmod(tmp, 0o755), os.Rename(tmp, dir))
	if _, there := os.Stat(dir); err != nil && there != nil { // else another process was faster
		return "", fmt.Errorf("keep the unpacked %s: %w", name, err)
	}
	return dir, nil
}

// Libraries is LD_LIBRARY_PATH for a program of a folder that Fetch gave.
func Libraries(dir string) (string, error) {
	var dirs []string
	err := filepath.WalkDir(filepath.Join(dir, "usr", "lib"), func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a program without libraries of its own
		}
		if err == nil && strings.Contains(e.Name(), ".so.") && !slices.Contains(dirs, filepath.Dir(path)) {
			dirs = append(dirs, filepath.Dir(path))
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("look for libraries: %w", err)
	}
	return strings.Join(dirs, ":"), nil
}

func run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return "", fmt.Errorf("%w: programs of others are taken from Debian's packages", err)
		}
		return "", fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(said.String()))
	}
	return out.String(), nil
}
