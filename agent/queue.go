package agent

import (
	"slices"
	"sync"
	"time"

	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	defaultLogRecords       = 2000
	defaultProgressInterval = time.Second
)

// queue holds the messages for the conductor. Adding never waits for the conductor: results accumulate until they are
// acknowledged (a plan has few), progress is one slot, log lines are a ring that counts lost ones.
type queue struct {
	save func() // called after each change of the results, without the lock

	mu       sync.Mutex
	lastSeq  uint64
	results  []*agentv1.Event // not acknowledged, by rising seq
	sent     uint64           // highest seq sent on the present stream
	progress *agentv1.Event
	shown    time.Time // when progress was last sent
	interval time.Duration
	logs     []*agentv1.Event
	maxLogs  int
	lost     uint64
	bundle   *agentv1.Event
	// set once: returns news of chunks, or when there may be some; nil: none
	swarm func(time.Time) (*agentv1.Event, time.Duration)
	wake  chan struct{}
}

func newQueue() *queue {
	return &queue{wake: make(chan struct{}, 1), interval: defaultProgressInterval, maxLogs: defaultLogRecords,
		save: func() {}}
}

// policy applies the conductor's settings for the agent. Zero values mean the contract's defaults.
func (q *queue) policy(p *agentv1.Policy) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.interval, q.maxLogs = defaultProgressInterval, defaultLogRecords
	if d := p.GetProgressInterval().AsDuration(); d > 0 {
		q.interval = d
	}
	if n := int(p.GetLogRecords()); n > 0 {
		q.maxLogs = n
	}
}

func (q *queue) rouse() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// result numbers an event and keeps it until it is acknowledged. A finished step's last progress is dropped, as its
// result replaces it.
func (q *queue) result(e *agentv1.Event) {
	q.mu.Lock()
	q.lastSeq++
	e.Seq, e.Time = q.lastSeq, timestamppb.Now()
	q.results = append(q.results, e)
	q.progress = nil
	if e.GetStepStarted() != nil {
		q.shown = time.Time{}
	}
	q.mu.Unlock()
	q.save()
	q.rouse()
}

// report replaces the progress waiting to be sent.
func (q *queue) report(p *agentv1.Progress) {
	q.mu.Lock()
	q.progress = &agentv1.Event{Time: timestamppb.Now(), Body: &agentv1.Event_Progress{Progress: p}}
	q.mu.Unlock()
	q.rouse()
}

func (q *queue) log(l *agentv1.LogLine) {
	q.mu.Lock()
	for len(q.logs) >= q.maxLogs {
		q.lost += 1 + q.logs[0].GetLog().Lost
		q.logs = q.logs[1:]
	}
	if len(q.logs) == 0 {
		l.Lost, q.lost = q.lost, 0
	}
	q.logs = append(q.logs, &agentv1.Event{Time: timestamppb.Now(), Body: &agentv1.Event_Log{Log: l}})
	q.mu.Unlock()
	q.rouse()
}

func (q *queue) logBundle(tarGz []byte) {
	q.mu.Lock()
	q.bundle = &agentv1.Event{
		Time: timestamppb.Now(), Body: &agentv1.Event_LogBundle{LogBundle: &agentv1.LogBundle{TarGz: tarGz}}}
	q.mu.Unlock()
	q.rouse()
}

// ack removes the results up to seq.
func (q *queue) ack(seq uint64) {
	q.mu.Lock()
	n := len(q.results)
	q.results = slices.DeleteFunc(q.results, func(e *agentv1.Event) bool { return e.Seq <= seq })
	changed := len(q.results) != n
	q.mu.Unlock()
	if changed {
		q.save()
		q.rouse()
	}
}

// reopen prepares for a new stream on which everything after acked is sent again.
func (q *queue) reopen(acked uint64) {
	q.ack(acked)
	q.mu.Lock()
	q.sent = acked
	q.mu.Unlock()
}

// unacknowledged returns the results that wait for their acknowledgement, encoded for sending.
func (q *queue) unacknowledged() (lastSeq uint64, results [][]byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range q.results {
		if b, err := proto.Marshal(e); err == nil {
			results = append(results, b)
		}
	}
	return q.lastSeq, results
}

// last returns the number of the newest result.
func (q *queue) last() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.lastSeq
}

// pending returns the number of results that wait for their acknowledgement.
func (q *queue) pending() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.results)
}

// next returns the event to send now: results first, then progress when it is due, then news of chunks, then logs.
// Without an event it returns the time until there may be one; zero means until something new is added.
func (q *queue) next(now time.Time) (*agentv1.Event, time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range q.results {
		if e.Seq > q.sent {
			q.sent = e.Seq
			return e, 0
		}
	}
	var wait time.Duration
	if q.progress != nil {
		if wait = q.interval - now.Sub(q.shown); wait <= 0 {
			e := q.progress
			q.progress, q.shown = nil, now
			return e, 0
		}
	}
	if q.swarm != nil {
		e, later := q.swarm(now)
		if e != nil {
			return e, 0
		}
		if later > 0 && (wait <= 0 || later < wait) {
			wait = later
		}
	}
	if len(q.logs) > 0 {
		e := q.logs[0]
		q.logs = q.logs[1:]
		if q.lost > 0 {
			e.GetLog().Lost += q.lost
			q.lost = 0
		}
		return e, 0
	}
	if e := q.bundle; e != nil {
		q.bundle = nil
		return e, 0
	}
	return nil, wait
}
