package node

import "time"

// Faults of a node, in Ironic's words, and two of ours.
const (
	FaultPower       = "power failure"
	FaultClean       = "clean failure"
	FaultService     = "service failure"
	FaultQuarantined = "quarantined"
	FaultHardware    = "hardware failure" // the controller says that a part fails or is going to
)

// Quarantine marks a node with an instance as broken: it goes on as it is, and when it is torn down it does not become
// available.
type Quarantine struct {
	Reason string
	At     time.Time
	By     string // who requested it; empty if unknown
}

// StandingFault is the fault that a node has besides those that come and go by themselves.
func (n *Node) StandingFault() string {
	if n.Quarantine != nil {
		return FaultQuarantined
	}
	return ""
}

// SetLastError sets what last_error says; fault is the fault that it reports, "" if it reports none.
func (n *Node) SetLastError(text, fault string) { n.LastError, n.LastErrorOf = text, fault }

// TakeBackError empties last_error if it reports that fault.
func (n *Node) TakeBackError(fault string) {
	if n.LastErrorOf == fault {
		n.SetLastError("", "")
	}
}
