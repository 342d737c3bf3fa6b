package erase

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/passthru"
	"github.com/ingot-metal/ingot/agent/step"
)

// DevicesArgs declares the arguments of erase_devices.
var DevicesArgs = append(slices.Clone(commonArgs), proofArgs...)

// proofArgs are the arguments of both steps that prove their result.
var proofArgs = []step.Arg{
	{Name: "methods", Type: "array", Items: "string",
		Description: "only these methods, in this order of preference; default: all methods of a disk, the strongest first"},
	{Name: "samples", Type: "integer", Min: step.Limit(2), Max: step.Limit(100_000),
		Description: "number of places on each disk where markers are written or old content is recorded, and which are read back afterwards (default 128)"},
	{Name: "verify_all", Type: "boolean", Description: "read back every byte after an overwrite, instead of samples"},
	{Name: "continue_if_secure_erase_failed", Type: "boolean",
		Description: "use the next weaker method if a stronger one fails or is blocked (a frozen disk); else the disk fails"},
	{Name: "psid", Type: "string", Secret: true,
		Description: "the key printed on a self-encrypting drive, with which it can be reverted without a password"},
}

// Methods in addition to those of package passthru.
const (
	methodZeroes = "write_zeroes" // the device zeroes itself, or the kernel fails
	// the device drops the data without any promise: only if requested by name
	methodDiscard   = "discard"
	methodOverwrite = "overwrite"
	methodMetadata  = "metadata"
)

type devicesArgs struct {
	Common
	Methods   []string `json:"methods"`
	Samples   *int     `json:"samples"`
	VerifyAll bool     `json:"verify_all"`
	Continue  bool     `json:"continue_if_secure_erase_failed"`
	PSID      string   `json:"psid"`

	step    string
	express bool
}

func (a devicesArgs) samples() int {
	if a.Samples == nil {
		return defaultSamples
	}
	return *a.Samples
}

// owned is a disk with erase commands of its own.
type owned struct{ *passthru.Device }

// DevicesStep erases every disk by its strongest method, and proves the result. If stopped, a disk in work may hold
// anything, and may continue its erase by itself; a repeated run waits for such a disk, continues an overwrite, and
// restarts the others.
func DevicesStep(m machine) step.Func {
	return step.With(func(ctx context.Context, c *step.Call, a devicesArgs) (step.Outcome, error) {
		a.step = "erase_devices"
		return a.run(ctx, m, c)
	})
}

// ExpressArgs declares the arguments of erase_devices_express.
var ExpressArgs = DevicesArgs

// ExpressStep makes NVMe disks format themselves, which takes seconds, and wipes only the metadata of the others. If
// stopped, it leaves disks as DevicesStep and MetadataStep do.
func ExpressStep(m machine) step.Func {
	return step.With(func(ctx context.Context, c *step.Call, a devicesArgs) (step.Outcome, error) {
		a.step, a.express = "erase_devices_express", true
		return a.run(ctx, m, c)
	})
}

func (a devicesArgs) run(ctx context.Context, m machine, c *step.Call) (step.Outcome, error) {
	disks, err := a.chosen(ctx, m, c, a.step)
	if err != nil {
		return step.Outcome{}, err
	}
	targets := make([]*target, len(disks))
	for i, d := range disks {
		targets[i] = a.prepare(ctx, m, d)
	}
	defer func() {
		for _, t := range targets {
			if t.dev != nil {
				_ = t.dev.Close() // already closed, unless the step ends early
			}
		}
	}()
	groups := a.group(targets)
	name := func(g *group) string {
		names := make([]string, len(g.targets))
		for i, t := range g.targets {
			names[i] = t.disk.String()
		}
		return strings.Join(names, " with ")
	}
	err = step.Each(ctx, c, "erase", a.limit(), groups, name,
		func(ctx context.Context, g *group, report func(done, total int64)) error {
			err := a.erase(ctx, m, c, g, report)
			for _, t := range g.targets {
				t.report.Finished = time.Now().UTC()
				if err != nil && t.report.Result != "erased" && t.report.Error == "" {
					t.report.Error = err.Error()
				}
				c.Log.Info("erase ended", "disk", t.disk.Name, "serial", t.disk.Serial, "method", t.report.Method,
					"level", t.report.Level, "result", t.report.Result)
			}
			return err
		})
	erased, reports := []Erased{}, []*Report{}
	for _, t := range targets {
		if t.report.Result == "erased" {
			erased = append(erased, erasedOf(t.disk))
		}
		if t.report.Finished.IsZero() {
			t.report.Finished, t.report.Error = time.Now().UTC(), "not begun"
		}
		reports = append(reports, t.report)
	}
	result := map[string]any{"devices": erased, "erasures": reports}
	if err != nil {
		return step.Outcome{}, step.WithResult(advised(err), result)
	}
	return step.Outcome{Result: result}, nil
}

// prepare opens a disk and reads its capabilities. An error is stored in the target and does not fail the step: the
// other disks are still erased.
func (a devicesArgs) prepare(ctx context.Context, m machine, d disk.Disk) *target {
	t := &target{disk: d}
	t.report = t.newReport(a.step, time.Now())
	t.fault = func() error {
		if d.ReadOnly {
			return errReadOnly()
		}
		var err error
		if t.dev, _, err = disk.OpenVerified(ctx, m, d.Identity()); err != nil {
			return err
		}
		// passthru may use the name: while the device is open, the name can't move to another disk.
		if transport, ok := m.(passthru.Transport); ok {
			own, err := passthru.Open(ctx, transport, d.Name, passthru.Options{PSID: a.PSID})
			if err != nil {
				return err
			}
			t.own, t.report.Disk.Firmware = &owned{own}, own.Firmware
			return own.Release(ctx)
		}
		return nil
	}()
	return t
}

// group is a set of disks that one command erases together: the namespaces of an NVMe subsystem. Usually it has one
// disk.
type group struct {
	targets []*target
}

// group groups disks that a method of one of them would erase together.
func (a devicesArgs) group(targets []*target) []*group {
	of := map[string]*group{}
	var groups []*group
	for _, t := range targets {
		names := []string{t.disk.Name}
		if t.own != nil {
			for _, m := range t.own.Methods() {
				names = append(names, m.Also...)
			}
		}
		i := slices.IndexFunc(names, func(n string) bool { return of[n] != nil })
		if i < 0 {
			i, of[names[0]] = 0, &group{}
			groups = append(groups, of[names[0]])
		}
		g := of[names[i]]
		g.targets = append(g.targets, t)
		for _, n := range names {
			of[n] = g
		}
	}
	return groups
}

// way is a method applied to a group.
type way struct {
	name  string
	level Level
	want  content
	own   bool // a command of the disk
	why   error
	run   func(ctx context.Context, report func(done, total int64)) (string, error)
}

// ways returns the methods of a group, the strongest first.
func (a devicesArgs) ways(g *group) (out []way) {
	first := g.targets[0]
	if first.own != nil {
		for _, method := range first.own.Methods() {
			if a.express && !strings.HasPrefix(method.Name, "nvme_format") {
				continue
			}
			w := way{name: method.Name, level: Level(method.Level), want: oneByte, own: true, why: method.Blocked}
			if method.LeavesNoise {
				w.want = anything
			}
			for _, also := range method.Also {
				if !slices.ContainsFunc(g.targets, func(t *target) bool { return t.disk.Name == also }) {
					w.why = fmt.Errorf("it would erase %s too, which is not to be erased", also)
				}
			}
			w.run = func(ctx context.Context, report func(done, total int64)) (string, error) {
				return a.native(ctx, g, method, report)
			}
			out = append(out, w)
		}
	}
	if a.express {
		return append(out,
			way{name: methodMetadata, level: None, want: anything,
				run: func(ctx context.Context, report func(done, total int64)) (string, error) {
					return "the overwritten disk was read back as zeros",
						g.each(func(t *target) error { return wipe(ctx, t.dev, t.inside, report) })
				}})
	}
	return append(out,
		way{name: methodZeroes, level: Clear, want: zeros,
			run: func(ctx context.Context, report func(done, total int64)) (string, error) {
				return "every write-zeroes request was answered with success",
					g.each(func(t *target) error { return inPieces(ctx, t.dev, t.dev.Punch, report) })
			}},
		way{name: methodDiscard, level: None, want: anything,
			run: func(ctx context.Context, report func(done, total int64)) (string, error) {
				return "every discard request was answered with success, which promises nothing",
					g.each(func(t *target) error {
						d, ok := t.dev.(interface{ Discard(off, n int64) error })
						if !ok {
							return fmt.Errorf("discard: %w", errors.ErrUnsupported)
						}
						return inPieces(ctx, t.dev, d.Discard, report)
					})
			}},
		way{name: methodOverwrite, level: Clear, want: zeros,
			run: func(ctx context.Context, report func(done, total int64)) (string, error) {
				return "every write and flush was answered with success", g.each(func(t *target) error {
					t.report.Resumed = t.resume
					err := overwrite(ctx, t.dev, t.resume, report)
					if err == nil && a.VerifyAll {
						if err = readAll(ctx, t.dev, report); err == nil {
							t.report.Samples.All = true
						}
					}
					return err
				})
			}})
}

func (g *group) each(do func(*target) error) error {
	for _, t := range g.targets {
		if err := do(t); err != nil {
			if len(g.targets) > 1 {
				err = fmt.Errorf("%s: %w", t.disk.Name, err)
			}
			return err
		}
	}
	return nil
}

// wanted orders ways as the operator requested.
func (a devicesArgs) wanted(all []way) ([]way, error) {
	if len(a.Methods) == 0 {
		return slices.DeleteFunc(all, func(w way) bool { return w.name == methodDiscard }), nil
	}
	var out []way
	for _, name := range a.Methods {
		if i := slices.IndexFunc(all, func(w way) bool { return w.name == name }); i >= 0 {
			out = append(out, all[i])
		}
	}
	if len(out) == 0 {
		var have []string
		for _, w := range all {
			have = append(have, w.name)
		}
		return nil, step.Failf("leave methods out, or add one that the disk has",
			"the disk has none of the methods %s, but %s", strings.Join(a.Methods, ", "), strings.Join(have, ", "))
	}
	return out, nil
}

// erase erases a group of disks and proves it.
func (a devicesArgs) erase(ctx context.Context, m machine, c *step.Call, g *group,
	report func(done, total int64)) error {
	if err := g.each(func(t *target) error { return t.fault }); err != nil {
		return err
	}
	ways, err := a.wanted(a.ways(g))
	if err != nil {
		return err
	}
	if err := a.finishRunning(ctx, g, report); err != nil {
		return err
	}
	if err := g.each(func(t *target) error { return a.look(m, t) }); err != nil {
		return err
	}
	for i, w := range ways {
		if w.why != nil {
			g.passed(w.name, w.why)
			if w.own && !a.Continue &&
				!slices.ContainsFunc(ways[i+1:], func(w way) bool { return w.own && w.why == nil }) {
				// a fallback to a weaker method would go unnoticed
				return fmt.Errorf("%s can't be used: %w", w.name, w.why)
			}
			continue
		}
		c.Log.Info("erase", "disk", g.targets[0].disk.Name, "method", w.name)
		err := a.by(ctx, g, w, report)
		if err == nil {
			return g.each(func(t *target) error {
				_ = t.dev.RereadPartitions() // stale partitions in the kernel are not a fault of the disk
				err := t.dev.Close()
				t.dev = nil
				if err != nil {
					t.report.Result, t.report.Level = "failed", None
				}
				return err
			})
		}
		unsupported := !w.own && errors.Is(err, errors.ErrUnsupported)
		if ctx.Err() != nil || !unsupported && !a.Continue {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		g.passed(w.name, err)
		c.Log.Warn("method failed, taking the next", "disk", g.targets[0].disk.Name, "method", w.name, "err", err)
	}
	last := g.targets[0].report.Passed
	if len(last) == 0 {
		return errors.New("there is no method to erase it by")
	}
	return fmt.Errorf("no method is left: %s: %s", last[len(last)-1].Method, last[len(last)-1].Why)
}

// look finds the content of a disk, and refuses a disk that must be spared.
func (a devicesArgs) look(m machine, t *target) error {
	var err error
	if t.inside, err = regions(t.dev, m.Root(), t.disk); err == nil {
		t.resume = noteOf(t.dev)
		return a.guard(t.dev, t.inside)
	}
	// A disk left unreadable by a failed erase may be repaired by another one.
	if t.own != nil && slices.ContainsFunc(t.own.Methods(), func(m passthru.Method) bool { return m.Blocked == nil }) {
		return nil
	}
	return err
}

func (g *group) passed(method string, why error) {
	for _, t := range g.targets {
		t.report.Passed = append(t.report.Passed, Attempt{method, why.Error()})
	}
}

// by erases a group by one method: markers, the erase, reading back.
func (a devicesArgs) by(ctx context.Context, g *group, w way, report func(done, total int64)) error {
	metadata := w.name == methodMetadata
	for _, t := range g.targets {
		t.report.Method, t.report.Samples, t.report.Answer, t.proof = w.name,
			Samples{Kept: []int64{}, Offsets: []int64{}}, "", nil
		t.report.With = nil
		for _, o := range g.targets {
			if o != t {
				t.report.With = append(t.report.With, o.disk.Name)
			}
		}
	}
	if !metadata {
		err := g.mark(ctx, a.samples())
		if err != nil && w.own && ctx.Err() == nil {
			// A failed erase may leave blocks that refuse writes. Another erase repairs them, and one more proves it.
			if _, err := w.run(ctx, report); err != nil {
				return err
			}
			err = g.mark(ctx, a.samples())
		}
		if err != nil {
			return err
		}
	}
	err := a.proven(ctx, g, w, report)
	if err != nil && w.want == anything && !metadata && ctx.Err() == nil &&
		!slices.ContainsFunc(g.targets, func(t *target) bool { return t.proof == nil || !t.proof.pattern }) {
		// All markers are gone, but the old content between them is back: a drive may fill itself with the same pattern
		// in every erase, and this one may have been erased before. A second erase, with markers at those places too,
		// decides.
		if merr := g.each(func(t *target) error { return t.proof.again(ctx) }); merr != nil {
			return merr
		}
		err = a.proven(ctx, g, w, report)
	}
	return err
}

// proven runs a method and checks its result by reading back.
func (a devicesArgs) proven(ctx context.Context, g *group, w way, report func(done, total int64)) error {
	answer, err := w.run(ctx, report)
	for _, t := range g.targets {
		if t.report.Answer = answer; err != nil {
			t.report.Answer = "error: " + err.Error()
		}
		if t.proof != nil {
			t.proof.pattern = false
		}
	}
	if err != nil {
		return err
	}
	return g.each(func(t *target) error {
		if t.proof != nil {
			s, err := t.proof.check(ctx, w.want)
			s.All = t.report.Samples.All
			t.report.Samples = s
			if err != nil {
				t.report.Error = err.Error()
				return err
			}
		}
		t.report.Result, t.report.Level, t.report.Error = "erased", w.level, ""
		return nil
	})
}

// mark prepares the proof of each disk.
func (g *group) mark(ctx context.Context, samples int) error {
	return g.each(func(t *target) (err error) {
		if t.proof, err = newProof(t.dev, samples); err != nil {
			return err
		}
		return t.proof.mark(ctx)
	})
}

// finishRunning waits for erases that were started before the agent: meanwhile neither markers nor other data can be
// written. Their result does not count, because the command behind them is unknown: the erase is repeated.
func (a devicesArgs) finishRunning(ctx context.Context, g *group, report func(done, total int64)) error {
	for _, t := range g.targets {
		if t.own == nil {
			continue
		}
		method, is, err := t.own.Running(ctx)
		if err != nil {
			return err
		}
		if !is {
			continue
		}
		if err := a.wait(ctx, t, method, report); err != nil {
			return fmt.Errorf("wait for %s, which was under way: %w", method.Name, err)
		}
	}
	return nil
}

const askEvery = 2 * time.Second

func (a devicesArgs) wait(ctx context.Context, t *target, method passthru.Method,
	report func(done, total int64)) error {
	// The wait for a disk that never reports its progress must be bounded.
	limit := 24 * time.Hour
	if method.Estimate > 0 {
		limit = 3*method.Estimate + time.Hour
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the disk was not done after %s", limit))
	defer cancel()
	size := t.disk.Size
	alive := int64(0)
	return method.Wait(ctx, askEvery, func(st passthru.Status) {
		alive++ // any response is a sign of life
		if st.Percent < 0 {
			report(min(alive, size-1), size)
			return
		}
		report(min(size/100*int64(st.Percent)+alive%max(size/100, 1), size), size)
	})
}

// native runs an erase command of the disk.
func (a devicesArgs) native(ctx context.Context, g *group, method passthru.Method,
	report func(done, total int64)) (string, error) {
	if err := method.Start(ctx); err != nil {
		return "", err
	}
	return "the disk says that it has finished, without an error", a.wait(ctx, g.targets[0], method, report)
}
