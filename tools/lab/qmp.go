package lab

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// qmp is the control channel of one QEMU process: JSON lines, one command at a time, events in between.
type qmp struct {
	conn    net.Conn
	replies chan qmpMessage
	ended   chan struct{}

	cmd sync.Mutex // one command at a time

	mu       sync.Mutex
	shutdown string // reason of the SHUTDOWN event, "" before it came
}

type qmpMessage struct {
	QMP   json.RawMessage `json:"QMP"`
	Error *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
	Event string `json:"event"`
	Data  struct {
		Reason string `json:"reason"`
	} `json:"data"`
}

// newQMP starts reading conn. The greeting comes as the first reply.
func newQMP(conn net.Conn) *qmp {
	q := &qmp{conn: conn, replies: make(chan qmpMessage, 1), ended: make(chan struct{})}
	go q.read()
	return q
}

func (q *qmp) read() {
	defer close(q.ended)
	defer q.conn.Close()
	lines := bufio.NewScanner(q.conn)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var m qmpMessage
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			continue
		}
		if m.Event != "" {
			if m.Event == "SHUTDOWN" {
				q.mu.Lock()
				q.shutdown = m.Data.Reason
				q.mu.Unlock()
			}
			continue
		}
		select {
		case q.replies <- m:
		default: // no reader: the command's caller gave up
		}
	}
}

var errQEMUGone = errors.New("QEMU ended")

// reply waits for the answer to a command.
func (q *qmp) reply(limit time.Duration) error {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case m := <-q.replies:
		if m.Error != nil {
			return fmt.Errorf("%s: %s", m.Error.Class, m.Error.Desc)
		}
		return nil
	case <-q.ended:
		return errQEMUGone
	case <-t.C:
		return fmt.Errorf("no answer from QEMU within %s", limit)
	}
}

// hello waits for QEMU's greeting and ends the negotiation: after it the machine's devices exist.
func (q *qmp) hello(limit time.Duration) error {
	if err := q.reply(limit); err != nil {
		return err
	}
	return q.execute("qmp_capabilities", limit)
}

func (q *qmp) execute(command string, limit time.Duration) error { return q.run(command, nil, limit) }

// run gives QEMU a command with arguments, nil for none.
func (q *qmp) run(command string, arguments map[string]any, limit time.Duration) error {
	q.cmd.Lock()
	defer q.cmd.Unlock()
	select {
	case <-q.replies: // a late answer to a command that was given up
	default:
	}
	message := map[string]any{"execute": command}
	if arguments != nil {
		message["arguments"] = arguments
	}
	line, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if _, err := q.conn.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("tell QEMU %s: %w (%v)", command, errQEMUGone, err)
	}
	if err := q.reply(limit); err != nil {
		return fmt.Errorf("tell QEMU %s: %w", command, err)
	}
	return nil
}

// shutdownReason returns why QEMU stopped the machine, after ended was closed: "guest-shutdown", "guest-reset", ..., or
// "" when it was killed.
func (q *qmp) shutdownReason() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.shutdown
}
