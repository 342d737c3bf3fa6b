package node

import "time"

// FirmwareComponent is a piece of firmware in a machine: "bios", "bmc", "nic:...".
type FirmwareComponent struct {
	Component          string
	InitialVersion     string
	CurrentVersion     string // empty: not known
	LastVersionFlashed string
	Vendor             string // this and the next two: of the component itself; empty: not known
	Model              string
	SerialNumber       string
	CreatedAt          time.Time
	UpdatedAt          time.Time // zero until the first change
}
