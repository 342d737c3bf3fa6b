package rest

// MachineHealth is the newest answer of a node's controller about its machine.
type MachineHealth struct {
	NodeUUID string `json:"node_uuid"`
	Health   Null   `json:"health"` // of the machine with all its parts: OK, Warning, Critical
	// ReadAt is the time of the reading, TriedAt that of the newest attempt; Error says why that failed.
	ReadAt  NullTime      `json:"read_at"`
	TriedAt NullTime      `json:"tried_at"`
	Error   Null          `json:"error"`
	Parts   []FailingPart `json:"failing_parts"`
	Sensors []Sensor      `json:"sensors"`
	Log     []SystemEvent `json:"log"` // the newest entries of the controller's log, the newest first
}

// FailingPart is a part that has failed or, if it is predicted, is going to.
type FailingPart struct {
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Health    Null   `json:"health"`
	Predicted bool   `json:"predicted"`
}

// Sensor is one reading. Unit is in the words of Redfish: Cel, RPM, %, V, W, A.
type Sensor struct {
	Name     string   `json:"name"`
	Kind     string   `json:"kind"`
	Value    *float64 `json:"value"`
	Unit     string   `json:"unit"`
	Critical *float64 `json:"upper_critical"`
	Health   Null     `json:"health"`
}

// SystemEvent is an entry of the log. A time that the controller does not know is null.
type SystemEvent struct {
	ID       string   `json:"id"`
	Time     NullTime `json:"time"`
	Severity Null     `json:"severity"`
	Message  string   `json:"message"`
}
