package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// tally counts lines.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *tally) count(sink, outcome string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[sink+" "+outcome]++
}

func (c *tally) of(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[what]
}

func open(t *testing.T, cfg Config) *Log {
	t.Helper()
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// entries reads the lines of a file.
func entries(t *testing.T, file string) (all []Entry) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%q is no line of JSON: %v", line, err)
		}
		all = append(all, e)
	}
	return all
}

// TestFile: lines are whole however many come at once, the file is for its owner alone, is only appended to, and can be
// rotated both ways: moved and opened anew, or copied and cut.
func TestFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(file, []byte("{\"user\":\"before\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &tally{}
	l := open(t, Config{Conductor: "c1", File: file, Count: c.count})
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for range 20 {
				l.Write(Entry{User: fmt.Sprint("u", i, "\n\"}{"), Method: "PUT",
					Object: map[string]string{"node": "n\nx"}})
			}
		})
	}
	wg.Wait()
	got := entries(t, file)
	if len(got) != 401 || got[0].User != "before" || got[400].Conductor != "c1" || got[400].Time.IsZero() ||
		c.of("file written") != 400 {
		t.Fatalf("%d lines, the last is %+v", len(got), got[len(got)-1])
	}
	if err := os.Rename(file, file+".1"); err != nil {
		t.Fatal(err)
	}
	l.Write(Entry{User: "late"}) // still into the old one: nothing is lost between
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	l.Write(Entry{User: "new"})
	if old := entries(t, file+".1"); old[len(old)-1].User != "late" {
		t.Errorf("the old file ends with %+v", old[len(old)-1])
	}
	if got := entries(t, file); len(got) != 1 || got[0].User != "new" {
		t.Errorf("the new file has %+v", got)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %v, %v", info.Mode(), err)
	}
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
	l.Write(Entry{User: "after"})
	if got := entries(t, file); len(got) != 1 || got[0].User != "after" {
		t.Errorf("after it was cut the file has %+v", got)
	}
}

// TestFileThatCannotBeOpened: the start fails; a Reopen that fails keeps the old file.
func TestFileThatCannotBeOpened(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(Config{File: filepath.Join(dir, "absent", "audit.log")}); err == nil ||
		!strings.Contains(err.Error(), "audit.file") {
		t.Errorf("a file that can't be made: %v", err)
	}
	file := filepath.Join(dir, "audit.log")
	l := open(t, Config{File: file})
	if err := os.Rename(file, file+".1"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err == nil {
		t.Error("a folder was opened")
	}
	l.Write(Entry{User: "u"})
	if got := entries(t, file+".1"); len(got) != 1 {
		t.Errorf("%d lines are in the old file, want 1", len(got))
	}
}

// TestSyslog: lines come to a server over UDP and TCP, one message each.
func TestSyslog(t *testing.T) {
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	got := make(chan string, 10)
	go func() {
		b := make([]byte, 64<<10)
		for {
			n, _, err := udp.ReadFrom(b)
			if err != nil {
				return
			}
			got <- string(b[:n])
		}
	}()
	go func() {
		c, err := tcp.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		for s := bufio.NewScanner(c); s.Scan(); {
			got <- s.Text()
		}
	}()
	for _, server := range []string{"udp://" + udp.LocalAddr().String(), "tcp://" + tcp.Addr().String()} {
		l := open(t, Config{Syslog: server})
		l.Write(Entry{User: "alice", Method: "DELETE", Route: "/v1/nodes/{node}", Status: 204})
		select {
		case line := <-got:
			_, text, _ := strings.Cut(line, "{")
			var e Entry
			err := json.Unmarshal([]byte("{"+strings.TrimSpace(text)), &e)
			if err != nil || e.User != "alice" || e.Status != 204 ||
				!strings.Contains(line, "ingotd-audit") || strings.Count(line, "\n") > 1 {
				t.Errorf("%s: %q, %v", server, line, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: nothing came", server)
		}
	}
}

// TestSyslogThatTakesNothing costs lines and never time.
func TestSyslogThatTakesNothing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	c := &tally{}
	log := open(t, Config{Syslog: "tcp://" + gone, Count: c.count})
	begun := time.Now()
	for range 3 * queued {
		log.Write(Entry{User: "u"})
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("%d lines took %v", 3*queued, took)
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
	if c.of("syslog written") != 0 || c.of("syslog failed") == 0 ||
		c.of("syslog failed")+c.of("syslog dropped") != 3*queued {
		t.Errorf("counted %v, want %d lines that failed or were dropped", c.n, 3*queued)
	}
}

func TestServer(t *testing.T) {
	for text, want := range map[string]string{"local": " ", "udp://192.0.2.1:514": "udp 192.0.2.1:514",
		"tcp://log.example:601": "tcp log.example:601", "http://x:1": "error", "udp://x": "error", "": "error",
		"udp://x:1/y": "error"} {
		network, address, err := Server(text)
		got := network + " " + address
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("Server(%q) = %q, want %q", text, got, want)
		}
	}
}

// TestOff: without a sink there is no log, and nothing to be written.
func TestOff(t *testing.T) {
	l, err := Open(Config{})
	if l != nil || err != nil {
		t.Errorf("%v, %v", l, err)
	}
	l.Write(Entry{})
	if l.Reopen() != nil || l.Close() != nil {
		t.Error("what is off has errors")
	}
}
