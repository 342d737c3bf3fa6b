package switches

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/scrapli/scrapligo/driver/network"
	"github.com/scrapli/scrapligo/driver/options"
	"github.com/scrapli/scrapligo/platform"
	"github.com/scrapli/scrapligo/transport"
	"golang.org/x/crypto/ssh"

	"github.com/ingot-metal/ingot/conductor/network/switches/dialect"
)

const (
	mostOutput  = 4 << 20 // bytes that a switch may say in one session
	connectTime = 20 * time.Second
	commandTime = 45 * time.Second
	logoutTime  = 2 * time.Second
)

// connectionError is that of a session that did not come about or did not last: another one may.
type connectionError struct{ error }

func (e connectionError) Unwrap() error { return e.error }

// session is a terminal of a switch.
type session struct {
	conf    *Config
	line    *line
	term    *network.Driver
	secrets []string // that must not be in an error
}

// open logs in. Whatever is wrong with the switch's answers, nothing of the session lasts longer than ctx.
func open(ctx context.Context, c *Config) (*session, error) {
	password, err := secret(c.PasswordFile)
	if err != nil {
		return nil, fmt.Errorf("password_file: %w", err)
	}
	enable, err := secret(c.EnablePasswordFile)
	if err != nil {
		return nil, fmt.Errorf("enable_password_file: %w", err)
	}
	login := &ssh.ClientConfig{User: c.Username, Timeout: connectTime, HostKeyCallback: ssh.FixedHostKey(c.hostKey),
		HostKeyAlgorithms: algorithms(c.hostKey)}
	if c.KeyFile != "" {
		b, err := os.ReadFile(c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("key_file: %w", err)
		}
		key, err := ssh.ParsePrivateKey(b)
		if err != nil {
			return nil, fmt.Errorf("key_file %s: %w", c.KeyFile, err)
		}
		login.Auth = append(login.Auth, ssh.PublicKeys(key))
	}
	if password != "" {
		login.Auth = append(login.Auth, ssh.Password(password),
			ssh.KeyboardInteractive(func(_, _ string, questions []string, _ []bool) ([]string, error) {
				answers := make([]string, len(questions))
				for i := range answers {
					answers[i] = password
				}
				return answers, nil
			}))
	}
	s := &session{conf: c, secrets: []string{password, enable}, line: &line{ctx: ctx, address: c.Address, login: login,
		gone: make(chan struct{})}}
	p, err := platform.NewPlatform(c.dialect.Platform(), c.Address, options.WithCustomTransport(s.line),
		options.WithTimeoutOps(commandTime), options.WithAuthSecondary(enable))
	if err == nil {
		s.term, err = p.GetNetworkDriver()
	}
	if err != nil {
		return nil, err
	}
	if err := s.term.Open(); err != nil {
		err = s.fault("log in", err)
		s.line.end(nil)
		return nil, err
	}
	return s, nil
}

// algorithms are those of a server that has this key, so that it shows this one of its keys.
func algorithms(key ssh.PublicKey) []string {
	if key.Type() == ssh.KeyAlgoRSA {
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSA}
	}
	return []string{key.Type()}
}

// close ends the session. It logs out when all went well, so that no switch counts this session beside the next one.
func (s *session) close(well bool) {
	if well && s.term.Channel.WriteAndReturn([]byte("exit"), false) == nil {
		select {
		case <-s.line.gone:
		case <-time.After(logoutTime):
		}
	}
	s.line.end(nil)
	_ = s.term.Channel.Close() // the line is closed before: this ends its reader
}

// run sends one command and returns what the switch says to it; a refusal is a *refusedError.
func (s *session) run(command string) (string, error) {
	r, err := s.term.Driver.SendCommand(command)
	if err != nil {
		return "", s.fault("command "+command, err)
	}
	if r.Failed != nil {
		return "", &refusedError{command, s.safe(r.Result)}
	}
	return r.Result, nil
}

// refusedError says that a switch did not take a command.
type refusedError struct{ command, said string }

func (e *refusedError) Error() string {
	return fmt.Sprintf("it refuses the command %q: %s", e.command, e.said)
}

// level goes to another level of privileges.
func (s *session) level(name string) error {
	if err := s.term.AcquirePriv(name); err != nil {
		return s.fault("go to level "+name, err)
	}
	return nil
}

// fault makes an error of the terminal one for people. The line's own reason is the better one.
func (s *session) fault(doing string, err error) error {
	if why := s.line.reason(); why != nil {
		err = why
	}
	return connectionError{fmt.Errorf("%s: %s", doing, s.safe(err.Error()))}
}

// safe makes what a switch said fit for an error: it knows the passwords, and may say them.
func (s *session) safe(said string) string {
	for _, secret := range s.secrets {
		if secret != "" {
			said = strings.ReplaceAll(said, secret, "******")
		}
	}
	return dialect.Plain(said)
}

// line is the connection below a session: SSH to a known key, with an end in time and an end of output. It hands on
// text only, without the terminal's control sequences.
type line struct {
	ctx     context.Context //nolint:containedctx // scrapligo's transports have none
	address string
	login   *ssh.ClientConfig

	conn    net.Conn
	client  *ssh.Client
	in      io.WriteCloser
	out     io.Reader
	left    int
	escaped escape
	stop    func() bool

	gone chan struct{} // closed when the switch has ended it

	mu    sync.Mutex
	ended bool
	why   error
}

var _ transport.Implementation = (*line)(nil)

// Open connects.
func (l *line) Open(*transport.Args) error {
	ctx, cancel := context.WithTimeout(l.ctx, connectTime)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", l.address)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.conn, l.left = conn, mostOutput
	l.mu.Unlock()
	l.stop = context.AfterFunc(l.ctx, func() { l.end(context.Cause(l.ctx)) })
	first, _ := ctx.Deadline()
	if err := conn.SetDeadline(first); err != nil {
		return err
	}
	if err := l.shell(); err != nil {
		l.end(err)
		return err
	}
	return conn.SetDeadline(time.Time{}) // from now on ctx ends it
}

func (l *line) shell() error {
	c, chans, reqs, err := ssh.NewClientConn(l.conn, l.address, l.login)
	if err != nil {
		if strings.Contains(err.Error(), "host key mismatch") {
			return errors.New("the switch shows another SSH key than host_key: correct host_key if the switch was" +
				" replaced, else find out who answers at its address")
		}
		return err
	}
	l.client = ssh.NewClient(c, chans, reqs)
	s, err := l.client.NewSession()
	if err != nil {
		return err
	}
	if l.in, err = s.StdinPipe(); err != nil {
		return err
	}
	if l.out, err = s.StdoutPipe(); err != nil {
		return err
	}
	if err := s.RequestPty("vt100", 512, 511, ssh.TerminalModes{ssh.ECHO: 1}); err != nil {
		return err
	}
	return s.Shell()
}

// end closes the line; why is the reason of all errors after it.
func (l *line) end(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.ended, l.why = true, why
	if l.stop != nil {
		l.stop()
	}
	if l.conn != nil {
		_ = l.conn.Close()
	}
}

func (l *line) reason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

// Close ends the line.
func (l *line) Close() error { l.end(nil); return nil }

// IsAlive reports whether it is open.
func (l *line) IsAlive() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.ended
}

// Write sends input.
func (l *line) Write(b []byte) error {
	_, err := l.in.Write(b)
	return err
}

// Read returns what the switch said. All ends are io.EOF: scrapligo tries again after others.
func (l *line) Read(n int) ([]byte, error) {
	b := make([]byte, n)
	n, err := l.out.Read(b)
	if l.left -= n; l.left < 0 {
		l.end(fmt.Errorf("it says more than %d MiB", mostOutput>>20))
		return nil, io.EOF
	}
	if err != nil {
		l.end(errors.New("the switch ended the session"))
		close(l.gone) // scrapligo reads no more
		return nil, io.EOF
	}
	return l.escaped.strip(b[:n]), nil
}

// escape takes control characters and ANSI sequences out of a stream, wherever its pieces are cut.
type escape int

const (
	outside escape = iota
	begun          // after ESC
	control        // in ESC [ ... letter
	str            // in ESC ] or the like, up to BEL or ESC
)

func (e *escape) strip(b []byte) []byte {
	out := b[:0]
	for _, c := range b {
		switch {
		case c == 0x1b:
			*e = begun
		case *e == begun && c == '[':
			*e = control
		case *e == begun && (c == ']' || c == 'P' || c == '^' || c == '_' || c == 'X'):
			*e = str
		case *e == begun && c >= ' ' && c <= '/': // such as ESC ( B
		case *e == begun:
			*e = outside
		case *e == control:
			if c >= '@' && c <= '~' {
				*e = outside
			}
		case *e == str:
			if c == 0x07 {
				*e = outside
			}
		case c == '\n' || c == '\t' || c >= ' ' && c <= '~':
			out = append(out, c)
		}
	}
	return out
}
