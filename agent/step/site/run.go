package site

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// protocol is the version of the protocol between agent and program.
const protocol = 1

// input is sent to a program's standard input: one object, then end of file.
type input struct {
	Protocol  int             `json:"protocol"`
	Interface string          `json:"interface"`
	Step      string          `json:"step"`
	Args      json.RawMessage `json:"args"`                // an object, already checked against the manifest
	Node      string          `json:"node"`                // the node's UUID; "" if unknown to the agent
	Inventory any             `json:"inventory,omitempty"` // as ingot-agent inventory --json prints it
}

// line is one line of a program's output. Exactly one of its fields is set.
type line struct {
	Progress *struct {
		Phase string `json:"phase"` // current work, in a word or two
		Bytes uint64 `json:"bytes"`
		Total uint64 `json:"total"` // 0: unknown
	} `json:"progress"`
	Log *struct {
		Level   string `json:"level"` // debug, info, warn, error; "" is info
		Message string `json:"message"`
	} `json:"log"`
	Result json.RawMessage `json:"result"` // an object; the last one counts
	Error  *struct {
		Message   string `json:"message"`   // cause, one sentence
		Remedy    string `json:"remedy"`    // what to do about it
		Retryable bool   `json:"retryable"` // a retry may succeed
	} `json:"error"`
	Outcome      string  `json:"outcome"`       // done, rerun, reboot, hold; without it done
	AfterSeconds float64 `json:"after_seconds"` // with outcome rerun
}

const (
	maxResult = 1 << 20
	maxLog    = 4 << 10
	tailLines = 5
)

type runner struct {
	path  string
	man   Manifest
	m     programs
	facts Facts
}

// run is the step's function. If stopped, the disk is in the state in which the site's program leaves it on SIGTERM.
func (r *runner) run(ctx context.Context, c *step.Call) (step.Outcome, error) {
	in := input{Protocol: protocol, Interface: r.man.Interface, Step: r.man.Step, Args: c.Args}
	if len(in.Args) == 0 {
		in.Args = json.RawMessage("{}")
	}
	in.Node, _ = c.Facts.Get(step.Node{}).(string)
	if r.facts != nil {
		c.Report(step.Progress{Phase: "take an inventory"})
		var err error
		if in.Inventory, err = r.facts(ctx); err != nil {
			return step.Outcome{}, fmt.Errorf("take an inventory for the step: %w", err)
		}
	}
	stdin, err := json.Marshal(in)
	if err != nil {
		return step.Outcome{}, fmt.Errorf("make the step's input: %w", err)
	}
	h := &hearing{c: c}
	c.Report(step.Progress{Phase: "run " + r.man.Run})
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root",
		"INGOT_STEP=" + r.man.Interface + "." + r.man.Step}
	status, err := r.m.RunProgram(ctx, r.path, append(stdin, '\n'), env, h.stdout, h.stderr)
	return h.verdict(status, err)
}

// hearing collects a program's output.
type hearing struct {
	c *step.Call

	mu      sync.Mutex
	last    step.Progress
	result  json.RawMessage
	fault   *step.Error
	bad     error // protocol violation
	outcome line
	tail    []string // of its output for people
}

func (h *hearing) stdout(b []byte) {
	if !bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) {
		h.say(slog.LevelInfo, string(b))
		return
	}
	var l line
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	err := dec.Decode(&l)
	if err == nil && !json.Valid(b) {
		err = errors.New("something follows the object")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		err = h.take(l)
	}
	if err != nil && h.bad == nil {
		h.bad = fmt.Errorf("line %q: %w", clip(string(b), 200), err)
	}
}

// take handles one line; the lock is held.
func (h *hearing) take(l line) error {
	said := 0
	for _, is := range []bool{l.Progress != nil, l.Log != nil, l.Result != nil, l.Error != nil, l.Outcome != ""} {
		if is {
			said++
		}
	}
	switch {
	case said != 1:
		return fmt.Errorf("it has %d of progress, log, result, error and outcome instead of one", said)
	case l.Progress != nil:
		h.last = step.Progress{Phase: clip(l.Progress.Phase, 80), Bytes: l.Progress.Bytes, Total: l.Progress.Total}
		h.c.Report(h.last)
	case l.Log != nil:
		var level slog.Level
		if l.Log.Level != "" && level.UnmarshalText([]byte(l.Log.Level)) != nil {
			return fmt.Errorf("log level %q is none of debug, info, warn, error", l.Log.Level)
		}
		h.log(level, l.Log.Message)
	case l.Result != nil:
		var object map[string]any
		if json.Unmarshal(l.Result, &object) != nil || object == nil {
			return errors.New("the result is not an object")
		}
		if len(l.Result) > maxResult {
			return fmt.Errorf("the result has more than %d bytes", maxResult)
		}
		h.result = bytes.Clone(l.Result)
	case l.Error != nil:
		if l.Error.Message == "" {
			return errors.New("the error has no message")
		}
		h.fault = &step.Error{Err: errors.New(l.Error.Message), Remedy: l.Error.Remedy, Retryable: l.Error.Retryable}
	default:
		if _, ok := kinds[l.Outcome]; !ok {
			return fmt.Errorf("outcome %q is none of done, rerun, reboot, hold", l.Outcome)
		}
		if l.AfterSeconds < 0 || l.AfterSeconds > (7*24*time.Hour).Seconds() {
			return fmt.Errorf("after_seconds %v is not between nothing and a week", l.AfterSeconds)
		}
		h.outcome = l
	}
	return nil
}

var kinds = map[string]step.Kind{"": step.Done, "done": step.Done, "rerun": step.Rerun, "reboot": step.Reboot,
	"hold": step.Hold}

func (h *hearing) stderr(b []byte) {
	h.say(slog.LevelInfo, string(b))
}

func (h *hearing) say(level slog.Level, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tail = append(h.tail, clip(text, 200)); len(h.tail) > tailLines {
		h.tail = h.tail[1:]
	}
	h.log(level, text)
}

// log writes to the step's log and counts as a sign of life, which the runner otherwise only sees in changed progress.
// The lock is held.
func (h *hearing) log(level slog.Level, text string) {
	h.c.Log.Log(context.Background(), level, clip(text, maxLog))
	h.c.Alive()
}

// verdict returns how the step ended.
func (h *hearing) verdict(status int, err error) (step.Outcome, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var result any
	if h.result != nil {
		result = h.result
	}
	failed := func(remedy string, err error) (step.Outcome, error) {
		return step.Outcome{}, &step.Error{Err: err, Remedy: remedy, Result: result}
	}
	const program = "see the step's log, and correct the site's program"
	switch {
	case err != nil:
		return failed(program, h.withTail(err))
	case h.fault != nil:
		f := *h.fault
		f.Result = result
		return step.Outcome{}, &f
	case status != 0:
		return failed(program, h.withTail(fmt.Errorf("the program ended with status %d", status)))
	case h.bad != nil:
		return failed(program, fmt.Errorf("the program does not keep to the protocol: %w", h.bad))
	}
	o := step.Outcome{Kind: kinds[h.outcome.Outcome],
		After: time.Duration(h.outcome.AfterSeconds * float64(time.Second)), Result: result}
	return o, nil
}

func (h *hearing) withTail(err error) error {
	if len(h.tail) == 0 {
		return err
	}
	return fmt.Errorf("%w; it said: %s", err, strings.Join(h.tail, " | "))
}

func clip(s string, n int) string {
	s = strings.ToValidUTF8(s, "?")
	if r := []rune(s); len(r) > n {
		return string(r[:n]) + "..."
	}
	return s
}
