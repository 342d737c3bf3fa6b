package node

import "time"

// Marks of an agent that stays from one job to the next.
const (
	MarkKept    = "agent kept"          // at the end of a job
	MarkTakenUp = "kept agent taken up" // at the beginning of the next
)

// Warmth is how the last attempt to do work ahead on an available node failed.
type Warmth struct {
	Failure string    `json:"failure"` // a sentence for an operator
	At      time.Time `json:"at"`
}

// Staged is an image that was written to a node's disk ahead, except for the part that the agent withholds until
// commit.
type Staged struct {
	Source string    `json:"source"` // image_source of the request
	Digest string    `json:"digest"` // the one that was compared: "sha256:<hex>"
	Disk   string    `json:"disk"`   // name of the disk
	At     time.Time `json:"at"`
}

// IsWarm reports whether the node's agent is up and waits for work.
func (n *Node) IsWarm() bool {
	b := n.Boot
	return b != nil && b.Kept && b.Connected && !b.Ended
}

// IsAhead reports whether the job is done ahead of need, so that any request may take its place.
func (j *Job) IsAhead() bool { return j != nil && (j.Phase == PhaseWarm || j.Phase == PhaseCool) }
