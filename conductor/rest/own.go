package rest

// Quarantine says whether a node in use is marked as broken.
type Quarantine struct {
	NodeUUID    string   `json:"node_uuid"`
	Quarantined bool     `json:"quarantined"`
	Reason      Null     `json:"reason"`
	Since       NullTime `json:"since"`
	By          Null     `json:"by"`
}

// Lock says who holds a node, and for what.
type Lock struct {
	NodeUUID   string   `json:"node_uuid"`
	Locked     bool     `json:"locked"`
	Holder     Null     `json:"holder"`
	Purpose    Null     `json:"purpose"`
	Since      NullTime `json:"since"`
	AgeSeconds float64  `json:"age_seconds"`
}

// Access says who the caller is and which rules let the caller act: on any object, and besides on those that the
// caller's project owns or leases. Rules have the names of Ironic's policies without "baremetal:".
type Access struct {
	User       Null     `json:"user"`
	ProjectID  Null     `json:"project_id"`
	Everywhere []string `json:"everywhere"`
	Owned      []string `json:"owned"`
	Leased     []string `json:"leased"`
	// Verbs are the targets of PUT states/provision that are known in each provision state.
	Verbs map[string][]string `json:"verbs"`
}

// Export is a disk that a machine lends to the host that is to write it.
type Export struct {
	ID            string `json:"id"` // of another boot of the machine: another
	NodeUUID      string `json:"node_uuid"`
	NodeName      Null   `json:"node_name"`
	Portal        string `json:"portal"` // HOST:PORT
	Target        string `json:"target"`
	InitiatorName string `json:"initiator_name"`
	User          string `json:"chap_user"`
	Password      string `json:"chap_password"`
	// Image has the arguments of the step write_image.
	Image map[string]any `json:"image"`
}

// Exports is the answer of GET /ingot/v1/exports.
type Exports struct {
	Exports []Export `json:"exports"`
}

// RootDisk is the choice of a node's root disk among those of its last inspection.
type RootDisk struct {
	NodeUUID string `json:"node_uuid"`
	// HintsFrom is where the hints are: instance_info, properties, or none.
	HintsFrom string           `json:"hints_from"`
	Disks     []map[string]any `json:"disks"`
	Chosen    map[string]any   `json:"chosen" shape:"null"`
	Why       string           `json:"why"`
	// Error is why no disk is chosen, and Remedy what to do.
	Error  string `json:"error"`
	Remedy string `json:"remedy"`
}

// Setting is one of the configuration, as it is in use. Secrets are "******".
type Setting struct {
	Section string `json:"section"`
	Key     string `json:"key"`
	Value   string `json:"value"`
	Default string `json:"default"`
	Text    string `json:"text"`
}

// Settings are all of them, in the order of the documentation.
type Settings struct {
	Settings []Setting `json:"settings"`
}

// ImageFile is an image that a conductor serves to machines from its folder.
type ImageFile struct {
	Name     string   `json:"name"` // as image_source names it
	Size     int64    `json:"size"` // bytes
	Modified NullTime `json:"modified_at"`
}

// ImageFiles are those of one conductor; More says that it has others.
type ImageFiles struct {
	Images []ImageFile `json:"images"`
	More   bool        `json:"more"`
}
