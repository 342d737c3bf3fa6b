package drive

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/images/fs/iso9660"
)

// Where a workload that runs from memory finds its config drive: as files, where cloud-init's ConfigDrive data source
// looks first, and as the whole image, to be mounted or copied.
const (
	SeedDir   = "/var/lib/cloud/seed/config_drive"
	SeedImage = "/config-2.iso"
)

// Seed makes the archive that a kernel unpacks beside the workload's own initramfs, of a config drive as it is stored:
// an object, or a text in base64. instance is what meta_data's uuid is when it has none. Its length is a multiple of
// 512 bytes, so that it may stand before any other archive, compressed or not.
func Seed(raw json.RawMessage, instance string, now time.Time) ([]byte, error) {
	raw = bytes.TrimSpace(raw)
	var files []File
	var img []byte
	var err error
	switch {
	case len(raw) > 0 && raw[0] == '{':
		if files, err = Files(raw, instance); err != nil {
			return nil, err
		}
		if img, err = ISO(files, now); err != nil {
			return nil, err
		}
		if len(img) > MaxSize {
			return nil, ErrTooLarge
		}
	default:
		var text string
		if err := json.Unmarshal(raw, &text); err != nil || text == "" {
			return nil, errors.New("neither an object nor a string")
		}
		if IsURL(text) {
			return nil, errors.New(
				"it is at a URL, where nothing fetches it for a workload that runs from memory: hand it in itself")
		}
		if img, err = Unwrap([]byte(strings.TrimSpace(text)), likeImage); err != nil {
			return nil, err
		}
		if iso9660.Is(img) { // the files of a FAT are for whoever mounts it
			if files, err = FilesOfISO(img); err != nil {
				return nil, err
			}
		}
	}
	a := archive{made: map[string]bool{}}
	for _, f := range files {
		a.file(strings.TrimPrefix(SeedDir, "/")+"/"+f.Path, f.Data)
	}
	a.file(strings.TrimPrefix(SeedImage, "/"), img)
	return a.end(), nil
}

// IsURL tells whether a config drive is handed in as the address of one.
func IsURL(text string) bool {
	text = strings.TrimSpace(text)
	return strings.HasPrefix(text, "http://") || strings.HasPrefix(text, "https://")
}

// likeImage knows an ISO 9660 image, and a FAT by the signature of its boot sector.
func likeImage(b []byte) bool {
	return iso9660.Is(b) || len(b) >= 512 && b[510] == 0x55 && b[511] == 0xaa && (b[0] == 0xeb || b[0] == 0xe9)
}

// archive is a newc cpio in the making (Documentation/driver-api/early-userspace/buffer-format.rst of the kernel). What
// is in it is its owner's alone: a config drive has secrets.
type archive struct {
	b    bytes.Buffer
	made map[string]bool
	ino  int
}

func (a *archive) dir(name string) {
	if name == "." || a.made[name] {
		return
	}
	a.dir(path.Dir(name))
	a.made[name] = true
	mode := 0o040755
	if strings.HasPrefix("/"+name, SeedDir) {
		mode = 0o040700
	}
	a.entry(name, mode, nil)
}

func (a *archive) file(name string, data []byte) {
	a.dir(path.Dir(name))
	a.entry(name, 0o100600, data)
}

func (a *archive) entry(name string, mode int, data []byte) {
	a.ino++
	// magic, inode, mode, uid, gid, links, mtime, size, device and special device in two parts each, length of the
	// name, no checksum
	fmt.Fprintf(&a.b, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", a.ino, mode, 0, 0, 1, 0, len(data),
		0, 0, 0, 0, len(name)+1, 0)
	a.b.WriteString(name)
	a.b.WriteByte(0)
	a.pad(4)
	a.b.Write(data)
	a.pad(4)
}

func (a *archive) pad(to int) {
	for a.b.Len()%to != 0 {
		a.b.WriteByte(0)
	}
}

func (a *archive) end() []byte {
	a.ino = -1
	a.entry("TRAILER!!!", 0, nil)
	a.pad(512)
	return a.b.Bytes()
}
