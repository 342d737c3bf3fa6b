// Package step defines steps, and orders, times and runs a list of them. It knows no concrete step.
//
// A step is one piece of in-band work on a machine: write an image, wipe metadata, take an inventory. Its Run gets a
// context that ends on cancellation or stall, and a *Call for arguments, progress, log and the facts of earlier steps
// of the same plan. Sizes are bytes, rates bytes per second. A step never reports Done for work that failed: it returns
// an error, best made with Fail or Failf so that it carries a remedy and whether a retry makes sense.
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

// Phase is the purpose of a plan.
type Phase = steparg.Phase

// The phases in which in-band steps run.
const (
	Deploy  = steparg.Deploy
	Clean   = steparg.Clean
	Inspect = steparg.Inspect
	Service = steparg.Service
	Rescue  = steparg.Rescue
)

// During is the key of the fact that holds the Phase of a plan.
type During struct{}

// OnRequest is the priority of a step that runs in a phase only on request.
const OnRequest = steparg.OnRequest

// In holds a step's priority per phase. Steps run highest priority first.
type In = steparg.Priorities

// Row describes a step, without its function.
type Row = steparg.Row

// Arg declares one argument of a step.
type Arg = steparg.Arg

// Configuration is the Owner of an Arg whose value the conductor's configuration decides.
const Configuration = steparg.Configuration

// Limit returns a bound for an Arg's Min and Max.
func Limit(f float64) *float64 { return steparg.Limit(f) }

// Func does the work of a step. The zero Outcome means done, without a result.
type Func func(ctx context.Context, c *Call) (Outcome, error)

// Step is one entry of the agent's table of steps.
type Step struct {
	Row
	Run Func `json:"-"`
}

// Node is the key of Facts that holds the UUID of the agent's node, a string.
type Node struct{}

// Kind says how a step ended without failure; failure is an error.
type Kind int

// Kinds of endings.
const (
	Done    Kind = iota
	Rerun        // run this step again after Outcome.After
	RunNext      // run Outcome.Next, then continue
	Reboot       // reboot into the ramdisk, then continue after this step
	Hold         // wait for an operator
)

// Outcome is the successful end of a step. Result is marshalled to a JSON object and kept; nil means {}.
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

// Progress of a step.
type Progress struct {
	Phase string // current work, in a word or two
	Bytes uint64
	Total uint64 // zero: unknown so far
	Rate  uint64 // bytes per second; zero lets the runner compute it
	// Skipped is the number of bytes that needed no write: zeros, and content already on the disk.
	Skipped uint64
	// Items is the progress of each of several things that the step works on at the same time; nil for one.
	Items []Item
}

// Call is passed to a running step by its runner.
type Call struct {
	Args  json.RawMessage
	Log   *slog.Logger
	Facts *Facts
	// Later are the steps of the same plan after this one.
	Later []Planned
	// Report takes progress. Only a change of Bytes or Phase counts as a sign of life. Never blocks.
	Report func(Progress)
	// Alive gives a sign of life without progress; nil outside of a Runner.
	Alive func()
}

// Decode decodes the arguments into v, a pointer to a struct. An unknown argument is an error.
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

// With is a step's function whose arguments are decoded into an A.
func With[A any](run func(ctx context.Context, c *Call, args A) (Outcome, error)) Func {
	return func(ctx context.Context, c *Call) (Outcome, error) {
		var args A
		if err := c.Decode(&args); err != nil {
			return Outcome{}, err
		}
		return run(ctx, c, args)
	}
}

// Error is a failure for an operator: the cause, the remedy, and whether a retry may succeed.
type Error struct {
	Err       error
	Remedy    string
	Retryable bool
	// Result is the result of a step that failed, like Outcome's; nil is none.
	Result any
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Fail wraps err with a remedy. A nil err returns nil.
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

// Retryable is Fail for a temporary cause.
func Retryable(remedy string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Err: err, Remedy: remedy, Retryable: true}
}

// WithResult gives an error what its step has to tell.
func WithResult(err error, result any) error {
	e := *AsError(err)
	e.Result = result
	return &e
}

// AsError returns err for an operator: the outermost Error in its chain with the text of the whole chain, or a plain
// one.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return &Error{Err: err, Remedy: e.Remedy, Retryable: e.Retryable, Result: e.Result}
	}
	return &Error{Err: err}
}
