package configdrive

import (
	"bytes"
	"time"

	"github.com/ingot-metal/ingot/images/fs/fat"
	"github.com/ingot-metal/ingot/images/fs/iso9660"
)

// makeFAT builds a FAT12 file system of files, for disks with sectors too large for ISO 9660.
func makeFAT(files []file, sector int, now time.Time) ([]byte, error) {
	if err := iso9660.Check(files); err != nil { // the same limits for both
		return nil, err
	}
	total := 0
	for _, f := range files {
		total += len(f.Data)
	}
	if total > MaxSize {
		return nil, errTooLarge()
	}
	img, err := fat.Make(files, fat.Options{Sector: sector, Label: "CONFIG-2", Serial: uint32(now.Unix()), Time: now})
	if err != nil {
		return nil, err
	}
	return img.Bytes(), nil
}

// readable opens a given FAT; nil if it is none.
func readable(b []byte) (*fat.FS, error) {
	if iso9660.Is(b) { // a hybrid
		return nil, nil
	}
	return fat.Open(bytes.NewReader(b), int64(len(b)))
}
