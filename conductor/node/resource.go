package node

import (
	"encoding/json"
	"strconv"
	"time"
)

// Head holds the fields that all resources other than nodes and ports have in common.
type Head struct {
	UUID      string
	Name      string // unique among its kind when not empty
	NodeUUID  string // the node that it belongs to and is deleted with; empty: none
	Owner     string // project; empty: none
	CreatedAt time.Time
	UpdatedAt time.Time // zero until the first change
	Revision  uint64    `json:",omitzero"` // rises with every change that is stored
	// Blank names the attributes that were set to an empty string: on the API that is not the same as none.
	Blank []string `json:",omitempty"`
}

// Resource is an entry of the store's table of resources. Meta returns the part that the store fills in; Unique returns
// values that no other resource of the same kind may have, by name, such as {"address": "52:54:..."}.
type Resource interface {
	Meta() *Head
	Unique() map[string]string
}

// Meta implements Resource for all that embed a Head.
func (h *Head) Meta() *Head { return h }

// Unique implements Resource for those that have nothing but their name.
func (h *Head) Unique() map[string]string { return nil }

// Chassis groups nodes for people.
type Chassis struct {
	Head
	Description string
	Extra       map[string]any
}

// Portgroup is several ports of a node that act as one (bond, LACP).
type Portgroup struct {
	Head
	Address                  string // MAC; empty: none of its own
	Mode                     string // "active-backup", "802.3ad", ...
	StandalonePortsSupported bool
	PhysicalNetwork          string
	Category                 string
	DynamicPortgroup         bool // made for one attachment, and gone with it
	Properties               map[string]any
	Extra                    map[string]any
	InternalInfo             map[string]any
}

// Unique implements Resource.
func (p *Portgroup) Unique() map[string]string { return some("address", p.Address) }

// VolumeConnector is how a node reaches remote storage: the name of its initiator.
type VolumeConnector struct {
	Head
	Type        string // "iqn", "ip", "mac", "wwnn", "wwpn", "port", "portgroup"
	ConnectorID string
	Extra       map[string]any
}

// Unique implements Resource.
func (v *VolumeConnector) Unique() map[string]string {
	return some("type and connector ID", v.Type+" "+v.ConnectorID)
}

// VolumeTarget is a remote volume that a node boots from or uses. Properties may hold secrets.
type VolumeTarget struct {
	Head
	VolumeType string // "iscsi", "fibre_channel"
	VolumeID   string
	BootIndex  int
	Properties map[string]any
	Extra      map[string]any
}

// Unique implements Resource.
func (v *VolumeTarget) Unique() map[string]string {
	return some("boot index", v.NodeUUID+" "+strconv.Itoa(v.BootIndex))
}

// TemplateStep is a step in a template or a runbook.
type TemplateStep struct {
	Interface string          `json:"interface"`
	Step      string          `json:"step"`
	Args      json.RawMessage `json:"args,omitempty"`
	Priority  int             `json:"priority"` // of deploy templates
	Order     int             `json:"order"`    // of runbooks
}

// DeployTemplate is a list of deploy steps that nodes with the trait of its name get.
type DeployTemplate struct {
	Head
	Description string
	Drivers     []string // hardware types it is limited to; empty: all
	Steps       []TemplateStep
	Extra       map[string]any
}

// Runbook is a named list of clean or service steps.
type Runbook struct {
	Head
	Description    string
	Public         bool
	DisableRamdisk bool
	Steps          []TemplateStep
	// nodes it may run on have one of them; requests of versions before 1.112 go by its name instead
	Traits []string
	Extra  map[string]any
}

// InspectionRule changes a node by what its inspection found.
type InspectionRule struct {
	Head
	Description string
	Phase       string // "main"
	Priority    int    // 0 to 9999; higher ones come first
	Sensitive   bool
	Conditions  []map[string]any
	Actions     []map[string]any
}

// Allocation is a request for a node that fits, and the node it got.
type Allocation struct {
	Head                  // NodeUUID is empty until a node is found
	State          string // "allocating", "active", "error"
	LastError      string
	ResourceClass  string
	Traits         []string
	CandidateNodes []string       // UUIDs
	Properties     map[string]any // required properties of the node; Ingot's own
	Extra          map[string]any
	Conductor      string
	Requester      string // who requested it, for the history of the node
}

// Allocation states.
const (
	AllocationAllocating = "allocating"
	AllocationActive     = "active"
	AllocationError      = "error"
)

func some(name, value string) map[string]string {
	if value == "" {
		return nil
	}
	return map[string]string{name: value}
}
