package configdrive

import (
	"bytes"
	"errors"
	"time"

	"github.com/ingot-metal/ingot/images/fs/fat"
	"github.com/ingot-metal/ingot/proto/drive"
)

// makeFAT makes a FAT12 file system of files, for disks with sectors too large for ISO 9660.
func makeFAT(files []file, sector int, now time.Time) ([]byte, error) {
	if err := drive.Check(files); err != nil { // the same bounds for both
		return nil, err
	}
	var list []fat.File
	total := 0
	for _, f := range files {
		list = append(list, fat.File{Path: f.Path, Data: f.Data})
		total += len(f.Data)
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

// readable opens a FAT that was handed in; nil when it is none.
func readable(b []byte) (*fat.FS, error) {
	if drive.IsISO(b) { // a hybrid
		return nil, nil
	}
	return fat.Open(bytes.NewReader(b), int64(len(b)))
}

// readFAT gives the files of a FAT that a tenant made, within the bounds of drive.ReadISO.
func readFAT(fs *fat.FS) ([]file, error) {
	var files []file
	total, folders := int64(0), 0
	var walk func(dir *fat.Entry, prefix string, depth int) error
	walk = func(dir *fat.Entry, prefix string, depth int) error {
		if folders++; depth > 8 || folders > drive.MaxFiles {
			return errFAT
		}
		list, err := fs.List(dir)
		if err != nil {
			return err
		}
		for _, e := range list {
			if e.Dir {
				if err := walk(&e, prefix+e.Name+"/", depth+1); err != nil {
					return err
				}
				continue
			}
			// Overlapping chains could make many large files of few clusters.
			if total += int64(e.Size); total > MaxSize || len(files) >= drive.MaxFiles {
				return errFAT
			}
			data, err := fs.Read(&e, MaxSize)
			if err != nil {
				return err
			}
			files = append(files, file{Path: prefix + e.Name, Data: data})
		}
		return nil
	}
	return files, walk(nil, "", 0)
}

var errFAT = errors.New("the FAT image has too many files or folders, or more in them than it is large")
