package drive

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/images/fs/iso9660"
	"github.com/ingot-metal/ingot/proto/segment"
)

// Paths of the config drive in a workload that runs from memory: as files, where cloud-init's ConfigDrive data source
// looks first, and as the whole image, to be mounted or copied.
const (
	SeedDir   = "/var/lib/cloud/seed/config_drive"
	SeedImage = "/config-2.iso"
)

// Seed returns the archive that a kernel unpacks beside the workload's own initramfs, from a stored config drive: an
// object, or a text in base64. instance is the uuid for a meta_data without one. The archive's length is a multiple of
// 512 bytes, so that any other archive, compressed or not, may follow it.
func Seed(raw json.RawMessage, instance string, now time.Time) ([]byte, error) {
	raw = bytes.TrimSpace(raw)
	var files []File
	var img []byte
	var err error
	if bytes.HasPrefix(raw, []byte("{")) {
		if files, err = Files(raw, instance); err != nil {
			return nil, err
		}
		if img, err = ISO(files, now); err != nil {
			return nil, err
		}
		if len(img) > MaxSize {
			return nil, ErrTooLarge
		}
	} else {
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
		if iso9660.Is(img) { // the files of a FAT are only in the image
			if files, err = FilesOfISO(img); err != nil {
				return nil, err
			}
		}
	}
	a := segment.New(SeedDir)
	for _, f := range files {
		a.File(SeedDir+"/"+f.Path, f.Data)
	}
	a.File(SeedImage, img)
	return a.End()
}

// IsURL reports whether a config drive is given as a URL.
func IsURL(text string) bool {
	text = strings.TrimSpace(text)
	return strings.HasPrefix(text, "http://") || strings.HasPrefix(text, "https://")
}

// likeImage detects an ISO 9660 image, and a FAT by the signature of its boot sector.
func likeImage(b []byte) bool {
	return iso9660.Is(b) || len(b) >= 512 && b[510] == 0x55 && b[511] == 0xaa && (b[0] == 0xeb || b[0] == 0xe9)
}
