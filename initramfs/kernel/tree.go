package kernel

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Tree is an unpacked kernel package.
type Tree struct {
	Package string            `json:"package"` // linux-image-6.1.0-56-amd64
	Version string            `json:"version"` // of the package: 6.1.192-2
	Release string            `json:"release"` // as of uname -r: 6.1.0-56-amd64
	SHA256  string            `json:"sha256"`  // of the package file
	Builtin []string          `json:"builtin"` // modules.builtin: files of built-in modules
	Modules map[string]Module `json:"modules"` // by name
	Dir     string            `json:"-"`
}

// treeFormat is the version of the unpacked directory; a change discards old caches.
const treeFormat = "1"

// Vmlinuz is the path of the kernel.
func (t *Tree) Vmlinuz() string { return filepath.Join(t.Dir, "vmlinuz") }

// Read returns the bytes of a module.
func (t *Tree) Read(m Module) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(t.Dir, filepath.FromSlash(m.File)))
	if err != nil {
		return nil, fmt.Errorf("read module %s of %s: %w", m.Name, t.Package, err)
	}
	return data, nil
}

// Open unpacks a kernel package into cache if missing, and reads its index.
func Open(ctx context.Context, deb, cache string) (*Tree, error) {
	sum, err := sumFile(deb)
	if err != nil {
		return nil, fmt.Errorf("kernel package: %w", err)
	}
	parent := filepath.Join(cache, "kernels")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, fmt.Errorf("make the cache of kernels: %w", err)
	}
	dir := filepath.Join(parent, sum[:20]+"-"+treeFormat)
	unlock, err := lock(ctx, dir+".lock")
	if err != nil {
		return nil, err
	}
	defer unlock()
	if t, err := load(dir); err == nil {
		return t, nil
	}
	tmp, err := os.MkdirTemp(parent, "unpack-*")
	if err != nil {
		return nil, fmt.Errorf("unpack kernel package: %w", err)
	}
	defer os.RemoveAll(tmp)
	t := &Tree{SHA256: sum, Modules: map[string]Module{}}
	if err := t.unpack(ctx, deb, tmp); err != nil {
		return nil, err
	}
	index, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("write the index of %s: %w", t.Package, err)
	}
	if err := os.WriteFile(filepath.Join(tmp, "index.json"), index, 0o644); err != nil {
		return nil, fmt.Errorf("write the index of %s: %w", t.Package, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("keep the unpacked %s: %w", t.Package, err)
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return nil, fmt.Errorf("keep the unpacked %s: %w", t.Package, err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		return nil, fmt.Errorf("keep the unpacked %s: %w", t.Package, err)
	}
	return load(dir)
}

func load(dir string) (*Tree, error) {
	data, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		return nil, fmt.Errorf("read the index of a kernel: %w", err)
	}
	t := &Tree{Dir: dir}
	if err := json.Unmarshal(data, t); err != nil {
		return nil, fmt.Errorf("read the index of a kernel: %w", err)
	}
	return t, nil
}

func (t *Tree) unpack(ctx context.Context, deb, dir string) error {
	err := readDeb(deb, func(archive string, h *tar.Header, r io.Reader) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		name := strings.TrimPrefix(path.Clean(h.Name), "/")
		if h.Typeflag != tar.TypeReg {
			return nil
		}
		if archive == "control" {
			if name != "control" {
				return nil
			}
			data, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			f := fields(string(data))
			t.Package, t.Version = f["Package"], f["Version"]
			return errStop
		}
		return t.keep(dir, strings.TrimPrefix(name, "usr/"), r)
	})
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, "vmlinuz")); err != nil || t.Release == "" {
		return fmt.Errorf("package %s (%s) has no kernel or no modules: it is not a kernel package", deb, t.Package)
	}
	return nil
}

// keep stores one file of the package if it is needed.
func (t *Tree) keep(dir, name string, r io.Reader) error {
	if strings.HasPrefix(name, "boot/vmlinuz-") {
		return write(filepath.Join(dir, "vmlinuz"), r)
	}
	rest, ok := strings.CutPrefix(name, "lib/modules/")
	if !ok {
		return nil
	}
	release, file, ok := strings.Cut(rest, "/")
	if !ok || !filepath.IsLocal(file) {
		return nil
	}
	t.Release = release
	switch {
	case file == "modules.builtin":
		data, err := io.ReadAll(r)
		t.Builtin = strings.Fields(string(data))
		return err
	case strings.HasSuffix(file, ".ko"):
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		m, err := parseModule(file, data)
		if err != nil {
			return err
		}
		t.Modules[m.Name] = m
		to := filepath.Join(dir, filepath.FromSlash(file))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		return os.WriteFile(to, data, 0o644)
	case strings.Contains(path.Base(file), ".ko."):
		return fmt.Errorf("module %s is compressed, which is not known here", file)
	}
	return nil
}

func write(file string, r io.Reader) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, r); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}
