package rest

// Portgroup is several ports of a node that act as one, as the API shows it.
type Portgroup struct {
	UUID                     string         `json:"uuid"`
	CreatedAt                NullTime       `json:"created_at"`
	UpdatedAt                NullTime       `json:"updated_at"`
	Address                  Null           `json:"address"`
	Category                 Null           `json:"category"`
	DynamicPortgroup         bool           `json:"dynamic_portgroup"`
	Extra                    map[string]any `json:"extra"`
	InternalInfo             map[string]any `json:"internal_info"`
	Mode                     Null           `json:"mode"`
	Name                     Null           `json:"name"`
	NodeUUID                 string         `json:"node_uuid"`
	PhysicalNetwork          Null           `json:"physical_network"`
	Properties               map[string]any `json:"properties"`
	StandalonePortsSupported bool           `json:"standalone_ports_supported"`
	Links                    []Link         `json:"links"`
	Ports                    []Link         `json:"ports"`
}

// PortgroupFields is the table of a port group's fields.
var PortgroupFields = Fields[Portgroup]{
	{"uuid", VersionPortgroups, true, func(x *Portgroup) any { return x.UUID }},
	{"created_at", VersionPortgroups, true, func(x *Portgroup) any { return x.CreatedAt }},
	{"updated_at", VersionPortgroups, true, func(x *Portgroup) any { return x.UpdatedAt }},
	{"address", VersionPortgroups, true, func(x *Portgroup) any { return x.Address }},
	{"category", 103, true, func(x *Portgroup) any { return x.Category }},
	{"dynamic_portgroup", VersionDynamicGroups, true, func(x *Portgroup) any { return x.DynamicPortgroup }},
	{"extra", VersionPortgroups, false, func(x *Portgroup) any { return orEmpty(x.Extra) }},
	{"internal_info", VersionPortgroups, false, func(x *Portgroup) any { return orEmpty(x.InternalInfo) }},
	{"mode", 26, true, func(x *Portgroup) any { return x.Mode }},
	{"name", VersionPortgroups, true, func(x *Portgroup) any { return x.Name }},
	{"node_uuid", VersionPortgroups, false, func(x *Portgroup) any { return x.NodeUUID }},
	{"physical_network", VersionGroupNetwork, true, func(x *Portgroup) any { return x.PhysicalNetwork }},
	{"properties", 26, false, func(x *Portgroup) any { return orEmpty(x.Properties) }},
	{"standalone_ports_supported", VersionPortgroups, true,
		func(x *Portgroup) any { return x.StandalonePortsSupported }},
	{"links", VersionPortgroups, false, func(x *Portgroup) any { return orNone(x.Links) }},
	{"ports", VersionPortgroups, false, func(x *Portgroup) any { return orNone(x.Ports) }},
}

// PortgroupListFields are the fields of a list without detail.
var PortgroupListFields = []string{"uuid", "address", "name"}
