// Package npm fetches the few packages of npm that make generate and the tests of the dashboard need. Versions and
// digests are fixed here; the registry is the one that npm is set up for. What was fetched stays in the user's cache
// folder.
package npm

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// pkg is a package, with the digest of its archive as in "integrity" of npm.
type pkg struct{ name, version, sha512 string }

var packages = []pkg{
	// what the pages are rendered with; its licence is MIT
	{"preact", "11.2.0", "/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg=="},
	// shows serial consoles; MIT
	{"@xterm/xterm", "6.0.0", "TQwDdQGtwwDt+2cgKDLn0IRaSxYu1tSUjgKarSDkUM0ZNiSRXFpjxEsvc/Zgc5kq5omJ+V0a8/kIM2WD3sMOYg=="},
	// checks pages for accessibility, in tests only; MPL 2.0
	{"axe-core", "4.14.1", "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="},
}

// most is the largest archive that is unpacked.
const most = 64 << 20

// Fetch makes sure that packages are in the cache folder, and returns the folder that has them by their names, as
// node_modules has.
func Fetch(names ...string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache folder: %w", err)
	}
	modules := ""
	for _, name := range names {
		i := slices.IndexFunc(packages, func(p pkg) bool { return p.name == name })
		if i < 0 {
			return "", fmt.Errorf("%s is not in the table of tools/bundle/npm", name)
		}
	}
	for _, p := range packages {
		if !slices.Contains(names, p.name) {
			continue
		}
		modules = filepath.Join(cache, "ingot", "npm")
		if err := p.fetch(modules); err != nil {
			return "", err
		}
	}
	return modules, nil
}

// fetch unpacks a package below a folder, unless this version of it is there.
func (p pkg) fetch(modules string) error {
	dir := filepath.Join(modules, filepath.FromSlash(p.name))
	stamp := filepath.Join(dir, ".fetched")
	if b, err := os.ReadFile(stamp); err == nil && string(b) == p.sha512 {
		return nil
	}
	if _, err := exec.LookPath("npm"); err != nil {
		return fmt.Errorf("fetch %s: npm is not installed; `make generate` and the dashboard's tests fetch with it: apt-get install npm", p.name)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("fetch %s: %w", p.name, err)
	}
	tmp, err := os.MkdirTemp(modules, "fetch-")
	if err != nil {
		return fmt.Errorf("fetch %s: %w", p.name, err)
	}
	defer os.RemoveAll(tmp)
	pack := exec.Command("npm", "pack", "--silent", "--pack-destination", tmp, p.name+"@"+p.version)
	pack.Dir = tmp
	if out, err := pack.CombinedOutput(); err != nil {
		return fmt.Errorf("fetch %s %s with npm: %w: %s", p.name, p.version, err, bytes.TrimSpace(out))
	}
	archives, err := filepath.Glob(filepath.Join(tmp, "*.tgz"))
	if err != nil || len(archives) != 1 {
		return fmt.Errorf("fetch %s %s with npm: it left %d archives, not one", p.name, p.version, len(archives))
	}
	b, err := os.ReadFile(archives[0])
	if err != nil {
		return fmt.Errorf("fetch %s: %w", p.name, err)
	}
	sum := sha512.Sum512(b)
	if got := base64.StdEncoding.EncodeToString(sum[:]); got != p.sha512 {
		return fmt.Errorf("fetch %s %s: the archive's digest is sha512-%s, want sha512-%s", p.name, p.version, got, p.sha512)
	}
	out := filepath.Join(tmp, "unpacked")
	if err := unpack(b, out); err != nil {
		return fmt.Errorf("unpack %s %s: %w", p.name, p.version, err)
	}
	if err := os.WriteFile(filepath.Join(out, ".fetched"), []byte(p.sha512), 0o644); err != nil {
		return fmt.Errorf("unpack %s: %w", p.name, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("replace %s: %w", p.name, err)
	}
	if err := os.Rename(out, dir); err != nil {
		if b, rerr := os.ReadFile(stamp); rerr == nil && string(b) == p.sha512 {
			return nil // another process was faster
		}
		return fmt.Errorf("replace %s: %w", p.name, err)
	}
	return nil
}

// unpack writes the files of an archive, whose first folder is left out, below a folder.
func unpack(archive []byte, dir string) error {
	z, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return err
	}
	r := tar.NewReader(io.LimitReader(z, most))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		_, name, ok := strings.Cut(h.Name, "/")
		if h.Typeflag != tar.TypeReg || !ok || !filepath.IsLocal(name) {
			continue
		}
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
}
