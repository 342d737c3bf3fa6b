package node

import (
	"context"
	"time"
)

// Requester is the user of a request; empty for the conductor's own work.
type Requester struct {
	User    string `json:"user,omitempty"`
	Project string `json:"project,omitempty"`
	// Trusted: the request came from the system or one of its services, for which projects have no secrets.
	Trusted bool `json:"-"`
}

type requesterKey struct{}

// WithRequester notes who caused the work done with a context, for histories and events.
func WithRequester(ctx context.Context, r Requester) context.Context {
	return context.WithValue(ctx, requesterKey{}, r)
}

// RequesterOf returns who caused the work done with a context; the zero Requester if none was noted.
func RequesterOf(ctx context.Context) Requester {
	r, _ := ctx.Value(requesterKey{}).(Requester)
	return r
}

// Asked reports whether the work done with a context was requested by a client right now, rather than following from a
// request, or from a machine's report.
func Asked(ctx context.Context) bool { return ctx.Value(requesterKey{}) != nil }

// Event is a change that was stored: of a node, or of another resource.
type Event struct {
	ID int64     `json:",omitzero"` // rises by one from event to event
	At time.Time `json:",omitzero"`
	// "baremetal.node.power_set.end"; names beginning with "ingot." are those that Ironic has no notification for
	Type string `json:",omitzero"`
	Kind string `json:",omitzero"` // "node", "port", "portgroup", ...
	UUID string `json:",omitzero"` // of what changed
	Name string `json:",omitzero"` // of what changed; empty when it has none
	// The node that it belongs to, or is; empty for what belongs to none.
	NodeUUID, NodeName string `json:",omitzero"`
	Requester
	// Owner and Lessee are the projects that may see the event, beside the system's readers.
	Owner, Lessee string `json:",omitzero"`
	// Changed has old and new value of each changed state or flag.
	Changed map[string]FromTo `json:",omitzero"`
	// Fields are the other attributes that changed, by the API's names. Values are left out: they can be large, or
	// secret.
	Fields []string `json:",omitzero"`
	Error  string   `json:",omitzero"` // the node's last_error when something failed
}

// FromTo is a value before and after a change.
type FromTo struct {
	From any `json:"from"`
	To   any `json:"to"`
}

// LogQuery says which lines of the log to return. Nil and zero fields don't restrict.
type LogQuery struct {
	NodeUUID, NodeName string // one of both is enough
	User, Type         string
	Severity           string // "INFO", "WARNING", "ERROR"
	Project            string // of the requester, or owner or lessee of the node
	// a project: lines of nodes that it owns, and its own requests on those that it leases. Unlike Project it is not a
	// filter of the client but imposed
	Visible      string
	Text         string // part of the sentence, upper or lower case
	Since, Until time.Time
	Marker       string // UUID of the line after which to go on
	Oldest       bool   // oldest first; else newest first
	Limit        int
}

// LogLine is a line of the log over all nodes, those deleted included.
type LogLine struct {
	HistoryEntry
	NodeName      string
	Owner, Lessee string // of the node when the line was written
	Gone          bool   // the node has been deleted since
}
