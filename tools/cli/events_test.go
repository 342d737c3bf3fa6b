package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/test/compat/bench"
)

// tail collects the output of a command that goes on.
type tail struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *tail) Write(p []byte) (int, error) { s.mu.Lock(); defer s.mu.Unlock(); return s.b.Write(p) }
func (s *tail) String() string              { s.mu.Lock(); defer s.mu.Unlock(); return s.b.String() }

func (s *tail) until(t *testing.T, want string) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !strings.Contains(s.String(), want); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it says %q, want %q in it", s.String(), want)
		}
	}
}

func TestEventsAndLog(t *testing.T) {
	c := bench.Start(t, nil)
	u := &user{t: t, url: c.URL}
	ctx, cancel := context.WithCancel(t.Context())
	var lines, jsons tail
	var wg sync.WaitGroup
	for out, args := range map[*tail][]string{
		&lines: {"events"}, &jsons: {"events", "--after", "0", "--type", "node.provision_set", "--node", "n1", "-o",
			"json"}} {
		wg.Go(func() {
			err := Run(ctx, args, strings.NewReader(""), out, &bytes.Buffer{}, func(k string) string {
				return map[string]string{"INGOT_ENDPOINT": c.URL}[k]
			})
			if err != nil {
				t.Errorf("ingot %s: %v", strings.Join(args, " "), err)
			}
		})
	}
	u.ok(words("node create n0 --driver fake-hardware")...)
	// What is followed begins with the connection, which is there once something is seen.
	for i, began := 0, time.Now(); !strings.Contains(lines.String(), "n0  node.update.end"); i++ {
		u.ok("node", "set", "n0", "--description", fmt.Sprint(i))
		if time.Since(began) > 3*time.Minute {
			t.Fatalf("events say %q", lines.String())
		}
	}
	u.ok(words("node create n1 --driver fake-hardware --mac 52:54:00:00:00:01")...)
	u.ok(words("node manage n1")...)
	u.ok("node", "set", "n1", "--description", "the first")
	u.ok(words("node delete n0")...)
	lines.until(t, "n0  node.delete.end")
	jsons.until(t, "baremetal.node.provision_set.end")
	cancel()
	wg.Wait()
	for _, want := range []string{"n1  node.create.end", "provision_state enroll -> verifying",
		"n1  node.update.end  description", "port"} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("events say %q, want %q in it", lines.String(), want)
		}
	}
	for line := range strings.SplitSeq(strings.TrimSpace(jsons.String()), "\n") {
		var e rest.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.NodeName != "n1" ||
			!strings.HasPrefix(e.Type, "baremetal.node.provision_set.") {
			t.Errorf("a line of JSON is %s (%v)", line, err)
		}
	}
	u.fails(words("events --after x"), "--help")

	u.ok(words("node delete n1")...)
	if out := u.ok(words("log --node n1 --type provisioning")...); !strings.Contains(out,
		"manage requested in state enroll") || !strings.Contains(out, "n1 (deleted)") {
		t.Errorf("log says %q", out)
	}
	if out := u.ok(words("log --text nothing-of-this-kind -o json")...); strings.TrimSpace(out) != "[]" {
		t.Errorf("an empty log is %q", out)
	}
	u.fails(words("log --since yesterday"), "since")
	u.fails(words("log -n 0"), "number of lines")
}

func TestDrivers(t *testing.T) {
	u := &user{t: t, url: bench.Start(t, nil).URL}
	if out := u.ok(words("driver matrix")...); !strings.Contains(out, "FAKE-HARDWARE") ||
		!strings.Contains(out, "ipxe, pxe") {
		t.Errorf("matrix says %q", out)
	}
	if out := u.ok(words("driver show ipmi")...); !strings.Contains(out, "IPMI 2.0") ||
		!strings.Contains(out, "ipmi_address") || !strings.Contains(out, "no-console") {
		t.Errorf("show says %q", out)
	}
	var all rest.Capabilities
	if err := json.Unmarshal([]byte(u.ok(words("driver matrix -o json")...)), &all); err != nil ||
		len(all.Interfaces) == 0 {
		t.Errorf("matrix as JSON: %v", err)
	}
}
