// Package node holds the conductor's data about a machine: Node, Port, the work in progress on it, and its states.
//
// It has no I/O and uses the standard library only. The one table of states and verbs is in state.go; Next reads it and
// nothing else sets a provision state. Times are UTC. JSON names are those of the store, not of the API: the API's
// shapes are in conductor/rest.
package node

import (
	"encoding/json"
	"errors"
	"strings"
	"time"
)

// ErrNotFound means that the node, port, lease or inventory does not exist.
var ErrNotFound = errors.New("not found")

// Node is one machine. The fields that the API shows have Ironic's meaning; those of Job, Boot and Identity are ours.
// Zero fields, two thirds of a new node, are left out where a node is stored.
type Node struct {
	UUID         string         `json:",omitzero"`
	Name         string         `json:",omitzero"` // unique when not empty
	Driver       string         `json:",omitzero"` // hardware type: "ipmi", "fake-hardware", "manual-management"
	DriverInfo   map[string]any `json:",omitzero"`
	Properties   map[string]any `json:",omitzero"`
	Extra        map[string]any `json:",omitzero"`
	InstanceInfo map[string]any `json:",omitzero"` // may hold "configdrive": encrypted at rest, masked on the API
	InstanceUUID string         `json:",omitzero"` // unique when not empty
	InstanceName string         `json:",omitzero"`
	// DeployedBy is who requested the deployment that is on the node, as histories name people; empty without one.
	DeployedBy string `json:",omitzero"`

	Provision          State     `json:",omitzero"`
	TargetProvision    State     `json:",omitzero"` // None when nothing is under way
	ProvisionUpdatedAt time.Time `json:",omitzero"`
	Power              string    `json:",omitzero"` // power.State's words; "" is unknown (null on the API)
	// "power on", "power off", "rebooting", "soft rebooting", "soft power off", or ""
	TargetPower       string    `json:",omitzero"`
	LastError         string    `json:",omitzero"`
	LastErrorOf       string    `json:",omitzero"` // the fault that LastError reports, with which it is taken back
	Reservation       string    `json:",omitzero"` // who holds the short lock, "" if it is free
	ReservedAt        time.Time `json:",omitzero"`
	Maintenance       bool      `json:",omitzero"`
	MaintenanceReason string    `json:",omitzero"`
	// "power failure", "clean failure", ... ; apart from the operator's maintenance
	Fault          string `json:",omitzero"`
	ConsoleEnabled bool   `json:",omitzero"`

	InspectionStartedAt  time.Time `json:",omitzero"`
	InspectionFinishedAt time.Time `json:",omitzero"`
	// DiscoveredAt is when the node was created because an unknown machine booted the agent. Zero: a client created the
	// node.
	DiscoveredAt time.Time `json:",omitzero"`

	ResourceClass   string      `json:",omitzero"`
	ConductorGroup  string      `json:",omitzero"`
	Owner           string      `json:",omitzero"`
	Lessee          string      `json:",omitzero"`
	LeasedAt        time.Time   `json:",omitzero"` // when Lessee was set, by the store: a lessee sees nothing of before
	Description     string      `json:",omitzero"`
	Protected       bool        `json:",omitzero"`
	ProtectedReason string      `json:",omitzero"`
	Retired         bool        `json:",omitzero"`
	RetiredReason   string      `json:",omitzero"`
	AutomatedClean  *bool       `json:",omitzero"` // nil: the configuration's choice
	DisablePowerOff bool        `json:",omitzero"`
	Quarantine      *Quarantine `json:",omitzero"` // nil: none
	ChassisUUID     string      `json:",omitzero"`
	ParentNode      string      `json:",omitzero"`
	Shard           string      `json:",omitzero"`
	// Blank names the attributes that were set to an empty string: on the API that is not the same as none.
	Blank          []string       `json:",omitzero"`
	AllocationUUID string         `json:",omitzero"`
	NetworkData    map[string]any `json:",omitzero"`
	Traits         []string       `json:",omitzero"`
	RAIDConfig     map[string]any `json:",omitzero"`
	TargetRAID     map[string]any `json:",omitzero"`
	// "boot", "power", ... -> name; missing ones take the hardware type's default
	Interfaces map[string]string   `json:",omitzero"`
	BootMode   string              `json:",omitzero"` // observed: "bios", "uefi" or ""
	SecureBoot *bool               `json:",omitzero"` // observed; nil: not known
	Health     string              `json:",omitzero"` // as the controller says: HealthOK, ... or ""
	BIOS       []BIOSSetting       `json:",omitzero"` // as they were last read, by name
	Firmware   []FirmwareComponent `json:",omitzero"`

	// Owner conductor and fencing number, which rises with each claim (ownership is apart from the short lock).
	Conductor string `json:",omitzero"`
	Fence     uint64 `json:",omitzero"`

	// SystemGUIDs is the machine's identity as its BMC reported it at manage, in the byte orders that firmware uses; it
	// admits the machine to network boot.
	SystemGUIDs []string `json:",omitzero"`

	// ControllerRows are the rows of the table of what controllers do otherwise that apply to its controller.
	ControllerRows []string `json:",omitzero"`

	Job  *Job  `json:",omitzero"` // work in progress; nil when there is none
	Boot *Boot `json:",omitzero"` // the newest boot of the agent on this machine; nil before the first
	// MediaInserted: an image of a boot may be in the controller's virtual drive, and is ejected once the boot is over.
	MediaInserted bool `json:",omitzero"`
	// InstanceDisc: the medium in the controller's virtual drive is the instance's own (boot_iso), and stays as long as
	// the instance does.
	InstanceDisc bool `json:",omitzero"`
	// DriveWindow is when the machine may fetch the config drive of its workload, which runs from memory; nil: not now.
	DriveWindow *DriveWindow `json:",omitzero"`
	// Warmth is why the node could not be made warm, or what its disk could not be given ahead, when that was last
	// tried; nil when it went well.
	Warmth *Warmth `json:",omitzero"`

	// Past has the newest job of each phase that is over, with what came out of its steps, but without their arguments.
	Past map[Phase]*Job `json:",omitzero"`

	// Generation rises with every boot that the conductor starts and every plan it sends; it fences off older agents.
	Generation uint64 `json:",omitzero"`

	// AgentTokenHash is the SHA-256 (hex) of the token that a stock agent got from lookup, AgentURL the address at
	// which it can be called back. Both are empty for Ingot's own agent.
	AgentTokenHash string `json:",omitzero"`
	AgentURL       string `json:",omitzero"`

	CreatedAt time.Time `json:",omitzero"`
	UpdatedAt time.Time `json:",omitzero"`
	// Version rises with every update; the store refuses an update of an older one.
	Version uint64 `json:",omitzero"`
}

// BIOSSetting is one setting of a node's firmware; attributes that its registry lacks are zero or nil.
type BIOSSetting struct {
	Name, Value   string
	AttributeType string // "Enumeration", "String", "Integer", "Boolean", "Password"
	Allowable     []string
	LowerBound    *int
	UpperBound    *int
	MinLength     *int
	MaxLength     *int
	ReadOnly      *bool
	ResetRequired *bool
	Unique        *bool // says of one machine only
	CreatedAt     time.Time
	UpdatedAt     time.Time // zero until the first change
}

// Port is one Ethernet interface of a node.
type Port struct {
	UUID            string `json:",omitzero"`
	NodeUUID        string `json:",omitzero"`
	Address         string `json:",omitzero"` // MAC, lower case with colons; unique
	Name            string `json:",omitzero"`
	Description     string `json:",omitzero"`
	PXEEnabled      bool   `json:",omitzero"`
	PhysicalNetwork string `json:",omitzero"`
	PortgroupUUID   string `json:",omitzero"`
	Vendor          string `json:",omitzero"`
	Category        string `json:",omitzero"`
	// may not become a member of a port group that is made for one attachment
	NoDynamicPortgroup  bool           `json:",omitzero"`
	IsSmartNIC          bool           `json:",omitzero"`
	LocalLinkConnection map[string]any `json:",omitzero"`
	Extra               map[string]any `json:",omitzero"`
	InternalInfo        map[string]any `json:",omitzero"`
	CreatedAt           time.Time      `json:",omitzero"`
	UpdatedAt           time.Time      `json:",omitzero"`
	Revision            uint64         `json:",omitzero"` // rises with every change that is stored
}

// Phase is the purpose of a job.
type Phase string

// Phases of work.
const (
	PhaseVerify  Phase = "verify"
	PhaseInspect Phase = "inspect"
	PhaseClean   Phase = "clean"
	PhaseDeploy  Phase = "deploy"
	PhaseDelete  Phase = "delete" // tear-down, up to the cleaning that follows
	PhaseAdopt   Phase = "adopt"
	PhaseRescue  Phase = "rescue"
	PhaseUnresc  Phase = "unrescue"
	PhaseService Phase = "service"
	// PhaseDiscover is the inspection of a machine that enrolled itself, in state enroll. It does nothing to the
	// machine's power.
	PhaseDiscover Phase = "discover"
	// PhaseWarm boots the agent of a node that is available, and PhaseCool turns that agent's machine off. The node
	// stays available.
	PhaseWarm  Phase = "warm"
	PhaseCool  Phase = "cool"
	PhasePower Phase = "power" // a power action requested by a client, in any stable state
)

// Job is the work in progress on a node: a list of steps and how far it is. It is stored with the node, in the same
// transaction as the state, before anything is done, so that any conductor can go on from it.
type Job struct {
	ID        string    `json:"id"`
	Phase     Phase     `json:"phase"`
	Steps     []JobStep `json:"steps"`
	Index     int       `json:"index"` // the step that runs or runs next
	StartedAt time.Time `json:"started_at"`
	Requester string    `json:"requester,omitempty"`
	Project   string    `json:"project,omitempty"` // that the requester asked in
	// Target is where a job that may end in more than one state goes: clean leads to available or manageable.
	Target State `json:"target,omitempty"`

	// Of the running step:
	Attempt   int       `json:"attempt"`              // counts from 1; 0: not begun
	BegunAt   time.Time `json:"begun_at,omitzero"`    // of this attempt
	NotBefore time.Time `json:"not_before,omitzero"`  // back-off or Rerun
	Note      string    `json:"note,omitempty"`       // where inside its act a conductor step is; its own words
	PlanID    string    `json:"plan_id,omitempty"`    // of the run of in-band steps that was sent, or is to be sent
	PlanGen   uint64    `json:"plan_gen,omitempty"`   //
	PlanFirst int       `json:"plan_first,omitempty"` // index in Steps of the plan's first step
	PlanSent  time.Time `json:"plan_sent,omitzero"`   //
	Boots     int       `json:"boots,omitempty"`      // how often the agent was booted for this job
	// how often the machine was started anew because its installed system ran instead of the agent
	Systems int       `json:"systems,omitempty"`
	Abort   bool      `json:"abort,omitempty"`   // requested; takes effect when the step allows it
	Why     string    `json:"why,omitempty"`     // it is to be aborted, if no user has requested that
	Failure string    `json:"failure,omitempty"` // why the job failed; its remaining steps clean up
	Detail  string    `json:"detail,omitempty"`  // for humans: "waiting for the agent since ..."
	EndedAt time.Time `json:"ended_at,omitzero"` // of a job that is over, see Node.Past
	// ID of the job whose boot of the agent this one took over; the boot's first marks are that one's
	Adopted string `json:"adopted,omitempty"`
	// Sign is the first sign of life of the system that the job started; nil while there was none, or none is asked
	// for.
	Sign *SignOfLife `json:"sign,omitempty"`
}

// JobStep is one step of a job.
type JobStep struct {
	Interface string          `json:"interface"`
	Name      string          `json:"step"`
	Args      json.RawMessage `json:"args,omitempty"`
	Priority  int             `json:"priority"`
	InBand    bool            `json:"in_band"`
	// done by the implementation of the node's interface of that name, see conductor/hardware
	Plug      bool            `json:"plug,omitempty"`
	Abortable bool            `json:"abortable,omitempty"`
	Stall     time.Duration   `json:"stall,omitempty"`
	Status    StepStatus      `json:"status"`
	Result    json.RawMessage `json:"result,omitempty"`
	ResultRef string          `json:"result_ref,omitempty"` // of a LargeResult, of which Result has the size only
	StartedAt time.Time       `json:"started_at,omitzero"`
	EndedAt   time.Time       `json:"ended_at,omitzero"`
	// Under means that the agent runs the step as part of the preceding step of the plan, which requested it: it has no
	// place of its own in the plan.
	Under bool `json:"under,omitempty"`
	// Memory is for the next call of a step of an interface.
	Memory []byte `json:"memory,omitempty"`
	// RunsAgain is when a step that asked to be run again will be; zero while it runs, and else.
	RunsAgain time.Time `json:"runs_again,omitzero"`
}

// SetResult replaces what came out of the step.
func (s *JobStep) SetResult(r json.RawMessage) { s.Result, s.ResultRef = r, "" }

// StepStatus is how far one step is.
type StepStatus string

// Step statuses.
const (
	StepPending StepStatus = ""
	StepRunning StepStatus = "running"
	StepDone    StepStatus = "done"
	StepFailed  StepStatus = "failed"
)

// Current returns the step that runs or runs next, or nil after the last.
func (j *Job) Current() *JobStep {
	if j == nil || j.Index < 0 || j.Index >= len(j.Steps) {
		return nil
	}
	return &j.Steps[j.Index]
}

// Boot is one boot of the agent on a machine, from the moment the conductor decides on it.
type Boot struct {
	// Window: while it is open the machine's DHCP and boot requests are answered.
	OpenedAt time.Time `json:"opened_at"`
	ClosesAt time.Time `json:"closes_at"`
	ClosedAt time.Time `json:"closed_at,omitzero"` // set by enrolment or when the job ends
	// Token: SHA-256 (hex) of the newest one served; each serving voids the one before.
	TokenHash    string    `json:"token_hash,omitempty"`
	TokenExpires time.Time `json:"token_expires,omitzero"`
	TokensServed int       `json:"tokens_served,omitempty"`
	// Enrolment, empty before it.
	BootID     string    `json:"boot_id,omitempty"`
	KeyHash    string    `json:"key_hash,omitempty"` // SHA-256 (hex) of the CSR's public key (PKIX DER)
	EnrolledAt time.Time `json:"enrolled_at,omitzero"`
	CertSerial string    `json:"cert_serial,omitempty"`
	Generation uint64    `json:"generation"`
	Firmware   string    `json:"firmware,omitempty"` // "bios" or "uefi", as the agent said
	// Media: the machine boots from virtual media, and is not served over the network.
	Media bool `json:"media,omitempty"`
	// Session.
	Address   string    `json:"address,omitempty"` // where it came from
	Connected bool      `json:"connected,omitempty"`
	LostAt    time.Time `json:"lost_at,omitzero"` // when the stream broke; zero while connected
	AckedSeq  uint64    `json:"acked_seq,omitempty"`
	Ended     bool      `json:"ended,omitempty"` // powered off, rebooted or torn down: certificate is void
	// Kept: no job needs the agent, and it stays connected for the next one (fast track).
	Kept bool `json:"kept,omitempty"`
	// System is the installed system that was seen instead of the agent; nil: none was.
	System *SystemSeen `json:"system,omitempty"`
	// Staged is the image that was written ahead in this boot, and not committed; nil when there is none.
	Staged *Staged `json:"staged,omitempty"`
}

// BootImagePath is where images for virtual media are served. What follows in their addresses is a secret.
const BootImagePath = "/boot-image/"

// WindowOpen reports whether the machine's boot requests are to be answered at t.
func (b *Boot) WindowOpen(t time.Time) bool {
	return b != nil && !b.OpenedAt.IsZero() && b.ClosedAt.IsZero() && t.Before(b.ClosesAt)
}

// HistoryEntry is one line of a node's history.
type HistoryEntry struct {
	UUID     string
	NodeUUID string
	At       time.Time
	// "provisioning", "power", "enrolment", "boot", "monitoring", or of a flow: "deployment_start", "deployment_end"
	Type      string
	Severity  string // "INFO", "WARNING", "ERROR"
	Event     string // one sentence
	Conductor string
	User      string
	Project   string // that User asked in; empty when it is not known
	// State and Target are the node's states when the line was written, Seconds is how long it had been in State; nil:
	// not known. Where State is empty the store takes all three from the node as it is stored.
	State, Target State
	Seconds       *int
	// Foreign says that another system wrote the line: where State is empty it stays unknown.
	Foreign bool
}

// WholeSeconds are those from a time to another, or nil where the first is not known.
func WholeSeconds(from, to time.Time) *int {
	if from.IsZero() {
		return nil
	}
	return new(max(0, int(to.Sub(from)/time.Second)))
}

// Mark is one point on a node's time line: "power on", "dhcp discover", "boot script", "kernel started", "step
// write_image done".
type Mark struct {
	NodeUUID string
	JobID    string
	Name     string
	At       time.Time
	Detail   string
}

// SideEffects are stored together with a change of a node, in the same transaction. NodeUUID and empty times are filled
// in.
type SideEffects struct {
	History   []HistoryEntry
	Marks     []Mark
	Ports     []Port // new ones; one whose address is taken is left out
	PortEdits []PortEdit
	GonePorts []string // UUIDs of the node's ports that are removed
	Inventory []byte   // JSON; nil: as it was
	Results   []LargeResult
}

// LargeResult is the result of a step that is stored apart from its node.
type LargeResult struct {
	Ref string // unguessable, so that it is one of the node's alone
	Doc json.RawMessage
}

// PortEdit is a change of a port of the node. What differs between Was and Is is stored, whatever has become of the
// rest of the port since it was read; a port that is gone is left so. One that can't be stored, because its name is
// taken, is left as it is, with a line in the history.
type PortEdit struct {
	Was, Is Port
}

// Count is how many nodes have the same states, fault and owner.
type Count struct {
	State                   State
	Power, Fault, Conductor string
	Maintenance             bool
	Nodes                   int
	Since                   time.Time // when the first of them came into State
}

// declinedMark begins the MAC of the lease of an address that another host uses.
const declinedMark = "declined "

// DeclinedLease keeps an address from being leased until a time, because a machine found it in use.
func DeclinedLease(ip string, until time.Time) Lease {
	return Lease{MAC: declinedMark + ip, IP: ip, ExpiresAt: until}
}

// Declined reports whether a lease is no machine's, but keeps its address from being leased.
func (l Lease) Declined() bool { return strings.HasPrefix(l.MAC, declinedMark) }

// Lease is an address on the provisioning network.
type Lease struct {
	MAC       string
	IP        string
	NodeUUID  string
	ExpiresAt time.Time
}
