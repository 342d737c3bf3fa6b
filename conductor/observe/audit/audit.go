// Package audit writes who asked for which change, with which result: one line of JSON for each request that would
// change something, to a file, to syslog, or to both.
//
// Lines hold names, never values: the route, the object, the verb and the names of changed attributes, but nothing else
// of a request's body or query, so that no secret can be in them. A file is only appended to, each line by one write,
// so that it can be copied or moved away at any time; Reopen opens it anew. Syslog gets lines through a queue: a server
// that does not take them costs lines, which are counted, and never time.
package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"log/syslog"
	"net/url"
	"os"
	"sync"
	"time"
)

// Entry is one line.
type Entry struct {
	Time      time.Time         `json:"time"`
	Conductor string            `json:"conductor"`
	Request   string            `json:"request"`         // ID, which log and client have, too
	Trace     string            `json:"trace,omitempty"` // ID, of requests that are traced
	User      string            `json:"user,omitempty"`  // empty without authentication
	UserID    string            `json:"user_id,omitempty"`
	Project   string            `json:"project,omitempty"` // ID of the one that the user acts in
	From      string            `json:"from,omitempty"`    // address of the client
	Method    string            `json:"method"`
	Route     string            `json:"route"`
	Object    map[string]string `json:"object,omitempty"` // what the address names: {"node": "n1"}
	Node      string            `json:"node,omitempty"`   // UUID
	NodeName  string            `json:"node_name,omitempty"`
	Target    string            `json:"target,omitempty"` // the state that was requested
	Fields    []string          `json:"fields,omitempty"` // names of attributes that were to be changed
	Made      string            `json:"made,omitempty"`   // UUID of what was made
	Status    int               `json:"status"`
	TookMS    float64           `json:"took_ms"`
}

// Config says where lines go.
type Config struct {
	Conductor string
	File      string // "": none
	Syslog    string // "local", udp://HOST:PORT or tcp://HOST:PORT; "": none
	// Count, unless nil, is called with a sink ("file", "syslog") and "written", "failed" or "dropped".
	Count func(sink, outcome string)
	Log   *slog.Logger // nil is silent
}

// Log writes lines. A nil *Log writes none. Safe for concurrent use.
type Log struct {
	cfg Config
	log *slog.Logger

	mu      sync.Mutex // of file, failing and closed
	file    *os.File
	failing bool // the last line could not be written
	dial    func() (io.WriteCloser, error)
	lines   chan []byte
	ended   chan struct{} // closed when send has returned
	closed  bool
}

// How many lines wait for syslog, how long it is left alone after a failure, and how long Close waits for it.
const (
	queued   = 1024
	retry    = 5 * time.Second
	lastTime = 2 * time.Second
)

// Open opens the sinks; nil when there are none.
func Open(cfg Config) (*Log, error) {
	if cfg.File == "" && cfg.Syslog == "" {
		return nil, nil
	}
	l := &Log{cfg: cfg, log: cfg.Log}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if cfg.Count == nil {
		l.cfg.Count = func(string, string) {}
	}
	if cfg.File != "" {
		if err := l.Reopen(); err != nil {
			return nil, err
		}
	}
	if cfg.Syslog == "" {
		return l, nil
	}
	network, address, err := Server(cfg.Syslog)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	l.dial = func() (io.WriteCloser, error) {
		w, err := syslog.Dial(network, address, syslog.LOG_AUTHPRIV|syslog.LOG_NOTICE, "ingotd-audit")
		if err != nil {
			return nil, err
		}
		return w, nil
	}
	l.lines, l.ended = make(chan []byte, queued), make(chan struct{})
	go l.send()
	return l, nil
}

// Server reads the address of a syslog server; both are "" for the local one.
func Server(text string) (network, address string, err error) {
	if text == "local" {
		return "", "", nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "udp" && u.Scheme != "tcp" || u.Hostname() == "" || u.Port() == "" || u.Path != "" {
		return "", "", fmt.Errorf("%q is neither local nor udp://HOST:PORT nor tcp://HOST:PORT", text)
	}
	return u.Scheme, u.Host, nil
}

// Reopen opens the file anew, after it was moved away. If that fails, lines go on into the old one.
func (l *Log) Reopen() error {
	if l == nil || l.cfg.File == "" {
		return nil
	}
	f, err := os.OpenFile(l.cfg.File, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("audit.file: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return f.Close()
	}
	old := l.file
	l.file = f
	if old != nil {
		return old.Close()
	}
	return nil
}

// Write writes a line, with the time and the conductor.
func (l *Log) Write(e Entry) {
	if l == nil {
		return
	}
	e.Conductor = l.cfg.Conductor
	if e.Time.IsZero() {
		e.Time = time.Now().UTC()
	}
	line, err := json.Marshal(e)
	if err != nil { // texts and numbers
		l.log.Error("write a line of the audit log", "err", err)
		return
	}
	line = append(line, '\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		l.store(line)
	}
	if l.lines == nil || l.closed {
		return
	}
	select {
	case l.lines <- bytes.TrimSuffix(line, []byte("\n")):
	default:
		l.cfg.Count("syslog", "dropped")
	}
}

// store appends a line to the file, with mu held.
func (l *Log) store(line []byte) {
	_, err := l.file.Write(line)
	if err == nil {
		l.cfg.Count("file", "written")
		if l.failing {
			l.failing = false
			l.log.Info("the audit log is written again", "file", l.cfg.File)
		}
		return
	}
	l.cfg.Count("file", "failed")
	if !l.failing {
		l.failing = true
		l.log.Error("the audit log can't be written, and lines are lost: see its disk", "file", l.cfg.File, "err", err)
	}
}

// send sends lines to syslog, until Close.
func (l *Log) send() {
	defer close(l.ended)
	var to io.WriteCloser
	var rest time.Time // until then the server is left alone
	for line := range l.lines {
		var err error
		if to == nil && time.Now().Before(rest) {
			l.cfg.Count("syslog", "dropped")
			continue
		}
		if to == nil {
			to, err = l.dial()
		}
		if err == nil {
			_, err = to.Write(line)
		}
		if err == nil {
			l.cfg.Count("syslog", "written")
			continue
		}
		l.cfg.Count("syslog", "failed")
		l.log.Error("syslog takes no lines of the audit log, and they are lost", "server", l.cfg.Syslog, "err", err)
		if to != nil {
			_ = to.Close() // it failed
			to = nil
		}
		rest = time.Now().Add(retry)
	}
	if to != nil {
		if err := to.Close(); err != nil {
			l.log.Debug("close syslog", "err", err)
		}
	}
}

// Close writes what is queued and closes the sinks.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	file, again := l.file, l.closed
	l.file, l.closed = nil, true
	l.mu.Unlock()
	if again {
		return nil
	}
	if l.lines != nil {
		close(l.lines)
		select {
		case <-l.ended:
		case <-time.After(lastTime): // a server that does not read
		}
	}
	if file != nil {
		return file.Close()
	}
	return nil
}
