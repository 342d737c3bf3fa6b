package agent

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
	"google.golang.org/protobuf/types/known/durationpb"
)

func started(name string) *agentv1.Event {
	return &agentv1.Event{Body: &agentv1.Event_StepStarted{StepStarted: &agentv1.StepStarted{Name: name}}}
}

func TestQueueOrder(t *testing.T) {
	q := newQueue()
	now := time.Now()
	q.log(&agentv1.LogLine{Message: "l"})
	q.report(&agentv1.Progress{Bytes: 1})
	q.report(&agentv1.Progress{Bytes: 2})
	q.results = append(q.results, &agentv1.Event{Seq: 1})
	q.lastSeq = 1
	var got []string
	for {
		e, _ := q.next(now)
		if e == nil {
			break
		}
		switch {
		case e.Seq > 0:
			got = append(got, "result")
		case e.GetProgress() != nil:
			got = append(got, fmt.Sprint("progress ", e.GetProgress().Bytes))
		default:
			got = append(got, "log")
		}
	}
	if want := "[result progress 2 log]"; fmt.Sprint(got) != want {
		t.Errorf("sent %v, want %s", got, want)
	}
	// Progress waits for its interval; a result overtakes it and makes it worthless.
	q.report(&agentv1.Progress{Bytes: 3})
	if e, wait := q.next(now.Add(400 * time.Millisecond)); e != nil || wait != 600*time.Millisecond {
		t.Errorf("next = %v, %s, want to wait 600ms", e, wait)
	}
	q.result(started("x"))
	if e, _ := q.next(now); e.GetSeq() != 2 {
		t.Errorf("next = %v, want the result", e)
	}
	if e, _ := q.next(now.Add(time.Hour)); e != nil {
		t.Errorf("next = %v, want nothing: the progress is of an earlier step", e)
	}
	q.reopen(1)
	if e, _ := q.next(now); e.GetSeq() != 2 || q.pending() != 1 {
		t.Errorf("after a reconnect next = %v", e)
	}
	q.ack(2)
	if q.pending() != 0 {
		t.Error("an acknowledged result is kept")
	}
}

func TestLogRing(t *testing.T) {
	q := newQueue()
	q.policy(&agentv1.Policy{LogRecords: 3, ProgressInterval: durationpb.New(time.Minute)})
	log := slog.New(&logHandler{local: slog.DiscardHandler, q: q, level: slog.LevelInfo})
	for i := range 10 {
		log.With("step", "s").WithGroup("g").Info(fmt.Sprint("line ", i), "k", i)
	}
	log.Debug("not for the conductor")
	var lost uint64
	var got []string
	for e, _ := q.next(time.Now()); e != nil; e, _ = q.next(time.Now()) {
		l := e.GetLog()
		lost += l.Lost
		got = append(got, fmt.Sprint(l.Message, l.Attrs, l.Level))
	}
	if want := "[line 7[step=s g.k=7]INFO line 8[step=s g.k=8]INFO line 9[step=s g.k=9]INFO]"; fmt.Sprint(got) != want {
		t.Errorf("logs %v, want %s", got, want)
	}
	if lost != 7 {
		t.Errorf("lost = %d, want 7", lost)
	}
}
