package disk

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/proto/rootdevice"
)

// Types shared with the conductor.
type (
	// Disk is one whole block device.
	Disk = rootdevice.Disk
	// Identity identifies a disk.
	Identity = rootdevice.Identity
	// Hints are conditions on a disk.
	Hints = rootdevice.Hints
	// Path is one of several paths to a disk.
	Path = rootdevice.Path
)

// Choice is the root disk and the reason for choosing it.
type Choice struct {
	Disk Disk
	Why  string
}

// MarshalJSON encodes the disk's fields with "why" beside them.
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

// ParseHints parses a root_device object.
func ParseHints(raw json.RawMessage) (Hints, error) {
	h, err := rootdevice.ParseHints(raw)
	return h, explained(err)
}

// Choose selects the root disk. Its error names the reason against each disk.
func Choose(disks []Disk, hints Hints) (Choice, error) {
	x := rootdevice.Explain(disks, hints)
	if x.Err != nil {
		return Choice{}, explained(x.Err)
	}
	return Choice{Disk: *x.Chosen, Why: x.Why}, nil
}

// explained converts an error of package rootdevice to a step.Error.
func explained(err error) error {
	var e *rootdevice.Error
	if !errors.As(err, &e) {
		return err
	}
	if e.NoDisk {
		return step.Retryable(e.Remedy, e.Err)
	}
	return step.Fail(e.Remedy, e.Err)
}

type rootKey struct{}

// SetRoot sets the root disk for later steps of the plan: a disk that a step has just created.
func SetRoot(f *step.Facts, h Hints) { f.Set(rootKey{}, h) }

// RootOf returns the hints for the root disk: those of a disk created in this plan, whose name was not known before,
// else the given ones.
func RootOf(f *step.Facts, given Hints) Hints {
	if h, ok := f.Get(rootKey{}).(Hints); ok && len(h) > 0 {
		return h
	}
	return given
}

// Disks appear while controllers spin them up: IPA waits thirty seconds, and so does this, with more frequent checks.
const (
	chooseFor   = 30 * time.Second
	chooseEvery = 500 * time.Millisecond
	chooseQuiet = 3 * time.Second // disks exist and their number is stable: longer waiting is pointless
)

// ChooseWhenReady is Choose on the machine's disks after its drivers have settled; it is repeated for a while if no
// disk exists or none matches.
func ChooseWhenReady(ctx context.Context, m settling, hints Hints) (Choice, error) {
	if err := m.Settle(ctx); err != nil && ctx.Err() != nil {
		return Choice{}, err // a machine that never settles may still have the disk
	}
	deadline := time.After(chooseFor)
	again := time.Tick(chooseEvery)
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
		case <-deadline:
			return Choice{}, err
		case <-again:
		}
	}
}
