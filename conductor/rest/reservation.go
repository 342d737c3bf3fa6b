package rest

// Reservation is so many machines that are promised to a project for a time.
type Reservation struct {
	UUID          string   `json:"uuid"`
	Name          Null     `json:"name"`
	Project       Null     `json:"project"`
	ResourceClass string   `json:"resource_class"`
	Traits        []string `json:"traits"`
	Count         int      `json:"count"`
	Start         NullTime `json:"start"`
	End           NullTime `json:"end"`
	TearDown      bool     `json:"tear_down"` // at the end the instances are removed
	// State is "planned", "active" (from start to end), "ending" (the machines are being taken back) or "ended".
	State     string   `json:"state"`
	Fault     Null     `json:"fault"`     // why fewer machines are there than were promised, or why the end takes long
	WarnedAt  NullTime `json:"warned_at"` // when the end was announced
	EndedAt   NullTime `json:"ended_at"`
	CreatedAt NullTime `json:"created_at"`
	UpdatedAt NullTime `json:"updated_at"`
	// Machines are those that are promised now. A project sees which they are once it has them.
	Machines []ReservedMachine `json:"machines"`
}

// ReservedMachine is one of the machines of a reservation.
type ReservedMachine struct {
	Slot           int      `json:"slot"`
	NodeUUID       Null     `json:"node_uuid"`
	Name           Null     `json:"name"`
	AllocationUUID string   `json:"allocation_uuid"` // that it has, or will have from the start on
	From           NullTime `json:"from"`            // it is given to no one else from then on
	Given          bool     `json:"given"`           // the project has it
}

// Reservations is a list of them.
type Reservations struct {
	Reservations []Reservation `json:"reservations"`
}
