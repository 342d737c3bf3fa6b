package vswitch

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
)

// NewHostKey makes a key for a switch's SSH server, and the line by which its clients know it.
func NewHostKey() (ssh.Signer, string, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, "", err
	}
	s, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return nil, "", err
	}
	return s, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(s.PublicKey()))), nil
}

// Serve takes sessions until ctx ends; it returns when all have ended.
func (s *Switch) Serve(ctx context.Context, l net.Listener, key ssh.Signer) error {
	conf := &ssh.ServerConfig{PasswordCallback: func(c ssh.ConnMetadata, password []byte) (*ssh.Permissions, error) {
		if c.User() != s.user || subtle.ConstantTimeCompare(password, []byte(s.password)) != 1 {
			return nil, errors.New("access denied")
		}
		return nil, nil
	}}
	conf.AddHostKey(key)
	var sessions sync.WaitGroup
	defer sessions.Wait()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		sessions.Go(func() {
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			defer conn.Close()
			s.serve(conn, conf)
		})
	}
}

func (s *Switch) serve(conn net.Conn, conf *ssh.ServerConfig) {
	c, chans, reqs, err := ssh.NewServerConn(conn, conf)
	if err != nil {
		return
	}
	defer c.Close()
	go ssh.DiscardRequests(reqs)
	for n := range chans {
		if n.ChannelType() != "session" {
			_ = n.Reject(ssh.UnknownChannelType, "")
			continue
		}
		ch, reqs, err := n.Accept()
		if err != nil {
			return
		}
		go func() {
			for r := range reqs {
				_ = r.Reply(r.Type == "pty-req" || r.Type == "shell", nil)
			}
		}()
		s.talk(ch)
		return
	}
}

// talk is one session.
func (s *Switch) talk(ch io.ReadWriteCloser) {
	defer ch.Close()
	s.mu.Lock()
	s.sessions++
	s.open++
	s.most = max(s.most, s.open)
	c := &shell{s: s, level: "exec"}
	if s.dialect == NXOS {
		c.level = "enable"
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.open--
		s.mu.Unlock()
	}()
	say := func(text string) bool {
		_, err := io.WriteString(ch, strings.ReplaceAll(text, "\n", "\r\n"))
		return err == nil
	}
	if !say("\nUnauthorized access is prohibited.\n" + c.prompt()) {
		return
	}
	var line strings.Builder
	b := make([]byte, 256)
	for {
		n, err := ch.Read(b)
		if err != nil {
			return
		}
		for _, x := range b[:n] {
			if x != '\n' && x != '\r' {
				line.WriteByte(x)
				if !c.asks && !say(string(x)) {
					return
				}
				continue
			}
			text := line.String()
			line.Reset()
			answer, over := s.answer(c, text)
			switch {
			case answer == endless:
				for say(strings.Repeat("the interface is up and has been so for ever\n", 100)) {
				}
				return
			case answer == silent:
				_, _ = io.Copy(io.Discard, ch)
				return
			case over || !say("\n"+answer+c.prompt()):
				return
			}
		}
	}
}

// Answers that are none.
const (
	endless = "endless"
	silent  = "silent"
)

// answer carries out a line, or what its fault makes of it.
func (s *Switch) answer(c *shell, line string) (answer string, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fault := None
	if !c.asks && strings.TrimSpace(line) != "" {
		s.lines = append(s.lines, line)
		if s.fault != nil {
			fault = s.fault(line)
		}
	}
	switch fault {
	case Refuse:
		return c.invalid(), false
	case Ignore:
		return "", false
	case CutBefore:
		return "", true
	case CutAfter:
		c.run(line)
		return "", true
	case Hang:
		return silent, false
	case Flood:
		return endless, false
	case Leak:
		return fmt.Sprintf("%% Invalid input: \x1b[31m%s\x1b[0m\x07 %s %s\n", s.password, s.Enable,
			strings.Repeat("x", 5000)), false
	case Scramble:
		answer, over = c.run(line)
		return "\x1b]0;title\x07\x1b[2J\x00\x08" + strings.ReplaceAll(answer, "\n", "\x1b[K\n"), over
	case HugeAnswer:
		answer, over = c.run(line)
		return strings.Repeat("! "+strings.Repeat("-", 61)+"\n", 1<<14) + answer, over
	}
	return c.run(line)
}
