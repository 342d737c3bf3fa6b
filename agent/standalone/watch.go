package standalone

import (
	"context"
	"errors"
	"sync"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/images/index"
	"golang.org/x/sys/unix"
)

// Left is the state of the disk after an incomplete write.
type Left string

// States of the disk.
const (
	Untouched Left = "untouched" // unchanged
	Broken    Left = "broken"    // without a partition table, and with some of its old content gone
	Doubtful  Left = "doubtful"  // the table was written, but not seen to be there
	Complete  Left = "complete"  // the whole image, with its table
)

// Failure is the error of an incomplete write.
type Failure struct {
	Disk string // as it was given
	Left Left
	Err  error
}

func (f *Failure) Error() string { return f.Err.Error() }

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

// State describes the state of the disk for people.
func (f *Failure) State() string {
	switch f.Left {
	case Untouched:
		return f.Disk + " was not touched"
	case Doubtful:
		return f.Disk + " may boot or not: its partition table was written, but not flushed and read back"
	case Complete:
		return f.Disk + " holds all of the image, with its partition table; only what comes after that is missing"
	}
	return f.Disk + " has no partition table now and will not boot"
}

// errDry stops a rehearsal at its first write, after all checks.
var errDry = errors.New("the disk would be written now")

// seen records the changes to the disk, including those that steps don't report.
type seen struct {
	dry bool // nothing may be written

	mu      sync.Mutex
	touched bool
	writes  int  // that have not returned yet
	sector0 bool // something is in the first sector, which is written last
	done    bool // and was read back
	reread  error
}

func (s *seen) left() Left {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.done:
		return Complete
	case s.sector0:
		return Doubtful
	case s.touched || s.writes > 0:
		return Broken
	}
	return Untouched
}

// stale returns why the kernel still uses the old partition table.
func (s *seen) stale() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reread
}

// OpenExclusive opens a disk that is watched.
func (m machine) OpenExclusive(ctx context.Context, path string) (disk.Device, error) {
	dev, err := openWritable(ctx, path)
	if err != nil {
		return nil, err
	}
	return watched{dev, m.seen}, nil
}

// watched is a device that notes what is done to it.
type watched struct {
	disk.Device
	seen *seen
}

func (w watched) WriteAt(p []byte, off int64) (n int, err error) {
	w.seen.mu.Lock()
	if w.seen.dry {
		w.seen.mu.Unlock()
		return 0, errDry
	}
	w.seen.writes++ // one that never returns may have written
	before := w.seen.sector0
	if off == 0 {
		w.seen.sector0 = !index.IsZero(p[:min(len(p), w.SectorSize())])
	}
	w.seen.mu.Unlock()
	n, err = w.Device.WriteAt(p, off)
	w.seen.mu.Lock()
	defer w.seen.mu.Unlock()
	w.seen.writes--
	switch {
	case n > 0 || !refused(err):
		w.seen.touched = true
	case off == 0:
		w.seen.sector0 = before
	}
	return n, err
}

func (w watched) Punch(off, n int64) error {
	w.seen.mu.Lock()
	if w.seen.dry {
		w.seen.mu.Unlock()
		return errDry
	}
	w.seen.writes++
	w.seen.mu.Unlock()
	err := w.Device.Punch(off, n)
	w.seen.mu.Lock()
	defer w.seen.mu.Unlock()
	w.seen.writes--
	if !refused(err) {
		w.seen.touched = true
	}
	return err
}

// refused reports whether the kernel rejected a write before it began.
func refused(err error) bool {
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EROFS) ||
		errors.Is(err, unix.EBADF)
}

// RereadPartitions is the last act of disk.Commit, after it has read the table back.
func (w watched) RereadPartitions() error {
	err := w.Device.RereadPartitions()
	w.seen.mu.Lock()
	defer w.seen.mu.Unlock()
	w.seen.done, w.seen.reread = w.seen.sector0, err
	return err
}
