package writer

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/proto/steparg"
)

// loggedIn is the state of a session that works.
const loggedIn = "LOGGED_IN"

// session is one of the kernel's, with a disk that a machine lends.
type session struct {
	portal string
	state  string
	disk   string // path of the block device; empty while the kernel has none
}

// sessions lists the sessions with lent disks, as sysfs has them.
func (w *writer) sessions() (all []session, err error) {
	class := filepath.Join(w.Root, "sys/class")
	dirs, err := filepath.Glob(filepath.Join(class, "iscsi_session/session*"))
	if err != nil {
		return nil, err
	}
	read := func(name string) string { // one that goes away meanwhile has nothing
		b, _ := os.ReadFile(name)
		return strings.TrimSpace(string(b))
	}
	for _, dir := range dirs {
		if read(filepath.Join(dir, "targetname")) != steparg.ExportTarget {
			continue
		}
		connection := filepath.Join(class, "iscsi_connection",
			"connection"+strings.TrimPrefix(filepath.Base(dir), "session")+":0")
		s := session{state: read(filepath.Join(dir, "state")), portal: net.JoinHostPort(
			strings.Trim(read(filepath.Join(connection, "persistent_address")), "[]"),
			read(filepath.Join(connection, "persistent_port")))}
		disks, err := filepath.Glob(filepath.Join(dir, "device/target*/*:0/block/*"))
		if err != nil {
			return nil, err
		}
		if len(disks) == 1 {
			s.disk = filepath.Join("/dev", filepath.Base(disks[0]))
		}
		all = append(all, s)
	}
	return all, nil
}

// session finds the session with a machine; nil, if there is none.
func (w *writer) session(portal string) (*session, error) {
	all, err := w.sessions()
	for _, s := range all {
		if s.portal == portal {
			return &s, err
		}
	}
	return nil, err
}

// disk waits until the kernel has the disk of a session.
func (w *writer) disk(ctx context.Context, portal string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, diskTime,
		fmt.Errorf("%w: the kernel shows no disk of it for %v", errLost, diskTime))
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := w.session(portal)
		if err != nil || s != nil && s.disk != "" {
			return s.disk, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}
