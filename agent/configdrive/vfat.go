package configdrive

import (
	"time"

	"github.com/ingot-metal/ingot/agent/fat"
)

// makeFAT makes a FAT12 file system of files, for disks with sectors too large for ISO 9660.
func makeFAT(files []file, sector int, now time.Time) ([]byte, error) {
	if _, err := isoTree(files); err != nil { // the same bounds for both
		return nil, err
	}
	var list []fat.File
	total := 0
	for _, f := range files {
		list = append(list, fat.File{Path: f.path, Data: f.data})
		total += len(f.data)
	}
	if total > MaxSize {
		return nil, errTooLarge()
	}
	img, err := fat.Make(list, fat.Options{Sector: sector, Label: "CONFIG-2", Serial: uint32(now.Unix()), Time: now})
	if err != nil {
		return nil, err
	}
	return img.Bytes(), nil
}
