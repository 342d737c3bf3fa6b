package rest

// Allocation is a request for a node, and the node it got, as the API shows it.
type Allocation struct {
	UUID           string         `json:"uuid"`
	CreatedAt      NullTime       `json:"created_at"`
	UpdatedAt      NullTime       `json:"updated_at"`
	CandidateNodes []string       `json:"candidate_nodes"`
	Extra          map[string]any `json:"extra"`
	LastError      Null           `json:"last_error"`
	Name           Null           `json:"name"`
	Owner          Null           `json:"owner"`
	ResourceClass  Null           `json:"resource_class"`
	State          string         `json:"state"`
	Traits         []string       `json:"traits"`
	Links          []Link         `json:"links"`
	NodeUUID       Null           `json:"node_uuid"`
}

// AllocationFields is the table of an allocation's fields.
var AllocationFields = Fields[Allocation]{
	{"uuid", 1, true, func(x *Allocation) any { return x.UUID }},
	{"created_at", 1, true, func(x *Allocation) any { return x.CreatedAt }},
	{"updated_at", 1, true, func(x *Allocation) any { return x.UpdatedAt }},
	{"candidate_nodes", 1, false, func(x *Allocation) any { return orNone(x.CandidateNodes) }},
	{"extra", 1, false, func(x *Allocation) any { return orEmpty(x.Extra) }},
	{"last_error", 1, true, func(x *Allocation) any { return x.LastError }},
	{"name", 1, true, func(x *Allocation) any { return x.Name }},
	{"owner", VersionAllocOwner, true, func(x *Allocation) any { return x.Owner }},
	{"resource_class", 1, true, func(x *Allocation) any { return x.ResourceClass }},
	{"state", 1, true, func(x *Allocation) any { return x.State }},
	{"traits", 1, false, func(x *Allocation) any { return orNone(x.Traits) }},
	{"links", 1, false, func(x *Allocation) any { return orNone(x.Links) }},
	{"node_uuid", 1, false, func(x *Allocation) any { return x.NodeUUID }},
}
