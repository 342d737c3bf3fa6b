package agents

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/proto/agentv1"
)

// TestHostileStringsAreCleanedOnArrival: what an agent says of itself and of its work can't reach a terminal as
// commands, nor as a wall of text.
func TestHostileStringsAreCleanedOnArrival(t *testing.T) {
	const evil = "\x1b[2J\x1b]0;own\x07\nforged line\u202e\u009b"
	wall := strings.Repeat("x", 700<<10)
	bad := func(s string) bool {
		return strings.ContainsAny(s, "\x1b\x07\n\u202e\u009b") || strings.Contains(s, `\u001b`) ||
			len(s) > limit.LogLine
	}
	h := agentState(identity{},
		&agentv1.Hello{AgentVersion: evil + wall, StepsDigest: evil, RestartReason: evil + wall}, netip.Addr{})
	for _, s := range []string{h.Version, h.StepsDigest, h.RestartReason} {
		if bad(s) {
			t.Errorf("hello is stored as %.200q, %d bytes", s, len(s))
		}
	}
	f := &agentv1.StepFinished{Name: "inspect", Outcome: agentv1.Outcome_OUTCOME_FAILED, Error: evil + wall,
		Remedy: evil + "http://u:canary@h/",
		Result: []byte(`{"inventory":{"hostname":"\u001b[2Jhost\nname","system_vendor":{"product_name":"` + wall +
			`"},"\u001bkey":["\u009b"]},"n":1.50}`)}
	f.Result = cleanResult(f)
	ev, ok := agentEvent(identity{}, &agentv1.Event{Body: &agentv1.Event_StepFinished{StepFinished: f}})
	if !ok {
		t.Fatal("the event is not known")
	}
	r := ev.StepFinished
	for _, s := range []string{r.Error, r.Remedy, r.Name} {
		if bad(s) || strings.Contains(s, "canary") {
			t.Errorf("the failure is stored as %.200q, %d bytes", s, len(s))
		}
	}
	if s := string(r.Result); strings.Contains(s, "u001b") || strings.Contains(s, `\n`) ||
		strings.Contains(s, "\u009b") || len(s) > 2*foundText || !strings.Contains(s, `"n":1.50`) {
		t.Errorf("the result is stored as %.300s, %d bytes", s, len(s))
	}
	plain := []byte(`{ "inventory" : {"product_name":"PowerEdge R740 größer"}, "n": 1.50 }`)
	if got := cleanResult(&agentv1.StepFinished{Name: "inspect", Result: plain}); string(got) != string(plain) {
		t.Errorf("a clean result became %s", got)
	}
}

// TestSentAway: a connection that gets no place at the gate is closed before anything of it is read, and counted; a
// stop does not wait for those that wait.
func TestSentAway(t *testing.T) {
	t.Parallel()
	counted := make(chan string, 10)
	s := &Server{gate: limit.NewGate(1), log: slog.New(slog.DiscardHandler),
		cfg: Config{Count: func(what, outcome string) { counted <- what + " " + outcome }}}
	place := s.gate.Enter(0, time.Hour, time.Hour)
	defer place.Leave()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var shaking sync.WaitGroup
	done := make(chan error, 1)
	go func() { done <- s.accept(l, &shaking, newQueue(l.Addr()), newQueue(l.Addr())) }()
	wait := func() (time.Duration, error) {
		begin := time.Now()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Error(err)
			return 0, nil
		}
		defer c.Close()
		_, err = c.Read(make([]byte, 1))
		return time.Since(begin), err
	}
	if took, err := wait(); !errors.Is(err, io.EOF) || took < limit.AgentWait || took > limit.AgentWait+20*time.Second {
		t.Errorf("the connection ended after %v with %v", took, err)
	}
	if got := <-counted; got != "connection sent away" {
		t.Errorf("counted %q", got)
	}
	time.AfterFunc(100*time.Millisecond, s.gate.Close)
	if took, err := wait(); !errors.Is(err, io.EOF) || took > limit.AgentWait {
		t.Errorf("after the end of the gate the connection ended after %v with %v", took, err)
	}
	s.stopping = true
	l.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	shaking.Wait()
}
