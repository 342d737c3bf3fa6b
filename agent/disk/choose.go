package disk

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// MinRootSize is the least size of a disk that is chosen without hints: Ironic's 4 GiB.
const MinRootSize = 4 << 30

// Choice is the root disk and why it is that one.
type Choice struct {
	Disk Disk
	Why  string
}

// MarshalJSON writes the disk's fields with "why" beside them.
func (c Choice) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		diskJSON
		Why string `json:"why"`
	}{c.Disk.json(), c.Why})
}

// Choose picks the root disk. Without hints it is the smallest of at least 4 GiB, by name among equals; with hints the first in
// order of names that fits all of them. A disk that can't be told from another by serial and wwn is not chosen, nor is a
// read-only one, and a removable one only when hints ask for it.
func Choose(disks []Disk, hints Hints) (Choice, error) {
	if len(disks) == 0 {
		return Choice{}, step.Retryable("check that the machine has a disk and that the ramdisk has a driver for its controller",
			fmt.Errorf("choose the root disk: no disk found"))
	}
	var fit []Disk
	var not []string
	for _, d := range disks {
		if why := unfit(d, hints); why != "" {
			not = append(not, fmt.Sprintf("%s (%s)", d.Name, why))
			continue
		}
		fit = append(fit, d)
	}
	if len(fit) == 0 {
		remedy, what := "put a disk of at least 4 GiB into the machine, or name one with root_device", "no disk is fit to be the root disk"
		if len(hints) > 0 {
			remedy, what = "correct root_device of the node; its inventory shows what its disks are", "no disk fits the hints "+hints.String()
		}
		return Choice{}, step.Failf(remedy, "choose the root disk: %s: %s", what, strings.Join(not, ", "))
	}
	if len(hints) == 0 {
		slices.SortStableFunc(fit, func(a, b Disk) int {
			switch {
			case a.Size < b.Size:
				return -1
			case a.Size > b.Size:
				return 1
			}
			return 0
		})
	}
	chosen := fit[0]
	for _, other := range disks {
		if other.Name != chosen.Name && chosen.Identity().same(other.Identity()) {
			return Choice{}, step.Failf("disconnect one of the two paths, or replace the disk with the copied serial number",
				"choose the root disk: ambiguous: %s and %s say the same serial number and wwn (serial %q, wwn %q)",
				chosen.Name, other.Name, chosen.Serial, chosen.Identity().WWN)
		}
	}
	return Choice{Disk: chosen, Why: why(chosen, fit, not, hints)}, nil
}

func unfit(d Disk, hints Hints) string {
	if d.ReadOnly {
		return "it is read-only"
	}
	if len(hints) > 0 {
		return hints.mismatch(d)
	}
	switch {
	case d.Size < MinRootSize:
		return "smaller than 4 GiB: " + humanSize(d.Size)
	case d.Removable:
		return "it is removable"
	}
	return ""
}

func why(chosen Disk, fit []Disk, not []string, hints Hints) string {
	var b strings.Builder
	switch {
	case len(hints) == 0 && len(fit) == 1:
		b.WriteString("no hints: the only disk of at least 4 GiB")
	case len(hints) == 0:
		fmt.Fprintf(&b, "no hints: the smallest of %d disks of at least 4 GiB", len(fit))
		if fit[1].Size == chosen.Size {
			b.WriteString(", first by name among equals")
		}
	case len(fit) == 1:
		fmt.Fprintf(&b, "the only disk that fits the hints %s", hints)
	default:
		fmt.Fprintf(&b, "first by name of %d disks that fit the hints %s", len(fit), hints)
	}
	for _, d := range fit {
		if d.Name != chosen.Name {
			fmt.Fprintf(&b, "; not %s (%s)", d.Name, humanSize(d.Size))
		}
	}
	for _, n := range not {
		b.WriteString("; not " + n)
	}
	return b.String()
}

// String shows the hints as they were given.
func (h Hints) String() string {
	var parts []string
	for _, hint := range h {
		parts = append(parts, fmt.Sprintf("%s %q", hint.Key, hint.Text))
	}
	return strings.Join(parts, ", ")
}

// Disks show up while controllers spin them up: IPA waits thirty seconds, and so do we, asking more often.
const (
	chooseFor   = 30 * time.Second
	chooseEvery = 500 * time.Millisecond
	chooseQuiet = 3 * time.Second // disks are there, their number does not change: waiting longer changes nothing
)

// ChooseWhenReady is Choose on the machine's disks once its drivers are through, and again for a while as long as none is found or none
// fits.
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
		disks, err := List(ctx, m.Root())
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
