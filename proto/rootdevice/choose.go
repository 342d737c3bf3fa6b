package rootdevice

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// MinSize is the minimum size of a disk that is chosen without hints: Ironic's 4 GiB.
const MinSize = 4 << 30

// Check is one hint against one disk.
type Check struct {
	Hint   string `json:"hint"`   // "size"
	Wanted string `json:"wanted"` // as given: ">= 100"
	Is     string `json:"is"`     // the disk's value; "" if unknown
	Fits   bool   `json:"fits"`
}

func (c Check) String() string {
	is := cmp.Or(c.Is, "not known")
	return fmt.Sprintf("%s is %s, wanted %s", c.Hint, is, c.Wanted)
}

// Verdict is the result for one disk.
type Verdict struct {
	Disk   Disk    `json:"disk"`
	Fits   bool    `json:"fits"` // it could be the root disk
	Chosen bool    `json:"chosen"`
	Why    string  `json:"why"` // in one line
	Checks []Check `json:"checks,omitempty"`
}

// Explanation is a choice with its reasons. Err is the reason why no disk is chosen.
type Explanation struct {
	Verdicts []Verdict
	Chosen   *Disk
	Why      string
	Err      *Error
}

// MarshalJSON encodes the explanation for tools.
func (x Explanation) MarshalJSON() ([]byte, error) {
	out := struct {
		Disks  []Verdict `json:"disks"`
		Chosen *Disk     `json:"chosen"`
		Why    string    `json:"why,omitempty"`
		Error  string    `json:"error,omitempty"`
		Remedy string    `json:"remedy,omitempty"`
	}{Disks: x.Verdicts, Chosen: x.Chosen, Why: x.Why}
	if out.Disks == nil {
		out.Disks = []Verdict{}
	}
	if x.Err != nil {
		out.Error, out.Remedy = x.Err.Error(), x.Err.Remedy
	}
	return json.Marshal(out)
}

// Explain chooses the root disk and gives the reasons. Without hints it is the smallest of at least 4 GiB, by name
// among equals; with hints the first in the given order that fits all of them. A disk that can't be distinguished from
// another by serial and wwn is not chosen, nor is a read-only one, nor a member of an array, and a removable one only
// if hints require it.
func Explain(disks []Disk, hints Hints) Explanation {
	var x Explanation
	if len(disks) == 0 {
		x.Err = &Error{Err: fmt.Errorf("choose the root disk: no disk found"), NoDisk: true,
			Remedy: "check that the machine has a disk and that the ramdisk has a driver for its controller"}
		return x
	}
	best := -1
	var fit int
	for i, d := range disks {
		v := judge(d, hints)
		x.Verdicts = append(x.Verdicts, v)
		if !v.Fits {
			continue
		}
		fit++
		if best < 0 || len(hints) == 0 && d.Size < disks[best].Size {
			best = i
		}
	}
	if best < 0 {
		x.Err = &Error{Err: fmt.Errorf("choose the root disk: no disk is fit to be the root disk: %s",
			strings.Join(x.others(), ", ")),
			Remedy: "put a disk of at least 4 GiB into the machine, or name one with root_device"}
		if len(hints) > 0 {
			x.Err = &Error{Err: fmt.Errorf("choose the root disk: no disk fits the hints %s: %s", hints,
				strings.Join(x.others(), ", ")),
				Remedy: "correct root_device of the node; its inventory shows what its disks are"}
		}
		return x
	}
	chosen := disks[best]
	equal := false // another fitting disk has the same size
	for i := range x.Verdicts {
		v := &x.Verdicts[i]
		switch {
		case i == best || !v.Fits:
		case len(hints) > 0:
			v.Why = "it fits too, but " + chosen.Name + " comes first"
		case v.Disk.Size == chosen.Size:
			v.Why, equal = "it is as small as "+chosen.Name+", which comes first", true
		default:
			v.Why = "it is larger than " + chosen.Name
		}
	}
	for i, other := range disks {
		if i != best && chosen.Identity().Same(other.Identity()) {
			x.Verdicts[best].Why = "it has the same serial number and wwn as " + other.Name
			x.Err = &Error{Remedy: "disconnect one of the two paths, or replace the disk with the copied serial number",
				Err: fmt.Errorf(
					"choose the root disk: ambiguous: %s and %s say the same serial number and wwn (serial %q, wwn %q)",
					chosen.Name, other.Name, chosen.Serial, chosen.Identity().WWN)}
			return x
		}
	}
	var how string
	switch {
	case len(hints) == 0 && fit == 1:
		how = "no hints: the only disk of at least 4 GiB"
	case len(hints) == 0:
		how = fmt.Sprintf("no hints: the smallest of %d disks of at least 4 GiB", fit)
		if equal {
			how += ", first by name among equals"
		}
	case fit == 1:
		how = fmt.Sprintf("the only disk that fits the hints %s", hints)
	default:
		how = fmt.Sprintf("first by name of %d disks that fit the hints %s", fit, hints)
	}
	x.Verdicts[best].Chosen, x.Verdicts[best].Why = true, how
	x.Chosen, x.Why = &chosen, how
	for _, o := range x.others() {
		x.Why += "; not " + o
	}
	return x
}

// others lists the disks that are not chosen, with the reasons: fitting ones first.
func (x Explanation) others() []string {
	var fit, not []string
	for _, v := range x.Verdicts {
		switch {
		case v.Chosen:
		case v.Fits:
			fit = append(fit, fmt.Sprintf("%s (%s)", v.Disk.Name, HumanSize(v.Disk.Size)))
		default:
			not = append(not, fmt.Sprintf("%s (%s)", v.Disk.Name, v.Why))
		}
	}
	return append(fit, not...)
}

// judge examines a single disk.
func judge(d Disk, hints Hints) Verdict {
	v := Verdict{Disk: d, Checks: hints.check(d)}
	var why []string
	for _, c := range v.Checks {
		if !c.Fits {
			why = append(why, c.String())
		}
	}
	switch {
	case d.ReadOnly:
		v.Why = "it is read-only"
	case len(d.MemberOf) > 0:
		v.Why = "it is a member of the array " + strings.Join(d.MemberOf, " and ")
	case len(why) > 0:
		v.Why = strings.Join(why, "; ")
	case len(hints) > 0:
		v.Fits = true
	case d.Size < MinSize:
		v.Why = "smaller than 4 GiB: " + HumanSize(d.Size)
	case d.Removable:
		v.Why = "it is removable"
	default:
		v.Fits = true
	}
	return v
}

// Fit reports whether a disk fits all hints, even if it can't be chosen for other reasons.
func (h Hints) Fit(d Disk) bool {
	return !slices.ContainsFunc(h.check(d), func(c Check) bool { return !c.Fits })
}

// check compares a disk with each hint.
func (h Hints) check(d Disk) []Check {
	var out []Check
	for _, hint := range h {
		values := d.values(hint.Key)
		c := Check{Hint: hint.Key, Wanted: hint.Text, Is: values[0], Fits: hint.fits(values)}
		if hint.Key == "size" {
			c.Is = strings.TrimSuffix(fmt.Sprintf("%.2f", float64(d.Size)/(1<<30)), ".00") + " GiB"
		}
		out = append(out, c)
	}
	return out
}

// String returns the hints as given.
func (h Hints) String() string {
	var parts []string
	for _, hint := range h {
		parts = append(parts, fmt.Sprintf("%s %q", hint.Key, hint.Text))
	}
	return strings.Join(parts, ", ")
}
