package fleet

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// rates is the time over which deployments per minute are counted.
const rates = time.Minute

// Summary is one line: the nodes in each state, sessions, and how fast nodes become active. d may be nil.
func (f *Fleet) Summary(d *Driver) string {
	n := f.Counts()
	line := fmt.Sprintf("%d machines on, %d agents, %d sessions, %d instances, %d boots",
		f.number((*Machine).On), n.Agents, n.Sessions, f.number((*Machine).Instance), n.Boots)
	if n.Deaths+n.Frosts+n.Lies+n.Fails > 0 {
		line += fmt.Sprintf(", faults: %d agents died, %d froze, %d lies, %d failures of controllers", n.Deaths, n.Frosts,
			n.Lies, n.Fails)
	}
	if n.Refused > 0 {
		line += fmt.Sprintf(", %d agents refused", n.Refused)
	}
	if d == nil {
		return line
	}
	states := d.States()
	var parts []string
	for _, s := range slices.Sorted(maps.Keys(states)) {
		parts = append(parts, fmt.Sprintf("%s %d", s, states[s]))
	}
	recent := 0
	for _, one := range d.Deployments() {
		if time.Since(one.Done) < rates {
			recent++
		}
	}
	return strings.Join(parts, ", ") + "; " + line + fmt.Sprintf("; %d deployments in the last minute", recent)
}

// number counts machines that are so.
func (f *Fleet) number(so func(*Machine) bool) (n int) {
	for _, m := range f.Machines {
		if so(m) {
			n++
		}
	}
	return n
}
