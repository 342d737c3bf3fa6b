package command

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// Statuses of a command.
const (
	Running         = "RUNNING"
	Succeeded       = "SUCCEEDED"
	Failed          = "FAILED"
	VersionMismatch = "CLEAN_VERSION_MISMATCH"
)

// Params are a command's parameters by name.
type Params map[string]json.RawMessage

// Command is one command of the API.
type Command struct {
	// Async runs the command beside its answer, which then says only that it runs.
	Async bool
	// Private keeps the result out of lists, which a client without the token may read.
	Private bool
	// Check refuses parameters before the command is listed; nil: any are accepted.
	Check func(p Params) error
	Run   func(ctx context.Context, p Params) (any, error)
}

// Ending is the result of a command after which the agent stops to serve. Then is called once the answer is out.
type Ending struct {
	Result any
	Then   func()
}

// Table has the commands by EXTENSION and NAME, as requests write them with a dot between.
type Table map[string]map[string]Command

// Result is a command's result as the API shows it.
type Result struct {
	ID      string          `json:"id"`
	Name    string          `json:"command_name"`
	Status  string          `json:"command_status"`
	Error   json.RawMessage `json:"command_error"`
	Result  json.RawMessage `json:"command_result"`
	private bool
	done    chan struct{} // closed at its end
}

// maxResults and maxKept bound the memory of results: older results are dropped with their command or without.
const (
	maxResults = 1000
	maxKept    = 100
)

// answerGrace is how long an Ending waits for its answer to be sent.
const answerGrace = 5 * time.Second

// list is the commands that were issued, oldest first, and runs one at a time.
type list struct {
	ctx   context.Context //nolint:containedctx commands outlive the request that brought them
	table Table
	log   *slog.Logger
	// see Options
	ended, changed func()
	work           sync.WaitGroup

	mu  sync.Mutex
	all []*Result
}

var jsonNull = json.RawMessage("null")

// issue checks and starts a command. answered is closed when its answer has been sent.
func (l *list) issue(name string, p Params, answered <-chan struct{}) (*Result, error) {
	extension, bare, ok := strings.Cut(name, ".")
	if !ok {
		return nil, invalidCommand("Command name must be of the form <extension>.<name>")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.all); n > 0 && l.all[n-1].Status == Running {
		return nil, busy(l.all[n-1].Name)
	}
	commands, ok := l.table[extension]
	if !ok {
		return nil, notFound("Extension with id " + extension + " not found.")
	}
	c, ok := commands[bare]
	if !ok {
		return nil, invalidCommand("Unknown command: " + bare)
	}
	if c.Check != nil {
		if err := c.Check(p); err != nil {
			return nil, err
		}
	}
	r := &Result{ID: newID(), Name: bare, Status: Running, Error: jsonNull, Result: jsonNull, private: c.Private,
		done: make(chan struct{})}
	l.all = append(l.all, r)
	l.forget()
	l.work.Go(func() { l.run(c, r, p, answered) })
	return r, nil
}

// forget bounds what is kept; the lock is held.
func (l *list) forget() {
	if n := len(l.all) - maxResults; n > 0 {
		l.all = l.all[n:]
	}
	if n := len(l.all) - maxKept; n > 0 {
		l.all[n-1].Result = jsonNull
	}
}

func (l *list) run(c Command, r *Result, p Params, answered <-chan struct{}) {
	began := time.Now()
	l.changed()
	l.log.Info("command started", "command", r.Name)
	v, err := l.sheltered(c, p)
	end, _ := v.(Ending)
	if end.Then != nil {
		v = end.Result
	}
	status, fault, result := outcome(c, r.Name, v, err)
	l.mu.Lock()
	r.Status, r.Error, r.Result = status, fault, result
	l.mu.Unlock()
	l.changed()
	close(r.done)
	if err != nil {
		l.log.Error("command failed", "command", r.Name, "took", time.Since(began).Round(time.Millisecond), "err", err)
	} else {
		l.log.Info("command finished", "command", r.Name, "took", time.Since(began).Round(time.Millisecond))
	}
	if end.Then != nil && err == nil {
		select {
		case <-answered:
		case <-time.After(answerGrace):
		}
		end.Then()
		return
	}
	if c.Async {
		l.ended()
	}
}

// sheltered runs a command; a panic is a failure of the command.
func (l *list) sheltered(c Command, p Params) (v any, err error) {
	defer func() {
		if r := recover(); r != nil {
			l.log.Error("panic in a command", "err", fmt.Sprint(r), "stack", string(debug.Stack()))
			err = fmt.Errorf("the command broke down, which is a bug of the agent: %v", r)
		}
	}()
	return c.Run(l.ctx, p)
}

// outcome puts the end of a command into the API's form.
func outcome(c Command, name string, v any, err error) (status string, fault, result json.RawMessage) {
	if err == nil {
		if s, ok := v.(string); ok {
			if c.Async {
				s = name + ": " + s
			}
			v = map[string]string{"result": s}
		}
		b, jerr := json.Marshal(v)
		if jerr == nil {
			return Succeeded, jsonNull, b
		}
		err = fmt.Errorf("put the result of %s into JSON: %w", name, jerr)
	}
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Type: "CommandExecutionError", Code: 500, Message: "Command execution failed", Details: err.Error()}
	}
	status = Failed
	if e.Type == "VersionMismatch" {
		status = VersionMismatch
	}
	b, jerr := json.Marshal(e)
	if jerr != nil { // strings and a number
		b = jsonNull
	}
	return status, b, jsonNull
}

// find returns a command's channel, which is closed at its end; nil if there is no such command.
func (l *list) find(id string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.all {
		if r.ID == id {
			return r.done
		}
	}
	return nil
}

// show returns results for a client: all, or the one with an id. whole is for the client that issued the command.
func (l *list) show(id string, whole bool) []Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []Result{}
	for _, r := range l.all {
		if id != "" && r.ID != id {
			continue
		}
		c := *r
		if r.private && !whole {
			c.Result = jsonNull
		}
		out = append(out, c)
	}
	return out
}

// Restore puts results of an earlier worker of this boot before those to come. A command that was running has failed.
func (s *Server) Restore(results []Result, why string) {
	l := &s.list
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range results {
		r.done = make(chan struct{})
		close(r.done)
		if r.Status == Running {
			_, r.Error, r.Result = outcome(Command{}, r.Name, nil, errors.New(why))
			r.Status = Failed
		}
		if r.Error == nil {
			r.Error = jsonNull
		}
		if r.Result == nil {
			r.Result = jsonNull
		}
		l.all = append(l.all, &r)
	}
}

// Results returns the commands that were issued, oldest first, without private results.
func (s *Server) Results() []Result { return s.list.show("", false) }

// newID returns a random UUID.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
