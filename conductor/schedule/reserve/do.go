package reserve

import (
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// act names something that has to be done about a promise.
type act string

const (
	nothing  act = ""          // all is as it should be
	wait     act = "wait"      // the machine is on its way to where something can be done
	warm     act = "warm"      // boot the agent
	keep     act = "keep"      // give the machine to the project
	replace  act = "replace"   // promise another machine in its place
	takeBack act = "take"      // end the access
	remove   act = "tear down" // remove the instance
	drop     act = "drop"      // forget the promise: the machine is free for others, or not the reservation's any more
)

// Do returns what has to be done about a promise now, and why. n is its node as it is, nil if it does not exist any
// more.
func Do(r *node.Reservation, p node.Promise, n *node.Node, now time.Time) (act, string) {
	ending := r.State == node.ReservationEnding || !now.Before(r.End)
	switch {
	case ending && (n == nil || !p.Given):
		return drop, ""
	case ending:
		return atEnd(r, p, n)
	case n == nil:
		return replace, "the machine was deleted"
	case now.Before(p.From):
		return nothing, ""
	}
	if why := failed(n, p.Given); why != "" {
		return replace, why
	}
	idle := n.Provision == node.Available && n.InstanceUUID == ""
	switch {
	case p.Given && (!idle || n.AllocationUUID != ""), !idle && now.Before(r.Start):
		return nothing, ""
	case !idle && (!heading[n.Provision] || n.Provision == node.Available):
		return replace, fmt.Sprintf("the machine is in use: it is %s", n.Provision)
	case !idle:
		return wait, fmt.Sprintf("machine %s is %s", n.UUID, n.Provision)
	case !now.Before(r.Start): // again, when the project has removed its instance
		return keep, ""
	case n.IsWarm() || n.Job != nil || n.TargetPower != "":
		return nothing, ""
	}
	return warm, ""
}

// atEnd takes a machine back that was given, in steps of which each can be repeated.
func atEnd(r *node.Reservation, p node.Promise, n *node.Node) (act, string) {
	const over = "its time is over"
	allocation := AllocationUUID(r.UUID, p.Slot)
	switch {
	case n.AllocationUUID == allocation, r.Owner != "" && n.Lessee == r.Owner,
		n.InstanceUUID == allocation && n.Provision == node.Available:
		return takeBack, over
	case !r.TearDown:
		return drop, ""
	case deployed[n.Provision]:
		return remove, over
	case n.Provision == node.Deleting:
		return wait, fmt.Sprintf("machine %s is %s", n.UUID, n.Provision)
	}
	return drop, ""
}

// failed returns why a machine can't serve a reservation, so that it is replaced; empty if it can. given: it is the
// project's already. A project's instance is not left for an operator's maintenance, and not for a deployment that went
// wrong, as that can be the image's fault.
func failed(n *node.Node, given bool) string {
	using := given && deployed[n.Provision]
	switch {
	case n.Fault != "":
		return "the machine has a fault: " + n.Fault
	case n.Quarantine != nil:
		return "the machine is in quarantine: " + n.Quarantine.Reason
	case n.Maintenance && !using:
		return "the machine is in maintenance"
	case n.Retired && !using:
		return "the machine is retired"
	case n.Provision == node.Error, n.Provision == node.CleanFailed:
		return fmt.Sprintf("the machine is in state %q", n.Provision)
	case !heading[n.Provision] && !deployed[n.Provision]:
		return fmt.Sprintf("the machine was taken out of service: it is %s", n.Provision)
	}
	return ""
}
