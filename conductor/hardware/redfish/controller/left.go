package controller

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// leftTime is how long a session that is left may be worth looking for: controllers end unused ones after some hours.
const leftTime = 24 * time.Hour

// made is the record of a session, in a file of its own while it is there. It holds nothing that opens it.
type made struct {
	Host, User, Path string
}

// records are the sessions that this program makes, and those that an earlier one has left because it was killed.
type records struct {
	dir string // "" keeps no records

	mu   sync.Mutex
	left map[made][]made // by host and user
}

// read fills left from the records of an earlier program.
func (r *records) read() error {
	r.left = map[made][]made{}
	if r.dir == "" {
		return nil
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	files, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		path := filepath.Join(r.dir, f.Name())
		info, err := f.Info()
		if err != nil {
			continue
		}
		var m made
		b, err := os.ReadFile(path)
		if err != nil || json.Unmarshal(b, &m) != nil || time.Since(info.ModTime()) > leftTime {
			if err := os.Remove(path); err != nil {
				return err
			}
			continue
		}
		of := made{Host: m.Host, User: m.User}
		r.left[of] = append(r.left[of], m)
	}
	return nil
}

func (r *records) file(m made) string {
	sum := sha256.Sum256([]byte(m.Host + "\x00" + m.User + "\x00" + m.Path))
	return filepath.Join(r.dir, hex.EncodeToString(sum[:16]))
}

// note records a session. It survives the end of the program, not of the host, whose return takes longer than sessions.
func (r *records) note(m made) error {
	if r.dir == "" || m.Path == "" {
		return nil
	}
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return os.WriteFile(r.file(m), b, 0o600)
}

// forget removes the record of a session that has ended.
func (r *records) forget(m made) {
	if r.dir != "" && m.Path != "" {
		_ = os.Remove(r.file(m)) // a record too many costs a request
	}
}

// take returns the sessions that are left at a host, once.
func (r *records) take(of made) []made {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := r.left[of]
	delete(r.left, of)
	return left
}

func (c *Controller) made() made {
	return made{Host: c.access.Base.Host, User: c.access.User, Path: c.session}
}

// forget drops the session: it has ended.
func (c *Controller) forget() {
	c.pool.records.forget(c.made())
	c.token, c.session = "", ""
}

// endLeft deletes the sessions that a program which was killed has left here, with the credentials in header. A
// controller that restarted since may have given the same path to another session: the account has to be ours.
func (c *Controller) endLeft(ctx context.Context, header http.Header) {
	of := c.made()
	of.Path = ""
	for _, m := range c.pool.records.take(of) {
		if m.Path == c.session {
			continue
		}
		header := header.Clone()
		header.Del("Content-Type")
		header.Del("If-Match")
		var session struct{ UserName string }
		a, err := c.send(ctx, http.MethodGet, m.Path, header, nil)
		if err == nil && a.status == http.StatusOK && json.Unmarshal(a.body, &session) == nil &&
			session.UserName == c.access.User {
			_, err = c.send(ctx, http.MethodDelete, m.Path, header, nil)
		}
		if err != nil {
			c.log.Debug("delete a session that is left", "err", err)
			continue
		}
		c.pool.records.forget(m)
	}
}
