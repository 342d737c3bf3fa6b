package store

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// How many pages the journal holds before they are copied to the database, four times the default, so that pages which
// many writes touch are copied less often; and its size then: a header, and before each page a frame header
// (sqlite.org/fileformat2.html).
const (
	journalPages = 4000
	journalSize  = 32 + journalPages*(24+4096)
)

// reserveJournal gives the journal its full size. Flushing a file that grows also writes the location of its new
// blocks, which takes twice as long as flushing one that is overwritten, and SQLite makes a new journal at each start.
// Zeros are not frames, so SQLite takes everything after the last frame for the rest of an earlier round, as it does
// with old frames later on. No process may write to the database meanwhile. The zeros are not flushed.
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

// lostBehindDamage checks the journal of a process that was killed: SQLite takes the frames before the first one with a
// wrong checksum, and does not report those after it. lostBehindDamage returns how many transactions those are; one may
// be of a loss of power in the middle of a write, which was not answered. The numbers are those of
// sqlite.org/fileformat2.html, section 4. No process may write to the database.
func lostBehindDamage(database string) (lost int, err error) {
	f, err := os.Open(database + "-wal")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open the journal: %w", err)
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 1<<20)
	header := make([]byte, 32)
	if _, err := io.ReadFull(r, header); err != nil || bytes.Count(header, []byte{0}) == len(header) {
		return 0, nil // nothing was written yet
	}
	number := binary.BigEndian.Uint32
	var order binary.ByteOrder = binary.LittleEndian
	if number(header)&1 != 0 {
		order = binary.BigEndian
	}
	var sum [2]uint32
	add := func(b []byte) {
		for ; len(b) >= 8; b = b[8:] {
			sum[0] += order.Uint32(b) + sum[1]
			sum[1] += order.Uint32(b[4:]) + sum[0]
		}
	}
	matches := func(b []byte) bool { return sum == [2]uint32{number(b), number(b[4:])} }
	add(header[:24])
	broken := !matches(header[24:])
	salts := header[16:24]
	frame := make([]byte, 24+4096)
	for first := true; ; first = false {
		if _, err := io.ReadFull(r, frame); err != nil {
			return lost, nil // the end, or half a frame
		}
		if first && broken { // the header, so that SQLite takes nothing
			copy(salts, frame[8:16])
		}
		if !bytes.Equal(frame[8:16], salts) {
			return lost, nil // of an earlier round
		}
		if !broken {
			add(frame[:8])
			add(frame[24:])
			broken = !matches(frame[16:])
		}
		if broken && number(frame[4:]) != 0 { // the last frame of a transaction
			lost++
		}
	}
}
