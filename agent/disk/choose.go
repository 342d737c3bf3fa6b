package disk

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/proto/rootdevice"
)

// What these mean is shared with the conductor.
type (
	// Disk is one whole block device.
	Disk = rootdevice.Disk
	// Identity is what makes it this one.
	Identity = rootdevice.Identity
	// Hints are conditions on a disk.
	Hints = rootdevice.Hints
	// Path is one of several ways to a disk.
	Path = rootdevice.Path
)

// Choice is the root disk and why it is that one.
type Choice struct {
	Disk Disk
	Why  string
}

// MarshalJSON writes the disk's fields with "why" beside them.
func (c Choice) MarshalJSON() ([]byte, error) {
	b, err := json.Marshal(c.Disk)
	if err != nil {
		return nil, err
	}
	why, err := json.Marshal(c.Why)
	if err != nil {
		return nil, err
	}
	return append(append(append(b[:len(b)-1], `,"why":`...), why...), '}'), nil
}

// ParseHints reads a root_device object.
func ParseHints(raw json.RawMessage) (Hints, error) {
	h, err := rootdevice.ParseHints(raw)
	return h, explained(err)
}

// Choose picks the root disk. Its error says what speaks against each disk.
func Choose(disks []Disk, hints Hints) (Choice, error) {
	x := rootdevice.Explain(disks, hints)
	if x.Err != nil {
		return Choice{}, explained(x.Err)
	}
	return Choice{Disk: *x.Chosen, Why: x.Why}, nil
}

// explained makes a step.Error of one of package rootdevice.
func explained(err error) error {
	var e *rootdevice.Error
	switch {
	case !errors.As(err, &e):
		return err
	case e.NoDisk:
		return step.Retryable(e.Remedy, e.Err)
	}
	return step.Fail(e.Remedy, e.Err)
}

type rootKey struct{}

// SetRoot leaves for later steps of the plan which disk is to be the root disk: one that a step has just made.
func SetRoot(f *step.Facts, h Hints) { f.Set(rootKey{}, h) }

// RootOf gives the hints that the root disk has to fit: those of a disk made in this plan, which nobody could name
// before, else those given.
func RootOf(f *step.Facts, given Hints) Hints {
	if h, ok := f.Get(rootKey{}).(Hints); ok && len(h) > 0 {
		return h
	}
	return given
}

// Disks show up while controllers spin them up: IPA waits thirty seconds, and so do we, asking more often.
const (
	chooseFor   = 30 * time.Second
	chooseEvery = 500 * time.Millisecond
	chooseQuiet = 3 * time.Second // disks are there, their number does not change: waiting longer changes nothing
)

// ChooseWhenReady is Choose on the machine's disks once its drivers are through, and again for a while as long as none
// is found or none fits.
func ChooseWhenReady(ctx context.Context, m settling, hints Hints) (Choice, error) {
	if err := m.Settle(ctx); err != nil && ctx.Err() != nil {
		return Choice{}, err // a machine that never settles may well have the disk
	}
	deadline := time.NewTimer(chooseFor)
	defer deadline.Stop()
	again := time.NewTicker(chooseEvery)
	defer again.Stop()
	known := -1
	var since time.Time
	for {
		disks, err := All(ctx, m)
		if err != nil {
			return Choice{}, err
		}
		c, err := Choose(disks, hints)
		if err == nil {
			return c, nil
		}
		if len(disks) != known {
			known, since = len(disks), time.Now()
		}
		if known > 0 && time.Since(since) >= chooseQuiet {
			return Choice{}, err
		}
		select {
		case <-ctx.Done():
			return Choice{}, context.Cause(ctx)
		case <-deadline.C:
			return Choice{}, err
		case <-again.C:
		}
	}
}
