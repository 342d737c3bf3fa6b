package step

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/proto/steparg"
)

// Find returns a step by interface and name.
func Find(table []Step, iface, name string) (Step, bool) {
	i := slices.IndexFunc(table, func(s Step) bool { return s.Interface == iface && s.Name == name })
	if i < 0 {
		return Step{}, false
	}
	return table[i], true
}

// Manifest describes the steps of a ramdisk's agent.
type Manifest struct {
	Steps  []Step `json:"steps"`
	Digest string `json:"digest"` // SHA-256, hex, of the canonical JSON of Steps
}

// Describe returns the manifest of a table. Canonical JSON is Go's, without indentation, sorted by interface and name.
func Describe(table []Step) (Manifest, error) {
	sorted := slices.Clone(table)
	slices.SortFunc(sorted, func(a, b Step) int {
		return cmp.Or(strings.Compare(a.Interface, b.Interface), strings.Compare(a.Name, b.Name))
	})
	data, err := json.Marshal(sorted)
	if err != nil {
		return Manifest{}, fmt.Errorf("describe the table of steps: %w", err)
	}
	sum := sha256.Sum256(data)
	return Manifest{Steps: sorted, Digest: hex.EncodeToString(sum[:])}, nil
}

// Check returns the faults of a table: those of its rows, and steps without a function.
func Check(table []Step) error {
	errs := make([]error, 1, 2)
	rows := make([]Row, len(table))
	for i, s := range table {
		rows[i] = s.Row
		if s.Run == nil {
			errs = append(errs, fmt.Errorf("step %q has no function", s.Title()))
		}
	}
	errs[0] = steparg.CheckRows(rows)
	return errors.Join(errs...)
}

// CheckArgs checks args, a JSON object or empty, against the step's declaration, and returns every fault. null counts
// as absent.
func (s Step) CheckArgs(args json.RawMessage) error {
	return steparg.Check(s.Name, s.Args, args, false)
}
