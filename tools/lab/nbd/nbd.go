// Package nbd serves a disk or a disc to QEMU as a network block device.
//
// It implements the fixed newstyle handshake and simple replies, which QEMU needs: read, and for a disk that can be
// written also write, flush, trim and write zeroes, with FUA. Numbers are those of the NBD project's doc/proto.md.
// It is for sockets that only the user can open: clients are not limited in number, each may have 32 MiB.
package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// Medium can be read. Offsets and lengths that a guest requests are whole sectors.
type Medium interface {
	io.ReaderAt
	Size() int64
}

// Disk is a medium that can also be written.
type Disk interface {
	Medium
	io.WriterAt
	// Punch makes a range read as zero, or fails with errors.ErrUnsupported: then zeros are written.
	Punch(off, n int64) error
	Sync() error
}

// Server serves one medium.
type Server struct {
	ln     net.Listener
	medium Medium
	disk   Disk // nil when the medium can't be written
	flags  uint16
	log    func(string, ...any)
	work   sync.WaitGroup

	mu    sync.Mutex
	ended bool
	conns map[net.Conn]bool
}

// Serve serves a medium on a listener, which it takes over, until Close. log gets what clients do wrong.
func Serve(ln net.Listener, m Medium, log func(format string, args ...any)) *Server {
	s := &Server{ln: ln, medium: m, flags: hasFlags | readOnly, conns: map[net.Conn]bool{}, log: log}
	if d, ok := m.(Disk); ok {
		s.disk, s.flags = d, hasFlags|sendFlush|sendFUA|sendTrim|sendZeroes
	}
	s.work.Go(s.accept)
	return s
}

// URI is the address of a server on a Unix socket; QEMU takes it as a file.
func (s *Server) URI() string { return "nbd+unix:///?socket=" + s.ln.Addr().String() }

func (s *Server) accept() {
	for {
		c, err := s.ln.Accept()
		if err != nil {
			return // closed
		}
		s.mu.Lock()
		ended := s.ended
		s.conns[c] = true
		s.mu.Unlock()
		if ended {
			c.Close()
			return
		}
		s.work.Go(func() {
			// A guest that is killed hangs up in the middle.
			if err := s.talk(c); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) &&
				!errors.Is(err, net.ErrClosed) &&
				!errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
				s.log("nbd: %v", err)
			}
			c.Close()
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
		})
	}
}

// Close ends all connections and returns when nothing reads the medium any more.
func (s *Server) Close() error {
	err := s.ln.Close()
	s.mu.Lock()
	s.ended = true
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.work.Wait()
	return err
}

const (
	magicServer  = 0x4e42444d41474943 // "NBDMAGIC"
	magicOption  = 0x49484156454f5054 // "IHAVEOPT"
	magicReply   = 0x0003e889045565a9
	magicRequest = 0x25609513
	magicSimple  = 0x67446698

	fixedNewstyle, noZeroes = 1, 2 // flags of the handshake

	optExportName, optAbort, optInfo, optGo = 1, 2, 6, 7

	repAck, repInfo, repUnsupported = 1, 3, 1<<31 + 1
	infoExport, infoBlockSize       = 0, 3

	hasFlags, readOnly, sendFlush, sendFUA, sendTrim, sendZeroes = 1, 2, 4, 8, 32, 64

	cmdRead, cmdWrite, cmdDisc, cmdFlush, cmdTrim, cmdZeroes = 0, 1, 2, 3, 4, 6
	flagFUA                                                  = 1

	maxLength  = 32 << 20
	maxOptions = 32 // of one handshake
)

func (s *Server) talk(c net.Conn) error {
	if err := put(c, uint64(magicServer), uint64(magicOption), uint16(fixedNewstyle|noZeroes)); err != nil {
		return err
	}
	var clientFlags uint32
	if err := get(c, &clientFlags); err != nil {
		return err
	}
	if on, err := s.negotiate(c, clientFlags); err != nil || !on {
		return err
	}
	buf := make([]byte, 0, 1<<20)
	for {
		var r struct {
			Magic       uint32
			Flags, Type uint16
			Cookie, Off uint64
			Len         uint32
		}
		if err := get(c, &r); err != nil {
			return err
		}
		if r.Magic != magicRequest || r.Len > maxLength && r.Type != cmdTrim && r.Type != cmdZeroes {
			return fmt.Errorf("request %+v is none", r)
		}
		n := int(r.Len)
		if r.Type == cmdRead || r.Type == cmdWrite {
			if cap(buf) < n {
				buf = make([]byte, n)
			}
			buf = buf[:n]
		}
		if r.Type == cmdWrite {
			if _, err := io.ReadFull(c, buf); err != nil {
				return err
			}
		}
		if r.Type == cmdDisc {
			return nil
		}
		fault := s.do(r.Type, int64(r.Off), int64(r.Len), buf)
		if fault == 0 && r.Flags&flagFUA != 0 {
			fault = s.do(cmdFlush, 0, 0, nil)
		}
		if err := put(c, uint32(magicSimple), fault, r.Cookie); err != nil {
			return err
		}
		if r.Type == cmdRead && fault == 0 {
			if _, err := c.Write(buf); err != nil {
				return err
			}
		}
	}
}

// negotiate agrees on the one disk there is.
func (s *Server) negotiate(c net.Conn, flags uint32) (bool, error) {
	for range maxOptions {
		var o struct {
			Magic    uint64
			Opt, Len uint32
		}
		if err := get(c, &o); err != nil {
			return false, err
		}
		if o.Magic != magicOption || o.Len > 1<<16 {
			return false, fmt.Errorf("option %+v is none", o)
		}
		if _, err := io.CopyN(io.Discard, c, int64(o.Len)); err != nil {
			return false, err
		}
		reply := func(kind uint32, v ...any) error {
			n := 0
			for _, x := range v {
				n += binary.Size(x)
			}
			return put(c, append([]any{uint64(magicReply), o.Opt, kind, uint32(n)}, v...)...)
		}
		switch o.Opt {
		case optExportName:
			err := put(c, uint64(s.medium.Size()), s.flags)
			if err == nil && flags&noZeroes == 0 {
				_, err = c.Write(make([]byte, 124))
			}
			return true, err
		case optInfo, optGo:
			err := errors.Join(
				reply(repInfo, uint16(infoExport), uint64(s.medium.Size()), s.flags),
				reply(repInfo, uint16(infoBlockSize), uint32(512), uint32(4096), uint32(maxLength)),
				reply(repAck))
			if err != nil || o.Opt == optGo {
				return true, err
			}
		case optAbort:
			return false, reply(repAck)
		default:
			if err := reply(repUnsupported); err != nil {
				return false, err
			}
		}
	}
	return false, errors.New("a client that negotiates without end")
}

func (s *Server) do(kind uint16, off, n int64, buf []byte) uint32 {
	switch {
	case off < 0 || off > s.medium.Size() || n > s.medium.Size()-off:
		return uint32(unix.EINVAL)
	case s.disk == nil && kind != cmdRead:
		return uint32(unix.EPERM)
	}
	switch kind {
	case cmdRead:
		_, err := s.medium.ReadAt(buf, off)
		return number(err)
	case cmdWrite:
		_, err := s.disk.WriteAt(buf, off)
		return number(err)
	case cmdFlush:
		return number(s.disk.Sync())
	case cmdTrim, cmdZeroes:
		err := s.disk.Punch(off, n)
		if !errors.Is(err, errors.ErrUnsupported) {
			return number(err)
		}
		if kind == cmdTrim {
			return 0 // a hint
		}
		zeros := make([]byte, min(n, 1<<20))
		for end := off + n; off < end; off += int64(len(zeros)) {
			if _, err := s.disk.WriteAt(zeros[:min(int64(len(zeros)), end-off)], off); err != nil {
				return number(err)
			}
		}
		return 0
	}
	return uint32(unix.EINVAL)
}

// number is the protocol's number of an error; it knows a few of Linux's.
func number(err error) uint32 {
	var errno unix.Errno
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return 0
	case errors.As(err, &errno) && (errno == unix.ENOSPC || errno == unix.EINVAL || errno == unix.EPERM):
		return uint32(errno)
	}
	return uint32(unix.EIO)
}

func put(w io.Writer, v ...any) error {
	var b []byte
	for _, x := range v {
		var err error
		if b, err = binary.Append(b, binary.BigEndian, x); err != nil {
			return err
		}
	}
	_, err := w.Write(b)
	return err
}

func get(r io.Reader, v any) error { return binary.Read(r, binary.BigEndian, v) }
