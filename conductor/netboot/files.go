package netboot

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/conductor/netboot/bootiso"
)

// files is everything that is served from disk. Each folder is a root that no name leads out of.
type files struct {
	loaders, images *os.Root
	ramdiskDir      string
	log             *slog.Logger

	mu      sync.Mutex
	ramdisk *ramdisk
}

// ramdisk is a built ramdisk whose files are what its manifest says.
type ramdisk struct {
	manifest fs.FileInfo // of the manifest it was read from
	root     *os.Root
	Kernel   ramdiskFile `json:"kernel"`
	Initrd   ramdiskFile `json:"initramfs"`
	// Loaders start the ramdisk from virtual media; none: it can't be.
	Loaders []ramdiskFile `json:"loaders"`
	layout  func() (*bootiso.Template, error)
}

type ramdiskFile struct {
	File   string `json:"file"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	at     time.Time
	held   *os.File // for boot images
}

var (
	fileForm   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
	digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// loaders are the boot programs that DHCP may offer, by the name they have everywhere.
var loaders = []string{biosLoader, uefiLoader}

// openFiles opens the folders. Boot programs that DHCP would offer must be there; a ramdisk may come later.
func openFiles(c Config, log *slog.Logger) (*files, error) {
	f := &files{ramdiskDir: c.RamdiskDir, log: log}
	var err error
	fail := func(err error) (*files, error) {
		f.close()
		return nil, err
	}
	if c.LoaderDir != "" {
		if err := f.openLoaders(c.LoaderDir); err != nil {
			return fail(fmt.Errorf(
				"netboot.loader_dir: %w; install the package ipxe, or set netboot.loader_dir to nothing and netboot.tftp to false if all machines have iPXE built in", err))
		}
	}
	if c.ImagesDir != "" {
		f.images, err = os.OpenRoot(c.ImagesDir)
		if errors.Is(err, fs.ErrNotExist) {
			log.Warn("there is no folder for images, so none are served", "dir", c.ImagesDir)
		} else if err != nil {
			return fail(fmt.Errorf("netboot.images_dir: %w", err))
		}
	}
	if _, err := f.currentRamdisk(); err != nil {
		log.Warn("there is no ramdisk to boot yet", "err", err)
	}
	return f, nil
}

// CheckFiles returns the faults of the boot programs in a folder ("": none are needed), and of the ramdisk in another.
func CheckFiles(loaderDir, ramdiskDir string) (loaders, ramdisk error) {
	f := &files{ramdiskDir: ramdiskDir, log: slog.New(slog.DiscardHandler)}
	defer f.close()
	if loaderDir != "" {
		loaders = f.openLoaders(loaderDir)
	}
	_, ramdisk = f.currentRamdisk()
	return loaders, ramdisk
}

func (f *files) openLoaders(dir string) (err error) {
	if f.loaders, err = os.OpenRoot(dir); err != nil {
		return err
	}
	for _, name := range loaders {
		info, err := f.loaders.Stat(name)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a file", filepath.Join(dir, name))
		}
	}
	return nil
}

func (f *files) close() {
	for _, r := range []*os.Root{f.loaders, f.images} {
		if r != nil {
			r.Close()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ramdisk != nil {
		f.ramdisk.root.Close()
		f.ramdisk = nil
	}
}

// loader opens a boot program by its plain name.
func (f *files) loader(name string) (*os.File, error) {
	for _, l := range loaders {
		if l == name && f.loaders != nil {
			return openRegular(f.loaders, name)
		}
	}
	return nil, fs.ErrNotExist
}

// openRegular opens a plain file. Anything else (folders, pipes, devices) counts as absent.
func openRegular(r *os.Root, name string) (*os.File, error) {
	info, err := r.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fs.ErrNotExist
	}
	return r.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// currentRamdisk returns the ramdisk that the manifest describes now. It is read again when the manifest has changed,
// and then its files must match the manifest: half a build is not served.
func (f *files) currentRamdisk() (*ramdisk, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	path := filepath.Join(f.ramdiskDir, "manifest.json")
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("netboot.ramdisk_dir: %w; build a ramdisk there (ingot ramdisk build --out %s)", err,
			f.ramdiskDir)
	}
	if r := f.ramdisk; r != nil && os.SameFile(r.manifest, info) && r.manifest.ModTime().Equal(info.ModTime()) &&
		r.manifest.Size() == info.Size() {
		return r, nil
	}
	r, err := readRamdisk(f.ramdiskDir, info)
	if err != nil {
		return nil, fmt.Errorf("ramdisk in %s: %w; build it again (ingot ramdisk build)", f.ramdiskDir, err)
	}
	f.log.Info("ramdisk is ready", "dir", f.ramdiskDir, "kernel", r.Kernel.SHA256[:12], "initramfs",
		r.Initrd.SHA256[:12], "bytes", r.Kernel.Size+r.Initrd.Size)
	// The older root stays open for downloads under way; it is one descriptor per build.
	f.ramdisk = r
	return r, nil
}

func readRamdisk(dir string, info fs.FileInfo) (_ *ramdisk, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			root.Close()
		}
	}()
	b, err := root.ReadFile("manifest.json")
	if err != nil {
		return nil, err
	}
	r := &ramdisk{manifest: info, root: root}
	var head struct {
		Format int `json:"format"`
	}
	if err := errors.Join(json.Unmarshal(b, &head), json.Unmarshal(b, r)); err != nil {
		return nil, fmt.Errorf("read manifest.json: %w", err)
	}
	if head.Format != 1 {
		return nil, fmt.Errorf("manifest.json has format %d, this program reads format 1", head.Format)
	}
	all := []*ramdiskFile{&r.Kernel, &r.Initrd}
	for i := range r.Loaders {
		all = append(all, &r.Loaders[i])
	}
	for _, rf := range all {
		if err := rf.check(root); err != nil {
			return nil, err
		}
	}
	r.layout = sync.OnceValues(r.layOut)
	return r, nil
}

func (rf *ramdiskFile) check(root *os.Root) error {
	if !fileForm.MatchString(rf.File) || !digestForm.MatchString(rf.SHA256) {
		return fmt.Errorf("manifest.json names file %q with digest %q, which can't be", rf.File, rf.SHA256)
	}
	file, err := openRegular(root, rf.File)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return fmt.Errorf("read %s: %w", rf.File, err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != rf.SHA256 || info.Size() != rf.Size {
		return fmt.Errorf("%s has %d bytes and SHA-256 %s, the manifest says %d and %s", rf.File, info.Size(), got,
			rf.Size, rf.SHA256)
	}
	rf.at = info.ModTime()
	return nil
}

// open opens a file of the ramdisk by digest and name, as URLs have them.
func (r *ramdisk) open(digest, name string) (*os.File, *ramdiskFile, error) {
	for _, rf := range []*ramdiskFile{&r.Kernel, &r.Initrd} {
		if rf.SHA256 == digest && rf.File == name {
			f, err := openRegular(r.root, name)
			return f, rf, err
		}
	}
	return nil, nil, fs.ErrNotExist
}

// etag names a version of an image file: strong, because a resumed download must not mix two versions. Size,
// modification time in nanoseconds and inode change whenever a file is written or replaced, apart from writes in place
// within one tick of the clock; a digest of gigabytes at each request would cost more than it proves, since agents
// compare their data with the image's digest anyway.
func etag(info fs.FileInfo) string {
	ino := uint64(0)
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		ino = st.Ino
	}
	return fmt.Sprintf(`"%x-%x-%x"`, info.Size(), info.ModTime().UnixNano(), ino)
}
