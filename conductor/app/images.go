package app

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"strings"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/glance"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// imageService returns OpenStack's, where Ingot is the user that it is to Keystone; nil when the configuration names
// none. Agents get the images at an address of network boot.
func imageService(cfg config.Config, k *access.Keystone, ca *agents.CA, at netip.Addr, st *store.Store,
	log *slog.Logger) (*glance.Service, error) {
	if cfg.Glance.URL == "" {
		return nil, nil
	}
	key, err := ca.GlanceKey()
	if err != nil {
		return nil, err
	}
	s, err := glance.New(glance.Config{
		URL: cfg.Glance.URL, CAFile: cfg.Glance.CAFile, Login: k.OwnToken, Forget: k.Forget,
		Container: cfg.Glance.Container, KeyFile: cfg.Glance.KeyFile,
		Local: localImage(cfg.Netboot.ImagesDir),
		Base:  "http://" + netip.AddrPortFrom(at, uint16(cfg.Netboot.HTTPPort)).String(), Key: key, Node: st.Node,
		NotFound: func(err error) bool { return errors.Is(err, store.ErrNotFound) },
	}, log)
	if err != nil {
		return nil, fmt.Errorf("glance: %w", err)
	}
	return s, nil
}

// localImage reports of a name whether the folder that is served to machines has a file of that name.
func localImage(dir string) func(name string) bool {
	return func(name string) bool {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return false
		}
		defer root.Close()
		_, err = root.Stat(name)
		return err == nil
	}
}

// mostImages is how many files of a folder are listed.
const mostImages = 1000

// imageFiles lists the files of the folder that is served to machines, without those whose names begin with a dot; nil
// without a folder.
func imageFiles(dir string) func() (rest.ImageFiles, error) {
	if dir == "" {
		return nil
	}
	return func() (rest.ImageFiles, error) {
		out := rest.ImageFiles{Images: []rest.ImageFile{}}
		root, err := os.OpenRoot(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return out, nil
		}
		if err != nil {
			return out, fmt.Errorf("netboot.images_dir: %w", err)
		}
		defer root.Close()
		err = fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
			hidden := strings.HasPrefix(d.Name(), ".") && path != "."
			switch {
			case err != nil && path == ".":
				return err
			case (err != nil || hidden) && d.IsDir():
				return fs.SkipDir
			case err != nil || hidden || !d.Type().IsRegular():
				return nil
			case len(out.Images) == mostImages:
				out.More = true
				return fs.SkipAll
			}
			if info, err := d.Info(); err == nil { // else it is gone
				out.Images = append(out.Images,
					rest.ImageFile{Name: path, Size: info.Size(), Modified: rest.NullTime{Time: info.ModTime()}})
			}
			return nil
		})
		return out, err
	}
}
