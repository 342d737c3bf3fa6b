package run

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Write writes the differences by their rule: route, field and values; each with one request that shows it.
func (r *Report) Write(w io.Writer) {
	groups := map[string][]Found{}
	for _, f := range r.Found {
		k := f.Ask.Route + " | " + f.Difference.Field + " | " + f.Difference.Want + " | " + f.Difference.Got
		groups[k] = append(groups[k], f)
	}
	keys := slices.SortedFunc(maps.Keys(groups), func(a, b string) int {
		if d := len(groups[b]) - len(groups[a]); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	for _, k := range keys {
		f := groups[k][0]
		fmt.Fprintf(w, "%4d  %s\n      %s %s (%s) %v %.300s\n", len(groups[k]), k, f.Ask.Method, f.Ask.Path,
			f.Ask.Version, f.Ask.Header, f.Ask.Body)
		for _, b := range f.Before[max(0, len(f.Before)-2):] {
			fmt.Fprintf(w, "        after %s %s (%s) %.150s\n", b.Method, b.Path, b.Version, b.Body)
		}
	}
	for _, l := range r.Left {
		fmt.Fprintf(w, "could not be removed: %s\n", l)
	}
	fmt.Fprintf(w, "%d requests compared, %d differences accepted, %d not (%d rules), %d requests skipped after one that changed only one of them\n", r.Compared, r.Accepted, len(r.Found), len(groups), r.Skipped)
}
