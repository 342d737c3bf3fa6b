package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/test/compat/bench"
)

func topSample() *topView {
	t := &topView{now: func() time.Time { return time.Date(2026, 11, 1, 10, 0, 0, 0, time.Local) },
		states: map[string]int{"active": 9990, "deploying": 2, "deploy failed": 12}, kept: 1, failures: 12,
		failed: []rest.Node{{Name: "bad\x1b[2J", ProvisionState: "deploy failed",
			LastError: "no disk is large enough"}}}
	for i := range 50 {
		t.running = append(t.running, rest.NodeTransfer{NodeName: rest.Null(fmt.Sprint("n", i)),
			Transfer: rest.Transfer{Step: "write_image", Bytes: 1 << 30, Total: 4 << 30, Rate: 512 << 20}})
	}
	return t
}

// TestTopFits: however much there is, the view fits the terminal, and says what it leaves out.
func TestTopFits(t *testing.T) {
	view := topSample()
	view.err = errors.New("connection refused")
	for _, size := range [][2]int{{200, 60}, {80, 24}, {40, 10}, {10, 3}, {1, 1}} {
		text := view.frame(size[0], size[1])
		lines := strings.Split(text, "\n")
		if len(lines) > size[1] {
			t.Errorf("%v: %d lines", size, len(lines))
		}
		for _, line := range lines {
			if utf8.RuneCountInString(line) > size[0] || strings.Contains(line, "\x1b") {
				t.Errorf("%v: line %q", size, line)
			}
		}
	}
	text := view.frame(120, 30)
	for _, part := range []string{"10004 machines", "50 at work, 25.0 GiB/s", "NOT LIVE: connection refused",
		"active 9990  deploy failed 12  deploying 2  (maintenance 1)", "no disk is large enough", "and 11 more",
		"[=====               ]", " 25%", "512 MiB/s  6.0 s", "and 30 more"} {
		if !strings.Contains(text, part) {
			t.Errorf("the view lacks %q:\n%s", part, text)
		}
	}
}

// TestTopOnce: without a terminal the fleet is shown once, also as values.
func TestTopOnce(t *testing.T) {
	u := &user{t: t, url: bench.Start(t, nil).URL}
	if out := u.ok("top"); !strings.Contains(out, "0 machines") || !strings.Contains(out, "ingot node create") {
		t.Errorf("without machines: %s", out)
	}
	u.ok(words("node create n1 --driver fake-hardware")...)
	if out := u.ok("top"); !strings.Contains(out, "1 machine ") || !strings.Contains(out, "enroll 1") {
		t.Errorf("with one: %s", out)
	}
	var s topSummary
	if err := json.NewDecoder(bytes.NewReader([]byte(u.ok("top", "-o", "json")))).Decode(&s); err != nil ||
		s.States["enroll"] != 1 || s.Failed == nil {
		t.Errorf("as JSON: %+v, %v", s, err)
	}
}
