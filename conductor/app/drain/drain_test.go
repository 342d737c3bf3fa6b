package drain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/test/kit"
)

// rack has the nodes of a conductor, by UUID with what holds them up; "" moves.
type rack struct {
	mu    sync.Mutex
	nodes map[string]engine.Left
	fails error
	tries int
}

func (r *rack) Owned(context.Context) (ids []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.nodes {
		ids = append(ids, id)
	}
	return ids, r.fails
}

func (r *rack) HandAway(_ context.Context, id string) (*engine.Left, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tries++
	l := r.nodes[id]
	if l.Why == "" {
		delete(r.nodes, id)
		return nil, r.fails
	}
	l.UUID, l.Name = id, id
	return &l, nil
}

func (r *rack) set(id, why string, nowhere bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes[id] = engine.Left{Why: why, Nowhere: nowhere}
}

// full is a rack of nodes that move, but for two.
func full() *rack {
	r := &rack{nodes: map[string]engine.Left{}}
	for i := range 100 {
		r.set(fmt.Sprint("n", i), "", false)
	}
	r.set("busy", "it is being worked on", false)
	r.set("alone", "there is no other", true)
	return r
}

// others are the other conductors as this one sees them.
type others struct {
	mu       sync.Mutex
	said     []bool
	leaving  bool // as said last
	take     bool
	news     bool // they take nodes, which is known with the next description
	goneThen bool // the other way round
	fails    error
}

func (o *others) describe(_ context.Context, draining, leaving bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fails != nil {
		return o.fails
	}
	o.said, o.leaving = append(o.said, draining), leaving
	o.take = (o.take || o.news) && !o.goneThen
	return nil
}

func (o *others) there() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.take
}

// run runs a Drainer in the bubble of a test.
func run(t *testing.T, r *rack, o *others) *Drainer {
	t.Helper()
	d := New(r, Config{Name: "c1", Describe: o.describe, Others: o.there}, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); d.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return d
}

// TestDrains: nodes are tried until those that can move have moved; another command tries all again, and undone,
// nothing more is tried.
func TestDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, o := full(), &others{take: true}
		d := run(t, r, o)
		if err := d.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * soon)
		s := d.Status()
		if s.Total != 102 || s.Left != 2 || s.Stay != 1 || s.Over() || len(s.Busy) != 1 || s.Busy[0].Name != "busy" ||
			len(s.Staying) != 1 || s.Staying[0].Name != "alone" || d.Leaving() == "" {
			t.Errorf("status %+v, leaving %q", s, d.Leaving())
		}
		r.set("busy", "", false)
		time.Sleep(2 * soon)
		if s = d.Status(); !s.Over() || s.Left != 1 {
			t.Errorf("status at the end %+v", s)
		}
		r.set("alone", "", false) // another conductor has come
		if err := d.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s = d.Status(); !s.Over() || s.Left != 0 || s.Total != 1 {
			t.Errorf("after another command %+v", s)
		}
		if err := d.Undo(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.set("late", "", false)
		time.Sleep(time.Minute)
		if s = d.Status(); s.Draining || len(r.nodes) != 1 || d.Leaving() != "" {
			t.Errorf("undone: %+v, %d nodes, leaving %q", s, len(r.nodes), d.Leaving())
		}
		if err := errors.Join(d.Undo(t.Context()), d.Begin(t.Context())); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s = d.Status(); s.Total != 1 || !s.Over() || fmt.Sprint(o.said) != "[true false true]" {
			t.Errorf("begun anew: %+v, described as draining %v", s, o.said)
		}
	})
}

// TestStoreFails: while the nodes can't be read or written, draining is not over, and says why.
func TestStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, o := full(), &others{take: true}
		d := run(t, r, o)
		r.fails = errors.New("the database is away")
		if err := d.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s := d.Status(); s.Over() || s.LastFail != "the database is away" {
			t.Errorf("status %+v", s)
		}
		r.mu.Lock()
		r.fails = nil
		r.mu.Unlock()
		r.set("busy", "", false)
		time.Sleep(2 * later)
		if s := d.Status(); !s.Over() || s.Left != 1 || s.LastFail != "" {
			t.Errorf("status later %+v", s)
		}
		o.fails = errors.New("the database is away")
		if err := d.Undo(t.Context()); !errors.Is(err, o.fails) || !d.Status().Draining {
			t.Errorf("undo without the database = %v, %+v", err, d.Status())
		}
	})
}

// TestAlone: a conductor without others does not drain, be it that they have just gone; one whose others have just come
// does.
func TestAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, o := range []*others{{}, {take: true, goneThen: true}} {
			d := run(t, full(), o)
			if err := d.Begin(t.Context()); !errors.Is(err, ErrAlone) || d.Status().Draining || o.said[len(o.said)-1] {
				t.Errorf("alone: %v, %+v, described as draining %v", err, d.Status(), o.said)
			}
			begun := time.Now()
			if d.Leave(t.Context()); time.Since(begun) != 0 || !strings.Contains(d.Leaving(), "about to stop") {
				t.Errorf("leaving alone took %s; %q", time.Since(begun), d.Leaving())
			}
			// Others that leave at the same time see by it that they had better keep their nodes.
			if !o.said[len(o.said)-1] || !o.leaving {
				t.Errorf("leaving alone it was described as draining %v, leaving %v", o.said, o.leaving)
			}
		}
		if err := run(t, full(), &others{news: true}).Begin(t.Context()); err != nil {
			t.Errorf("another has just come: %v", err)
		}
	})
}

// TestLeave: a conductor that stops waits for nodes that are busy, not for those that stay, and not for ever.
func TestLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := full()
		d := run(t, r, &others{take: true})
		time.AfterFunc(3*time.Second, func() { r.set("busy", "", false) })
		begun := time.Now()
		if d.Leave(t.Context()); time.Since(begun) < 3*time.Second || time.Since(begun) > 4*time.Second {
			t.Errorf("leaving took %s", time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		begun = time.Now()
		if run(t, full(), &others{take: true}).Leave(ctx); time.Since(begun) != 15*time.Second {
			t.Errorf("leaving with a busy node took %s", time.Since(begun))
		}
		failing := &others{take: true, fails: errors.New("the database is away")}
		begun = time.Now()
		if run(t, full(), failing).Leave(t.Context()); time.Since(begun) != 0 {
			t.Errorf("leaving without the database took %s", time.Since(begun))
		}
	})
}

// serve serves commands in a directory, until the returned function is called.
func serve(t *testing.T, dir string, d *Drainer) (end func()) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- d.Serve(ctx, dir, nil) }()
	go func() { d.Run(ctx); done <- nil }()
	end = sync.OnceFunc(func() {
		stop()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(end)
	for limit := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		_, err := NewClient(dir).Status(t.Context())
		if err == nil {
			return end
		}
		if time.Now().After(limit) {
			t.Fatal(err)
		}
	}
}

// TestCommands: commands reach the conductor in a directory with a long name, over the socket of one that was killed;
// without one, the error names the directory.
func TestCommands(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c := NewClient(dir)
	var off *NotRunningError
	if _, err := c.Begin(t.Context()); !errors.As(err, &off) || !strings.Contains(err.Error(), dir) {
		t.Errorf("without a conductor: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, Socket), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Status(t.Context()); !errors.As(err, &off) {
		t.Errorf("with a dead socket: %v", err)
	}
	r, o := full(), &others{}
	stopped := make(chan struct{})
	d := New(r, Config{Name: "c1", Describe: o.describe, Others: o.there, Stop: func() { close(stopped) }},
		slog.New(slog.DiscardHandler))
	end := serve(t, dir, d)
	if _, err := c.Begin(t.Context()); !errors.Is(err, ErrAlone) {
		t.Errorf("alone: %v", err)
	}
	o.mu.Lock()
	o.take = true
	o.mu.Unlock()
	r.set("busy", "", false)
	s, err := c.Begin(t.Context())
	if err != nil || !s.Draining || s.Conductor != "c1" {
		t.Fatalf("begin: %+v, %v", s, err)
	}
	for !s.Over() {
		if s, err = c.Status(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if s.Left != 1 || len(s.Staying) != 1 || s.Staying[0].Why != "there is no other" {
		t.Errorf("status %+v", s)
	}
	if s, err = c.Undo(t.Context()); err != nil || s.Draining {
		t.Errorf("undo: %+v, %v", s, err)
	}
	o.mu.Lock()
	o.fails = errors.New("the database is away")
	o.mu.Unlock()
	if _, err := c.Begin(t.Context()); err == nil || !strings.Contains(err.Error(), "the database is away") {
		t.Errorf("without the database: %v", err)
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	<-stopped
	end()
	if _, err := os.Stat(filepath.Join(dir, Socket)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket after the end: %v", err)
	}
}

// strangerEnv makes this test's program one that asks at a socket and prints the outcome.
const strangerEnv = "INGOT_TEST_STRANGER"

// TestMain is for TestStrangersAtTheSocket.
func TestMain(m *testing.M) {
	if dir := os.Getenv(strangerEnv); dir != "" {
		_, err := NewClient(dir).Begin(context.Background())
		fmt.Println("outcome:", err)
		return
	}
	os.Exit(m.Run())
}

// TestStrangersAtTheSocket: the socket is for its owner; of other users it answers root alone, even where the mode of
// the file would let them in.
func TestStrangersAtTheSocket(t *testing.T) {
	kit.NeedRoot(t) // to be another user
	dir, err := os.MkdirTemp("", "drain")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	o := &others{take: true}
	serve(t, dir, New(full(), Config{Describe: o.describe, Others: o.there}, slog.New(slog.DiscardHandler)))
	fi, err := os.Stat(filepath.Join(dir, Socket))
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Fatalf("the socket has mode %v, %v", fi.Mode(), err)
	}
	program := filepath.Join(dir, "stranger")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, self, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, open := range []bool{false, true} {
		mode := os.FileMode(0o700)
		if open {
			mode = 0o777
			if err := os.Chmod(filepath.Join(dir, Socket), mode); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), program)
		cmd.Env = append(os.Environ(), strangerEnv+"="+dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "outcome: ") || len(o.said) > 0 ||
			strings.Contains(string(out), "outcome: <nil>") {
			t.Errorf("a stranger, socket open %v: %v, %s, described %v", open, err, out, o.said)
		}
	}
}

// TestNonsenseAtTheSocket: what is no command changes nothing, and half a request does not keep the socket from
// answering or ending.
func TestNonsenseAtTheSocket(t *testing.T) {
	dir, o := t.TempDir(), &others{take: true}
	end := serve(t, dir, New(full(), Config{Describe: o.describe, Others: o.there}, slog.New(slog.DiscardHandler)))
	dial := func(text []byte) net.Conn {
		t.Helper()
		c, err := net.Dial("unix", filepath.Join(dir, Socket))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write(text) // it may be refused before all of it is there
		return c
	}
	for range 50 {
		defer dial([]byte("POST /dr")).Close()
	}
	for _, text := range []string{"GET /stop HTTP/1.1\r\nHost: x\r\n\r\n", "PATCH /drain HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /other HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\x02\x00\x01\r\n\r\n",
		"POST /drain HTTP/1.1\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n"} {
		c := dial([]byte(text))
		answer := make([]byte, 64)
		n, _ := c.Read(answer)
		if bytes.Contains(answer[:n], []byte(" 200 ")) {
			t.Errorf("%.30q was answered with %s", text, answer[:n])
		}
		c.Close()
	}
	if len(o.said) > 0 {
		t.Errorf("described as draining %v", o.said)
	}
	if s, err := NewClient(dir).Status(t.Context()); err != nil || s.Draining {
		t.Errorf("status after nonsense: %+v, %v", s, err)
	}
	end()
}
