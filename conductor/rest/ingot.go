package rest

import "time"

// What follows is Ingot's own part of the API, below /ingot/v1: facts that Ironic has no words for. It has no
// microversions; fields are only ever added.

// Progress is how far a node's work is.
type Progress struct {
	NodeUUID             string    `json:"node_uuid"`
	ProvisionState       string    `json:"provision_state"`
	TargetProvisionState Null      `json:"target_provision_state"`
	PowerState           Null      `json:"power_state"`
	LastError            Null      `json:"last_error"`
	DeployedBy           Null      `json:"deployed_by"` // who requested the deployment that is on the node
	Job                  *Job      `json:"job"`
	Running              *Transfer `json:"running"`
	AgentConnected       bool      `json:"agent_connected"`
}

// Job is the work in progress on a node.
type Job struct {
	ID        string    `json:"id"`
	Phase     string    `json:"phase"`
	StartedAt NullTime  `json:"started_at"`
	Requester Null      `json:"requester"`
	Index     int       `json:"index"`
	Detail    Null      `json:"detail"` // the reason for waiting, for people
	Steps     []JobStep `json:"steps"`
}

// JobStep is one step of a Job.
type JobStep struct {
	Interface string   `json:"interface"`
	Step      string   `json:"step"`
	Priority  int      `json:"priority"`
	InBand    bool     `json:"in_band"`
	Status    string   `json:"status"` // "pending", "running", "done", "failed"
	StartedAt NullTime `json:"started_at"`
	EndedAt   NullTime `json:"ended_at"`
	Result    any      `json:"result,omitempty"`
}

// Transfer is how far the running step of the agent is, as far as it counts bytes. Total is 0 when it is not known.
type Transfer struct {
	Step  string         `json:"step"`
	Phase string         `json:"phase"`
	Bytes uint64         `json:"bytes"`
	Total uint64         `json:"total"`
	Rate  uint64         `json:"rate"` // bytes per second
	At    NullTime       `json:"at"`
	Items []ItemProgress `json:"items,omitempty"` // of a step that works on several things at the same time
}

// Medians are how long jobs of a phase that went well take, and the parts of them.
type Medians struct {
	Phase   string   `json:"phase"`
	Jobs    int      `json:"jobs"` // that were compared
	Seconds float64  `json:"seconds"`
	Spans   []Median `json:"spans"` // those that at least half of the jobs have
}

// Median is of all spans with one name at one depth.
type Median struct {
	Name    string  `json:"name"`
	Depth   int     `json:"depth"`
	Jobs    int     `json:"jobs"`
	Seconds float64 `json:"seconds"`
}

// Timeline shows where the time went: points, and the work between them, one trace for each job, oldest first.
type Timeline struct {
	NodeUUID string  `json:"node_uuid"`
	Marks    []Mark  `json:"marks"`
	Traces   []Trace `json:"traces"`
}

// Trace is where the time of one job went. Every instant of it belongs to exactly one span that has no spans in it.
type Trace struct {
	JobID   string    `json:"job_id"`
	Phase   string    `json:"phase"`
	Begin   time.Time `json:"begin"`
	End     time.Time `json:"end"`
	Seconds float64   `json:"seconds"`
	Open    bool      `json:"open"`    // the job goes on; End is now
	Outcome Null      `json:"outcome"` // the provision state that the job led to
	// Attributed is the share of the time whose cause is known, 0 to 1. The rest are spans of kind "unknown".
	Attributed float64 `json:"attributed"`
	// FirmwareBoots is how often the machine went through its firmware in this time, Kexecs how often one kernel
	// started the next.
	FirmwareBoots int    `json:"firmware_boots"`
	Kexecs        int    `json:"kexecs"`
	Spans         []Span `json:"spans"`
}

// Span is a stretch of time and its cause.
type Span struct {
	Name string `json:"name"`
	// "conductor", "bmc", "firmware", "network", "kernel", "agent", "step", "kexec", "os", "wait", "unknown"; "group"
	// has spans of several kinds in it
	Kind    string    `json:"kind"`
	Step    string    `json:"step,omitempty"`
	Begin   time.Time `json:"begin"`
	End     time.Time `json:"end"`
	Seconds float64   `json:"seconds"`
	Detail  string    `json:"detail,omitempty"`
	Failed  bool      `json:"failed,omitempty"`
	Bytes   uint64    `json:"bytes,omitempty"` // that were written
	Rate    uint64    `json:"rate,omitempty"`  // bytes per second
	Spans   []Span    `json:"spans,omitempty"`
}

// Mark is one point of a Timeline. At has fractions of a second.
type Mark struct {
	JobID  Null   `json:"job_id"`
	Name   string `json:"name"`
	At     string `json:"at"` // RFC 3339 with nanoseconds
	Detail Null   `json:"detail"`
}

// NodeTransfer is how far the running work of a node is. PlanID names the plan that its agent carries out.
type NodeTransfer struct {
	NodeUUID  string   `json:"node_uuid"`
	NodeName  Null     `json:"node_name"`
	Conductor Null     `json:"conductor"`
	PlanID    string   `json:"plan_id"`
	Transfer  Transfer `json:"progress"`
}

// Running is the answer of GET /ingot/v1/progress.
type Running struct {
	Progress []NodeTransfer `json:"progress"`
}

// LogLine is a line of an agent's log.
type LogLine struct {
	Seq   uint64 `json:"seq"`
	At    string `json:"at"` // RFC 3339 with nanoseconds
	Level string `json:"level"`
	Text  string `json:"text"`
}

// Logs is an excerpt of an agent's log; Next is the value of ?after= that continues it.
type Logs struct {
	NodeUUID string    `json:"node_uuid"`
	Lines    []LogLine `json:"lines"`
	Next     uint64    `json:"next"`
}

// Event is one event of the stream GET /ingot/v1/events. Fields that don't apply are left out.
type Event struct {
	ID       int64                  `json:"id,omitempty"` // none: it is not stored, and can't be read again
	Type     string                 `json:"type"`
	Time     string                 `json:"time"` // RFC 3339, to the microsecond
	Kind     string                 `json:"kind,omitempty"`
	UUID     string                 `json:"uuid,omitempty"`
	Name     string                 `json:"name,omitempty"`
	NodeUUID string                 `json:"node_uuid,omitempty"`
	NodeName string                 `json:"node_name,omitempty"`
	User     string                 `json:"user,omitempty"`
	Project  string                 `json:"project,omitempty"`
	Changed  map[string]EventFromTo `json:"changed,omitempty"`
	Fields   []string               `json:"fields,omitempty"`
	Error    string                 `json:"error,omitempty"`
	Progress *Transfer              `json:"progress,omitempty"` // of ingot.node.progress
	// Of ingot.gap: the IDs that are no longer kept, and what to do.
	From    int64  `json:"from,omitempty"`
	To      int64  `json:"to,omitempty"`
	Message string `json:"message,omitempty"`
}

// EventFromTo is a value before and after a change; null is none.
type EventFromTo struct {
	From any `json:"from"`
	To   any `json:"to"`
}

// LogEntry is a line of GET /ingot/v1/log.
type LogEntry struct {
	UUID      string   `json:"uuid"`
	CreatedAt NullTime `json:"created_at"`
	NodeUUID  string   `json:"node_uuid"`
	NodeName  Null     `json:"node_name"`
	Deleted   bool     `json:"node_deleted"`
	EventType string   `json:"event_type"`
	Severity  string   `json:"severity"`
	Event     string   `json:"event"`
	User      Null     `json:"user"`
	Project   Null     `json:"project"`
	Conductor Null     `json:"conductor"`
}

// Log is the answer of GET /ingot/v1/log.
type Log struct {
	Log  []LogEntry `json:"log"`
	Next string     `json:"next,omitempty"`
}

// Capabilities is the answer of GET /ingot/v1/capabilities: what each hardware type and interface really does here.
type Capabilities struct {
	HardwareTypes []HardwareType      `json:"hardware_types"`
	Interfaces    []HardwareInterface `json:"interfaces"`
}

// HardwareType is a hardware type, named by a node's driver.
type HardwareType struct {
	Name        string                     `json:"name"`
	Description string                     `json:"description"`
	Interfaces  map[string]InterfaceChoice `json:"interfaces"` // by kind
}

// InterfaceChoice lists the interfaces that nodes of a type may choose from.
type InterfaceChoice struct {
	Default string   `json:"default"`
	Enabled []string `json:"enabled"`
}

// HardwareInterface is one interface of a kind.
type HardwareInterface struct {
	Kind          string          `json:"kind"`
	Name          string          `json:"name"`
	Description   string          `json:"description"`
	HardwareTypes []string        `json:"hardware_types"` // that have it
	Features      []string        `json:"features"`
	Verbs         []string        `json:"verbs"`
	Steps         []InterfaceStep `json:"steps"`
}

// InterfaceStep is a step that an interface brings along.
type InterfaceStep struct {
	Interface string         `json:"interface"`
	Step      string         `json:"step"`
	Args      []string       `json:"args"`   // those that are needed end in *
	Phases    map[string]int `json:"phases"` // priority in each phase; 0: only on request
}

// Health is how the conductor is.
type Health struct {
	Status string `json:"status"`
}

// Certificate is one of the conductor's that ends some day.
type Certificate struct {
	Name     string `json:"name"`
	NotAfter string `json:"not_after"`
}

// Certificates are all of them.
type Certificates struct {
	Certificates []Certificate `json:"certificates"`
}
