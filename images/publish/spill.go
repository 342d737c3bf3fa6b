package publish

import (
	"fmt"
	"os"
)

// spill is a sparse temporary file with the disk's layout. It has no name, so that it vanishes with the process.
type spill struct {
	dir string
	f   *os.File
}

func (s *spill) write(b []byte, off int64) error {
	if s.f == nil {
		f, err := os.CreateTemp(s.dir, ".ingot-*")
		if err != nil {
			return fmt.Errorf("the image is not in order, and needs a temporary file: %w", err)
		}
		s.f = f
		if err := os.Remove(f.Name()); err != nil {
			return err
		}
	}
	if _, err := s.f.WriteAt(b, off); err != nil {
		return fmt.Errorf("write to the temporary file for images that are not in order: %w", err)
	}
	return nil
}

func (s *spill) read(b []byte, off int64) error {
	// Bytes beyond the end of the file are zeros after the last data of a chunk, which were never written.
	if info, err := s.f.Stat(); err != nil {
		return err
	} else if rest := info.Size() - off; rest < int64(len(b)) {
		b = b[:rest]
	}
	if _, err := s.f.ReadAt(b, off); err != nil {
		return fmt.Errorf("read the temporary file for images that are not in order: %w", err)
	}
	return nil
}

func (s *spill) close() {
	if s.f != nil {
		_ = s.f.Close() // the file has no name any more
	}
}
