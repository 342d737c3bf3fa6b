package rescue

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/agent/step"
	"golang.org/x/crypto/bcrypt"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

const password = "open sesame"

// hashed is a cheap hash: tests compare often.
func hashed(t *testing.T) string {
	t.Helper()
	b, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func newKey(t *testing.T) (ssh.Signer, string) {
	t.Helper()
	_, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return s, string(ssh.MarshalAuthorizedKey(s.PublicKey()))
}

// log records log output.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.b.String(), text)
}

// open opens a host of this machine on the loopback.
func open(t *testing.T, a Access) (*Host, Info, *log) {
	t.Helper()
	l := &log{}
	h := New(linux.Machine{}, "127.0.0.1:0", slog.New(slog.NewTextHandler(l, nil)))
	info, err := h.Open(a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close("the test is over") })
	return h, info, l
}

func dial(i Info, user string, auth ...ssh.AuthMethod) (*ssh.Client, error) {
	check := func(_ string, _ net.Addr, k ssh.PublicKey) error {
		if ssh.FingerprintSHA256(k) != i.HostKey {
			return errors.New("another host key than was told")
		}
		return nil
	}
	return ssh.Dial("tcp", at(i),
		&ssh.ClientConfig{User: user, Auth: auth, HostKeyCallback: check, Timeout: 30 * time.Second})
}

func at(i Info) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(i.Port)) }

func login(t *testing.T, i Info, user string, auth ...ssh.AuthMethod) *ssh.Client {
	t.Helper()
	c, err := dial(i, user, auth...)
	if err != nil {
		t.Fatalf("login as %s: %v", user, err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func newSessionOf(t *testing.T, c *ssh.Client) *ssh.Session {
	t.Helper()
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ; !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

// TestWhoGetsIn holds that the password and the keys that were given open the machine, to both users, and nothing else
// does.
func TestWhoGetsIn(t *testing.T) {
	key, line := newKey(t)
	other, _ := newKey(t)
	both, bothInfo, _ := open(t, Access{PasswordHash: hashed(t), Keys: []string{line}})
	_ = both
	_, keyInfo, _ := open(t, Access{Keys: []string{line}})
	_, passInfo, _ := open(t, Access{PasswordHash: hashed(t)})
	if !bothInfo.Password || bothInfo.Keys != 1 || keyInfo.Password || passInfo.Keys != 0 {
		t.Errorf("told %+v, %+v, %+v", bothInfo, keyInfo, passInfo)
	}
	for _, c := range []struct {
		name, user string
		info       Info
		auth       ssh.AuthMethod
		in         bool
	}{
		{"password", "rescue", bothInfo, ssh.Password(password), true},
		{"password, root", "root", bothInfo, ssh.Password(password), true},
		{"key", "rescue", bothInfo, ssh.PublicKeys(key), true},
		{"key, root", "root", keyInfo, ssh.PublicKeys(key), true},
		{"wrong password", "rescue", bothInfo, ssh.Password(password + "!"), false},
		{"empty password", "rescue", bothInfo, ssh.Password(""), false},
		{"password longer than bcrypt compares", "rescue", bothInfo,
			ssh.Password(password + strings.Repeat("x", 100)), false},
		{"the hash itself", "rescue", bothInfo, ssh.Password(hashed(t)), false},
		{"somebody else's key", "rescue", bothInfo, ssh.PublicKeys(other), false},
		{"another user, password", "admin", bothInfo, ssh.Password(password), false},
		{"another user, key", "admin", bothInfo, ssh.PublicKeys(key), false},
		{"password where only keys are taken", "rescue", keyInfo, ssh.Password(password), false},
		{"key where only a password is taken", "rescue", passInfo, ssh.PublicKeys(key), false},
	} {
		conn, err := dial(c.info, c.user, c.auth)
		if in := err == nil; in != c.in {
			t.Errorf("%s: in %v, want %v (%v)", c.name, in, c.in, err)
		}
		if err == nil {
			conn.Close()
		}
	}
	if _, err := dial(bothInfo, "rescue"); err == nil {
		t.Error("logged in without credentials")
	}
}

// TestCommands holds output, both streams apart, input, and how a command ended.
func TestCommands(t *testing.T) {
	_, info, logged := open(t, Access{PasswordHash: hashed(t)})
	c := login(t, info, "rescue", ssh.Password(password))
	s := newSessionOf(t, c)
	var out, errs bytes.Buffer
	s.Stdin, s.Stdout, s.Stderr = strings.NewReader("to upper"), &out, &errs
	if err := s.Run("tr a-z A-Z; echo oops >&2; echo $HOME"); err != nil {
		t.Fatal(err)
	}
	if out.String() != "TO UPPER/root\n" || errs.String() != "oops\n" {
		t.Errorf("stdout %q, stderr %q", &out, &errs)
	}
	if !logged.has("tr a-z A-Z") {
		t.Error("the command is not in the log")
	}
	var exit *ssh.ExitError
	if err := newSessionOf(t, c).Run("exit 7"); !errors.As(err, &exit) || exit.ExitStatus() != 7 {
		t.Errorf("exit 7 = %v", err)
	}
	if err := newSessionOf(t, c).Run("kill -TERM $$"); !errors.As(err, &exit) || exit.Signal() != "TERM" {
		t.Errorf("a command that a signal ended = %v", err)
	}
	for range 50 { // over before the client knows that it has begun
		if err := newSessionOf(t, c).Run(":"); err != nil {
			t.Fatalf("a command that does nothing = %v", err)
		}
	}
	// More than all buffers hold; and processes left by a command don't delay its end.
	s = newSessionOf(t, c)
	big, err := s.Output("sleep 1000 & head -c 5000000 /dev/zero")
	if err != nil || len(big) != 5000000 {
		t.Errorf("%d bytes came, %v", len(big), err)
	}
	if os.Getenv("SECRET_OF_THE_AGENT") != "" {
		t.Fatal("set in the wrong place")
	}
	// Nothing of the agent's own environment, and only harmless variables of the client's.
	t.Setenv("SECRET_OF_THE_AGENT", "1")
	s = newSessionOf(t, c)
	_ = s.Setenv("LC_ALL", "C.UTF-8")
	if err := s.Setenv("LD_PRELOAD", "/x"); err == nil {
		t.Error("LD_PRELOAD was taken")
	}
	env, err := s.Output("env")
	if err != nil || strings.Contains(string(env), "SECRET") || !strings.Contains(string(env), "LC_ALL=C.UTF-8") {
		t.Errorf("environment %s, %v", env, err)
	}
}

// TestTerminal holds a shell on a terminal: its size and how it changes, its kind, and that ^C reaches what runs.
func TestTerminal(t *testing.T) {
	_, info, _ := open(t, Access{PasswordHash: hashed(t)})
	s := newSessionOf(t, login(t, info, "root", ssh.Password(password)))
	if err := s.RequestPty("vt220", 31, 97, ssh.TerminalModes{}); err != nil {
		t.Fatal(err)
	}
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out := &log{}
	s.Stdout = out
	if err := s.Shell(); err != nil {
		t.Fatal(err)
	}
	say := func(text string) {
		t.Helper()
		if _, err := io.WriteString(in, text); err != nil {
			t.Fatal(err)
		}
	}
	say("stty size; echo kind=$TERM; tty; set -o | head -1\n")
	eventually(t, "size and kind of the terminal",
		func() bool { return out.has("31 97") && out.has("kind=vt220") && out.has("/dev/pts/") })
	if err := s.WindowChange(50, 132); err != nil {
		t.Fatal(err)
	}
	// The arrival of the change is not reported, so the size is polled.
	eventually(t, "the new size", func() bool { say("stty size\n"); return out.has("50 132") })
	say("trap 'echo interr''upted' INT; echo rea''dy; sleep 1000; echo went on\n")
	eventually(t, "sleep", func() bool { return out.has("ready") })
	// The shell may not have started sleep yet, and then only it hears this: so it is said until it is heard.
	eventually(t, "^C", func() bool { say("\x03"); return out.has("interrupted") })
	say("trap - INT\nexit 5\n")
	var exit *ssh.ExitError
	if err := s.Wait(); !errors.As(err, &exit) || exit.ExitStatus() != 5 {
		t.Errorf("the shell's end = %v\n%s", err, out.b.String())
	}
}

// TestSignals holds that a signal of the client's reaches the command, and that one that ssh does not name is refused.
func TestSignals(t *testing.T) {
	_, info, _ := open(t, Access{PasswordHash: hashed(t)})
	s := newSessionOf(t, login(t, info, "root", ssh.Password(password)))
	out := &log{}
	s.Stdout = out
	if err := s.Start("trap 'echo got it; exit 3' USR1; echo ready; while :; do sleep 0.05; done"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the trap", func() bool { return out.has("ready") })
	ok, err := s.SendRequest("signal", true, ssh.Marshal(signalRequest{"STOP"}))
	if err != nil || ok {
		t.Errorf("signal STOP = %v, %v", ok, err)
	}
	// sleep dies of it, being of the group, and the shell runs its trap.
	if err := s.Signal(ssh.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	var exit *ssh.ExitError
	if err := s.Wait(); !errors.As(err, &exit) || exit.ExitStatus() != 3 || !out.has("got it") {
		t.Errorf("the command's end = %v", err)
	}
}

// TestNothingElse holds that no way out of the session is offered.
func TestNothingElse(t *testing.T) {
	_, info, _ := open(t, Access{PasswordHash: hashed(t)})
	c := login(t, info, "root", ssh.Password(password))
	target, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	var refused *ssh.OpenChannelError
	if _, err := c.Dial("tcp", target.Addr().String()); !errors.As(err, &refused) || refused.Reason != ssh.Prohibited {
		t.Errorf("a port was forwarded: %v", err)
	}
	if ln, err := c.Listen("tcp", "127.0.0.1:0"); err == nil {
		ln.Close()
		t.Error("a port was forwarded back")
	}
	s := newSessionOf(t, c)
	if err := s.RequestSubsystem("sftp"); err == nil {
		t.Error("a subsystem was offered")
	}
	for _, kind := range []string{"auth-agent-req@openssh.com", "x11-req"} {
		if ok, err := s.SendRequest(kind, true, nil); err != nil || ok {
			t.Errorf("%s = %v, %v", kind, ok, err)
		}
	}
	for _, garbage := range []string{"pty-req", "exec", "env", "signal", "window-change"} {
		if ok, err := s.SendRequest(garbage, true, []byte{0, 0, 0, 200, 1}); err != nil || ok {
			t.Errorf("garbage as %s = %v, %v", garbage, ok, err)
		}
	}
	if out, err := s.Output("echo still here"); err != nil || string(out) != "still here\n" {
		t.Errorf("after all that: %q, %v", out, err)
	}
	// A session has one command.
	if ok, err := s.SendRequest("exec", true, ssh.Marshal(execRequest{"true"})); err == nil && ok {
		t.Error("a second command ran in the same session")
	}
}

// TestGuessing holds that a guesser runs out of guesses, so that the right password is not looked at either, while a
// key still gets in, and that guesses come back with time.
func TestGuessing(t *testing.T) {
	key, line := newKey(t)
	h, info, logged := open(t, Access{PasswordHash: hashed(t), Keys: []string{line}})
	var mu sync.Mutex
	now := time.Now()
	h.limit.now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	for range 20 { // right ones take nothing
		login(t, info, "rescue", ssh.Password(password)).Close()
	}
	for i := range guesses {
		if _, err := dial(info, "rescue", ssh.Password(fmt.Sprint(i))); err == nil {
			t.Fatal("a wrong password was taken")
		}
	}
	if _, err := dial(info, "rescue", ssh.Password(password)); err == nil {
		t.Error("after too many guesses the next is still looked at")
	}
	if !logged.has("too many were wrong") {
		t.Error("the log does not say so")
	}
	login(t, info, "rescue", ssh.PublicKeys(key))
	mu.Lock()
	now = now.Add(guessEvery + time.Second)
	mu.Unlock()
	login(t, info, "rescue", ssh.Password(password))
	// Many guessers together are bounded as well.
	l := newLimiter(func() time.Time { return now })
	taken := 0
	for i := range 10 * guessesAll {
		if l.guess(&net.TCPAddr{IP: net.IPv4(10, 0, byte(i>>8), byte(i)), Port: i + 1}) {
			taken++
		}
	}
	if taken != guessesAll {
		t.Errorf("%d guesses of as many addresses were taken, want %d", taken, guessesAll)
	}
	for i := range 2 * maxGuessers {
		l.guess(&net.TCPAddr{IP: net.IPv4(10, 1, byte(i>>8), byte(i)), Port: 1})
	}
	if len(l.from) > maxGuessers {
		t.Errorf("%d addresses are remembered", len(l.from))
	}
}

// TestClose holds that nothing is left when the machine is no longer rescued: no listener, no connection, no process.
func TestClose(t *testing.T) {
	h, info, _ := open(t, Access{PasswordHash: hashed(t)})
	c := login(t, info, "root", ssh.Password(password))
	s := newSessionOf(t, c)
	out := &log{}
	s.Stdout = out
	if err := s.Start("trap '' HUP TERM; echo pid=$$=; while :; do sleep 1; done"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command", func() bool { return out.has("=\n") })
	_, pid, _ := strings.Cut(out.b.String(), "pid=")
	n, err := strconv.Atoi(strings.TrimRight(pid, "=\n"))
	if err != nil {
		t.Fatal(err)
	}
	idle, err := net.Dial("tcp", at(info))
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	h.Close("test")
	if err := unix.Kill(n, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("the command still runs: %v", err)
	}
	if _, err := net.Dial("tcp", at(info)); err == nil {
		t.Error("it still listens")
	}
	if err := s.Wait(); err == nil {
		t.Error("the session ended as if all were well")
	}
	if h.Keep() != nil {
		t.Error("a closed host is kept")
	}
	h.Close("again")
}

// TestTooMany holds the limits of unauthenticated clients and sessions, and that a logged-in client is not disturbed.
func TestTooMany(t *testing.T) {
	_, info, _ := open(t, Access{PasswordHash: hashed(t)})
	c := login(t, info, "root", ssh.Password(password))
	if err := newSessionOf(t, c).Run("true"); err != nil { // the server knows by now that this one is in
		t.Fatal(err)
	}
	var idle []net.Conn
	for range maxStrangers {
		n, err := net.Dial("tcp", at(info))
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		// The server's version shows that it was admitted.
		if _, err := io.ReadFull(n, make([]byte, 7)); err != nil {
			t.Fatal(err)
		}
		idle = append(idle, n)
	}
	n, err := net.Dial("tcp", at(info))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if _, err := n.Read(make([]byte, 1)); err == nil {
		t.Error("one stranger too many was admitted")
	}
	var open []*ssh.Session
	// the server may not have seen yet that the first one ended
	eventually(t, "as many sessions as may be", func() bool {
		s, err := c.NewSession()
		if err == nil {
			t.Cleanup(func() { s.Close() })
			open = append(open, s)
		}
		return len(open) == maxSessions
	})
	var refused *ssh.OpenChannelError
	if _, err := c.NewSession(); !errors.As(err, &refused) || refused.Reason != ssh.ResourceShortage {
		t.Errorf("one session too many = %v", err)
	}
	if out, err := open[0].Output("echo fine"); err != nil || string(out) != "fine\n" {
		t.Errorf("among many: %q, %v", out, err)
	}
	eventually(t, "the place of a session that ended", func() bool {
		s, err := c.NewSession()
		if err == nil {
			s.Close()
		}
		return err == nil
	})
	idle[0].Close()
	eventually(t, "the place of a stranger that left", func() bool {
		c, err := dial(info, "root", ssh.Password(password))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// TestStep checks the step's result and its refusals.
func TestStep(t *testing.T) {
	_, line := newKey(t)
	h := New(linux.Machine{}, "127.0.0.1:0", nil)
	defer h.Close("test")
	run := func(host *Host, args any) (step.Outcome, error) {
		f := &step.Facts{}
		if host != nil {
			Offer(f, host)
		}
		b, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		return Step()(t.Context(), &step.Call{Args: b, Facts: f})
	}
	out, err := run(h, Access{PasswordHash: hashed(t), Keys: []string{line}})
	if err != nil {
		t.Fatal(err)
	}
	info := out.Result.(Info)
	if !strings.HasPrefix(info.HostKey, "SHA256:") || !strings.HasPrefix(info.HostKeyLine, "ssh-ed25519 ") ||
		info.Port == 0 {
		t.Errorf("info %+v", info)
	}
	if b, err := json.Marshal(info); err != nil || strings.Contains(string(b), "$2a$") ||
		strings.Contains(string(b), strings.Fields(line)[1]) {
		t.Errorf("the result has what it must not: %s, %v", b, err)
	}
	login(t, info, "rescue", ssh.Password(password))
	again, err := run(h, Access{PasswordHash: hashed(t)})
	if err != nil || again.Result.(Info).HostKey != info.HostKey {
		t.Errorf("run again: %+v, %v", again.Result, err)
	}
	login(t, again.Result.(Info), "rescue", ssh.Password(password))

	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	rsaPub, err := ssh.NewPublicKey(&rsaKey.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run(h, Access{Keys: []string{string(ssh.MarshalAuthorizedKey(rsaPub))}}); err != nil {
		t.Errorf("an RSA key: %v", err)
	}
	for name, c := range map[string]struct {
		host *Host
		args any
		want string
	}{
		"nothing":       {h, Access{}, "neither a password nor an ssh key"},
		"clear":         {h, Access{PasswordHash: password}, "bcrypt"},
		"costly":        {h, Access{PasswordHash: strings.Replace(hashed(t), "$04$", "$31$", 1)}, "cost 31"},
		"no key":        {h, Access{Keys: []string{"ssh-ed25519 nonsense"}}, "ssh key 1"},
		"options":       {h, Access{Keys: []string{line, `command="/bin/true" ` + line}}, "ssh key 2: its options"},
		"two lines":     {h, Access{Keys: []string{line + line}}, "more than one line"},
		"unknown":       {h, map[string]any{"password": "x"}, "password"},
		"not rescued":   {nil, Access{PasswordHash: hashed(t)}, "not being rescued"},
		"without shell": {New(nil, "", nil), Access{PasswordHash: hashed(t)}, "no shell"},
	} {
		_, err := run(c.host, c.args)
		var e *step.Error
		if err == nil || !errors.As(err, &e) || e.Remedy == "" || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q and a remedy", name, err, c.want)
		}
	}
}

// TestRestore holds that a worker that took over opens the same machine under the same host key.
func TestRestore(t *testing.T) {
	h, info, _ := open(t, Access{PasswordHash: hashed(t)})
	b := h.Keep()
	h.Close("the worker died")
	next := New(linux.Machine{}, "127.0.0.1:"+strconv.Itoa(info.Port), nil)
	if err := next.Restore(b); err != nil {
		t.Fatal(err)
	}
	defer next.Close("test")
	login(t, info, "rescue", ssh.Password(password))
	for _, bad := range []string{"", "{}", `{"key":"AAAA"}`} {
		if err := New(linux.Machine{}, "127.0.0.1:0", nil).Restore([]byte(bad)); err == nil {
			t.Errorf("%q was restored", bad)
		}
	}
}

// TestOpenSSH holds that the client that people have gets along with it: keys, a command with input and output, a
// terminal.
func TestOpenSSH(t *testing.T) {
	program, err := exec.LookPath("ssh")
	if err != nil {
		t.Fatal("no ssh: tools/deps.sh installs it")
	}
	_, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(k, "")
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(k)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	id, hosts := filepath.Join(dir, "id"), filepath.Join(dir, "known_hosts")
	_, info, _ := open(t, Access{Keys: []string{string(ssh.MarshalAuthorizedKey(s.PublicKey()))}})
	if err := errors.Join(os.WriteFile(id, pemOf(block), 0o600),
		os.WriteFile(hosts, fmt.Appendf(nil, "[127.0.0.1]:%d %s\n", info.Port, info.HostKeyLine), 0o600)); err != nil {
		t.Fatal(err)
	}
	run := func(input string, more ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		args := append([]string{"-F", "none", "-i", id, "-p", strconv.Itoa(info.Port), "-o", "BatchMode=yes", "-o",
			"IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=yes", "-o", "UserKnownHostsFile=" + hosts}, more...)
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run("a line\n", "rescue@127.0.0.1", "cat; exit 9"); err == nil || out != "a line\n" {
		t.Errorf("a command: %q, %v", out, err)
	} else if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 9 {
		t.Errorf("the command's status: %v", err)
	}
	if out, err := run("", "-tt", "root@127.0.0.1", "tty"); err != nil || !strings.Contains(out, "/dev/pts/") {
		t.Errorf("a terminal: %q, %v", out, err)
	}
}

func pemOf(b *pem.Block) []byte { return pem.EncodeToMemory(b) }
