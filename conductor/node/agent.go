package node

import (
	"encoding/json"
	"time"
)

// Plan is a maximal run of in-band steps as it goes to the agent.
type Plan struct {
	ID         string
	Generation uint64
	Phase      Phase
	Steps      []PlanStep
}

// PlanStep is one step of a Plan. Args is a JSON object or empty.
type PlanStep struct {
	Interface string
	Name      string
	Args      json.RawMessage
	Stall     time.Duration
}

// AgentState is an agent's description of itself when its session opens.
type AgentState struct {
	NodeUUID       string
	BootID         string
	Generation     uint64
	Version        string
	PlanID         string
	PlanGeneration uint64
	StepIndex      int
	PlanRunning    bool
	StepsDigest    string
	Address        string // where its session comes from; empty when that is no IP address
	Restarts       int
	RestartReason  string
}

// AgentEvent is a result from an agent: exactly one of the pointers is set. It is stored before it is acknowledged.
type AgentEvent struct {
	NodeUUID string
	BootID   string
	Seq      uint64
	At       time.Time // the agent's clock

	StepStarted     *StepRef
	StepFinished    *StepResult
	PlanFinished    *PlanResult
	WorkerRestarted *WorkerRestart
}

// StepRef points at a step of a plan.
type StepRef struct {
	PlanID string
	Index  int
	Name   string
}

// Outcome of a step, as the agent reports it.
type Outcome string

// Outcomes.
const (
	OutcomeDone    Outcome = "done"
	OutcomeFailed  Outcome = "failed"
	OutcomeRerun   Outcome = "rerun"
	OutcomeRunNext Outcome = "run next"
	OutcomeReboot  Outcome = "reboot"
	OutcomeHold    Outcome = "hold"
)

// StepResult is how a step of a plan ended.
type StepResult struct {
	StepRef
	Outcome   Outcome
	Error     string
	Remedy    string
	Retryable bool
	Result    json.RawMessage
	After     time.Duration
	Next      []PlanStep
	Took      time.Duration
}

// PlanResult is how a plan ended.
type PlanResult struct {
	PlanID    string
	Done      bool
	Cancelled bool
}

// WorkerRestart reports that the agent's worker had to be started again; the plan it ran has failed.
type WorkerRestart struct {
	Reason string
	Count  int
}

// Progress is how far the running step is; it is kept in memory only.
type Progress struct {
	PlanID string
	Index  int
	Step   string
	Phase  string
	Bytes  uint64
	Total  uint64 // zero: not known
	Rate   uint64 // bytes per second
	At     time.Time
	// Items is nil when the step works on one thing. It is a pointer so that reports can be compared.
	Items *[]ItemProgress
}

// ItemProgress is how far a step is with one of several things that it works on at the same time, such as a disk.
type ItemProgress struct {
	Name         string
	Bytes, Total uint64 // Total zero: not known
	Done         bool   // over, well or not
	Error        string // why it failed
}

// PowerAction is an action that an agent takes on its machine when asked to.
type PowerAction string

// Power actions of an agent.
const (
	AgentReboot PowerAction = "reboot"
	AgentOff    PowerAction = "off"
)
