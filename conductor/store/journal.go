package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// How many pages the journal holds before they are copied to the database, four times what is usual, so that pages which many writes
// touch are copied less often; and how large it is then: a header, and before each page a frame header (sqlite.org/fileformat2.html).
const (
	journalPages = 4000
	journalSize  = 32 + journalPages*(24+4096)
)

// reserveJournal gives the journal its full size. Flushing a file that grows writes where its new blocks are, too, which takes twice as
// long as flushing one that is written over, and SQLite makes a new journal at each start. Zeros are not frames, so SQLite takes
// what is behind the last frame for the rest of an earlier round, as it does with what stands there later on. Nobody may write to the
// database meanwhile. The zeros are not flushed.
func reserveJournal(database string) (err error) {
	f, err := os.OpenFile(database+"-wal", os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	zeros := make([]byte, 256<<10)
	for at := info.Size(); at < journalSize; at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros, at); err != nil {
			return fmt.Errorf("reserve room for the journal: %w", errors.Join(err, f.Truncate(info.Size())))
		}
	}
	return nil
}
