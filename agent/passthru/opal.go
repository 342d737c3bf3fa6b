package passthru

import "context"

// Opal is what level 0 discovery tells of a device's TCG security.
type Opal struct {
	SSC           string // "opal", "opal2", "pyrite", "ruby", "enterprise" or "" when none is known
	LockingActive bool   // the locking SP is in use: somebody owns the drive's locking
	Locked        bool
	SIDBlocked    bool // the firmware has blocked authentication as owner until the next power cycle
}

func (n *nvme) addOpal(context.Context, []string) error { return nil }
