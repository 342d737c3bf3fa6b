package node

import "time"

// Reservation is so many machines that are promised to a project for a time. Head's Owner is that project; empty: the
// machines are for the site itself. Which machines they are is in the promises.
type Reservation struct {
	Head
	ResourceClass string
	Traits        []string `json:",omitempty"`
	Count         int
	Start, End    time.Time
	// From is when the machines are out of ordinary use and made ready: some time before Start.
	From time.Time
	// OwnOnly: the request came from a project, which gets no machines but its own.
	OwnOnly  bool   `json:",omitzero"`
	TearDown bool   `json:",omitzero"` // at the end the instances are removed
	State    string // one of the Reservation states
	// Fault is why there are fewer machines than were promised, or why the end takes long; empty: all is well.
	Fault     string    `json:",omitzero"`
	WarnedAt  time.Time `json:",omitzero"` // when the end was announced
	EndedAt   time.Time `json:",omitzero"` // when State became ReservationEnded
	Requester string    `json:",omitzero"`
}

// States of a reservation.
const (
	ReservationPlanned = "planned" // the start is to come
	ReservationActive  = "active"  // from the start to the end
	ReservationEnding  = "ending"  // the machines are being taken back
	ReservationEnded   = "ended"
)

// Promise is one machine of a reservation: it is given to no one else from From until Until. The slots of a reservation
// are numbered from 0; a machine that fails is replaced by another in its slot.
type Promise struct {
	ReservationUUID string
	Slot            int
	NodeUUID        string
	From, Until     time.Time
	Given           bool // the machine is the project's: what is on it is of the reservation
}

// Meets reports whether any moment belongs to the promise and to the time from a until b.
func (p Promise) Meets(a, b time.Time) bool { return p.From.Before(b) && a.Before(p.Until) }
