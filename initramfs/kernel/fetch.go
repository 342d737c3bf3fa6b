package kernel

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cloud and Full are Debian's two kernels for amd64: the small one for virtual machines (virtio and NVMe only), and the
// one with drivers for hardware.
const (
	Cloud = "linux-image-cloud-amd64"
	Full  = "linux-image-amd64"
)

// DefaultCache is the default directory for fetched packages: $INGOT_CACHE, else "ingot" in the user's cache directory.
func DefaultCache() (string, error) {
	if dir := os.Getenv("INGOT_CACHE"); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache folder: %w (set INGOT_CACHE)", err)
	}
	return filepath.Join(dir, "ingot"), nil
}

var versioned = regexp.MustCompile(`^linux-image-[0-9]`)

// Fetch returns the path of a kernel package: name itself if it is a .deb, else apt's package of that name, fetched
// into cache if missing. A name without a version (Cloud, Full) stands for the newest version known to apt; its lists
// are not updated.
func Fetch(ctx context.Context, name, cache string, log *slog.Logger) (string, error) {
	if strings.HasSuffix(name, ".deb") {
		if _, err := os.Stat(name); err != nil {
			return "", fmt.Errorf("kernel package: %w", err)
		}
		return name, nil
	}
	if !versioned.MatchString(name) {
		exact, err := resolve(ctx, name)
		if err != nil {
			return "", err
		}
		name = exact
	}
	return FetchPackage(ctx, name, "", cache, log)
}

// FetchPackage fetches any package from apt into cache if missing, and returns the path of its .deb. version "" is the
// newest known to apt. Dependencies are not fetched, and nothing is installed.
func FetchPackage(ctx context.Context, name, version, cache string, log *slog.Logger) (string, error) {
	files, err := FetchPackages(ctx, map[string]string{name: version}, cache, log)
	if err != nil {
		return "", err
	}
	return files[0], nil
}

// FetchPackages is FetchPackage for several packages, versions by name; the paths are in the order of the names. apt is
// called once for all of them: its start takes seconds.
func FetchPackages(ctx context.Context, versions map[string]string, cache string, log *slog.Logger) ([]string, error) {
	names := slices.Sorted(maps.Keys(versions))
	which := "package " + strings.Join(names, ", ")
	if len(names) > 3 {
		which = fmt.Sprintf("%d packages, %s and others", len(names), names[0])
	}
	ask := []string{"show", "--no-all-versions"}
	for _, n := range names {
		if v := versions[n]; v != "" {
			n += "=" + v
		}
		ask = append(ask, n)
	}
	out, err := apt(ctx, "", "apt-cache", ask...)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", which, err)
	}
	known := map[string]map[string]string{}
	for paragraph := range strings.SplitSeq(out, "\n\n") {
		f := fields(strings.TrimLeft(paragraph, "\n"))
		known[f["Package"]] = f
	}
	dir := filepath.Join(cache, "debs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the cache of packages: %w", err)
	}
	var files, lacking []string
	for _, n := range names {
		f := known[n]
		if f["Version"] == "" || f["SHA256"] == "" {
			return nil, fmt.Errorf(
				"apt knows no version of %s that can be fetched: run apt-get update, or give a .deb file", n)
		}
		// in the order of the names, so that two processes don't wait for each other
		unlock, err := lock(ctx, filepath.Join(dir, n+".lock"))
		if err != nil {
			return nil, err
		}
		defer unlock()
		file := filepath.Join(dir, n+"_"+strings.ReplaceAll(f["Version"], ":", "%3a")+"_"+f["Architecture"]+".deb")
		files = append(files, file)
		if got, err := sumFile(file); err != nil || got != f["SHA256"] {
			log.Info("fetching a package", "package", n, "version", f["Version"])
			lacking = append(lacking, n+"="+f["Version"])
		}
	}
	if lacking == nil {
		return files, nil
	}
	tmp, err := os.MkdirTemp(dir, "fetch-*")
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", which, err)
	}
	defer os.RemoveAll(tmp)
	// apt drops root for downloads and warns if its own user can't write here.
	if err := os.Chmod(tmp, 0o777); err != nil {
		return nil, fmt.Errorf("fetch %s: %w", which, err)
	}
	if _, err := apt(ctx, tmp, "apt-get", append([]string{"download", "-q"}, lacking...)...); err != nil {
		return nil, fmt.Errorf("fetch %s: %w", which, err)
	}
	for i, n := range names {
		if !slices.Contains(lacking, n+"="+known[n]["Version"]) {
			continue
		}
		got, err := filepath.Glob(filepath.Join(tmp, n+"_*.deb"))
		if err != nil || len(got) != 1 {
			return nil, fmt.Errorf("fetch package %s: apt-get brought %d files", n, len(got))
		}
		if sum, err := sumFile(got[0]); err != nil || sum != known[n]["SHA256"] {
			return nil, fmt.Errorf("fetch package %s: SHA-256 is %s, apt's list says %s (%v)", n, sum,
				known[n]["SHA256"], err)
		}
		if err := os.Rename(got[0], files[i]); err != nil {
			return nil, fmt.Errorf("keep package %s: %w", n, err)
		}
	}
	return files, nil
}

// resolve finds the versioned package of a meta package.
func resolve(ctx context.Context, meta string) (string, error) {
	out, err := apt(ctx, "", "apt-cache", "depends", "--important", meta)
	if err != nil {
		return "", fmt.Errorf("look up kernel package %s: %w", meta, err)
	}
	for line := range strings.Lines(out) {
		if dep, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok && versioned.MatchString(dep) {
			return dep, nil
		}
	}
	return "", fmt.Errorf(
		"apt's package %s depends on no kernel: run apt-get update, or name a kernel package or a .deb file", meta)
}

// fields reads the first paragraph of a Debian control file. Continued lines are left out.
func fields(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "" {
			break
		}
		if key, value, ok := strings.Cut(line, ":"); ok && line[0] != ' ' && line[0] != '\t' {
			out[key] = strings.TrimSpace(value)
		}
	}
	return out
}

func apt(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return "", fmt.Errorf("%w: packages are taken from apt; for a kernel, a .deb file can be given instead",
				err)
		}
		return "", fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

func sumFile(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read %s: %w", file, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// lock takes a lock between processes: of two simultaneous builds one fetches and unpacks.
func lock(ctx context.Context, file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the cache: %w", err)
	}
	tick := time.Tick(100 * time.Millisecond)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", file, err)
		}
		select {
		case <-tick:
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("wait for another build to release %s: %w", file, ctx.Err())
		}
	}
}
