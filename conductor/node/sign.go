package node

import "time"

// SignOfLife is the sign by which the system that a job started showed that it runs.
type SignOfLife struct {
	Kind   string    `json:"kind"`             // as in the setting: "phone_home", "dhcp", "port:22", "console:login:"
	Detail string    `json:"detail,omitempty"` // from where
	At     time.Time `json:"at"`
}
