package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// client is one kept-alive HTTP/1.1 connection with minimal cost: the server and the load share the processors. It
// implements just enough HTTP for a server that sends Content-Length, and waits inside read(2): waking through Go's
// poller takes longer, which would count as the server's time. Not safe for concurrent use.
type client struct {
	conn socket
	r    *bufio.Reader
	out  []byte
	body []byte
}

func dial(addr string) (*client, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	c := &client{conn: socket(fd)}
	c.r = bufio.NewReaderSize(c.conn, 64<<10)
	limit := unix.NsecToTimeval(int64(time.Minute))
	err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	}
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *client) close() error { return unix.Close(int(c.conn)) }

// socket is a connection that blocks.
type socket int

func (s socket) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(int(s), b)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

func (s socket) Write(b []byte) (done int, err error) {
	for done < len(b) {
		n, err := unix.Write(int(s), b[done:])
		if err != nil && !errors.Is(err, unix.EINTR) {
			return done, os.NewSyscallError("write", err)
		}
		done += max(n, 0)
	}
	return done, nil
}

// version is requested in every request: the newest of the baseline's Ironic is 1.82.
const version = "1.82"

// do sends one request and reads the answer. The body it returns is good until the next call.
func (c *client) do(method, path string, body []byte) (status int, answer []byte, err error) {
	return c.doAs(version, method, path, body)
}

func (c *client) doAs(version, method, path string, body []byte) (status int, answer []byte, err error) {
	c.out = append(c.out[:0], method...)
	c.out = append(c.out, ' ')
	c.out = append(c.out, path...)
	c.out = append(c.out, " HTTP/1.1\r\nHost: bench\r\nX-OpenStack-Ironic-API-Version: "...)
	c.out = append(c.out, version...)
	c.out = append(c.out, "\r\nContent-Type: application/json\r\nContent-Length: "...)
	c.out = strconv.AppendInt(c.out, int64(len(body)), 10)
	c.out = append(c.out, "\r\n\r\n"...)
	c.out = append(c.out, body...)
	if _, err := c.conn.Write(c.out); err != nil {
		return 0, nil, err
	}
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return 0, nil, err
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return 0, nil, fmt.Errorf("not an HTTP answer: %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, nil, fmt.Errorf("not an HTTP answer: %q", line)
	}
	length := -1
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return 0, nil, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return 0, nil, err
			}
		}
	}
	if length < 0 {
		if status == 204 {
			return status, nil, nil
		}
		return 0, nil, errors.New("an answer without Content-Length")
	}
	if cap(c.body) < length {
		c.body = make([]byte, length)
	}
	c.body = c.body[:length]
	if _, err := io.ReadFull(c.r, c.body); err != nil {
		return 0, nil, err
	}
	return status, c.body, nil
}

// want is do for a request that must have this outcome.
func (c *client) want(status int, method, path string, body []byte) ([]byte, error) {
	got, answer, err := c.do(method, path, body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if got != status {
		return nil, fmt.Errorf("%s %s = %d %s, want %d", method, path, got, answer, status)
	}
	return answer, nil
}
