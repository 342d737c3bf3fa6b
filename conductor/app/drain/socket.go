package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is the name of the socket in the data directory.
const Socket = "control"

// at calls f with an address of the socket of a data directory that is short enough, whatever the directory's name is.
func at(dir string, f func(path string) error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f(fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), Socket)), d.Close())
}

// own is a listener for processes of this one's user, and of root.
type own struct{ *net.UnixListener }

func (o own) Accept() (net.Conn, error) {
	for {
		c, err := o.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if mine(c) {
			return c, nil
		}
		_ = c.Close() // a stranger's
	}
}

// mine reports whether the process at the other end has this one's user, or is root's.
func mine(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var peer *unix.Ucred
	var gerr error
	if err := raw.Control(func(fd uintptr) {
		peer, gerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || gerr != nil {
		return false
	}
	return peer.Uid == 0 || int(peer.Uid) == os.Geteuid()
}

// Serve answers commands at the socket in the data directory dir, whose lock the caller has, until ctx ends. more are
// further commands, by method and path.
func (d *Drainer) Serve(ctx context.Context, dir string, more map[string]http.HandlerFunc) error {
	var l *net.UnixListener
	err := at(dir, func(path string) (err error) {
		if err = os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // that of a process that was killed
			return err
		}
		if l, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}); err != nil {
			return err
		}
		l.SetUnlinkOnClose(false) // the path is good no longer then
		return os.Chmod(path, 0o600)
	})
	if err != nil {
		return fmt.Errorf("listen for commands in the data directory: %w", err)
	}
	srv := &http.Server{Handler: d.handler(more), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 8 << 10}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() }) // those who wait for an answer see the end
	defer stop()
	err = srv.Serve(own{l})
	rerr := at(dir, os.Remove)
	if !errors.Is(err, http.ErrServerClosed) {
		return errors.Join(err, rerr)
	}
	return rerr
}

// handler answers commands.
func (d *Drainer) handler(more map[string]http.HandlerFunc) http.Handler {
	mux := http.NewServeMux()
	for pattern, h := range more {
		mux.HandleFunc(pattern, h)
	}
	answer := func(w http.ResponseWriter, err error) {
		if err != nil {
			status := http.StatusInternalServerError
			if errors.Is(err, ErrAlone) {
				status = http.StatusConflict
			}
			http.Error(w, err.Error(), status)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(d.Status()); err != nil {
			d.log.Debug("answer a command", "err", err)
		}
	}
	mux.HandleFunc("GET /drain", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	mux.HandleFunc("POST /drain", func(w http.ResponseWriter, r *http.Request) { answer(w, d.Begin(r.Context())) })
	mux.HandleFunc("DELETE /drain", func(w http.ResponseWriter, r *http.Request) { answer(w, d.Undo(r.Context())) })
	mux.HandleFunc("POST /stop", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, nil)
		d.log.Info("a command stops this conductor")
		d.cfg.Stop()
	})
	return mux
}

// Client sends commands to the ingotd of a data directory.
type Client struct {
	dir  string
	http *http.Client
}

// NotRunningError means that no ingotd answers in a data directory.
type NotRunningError struct {
	Dir string
	Err error
}

func (e *NotRunningError) Error() string {
	return fmt.Sprintf(
		"no ingotd can be reached in the data directory %s (%v): is it running? Name its configuration with --config or its directory with --data-dir, and use its user or root",
		e.Dir, e.Err)
}

func (e *NotRunningError) Unwrap() error { return e.Err }

// NewClient makes a Client.
func NewClient(dir string) *Client {
	c := &Client{dir: dir}
	c.http = &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
			err = at(dir, func(path string) (err error) {
				conn, err = new(net.Dialer).DialContext(ctx, "unix", path)
				var op *net.OpError
				if errors.As(err, &op) {
					err = op.Err // without the path, which says nothing
				}
				return err
			})
			if err != nil {
				return nil, &NotRunningError{dir, err}
			}
			return conn, nil
		}}}
	return c
}

// Status returns how far the draining is.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return c.send(ctx, http.MethodGet, "drain")
}

// Begin begins to drain. It is ErrAlone when no other conductor takes nodes.
func (c *Client) Begin(ctx context.Context) (Status, error) {
	return c.send(ctx, http.MethodPost, "drain")
}

// Undo has the conductor take nodes again.
func (c *Client) Undo(ctx context.Context) (Status, error) {
	return c.send(ctx, http.MethodDelete, "drain")
}

// Stop stops the conductor.
func (c *Client) Stop(ctx context.Context) error {
	_, err := c.send(ctx, http.MethodPost, "stop")
	return err
}

// largestAnswer bounds the bytes of an answer.
const largestAnswer = 1 << 20

func (c *Client) send(ctx context.Context, method, what string) (s Status, err error) {
	return s, c.Ask(ctx, method, what, &s)
}

// Ask sends a command, and decodes its answer into out.
func (c *Client) Ask(ctx context.Context, method, what string, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://ingotd/"+what, nil)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	var off *NotRunningError
	switch {
	case errors.As(err, &off):
		return off
	case err != nil:
		return fmt.Errorf("ask the ingotd of %s: %w", c.dir, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, largestAnswer))
	switch {
	case err != nil:
		return fmt.Errorf("ask the ingotd of %s: %w", c.dir, err)
	case resp.StatusCode == http.StatusConflict:
		return ErrAlone
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("the ingotd of %s: %s", c.dir, strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("the ingotd of %s gave no answer that is understood: %w", c.dir, err)
	}
	return nil
}
