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

func (i In) of(p Phase) int {
	switch p {
	case Deploy:
		return i.Deploy
	case Clean:
		return i.Clean
	case Inspect:
		return i.Inspect
	case Service:
		return i.Service
	case Rescue:
		return i.Rescue
	}
	return 0
}

// Order gives the steps that are part of a phase by default, in the order in which they run: highest priority first,
// and by interface and name where two are equal, so that the order never depends on the order of the table.
func Order(table []Step, p Phase) []Step {
	var out []Step
	for _, s := range table {
		if s.Priority.of(p) > 0 {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b Step) int {
		return cmp.Or(b.Priority.of(p)-a.Priority.of(p), strings.Compare(a.Interface, b.Interface),
			strings.Compare(a.Name, b.Name))
	})
	return out
}

// Find looks a step up by interface and name.
func Find(table []Step, iface, name string) (Step, bool) {
	i := slices.IndexFunc(table, func(s Step) bool { return s.Interface == iface && s.Name == name })
	if i < 0 {
		return Step{}, false
	}
	return table[i], true
}

// Manifest is what a ramdisk says about the steps its agent has.
type Manifest struct {
	Steps  []Step `json:"steps"`
	Digest string `json:"digest"` // SHA-256, hex, of the canonical JSON of Steps
}

// Describe makes the manifest of a table. Canonical JSON is Go's, without indentation, sorted by interface and name.
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

// Check finds faults of a table: two steps of one name, a step without work, a fault in what arguments it declares.
func Check(table []Step) error {
	var errs []error
	seen := map[string]bool{}
	for _, s := range table {
		key := s.Interface + "." + s.Name
		if seen[key] {
			errs = append(errs, fmt.Errorf("step %s is in the table twice", key))
		}
		seen[key] = true
		if s.Interface == "" || s.Name == "" || s.Run == nil {
			errs = append(errs, fmt.Errorf("step %q lacks an interface, a name or a function", key))
		}
		if err := steparg.Declared(s.Args); err != nil {
			errs = append(errs, fmt.Errorf("step %s: %w", key, err))
		}
	}
	return errors.Join(errs...)
}

// CheckArgs holds args, a JSON object or empty, against what the step declares, and names every fault. null counts as
// absent.
func (s Step) CheckArgs(args json.RawMessage) error { return steparg.Check(s.Name, s.Args, args, nil) }
