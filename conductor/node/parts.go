package node

import "time"

// FirmwareComponent is a piece of firmware in a machine: "bios", "bmc", "nic:...".
type FirmwareComponent struct {
	Component          string
	InitialVersion     string
	CurrentVersion     string // empty: not known
	LastVersionFlashed string
	CreatedAt          time.Time
	UpdatedAt          time.Time // zero until the first change
}
