package node

import "time"

// Health is how a machine is, in the words of Ironic and Redfish; "" is not known.
const (
	HealthOK       = "OK"
	HealthWarning  = "Warning"
	HealthCritical = "Critical"
)

// Reading is the newest answer of a node's controller about its machine. It is kept beside the node: that it
// was asked is no change of the node.
type Reading struct {
	NodeUUID string    `json:"-"`
	At       time.Time // of what follows; zero: it was never read
	TriedAt  time.Time // of the newest attempt
	Error    string    // why that failed; "" if it did not
	Health   string    // of the machine with all its parts
	Sensors  []Sensor
	Parts    []Part     // those that are not well
	Checked  []Part     `json:",omitzero"` // drives and power supplies that were asked, the good ones among them
	Log      []LogEntry // of the machine's event log, the newest first
}

// Sensor is one reading.
type Sensor struct {
	Name, Kind, Unit string   // Kind is "temperature", "fan", "voltage", "power", "current" or "other"
	Value            *float64 // nil: it reads nothing now
	Critical         *float64 // the upper bound; nil: there is none
	Health           string
	Context          string `json:",omitzero"` // where a temperature is measured, in the words of Redfish: "CPU"
}

// Part is a part of the machine that has failed or is going to.
type Part struct {
	Kind      string // "drive", "memory", "power supply"
	Name      string
	Health    string
	Predicted bool // it works, and says that it will fail
}

// LogEntry is a line of the controller's log. At is zero if its clock was not set.
type LogEntry struct {
	ID, Severity, Message string
	At                    time.Time
}
