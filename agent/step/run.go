package step

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// stopGrace is how long a step may take to stop after its context has ended, before it is given up.
const stopGrace = time.Minute

// Causes for which a step's context ends.
var (
	errStalled   = errors.New("no progress")
	errTooLong   = errors.New("out of time")
	errCancelled = errors.New("cancelled")
)

// ErrStuck is the error of Run after a step has not stopped in time: it may still be writing, so nothing else may run
// before the machine is restarted.
var ErrStuck = errors.New("an earlier step has not stopped")

// Reporter receives the events of a plan. index is the step's place in the plan; steps that were inserted by a step
// (RunNext) have the index of that step. Calls are sequential, except Progress, which may come at any time while a step
// runs. Must not block.
type Reporter interface {
	StepStarted(index int, s Planned)
	Progress(index int, s Planned, p Progress)
	StepFinished(index int, s Planned, r Result)
}

// Result is how one run of a step ended.
type Result struct {
	Outcome Outcome // valid when Err is nil
	Err     *Error
	Took    time.Duration
}

// End is how a plan ended.
type End struct {
	Done      bool // every step was done
	Cancelled bool
	Halted    Kind   // Reboot or Hold if a step requested it; the later steps did not run
	Err       *Error // the failure that ended the plan
}

// Runner runs plans from a table of steps, one at a time.
type Runner struct {
	Table []Step
	Log   *slog.Logger // nil is silent

	mu    sync.Mutex
	stuck bool
}

// Run runs the steps in sequence until one fails or requests a reboot or a hold, or ctx ends. When ctx ends, an
// abortable step is stopped at once, any other runs to its end; later steps do not run. facts are those of earlier
// plans of the same work (work with out-of-band steps in its middle arrives as several plans); nil means none.
func (r *Runner) Run(ctx context.Context, facts *Facts, steps []Planned, rep Reporter) End {
	log := cmp.Or(r.Log, slog.New(slog.DiscardHandler))
	facts = cmp.Or(facts, &Facts{})
	for i, p := range steps {
		if end, ok := r.runOne(ctx, turn{log, facts, rep, i, p, steps[i+1:]}); !ok {
			return end
		}
	}
	return End{Done: true}
}

// turn is one step of a plan that is about to run.
type turn struct {
	log   *slog.Logger
	facts *Facts
	rep   Reporter
	index int // as passed to the Reporter
	Planned
	later []Planned // the steps after it
}

// runOne runs a step, repeats it as often as it requests, and runs the steps it inserts. It reports whether the plan
// continues.
func (r *Runner) runOne(ctx context.Context, t turn) (End, bool) {
	// A step that must not be stopped and requests to run again is incomplete: it may finish.
	unfinished := false
	for {
		if ctx.Err() != nil && !unfinished {
			return End{Cancelled: true}, false
		}
		t.rep.StepStarted(t.index, t.Planned)
		res := r.attempt(ctx, t)
		t.rep.StepFinished(t.index, t.Planned, res)
		if res.Err != nil {
			return End{Err: res.Err, Cancelled: ctx.Err() != nil}, false
		}
		switch res.Outcome.Kind {
		case Rerun:
			s, _ := Find(r.Table, t.Interface, t.Name)
			unfinished = !s.Abortable
			stop := ctx.Done()
			if unfinished {
				stop = nil
			}
			select {
			case <-time.After(res.Outcome.After):
			case <-stop:
			}
			continue
		case RunNext:
			for i, next := range res.Outcome.Next {
				later := slices.Concat(res.Outcome.Next[i+1:], t.later)
				if end, ok := r.runOne(ctx, turn{t.log, t.facts, t.rep, t.index, next, later}); !ok {
					return end, false
				}
			}
		case Reboot, Hold:
			return End{Halted: res.Outcome.Kind}, false
		}
		return End{}, true
	}
}

func (r *Runner) attempt(ctx context.Context, t turn) Result {
	begin := time.Now()
	t.log = t.log.With("step", t.Name)
	fail := func(err error) Result {
		e := AsError(err)
		t.log.Error("step failed", "took", time.Since(begin).Round(time.Millisecond), "err", e.Err, "remedy", e.Remedy)
		return Result{Err: e, Took: time.Since(begin)}
	}
	r.mu.Lock()
	stuck := r.stuck
	r.mu.Unlock()
	if stuck {
		return fail(Fail("restart the node and try again", ErrStuck))
	}
	s, ok := Find(r.Table, t.Interface, t.Name)
	if !ok {
		return fail(Failf("use a ramdisk whose agent has the step, or leave it out", "this agent has no step %s.%s",
			t.Interface, t.Name))
	}
	if err := s.CheckArgs(t.Args); err != nil {
		return fail(Fail("correct the step's arguments", err))
	}
	t.log.Info("step started")
	out, err := r.supervise(ctx, t, s)
	if err != nil {
		return fail(err)
	}
	t.log.Info("step finished", "took", time.Since(begin).Round(time.Millisecond))
	return Result{Outcome: out, Took: time.Since(begin)}
}

// supervise runs the step's function in a goroutine and enforces its time limits.
func (r *Runner) supervise(ctx context.Context, t turn, s Step) (Outcome, error) {
	base := context.WithoutCancel(ctx)
	if s.Abortable {
		base = ctx
	}
	sctx, stop := context.WithCancelCause(base)
	defer stop(nil)

	limit := cmp.Or(t.Stall, s.Stall)
	watch := newWatch(limit)
	meter := &meter{}
	call := &Call{Args: t.Args, Log: t.log, Facts: t.facts, Later: t.later, Report: func(pr Progress) {
		pr, alive := meter.note(time.Now(), pr)
		if alive {
			watch.alive()
		}
		t.rep.Progress(t.index, t.Planned, pr)
	}, Alive: watch.alive}

	type ended struct {
		out Outcome
		err error
	}
	done := make(chan ended, 1)
	go func() {
		out, err := guard(sctx, t.log, s, call)
		done <- ended{out, err}
	}()

	var giveUp, over <-chan time.Time
	if s.Timeout > 0 {
		over = time.After(s.Timeout)
	}
	var cancelled <-chan struct{}
	if s.Abortable {
		cancelled = ctx.Done()
	}
	for {
		select {
		case e := <-done:
			if e.err != nil {
				return Outcome{}, explain(sctx, e.err, t.Planned, limit, s.Timeout)
			}
			return e.out, nil
		case <-watch.c():
			if idle := watch.idle(); idle < limit {
				watch.again(limit - idle)
				continue
			}
			stop(errStalled)
			watch.off()
			giveUp = time.After(stopGrace)
		case <-over:
			over = nil
			stop(errTooLong)
			watch.off()
			giveUp = time.After(stopGrace)
		case <-cancelled:
			cancelled = nil
			stop(errCancelled)
			watch.off()
			giveUp = time.After(stopGrace)
		case <-giveUp:
			r.mu.Lock()
			r.stuck = true
			r.mu.Unlock()
			return Outcome{}, Failf("restart the node: something in it no longer answers (a disk, most likely)",
				"step %s did not stop within %s: %w", t.Name, stopGrace, context.Cause(sctx))
		}
	}
}

// guard turns a panic of a step into its failure. (A panic in a goroutine that the step started still ends the worker;
// the first process then restarts it and reports the panic.)
func guard(ctx context.Context, log *slog.Logger, s Step, c *Call) (out Outcome, err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("panic in a step", "err", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = Failf("report this as a bug of the agent, with its log", "step %s broke down: %v", s.Name, p)
		}
	}()
	return s.Run(ctx, c)
}

// explain adds why a step was stopped: the step itself only knows that its context ended.
func explain(ctx context.Context, err error, p Planned, limit, timeout time.Duration) error {
	result := AsError(err).Result
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errTooLong):
		return &Error{Err: fmt.Errorf("step %s took longer than %s and was stopped: %w", p.Name, timeout, err),
			Result: result, Remedy: "see the step's log for its last work, or give it more time in its manifest"}
	case errors.Is(cause, errStalled):
		return &Error{Err: fmt.Errorf("step %s made no progress for %s and was stopped: %w", p.Name, limit, err),
			Remedy: "check the disk and the network path that the step was using, then try again", Retryable: true,
			Result: result}
	case errors.Is(cause, errCancelled), errors.Is(cause, context.Canceled):
		return &Error{Err: fmt.Errorf("step %s was cancelled: %w", p.Name, err), Result: result}
	}
	return err
}

// watch detects a stall: a timer that each sign of life resets. A zero limit never fires.
type watch struct {
	limit time.Duration
	timer *time.Timer
	mu    sync.Mutex
	last  time.Time
}

func newWatch(limit time.Duration) *watch {
	w := &watch{limit: limit, last: time.Now()}
	if limit > 0 {
		w.timer = time.NewTimer(limit)
	}
	return w
}

func (w *watch) c() <-chan time.Time {
	if w.timer == nil {
		return nil
	}
	return w.timer.C
}

func (w *watch) alive() {
	w.mu.Lock()
	w.last = time.Now()
	w.mu.Unlock()
}

func (w *watch) idle() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.last)
}

func (w *watch) again(d time.Duration) { w.timer.Reset(d) }

func (w *watch) off() {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
}
