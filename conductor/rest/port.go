package rest

// Port is an Ethernet interface of a node as the API shows it.
type Port struct {
	UUID                string         `json:"uuid"`
	CreatedAt           NullTime       `json:"created_at"`
	UpdatedAt           NullTime       `json:"updated_at"`
	Address             string         `json:"address"`
	Extra               map[string]any `json:"extra"`
	InternalInfo        map[string]any `json:"internal_info"`
	IsSmartNIC          bool           `json:"is_smartnic"`
	LocalLinkConnection map[string]any `json:"local_link_connection"`
	PhysicalNetwork     Null           `json:"physical_network"`
	PXEEnabled          bool           `json:"pxe_enabled"`
	NodeUUID            string         `json:"node_uuid"`
	PortgroupUUID       Null           `json:"portgroup_uuid"`
	Links               []Link         `json:"links"`
}

// PortFields is the table of a port's fields.
var PortFields = Fields[Port]{
	{"uuid", 1, true, func(p *Port) any { return p.UUID }},
	{"created_at", 1, true, func(p *Port) any { return p.CreatedAt }},
	{"updated_at", 1, true, func(p *Port) any { return p.UpdatedAt }},
	{"address", 1, true, func(p *Port) any { return p.Address }},
	{"extra", 1, false, func(p *Port) any { return orEmpty(p.Extra) }},
	{"internal_info", 18, false, func(p *Port) any { return orEmpty(p.InternalInfo) }},
	{"is_smartnic", 53, true, func(p *Port) any { return p.IsSmartNIC }},
	{"local_link_connection", 19, false, func(p *Port) any { return orEmpty(p.LocalLinkConnection) }},
	{"physical_network", 34, true, func(p *Port) any { return p.PhysicalNetwork }},
	{"pxe_enabled", 19, true, func(p *Port) any { return p.PXEEnabled }},
	{"node_uuid", 1, false, func(p *Port) any { return p.NodeUUID }},
	{"portgroup_uuid", 24, false, func(p *Port) any { return p.PortgroupUUID }},
	{"links", 1, false, func(p *Port) any { return orNone(p.Links) }},
}

// PortListFields are the fields of a list without detail.
var PortListFields = []string{"uuid", "address", "links"}
