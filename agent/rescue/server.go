package rescue

import (
	"bytes"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// Limits on the resources that clients can occupy.
const (
	maxConns      = 32               // connections, logged in or not
	maxStrangers  = 12               // of these, not logged in yet
	maxSessions   = 16               // shells and commands over all connections
	handshakeTime = 30 * time.Second // to log in, including typing a password
	keepAlive     = 30 * time.Second
)

// server is one listener and its connections.
type server struct {
	h    *Host
	ln   net.Listener
	conf *ssh.ServerConfig
	wg   sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	conns    map[net.Conn]bool // true: logged in
	sessions int
	failures int
	done     chan struct{} // closed by close
}

var errDenied = errors.New("denied")

// serve starts to accept connections. The host's lock is held.
func (h *Host) serve(ln net.Listener, hash string, keys []ssh.PublicKey) *server {
	s := &server{h: h, ln: ln, conns: map[net.Conn]bool{}, done: make(chan struct{})}
	s.conf = &ssh.ServerConfig{ServerVersion: "SSH-2.0-Ingot"}
	s.conf.AddHostKey(h.signer)
	known := func(c ssh.ConnMetadata) bool { return slices.Contains(users, c.User()) }
	if len(keys) > 0 {
		var wires [][]byte
		for _, k := range keys {
			wires = append(wires, k.Marshal())
		}
		// An offered key does not prove that the client has the private key: this callback may only accept or refuse
		// it.
		s.conf.PublicKeyCallback = func(c ssh.ConnMetadata, k ssh.PublicKey) (*ssh.Permissions, error) {
			wire := k.Marshal()
			if known(c) && slices.ContainsFunc(wires, func(w []byte) bool { return bytes.Equal(w, wire) }) {
				return &ssh.Permissions{}, nil
			}
			return nil, errDenied
		}
	}
	if hash != "" {
		one := make(chan struct{}, 1) // a hash is expensive: unauthenticated clients get one processor
		s.conf.PasswordCallback = func(c ssh.ConnMetadata, password []byte) (*ssh.Permissions, error) {
			if !known(c) || len(password) > 72 { // bcrypt's limit
				s.failed(c, "password")
				return nil, errDenied
			}
			select {
			case one <- struct{}{}:
			case <-s.done:
				return nil, errDenied
			}
			defer func() { <-one }()
			if !h.limit.guess(c.RemoteAddr()) {
				s.failed(c, "password; too many were wrong, so it was not looked at")
				return nil, errDenied
			}
			if !matches(hash, password) {
				s.failed(c, "password")
				return nil, errDenied
			}
			h.limit.right(c.RemoteAddr())
			return &ssh.Permissions{}, nil
		}
	}
	s.wg.Go(s.accept)
	return s
}

// failed logs failed logins, in a long attack only a sample.
func (s *server) failed(c ssh.ConnMetadata, what string) {
	s.mu.Lock()
	s.failures++
	n := s.failures
	s.mu.Unlock()
	if n <= failedLoginsLog || n%failedLoginsLog == 0 {
		s.h.log.Warn("rescue: login refused", "from", c.RemoteAddr().String(), "user", clip(c.User()), "by", what,
			"so_far", n)
	}
}

// clip bounds text from clients in the log.
func clip(text string) string { return text[:min(len(text), 32)] }

func (s *server) accept() {
	for {
		c, err := s.ln.Accept()
		if err != nil {
			select {
			case <-s.done:
				return
			case <-time.After(100 * time.Millisecond): // possibly out of descriptors, which is temporary
				continue
			}
		}
		if !s.admit(c) {
			_ = c.Close()
			continue
		}
		s.wg.Go(func() {
			defer s.forget(c)
			s.connection(c)
		})
	}
}

// admit accepts a connection unless there are too many; clients not logged in have a limit of their own.
func (s *server) admit(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	strangers := 0
	for _, in := range s.conns {
		if !in {
			strangers++
		}
	}
	if s.closed || len(s.conns) >= maxConns || strangers >= maxStrangers {
		return false
	}
	s.conns[c] = false
	return true
}

func (s *server) forget(c net.Conn) {
	_ = c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

func (s *server) connection(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepAlive, Interval: keepAlive, Count: 4})
	}
	_ = c.SetDeadline(time.Now().Add(handshakeTime))
	conn, channels, requests, err := ssh.NewServerConn(c, s.conf)
	if err != nil {
		return // scanners; refused logins are already logged
	}
	_ = c.SetDeadline(time.Time{})
	s.mu.Lock()
	s.conns[c] = true
	s.mu.Unlock()
	s.h.log.Warn("rescue: logged in", "from", c.RemoteAddr().String(), "user", conn.User())
	var wg sync.WaitGroup
	wg.Go(func() { ssh.DiscardRequests(requests) }) // no forwarding
	for nc := range channels {
		switch {
		case nc.ChannelType() != "session":
			_ = nc.Reject(ssh.Prohibited, "a machine that is being rescued forwards nothing")
		case !s.begin():
			_ = nc.Reject(ssh.ResourceShortage, "too many sessions")
		default:
			ch, reqs, err := nc.Accept()
			if err != nil {
				s.end()
				continue
			}
			wg.Go(func() {
				defer s.end()
				newSession(s, ch, conn).serve(reqs)
			})
		}
	}
	wg.Wait()
	s.h.log.Info("rescue: logged out", "from", c.RemoteAddr().String(), "user", conn.User())
}

func (s *server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.sessions >= maxSessions {
		return false
	}
	s.sessions++
	return true
}

func (s *server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions--
}

// close ends all connections and waits for them.
func (s *server) close() {
	s.mu.Lock()
	s.closed = true
	close(s.done)
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	_ = s.ln.Close()
	s.wg.Wait()
}
