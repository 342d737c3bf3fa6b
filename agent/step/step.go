// Package step says what a step is, and times and runs a list of them. It knows no concrete step.
//
// A step is one piece of in-band work on a machine: write an image, wipe metadata, take an inventory. Its Run gets a
// context that ends on cancellation or stall, and a *Call for arguments, progress, log and the facts earlier steps of
// the same plan left. Sizes are bytes, rates bytes per second. A step never reports Done for work that failed: it
// returns an error, best made with Fail or Failf so that it carries a remedy and whether trying again makes sense.
package step

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ingot-metal/ingot/proto/steparg"
)

// Phase is what a plan is for.
type Phase = steparg.Phase

// The phases in which in-band steps run.
const (
	Deploy  = steparg.Deploy
	Clean   = steparg.Clean
	Inspect = steparg.Inspect
	Service = steparg.Service
	Rescue  = steparg.Rescue
)

// During is the key of the fact in which Phase a plan is carried out.
type During struct{}

// OnRequest is the priority of a step that may be asked for in a phase that it is not part of by itself.
const OnRequest = steparg.OnRequest

// In holds a step's priority per phase. Steps run highest priority first.
type In = steparg.Priorities

// Row says everything of a step but what does it.
type Row = steparg.Row

// Arg declares one argument of a step.
type Arg = steparg.Arg

// Configuration is the Owner of an Arg that the conductor's configuration decides on.
const Configuration = steparg.Configuration

// Limit makes a bound for an Arg's Min and Max.
func Limit(f float64) *float64 { return steparg.Limit(f) }

// Func does the work of a step. The returned Outcome's zero value means "done, nothing to tell".
type Func func(ctx context.Context, c *Call) (Outcome, error)

// Step is one entry of the agent's table of steps.
type Step struct {
	Row
	Run Func `json:"-"`
}

// Node is the key of Facts under which the agent leaves the UUID of the node that it works for, a string.
type Node struct{}

// Kind says how a step ended, apart from failure, which is an error.
type Kind int

// What a step can end with.
const (
	Done    Kind = iota
	Rerun        // run this step again after Outcome.After
	RunNext      // run Outcome.Next, then go on
	Reboot       // reboot into the ramdisk, then go on behind this step
	Hold         // wait for an operator
)

// Outcome is what a step ended with. Result is marshalled to a JSON object and kept; nil means {}.
type Outcome struct {
	Kind   Kind
	Result any
	After  time.Duration // for Rerun
	Next   []Planned     // for RunNext
}

// Planned names a step to run with its arguments. Args is a JSON object or empty.
type Planned struct {
	Interface string
	Name      string
	Args      json.RawMessage
	Stall     time.Duration // zero: the step's own
}

// Progress is how far a step is.
type Progress struct {
	Phase string // what is being done, in a word or two
	Bytes uint64
	Total uint64 // zero: not known yet
	Rate  uint64 // bytes per second; zero lets the runner compute it
	// Skipped is bytes of the disk that needed no writing: zeros, and what was there already.
	Skipped uint64
	// Items is how far each of several things is that the step works on at the same time; nil when there is one.
	Items []Item
}

// Call is what a running step gets from its runner.
type Call struct {
	Args  json.RawMessage
	Log   *slog.Logger
	Facts *Facts
	// Later are the steps of the same plan that come after this one.
	Later []Planned
	// Report takes progress; any report, even of unchanged bytes under another phase, counts as a sign of life only
	// when Bytes or Phase changed. Never blocks.
	Report func(Progress)
	// Alive gives a sign of life where there is no progress to tell; nil outside of a Runner.
	Alive func()
}

// Decode reads the arguments into v, a pointer to a struct. An unknown argument is an error, not ignored.
func (c *Call) Decode(v any) error {
	args := c.Args
	if len(args) == 0 {
		args = json.RawMessage("{}")
	}
	dec := json.NewDecoder(bytesReader(args))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return Failf("correct the step's arguments", "read arguments: %w", err)
	}
	return nil
}

// Error is a failure as an operator wants it: the cause, what to do about it, and whether the same again may succeed.
type Error struct {
	Err       error
	Remedy    string
	Retryable bool
	// Result is what the step has to tell although it failed, as Outcome's; nil is nothing.
	Result any
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Fail wraps err with a remedy. A nil err gives nil.
func Fail(remedy string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Err: err, Remedy: remedy}
}

// Failf is Fail with a formatted cause.
func Failf(remedy, format string, args ...any) error {
	return &Error{Err: fmt.Errorf(format, args...), Remedy: remedy}
}

// Retryable is Fail for a cause that may be gone the next time.
func Retryable(remedy string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Err: err, Remedy: remedy, Retryable: true}
}

// AsError gives the operator's view of err: the outermost Error in its chain with the whole chain's text, or a plain
// one.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return &Error{Err: err, Remedy: e.Remedy, Retryable: e.Retryable, Result: e.Result}
	}
	return &Error{Err: err}
}
