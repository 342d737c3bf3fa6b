package node

import (
	"fmt"
	"time"
)

// SystemSeen is an installed system that was seen to run while its machine was to boot the agent.
type SystemSeen struct {
	At    time.Time `json:"at"` // of its first DHCP request in this boot
	MAC   string    `json:"mac"`
	Class string    `json:"class,omitempty"` // what its DHCP client calls itself; empty: it does not
}

// String describes how it was seen.
func (s SystemSeen) String() string {
	if s.Class == "" {
		return "DHCP request by " + s.MAC
	}
	return fmt.Sprintf("DHCP request by %s of %q", s.MAC, s.Class)
}
