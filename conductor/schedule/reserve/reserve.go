// Package reserve promises machines to projects for a time, and keeps those promises.
//
// Which machines can be promised is a pure function (Choose) of a reservation and of the nodes of its resource class as
// they stand, with what is promised of them already; the store calls it inside the transaction that writes the
// promises, and refuses those that meet others whatever Choose says. Do is a pure function, too: what has to be done
// about one promise now. Runner does it. One conductor at a time acts for all reservations: the one that has the duty
// named Duty in the store.
//
// A promise begins some time before its reservation's start (Reservation.From): the machine is given to no one else
// from then on, and its agent is booted, so that it is ready. A machine that is available was cleaned before. Between
// two reservations of a machine there is at least this time, in which the first one's instance is removed.
//
// Allocations without an end get no machine that is promised at any time to come: they would run into the promise. A
// reservation may have it until then.
//
// The allocation of slot 0 has the reservation's own UUID, that of slot n the name-based UUID (version 5) of the number
// n in the reservation's namespace: see AllocationUUID.
package reserve

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

// AllocationUUID is the UUID of the allocation that a slot's machine gets at the start.
func AllocationUUID(reservation string, slot int) string {
	if slot == 0 {
		return reservation
	}
	space, err := uuid.Parse(reservation)
	if err != nil { // the store makes them all
		return ""
	}
	return uuid.NewSHA1(space, []byte(strconv.Itoa(slot))).String()
}

// Why a node can't be promised, in the order in which they are looked at and listed.
const (
	ofOthers     = "of other projects"
	lacksTraits  = "without the traits"
	outOfService = "out of service"
	promised     = "promised to others in that time"
	inUse        = "in use without an end"
)

// ShortError says why a reservation can't have its machines.
type ShortError struct {
	Reservation *node.Reservation
	Free        int            // machines that it could have
	Because     map[string]int // how many it can't have, by reason
	// Earliest is when as many as it wants are free for as long as it wants, as far as is known now; zero: never.
	Earliest time.Time
}

func (e *ShortError) Error() string {
	r := e.Reservation
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d machines of resource class %s", r.Count-e.Free, r.Count, r.ResourceClass)
	if len(r.Traits) > 0 {
		fmt.Fprintf(&b, " with the traits %s", strings.Join(r.Traits, ", "))
	}
	fmt.Fprintf(&b, " are missing from %s until %s", stamp(r.Start), stamp(r.End))
	var why []string
	for _, reason := range []string{ofOthers, lacksTraits, outOfService, promised, inUse} {
		if n := e.Because[reason]; n > 0 {
			why = append(why, fmt.Sprintf("%d %s", n, reason))
		}
	}
	if len(why) == 0 {
		why = []string{"there are no others of this resource class"}
	}
	fmt.Fprintf(&b, ": %d can be promised; %s", e.Free, strings.Join(why, ", "))
	if !e.Earliest.IsZero() {
		fmt.Fprintf(&b, ". As many are free from %s", stamp(e.Earliest))
	}
	return b.String()
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Choose picks the machines for a reservation, one for each slot, or returns a *ShortError. Of the machines that fit,
// those are taken that others need least: with the fewest traits beyond those asked for, then those whose time before
// the reservation is the shortest, so that long free times stay whole.
func Choose(r *node.Reservation, from []store.Reservable) ([]string, error) {
	type candidate struct {
		uuid  string
		extra int
		gap   time.Duration
	}
	var fit []candidate
	because := map[string]int{}
	for i := range from {
		m := &from[i]
		if why := unfit(r, m, r.From, r.End); why != "" {
			if why != ofOthers || !r.OwnOnly { // how many there are is not a project's to know
				because[why]++
			}
			continue
		}
		gap := time.Duration(1<<63 - 1)
		for _, p := range m.Promises {
			if !p.Until.After(r.From) {
				gap = min(gap, r.From.Sub(p.Until))
			}
		}
		fit = append(fit, candidate{m.UUID, len(m.Traits), gap})
	}
	if len(fit) < r.Count {
		return nil, &ShortError{Reservation: r, Free: len(fit), Because: because, Earliest: earliest(r, from)}
	}
	slices.SortStableFunc(fit, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.extra, b.extra), cmp.Compare(a.gap, b.gap))
	})
	nodes := make([]string, r.Count)
	for i := range nodes {
		nodes[i] = fit[i].uuid
	}
	return nodes, nil
}

// unfit returns why a machine can't be promised to a reservation for a time; empty if it can.
func unfit(r *node.Reservation, m *store.Reservable, from, until time.Time) string {
	// What is on the machine now is gone by then if it ends with a reservation that removes it.
	leaves := slices.ContainsFunc(m.Promises, func(p store.Promised) bool { return p.TearDown && !p.Until.After(from) })
	switch {
	case m.Owner != r.Owner && (m.Owner != "" || r.OwnOnly), m.Lessee != "" && !leaves:
		return ofOthers
	case slices.ContainsFunc(r.Traits, func(t string) bool { return !slices.Contains(m.Traits, t) }):
		return lacksTraits
	case m.Maintenance || m.Retired || m.Fault != "" || !heading[m.State] && !deployed[m.State] ||
		m.Target == node.Manageable:
		return outOfService
	case slices.ContainsFunc(m.Promises, func(p store.Promised) bool { return p.Meets(from, until) }):
		return promised
	case (m.InstanceUUID != "" && m.State != node.Deleting || deployed[m.State]) && !leaves:
		return inUse
	}
	return ""
}

// heading are the states of machines that are free, or will be soon without anyone's doing.
var heading = map[node.State]bool{node.Available: true, node.Deleting: true, node.Cleaning: true, node.CleanWait: true}

// deployed are the states of machines with an instance that can be removed.
var deployed = map[node.State]bool{node.Deploying: true, node.DeployWait: true, node.DeployHold: true,
	node.DeployFailed: true, node.Active: true, node.Rescuing: true, node.RescueWait: true, node.RescueFailed: true,
	node.Rescue: true, node.Unrescuing: true, node.UnrescueFailed: true, node.Servicing: true, node.ServiceWait: true,
	node.ServiceHold: true, node.ServiceFailed: true}

// earliest is when a reservation of the same length could begin, after the time that it wants; zero if that is not
// known. That can only be when a promise ends, as nothing else becomes free by itself.
func earliest(r *node.Reservation, from []store.Reservable) time.Time {
	var ends []time.Time
	for i := range from {
		for _, p := range from[i].Promises {
			if p.Until.After(r.From) {
				ends = append(ends, p.Until)
			}
		}
	}
	slices.SortFunc(ends, time.Time.Compare)
	ahead := r.Start.Sub(r.From)
	for _, at := range slices.CompactFunc(ends, time.Time.Equal) {
		free := 0
		for i := range from {
			if unfit(r, &from[i], at, at.Add(r.End.Sub(r.From))) == "" {
				free++
			}
		}
		if free >= r.Count {
			return at.Add(ahead)
		}
	}
	return time.Time{}
}
