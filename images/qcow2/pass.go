package qcow2

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
)

// check is a contiguous table, and its digest from the first read.
type check struct {
	span
	what string
	sum  [sha256.Size]byte
	h    hash.Hash
}

// group is a set of L2 tables read with one request.
type group struct {
	first int // of tables
	sum   [sha256.Size]byte
}

// pass reads the file once from its beginning to its end, and compares its tables with those read before.
type pass struct {
	r        io.Reader
	pos      int64
	fileSize int64
	end      int64 // of the parts in the tables
	scratch  []byte

	fixed   []*check
	cluster int64
	tables  []uint64
	table   int // the next one
	groups  []group
	group   int
	h       hash.Hash
}

// feed handles bytes other than data.
func (s *pass) feed(b []byte, at int64) error {
	for _, c := range s.fixed {
		lo, hi := max(at, c.off), min(at+int64(len(b)), c.end)
		if lo >= hi {
			continue
		}
		c.h.Write(b[lo-at : hi-at])
		if hi == c.end && !bytes.Equal(c.h.Sum(nil), c.sum[:]) {
			return changed(c.what + " has changed")
		}
	}
	for s.table < len(s.tables) {
		off := tableAt(s.tables[s.table])
		lo, hi := max(at, off), min(at+int64(len(b)), off+s.cluster)
		if lo >= hi {
			return nil
		}
		s.h.Write(b[lo-at : hi-at])
		if hi < off+s.cluster {
			return nil
		}
		s.table++
		if g := s.group + 1; s.table == len(s.tables) || g < len(s.groups) && s.table == s.groups[g].first {
			if !bytes.Equal(s.h.Sum(nil), s.groups[s.group].sum[:]) {
				return changed(fmt.Sprintf("the L2 table at byte %d, or one before it, has changed", off))
			}
			s.h.Reset()
			s.group = g
		}
	}
	return nil
}

// full fills p unless the stream ends, and distinguishes io.EOF from the io.ErrUnexpectedEOF of a broken connection.
func full(r io.Reader, p []byte) (int, error) {
	n := 0
	for idle := 0; n < len(p); idle++ {
		m, err := r.Read(p[n:])
		n += m
		if err != nil && n < len(p) {
			return n, err
		}
		if m > 0 {
			idle = 0
		} else if idle > 100 {
			return n, io.ErrNoProgress
		}
	}
	return n, nil
}

// fail converts an error of the stream.
func (s *pass) fail(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return truncated(fmt.Sprintf("after %d bytes", s.pos))
	}
	return err
}

// advance reads up to byte to.
func (s *pass) advance(to int64) error {
	for s.pos < to {
		b := s.scratch[:min(to-s.pos, int64(len(s.scratch)))]
		n, err := full(s.r, b)
		ferr := s.feed(b[:n], s.pos)
		s.pos += int64(n)
		if err != nil {
			return s.fail(err)
		}
		if ferr != nil {
			return ferr
		}
	}
	return nil
}

// read fills p with data, or all but slack of it at the file's end.
func (s *pass) read(p []byte, slack int) error {
	n, err := full(s.r, p)
	missing := len(p) - n
	may := min(slack, tolerated(s.pos+int64(len(p)), s.fileSize))
	s.pos += int64(n)
	if err == io.EOF && n > 0 && missing <= may {
		clear(p[n:])
		return nil
	}
	if err != nil {
		return s.fail(err)
	}
	return nil
}

// finish reads the bytes after all known parts.
func (s *pass) finish() error {
	if err := s.advance(s.end); err != nil {
		return err
	}
	for {
		n, err := full(s.r, s.scratch)
		s.pos += int64(n)
		if s.fileSize >= 0 && s.pos > s.fileSize {
			return changed(fmt.Sprintf("it is longer than %d bytes", s.fileSize))
		}
		if err == nil {
			continue
		}
		if err != io.EOF {
			return s.fail(err)
		}
		if s.pos < s.fileSize {
			return truncated(fmt.Sprintf("after %d bytes instead of %d", s.pos, s.fileSize))
		}
		return nil
	}
}
