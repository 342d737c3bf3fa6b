package node

import "time"

// DriveTime is how long a machine may take from its start, or from its newest boot script, to its config drive: kernel
// and the rest may be large.
const DriveTime = 30 * time.Minute

// DriveWindow is the time after a start of a machine in which it may fetch the config drive of a workload that runs
// from memory. No agent runs then that could get the drive over a session.
type DriveWindow struct {
	OpenedAt time.Time `json:"opened_at"`
	ClosesAt time.Time `json:"closes_at"`
	// Address is the only one that may fetch the drive where no lease identifies the machine: the first that fetched
	// the boot script. Empty: none has.
	Address   string    `json:"address,omitempty"`
	FetchedAt time.Time `json:"fetched_at,omitzero"` // when the drive was first fetched
}

// IsOpen reports whether the drive may be fetched at t.
func (w *DriveWindow) IsOpen(t time.Time) bool { return w != nil && t.Before(w.ClosesAt) }

// OpenDrive opens a new window, for a machine that starts.
func (n *Node) OpenDrive(now time.Time) {
	n.DriveWindow = &DriveWindow{OpenedAt: now, ClosesAt: now.Add(DriveTime)}
}
