// Package sessions records the sessions that the conductor has at Redfish services, so that the next one can delete
// those that a killed one has left: services allow a handful, some for hours.
package sessions

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// leftTime is how long a session that is left may be worth looking for: controllers end unused ones after some hours.
const leftTime = 24 * time.Hour

// Session is one session, which has a file of its own while it is there. It holds nothing that opens it.
type Session struct {
	Host, User string
	Path       string // where it is deleted; "": there is none
}

// Records are the sessions that this program makes, and those that an earlier one has left. Safe for concurrent use.
type Records struct {
	dir string

	mu   sync.Mutex
	left map[Session][]Session // by host and user
}

// Open reads the records of an earlier program in a directory, which it makes. "" keeps no records. With an error it
// returns records all the same.
func Open(dir string) (*Records, error) {
	r := &Records{dir: dir, left: map[Session][]Session{}}
	if dir == "" {
		return r, nil
	}
	return r, r.read()
}

func (r *Records) read() error {
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
		var m Session
		b, err := os.ReadFile(path)
		if err != nil || json.Unmarshal(b, &m) != nil || time.Since(info.ModTime()) > leftTime {
			if err := os.Remove(path); err != nil {
				return err
			}
			continue
		}
		of := Session{Host: m.Host, User: m.User}
		r.left[of] = append(r.left[of], m)
	}
	return nil
}

func (r *Records) file(m Session) string {
	sum := sha256.Sum256([]byte(m.Host + "\x00" + m.User + "\x00" + m.Path))
	return filepath.Join(r.dir, hex.EncodeToString(sum[:16]))
}

// Note records a session. It survives the end of the program, not of the host, whose return takes longer than sessions.
func (r *Records) Note(m Session) error {
	if r.dir == "" || m.Path == "" {
		return nil
	}
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return os.WriteFile(r.file(m), b, 0o600)
}

// Forget removes the record of a session that has ended.
func (r *Records) Forget(m Session) {
	if r.dir != "" && m.Path != "" {
		_ = os.Remove(r.file(m)) // a record too many costs a request
	}
}

// Take returns the sessions that are left at a host by a user, once. Path of its argument is empty.
func (r *Records) Take(of Session) []Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := r.left[of]
	delete(r.left, of)
	return left
}
