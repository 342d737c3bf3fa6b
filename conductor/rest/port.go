package rest

// Port is an Ethernet interface of a node as the API shows it.
type Port struct {
	UUID                string         `json:"uuid"`
	CreatedAt           NullTime       `json:"created_at"`
	UpdatedAt           NullTime       `json:"updated_at"`
	Address             string         `json:"address"`
	AvailableForDynamic bool           `json:"available_for_dynamic_portgroup"`
	Category            Null           `json:"category"`
	Description         Null           `json:"description"`
	Extra               map[string]any `json:"extra"`
	InternalInfo        map[string]any `json:"internal_info"`
	IsSmartNIC          bool           `json:"is_smartnic"`
	LocalLinkConnection map[string]any `json:"local_link_connection"`
	Name                Null           `json:"name"`
	PhysicalNetwork     Null           `json:"physical_network"`
	PXEEnabled          bool           `json:"pxe_enabled"`
	NodeUUID            string         `json:"node_uuid"`
	PortgroupUUID       Null           `json:"portgroup_uuid"`
	Vendor              Null           `json:"vendor"`
	Links               []Link         `json:"links"`
}

// PortFields is the table of a port's fields.
var PortFields = Fields[Port]{
	{"uuid", 1, true, func(p *Port) any { return p.UUID }},
	{"created_at", 1, true, func(p *Port) any { return p.CreatedAt }},
	{"updated_at", 1, true, func(p *Port) any { return p.UpdatedAt }},
	{"address", 1, true, func(p *Port) any { return p.Address }},
	{"available_for_dynamic_portgroup", VersionDynamicGroups, true, func(p *Port) any { return p.AvailableForDynamic }},
	{"category", 101, true, func(p *Port) any { return p.Category }},
	{"description", 97, true, func(p *Port) any { return p.Description }},
	{"extra", 1, false, func(p *Port) any { return orEmpty(p.Extra) }},
	{"internal_info", 18, false, func(p *Port) any { return orEmpty(p.InternalInfo) }},
	{"is_smartnic", 53, true, func(p *Port) any { return p.IsSmartNIC }},
	{"local_link_connection", 19, false, func(p *Port) any { return orEmpty(p.LocalLinkConnection) }},
	{"name", VersionPortName, true, func(p *Port) any { return p.Name }},
	{"physical_network", 34, true, func(p *Port) any { return p.PhysicalNetwork }},
	{"pxe_enabled", 19, true, func(p *Port) any { return p.PXEEnabled }},
	{"node_uuid", 1, false, func(p *Port) any { return p.NodeUUID }},
	{"portgroup_uuid", 24, false, func(p *Port) any { return p.PortgroupUUID }},
	{"vendor", 100, true, func(p *Port) any { return p.Vendor }},
	{"links", 1, false, func(p *Port) any { return orNone(p.Links) }},
}

// PortListFields are the fields of a list without detail.
var PortListFields = []string{"uuid", "address", "links"}
