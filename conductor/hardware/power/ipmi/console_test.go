package ipmi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
)

// heard collects a console until a text is there.
type heard struct {
	mu    sync.Mutex
	all   []byte
	until string
}

var errHeard = errors.New("heard")

func (h *heard) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all = append(h.all, b...); h.until != "" && bytes.Contains(h.all, []byte(h.until)) {
		return len(b), errHeard
	}
	return len(b), nil
}

func (h *heard) text() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return string(h.all)
}

// attached says the text as soon as somebody hears it.
func attached(t *testing.T, m *bmc.Memory, text string) {
	t.Helper()
	for !m.Say(text) {
		select {
		case <-t.Context().Done():
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// TestWatchConsole reads the console of a virtual controller over a real network, again and again, and gives it back
// each time.
func TestWatchConsole(t *testing.T) {
	_, m, info := controller(t)
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		h := &heard{until: "demo login:"}
		got := make(chan error, 1)
		go func() { got <- open(t, info).(power.ConsoleWatcher).WatchConsole(t.Context(), h) }()
		attached(t, m, "Debian GNU/Linux 12\r\n")
		attached(t, m, "demo login: ")
		if err := <-got; !errors.Is(err, errHeard) {
			t.Fatalf("WatchConsole = %v after %q", err, h.text())
		}
		if h.text() != "Debian GNU/Linux 12\r\ndemo login: " {
			t.Errorf("heard %q", h.text())
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	h := &heard{}
	got := make(chan error, 1)
	d := open(t, info)
	go func() { got <- d.(power.ConsoleWatcher).WatchConsole(ctx, h) }()
	attached(t, m, "x")
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("WatchConsole = %v at the end of its context", err)
	}
	if st, err := d.Power(t.Context()); err != nil || st != power.On {
		t.Errorf("the controller afterwards: %v, %v", st, err)
	}
	if m.Say("y") {
		t.Error("the console was not given back")
	}
}

func TestWatchConsoleWithWrongPassword(t *testing.T) {
	_, _, info := controller(t)
	info["ipmi_password"] = "wrong"
	err := open(t, info).(power.ConsoleWatcher).WatchConsole(t.Context(), &heard{})
	if power.KindOf(err) != power.Auth {
		t.Errorf("WatchConsole with a wrong password = %v", err)
	}
}

// TestConsole: what is typed reaches the machine, and what it says comes back; while somebody has the console no
// other session gets it, and it is given back.
func TestConsole(t *testing.T) {
	_, m, info := controller(t)
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	in, typed := io.Pipe()
	h := &heard{until: "root~.\r"} // what other programs take for an end is only text
	got := make(chan error, 1)
	go func() { got <- open(t, info).(power.Console).Console(t.Context(), in, h) }()
	attached(t, m, "login: ")
	err := open(t, info).(power.Console).Console(t.Context(), strings.NewReader(""), &heard{})
	if power.KindOf(err) != power.Refused || !strings.Contains(err.Error(), "somebody else has it") {
		t.Errorf("a second console = %v", err)
	}
	if _, err := io.WriteString(typed, "root~.\r"); err != nil {
		t.Fatal(err)
	}
	if err := <-got; !errors.Is(err, errHeard) || !strings.HasPrefix(h.text(), "login: ") {
		t.Fatalf("Console = %v after %q", err, h.text())
	}
	if m.Say("y") {
		t.Error("the console was not given back")
	}
}
