package publish

import (
	"fmt"
	"os"
)

// spill is a sparse temporary file that looks like the disk. It has no name, so that nothing is left of it, whatever
// happens.
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
	// What is not there is zeros that were never written, behind the last data of a chunk.
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
