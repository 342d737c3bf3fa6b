package cli

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/test/compat/bench"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
)

// screen collects what a console shows.
type screen struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

func TestConsoleOverIPMI(t *testing.T) {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	m := &bmc.Memory{}
	b, err := bmc.Start(conn, bmc.Config{Name: "n1", UUID: uuid.New(), User: "admin", Password: "secret", Machine: m})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	c := bench.Start(t, nil)
	u := &user{t: t, url: c.URL}
	u.ok("node", "create", "n1", "--bmc", b.Addr().String(), "--bmc-user", "admin", "--bmc-password", "secret")
	u.fails(words("node console n1 --bmc-password wrong"), "user and password", "ingot lab console")

	keys, typed := io.Pipe()
	var out, errs screen
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, words("node console n1"), keys, &out, &errs, func(k string) string {
			return map[string]string{"INGOT_ENDPOINT": c.URL, "INGOT_BMC_PASSWORD": "secret"}[k]
		})
	}()
	// The machine's serial port echoes what is typed.
	if _, err := io.WriteString(typed, "hello\r"); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(out.String(), "hello") {
		select {
		case err := <-done:
			t.Fatalf("console ended early: %v %s", err, errs.String())
		case <-ctx.Done():
			t.Fatalf("console shows %q", out.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
	if _, err := io.WriteString(typed, "~X"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("console = %v", err)
	}
	if s := errs.String(); !strings.Contains(s, "Attached to the console of n1") || !strings.Contains(s, "Detached") {
		t.Errorf("console says %q", s)
	}
}
