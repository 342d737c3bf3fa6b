package rest

// VolumeConnector is how a node reaches remote storage, as the API shows it.
type VolumeConnector struct {
	UUID        string         `json:"uuid"`
	CreatedAt   NullTime       `json:"created_at"`
	UpdatedAt   NullTime       `json:"updated_at"`
	ConnectorID string         `json:"connector_id"`
	Extra       map[string]any `json:"extra"`
	Type        string         `json:"type"`
	NodeUUID    string         `json:"node_uuid"`
	Links       []Link         `json:"links"`
}

// VolumeConnectorFields is the table of a connector's fields.
var VolumeConnectorFields = Fields[VolumeConnector]{
	{"uuid", VersionVolumes, true, func(x *VolumeConnector) any { return x.UUID }},
	{"created_at", VersionVolumes, true, func(x *VolumeConnector) any { return x.CreatedAt }},
	{"updated_at", VersionVolumes, true, func(x *VolumeConnector) any { return x.UpdatedAt }},
	{"connector_id", VersionVolumes, true, func(x *VolumeConnector) any { return x.ConnectorID }},
	{"extra", VersionVolumes, false, func(x *VolumeConnector) any { return orEmpty(x.Extra) }},
	{"type", VersionVolumes, true, func(x *VolumeConnector) any { return x.Type }},
	{"node_uuid", VersionVolumes, false, func(x *VolumeConnector) any { return x.NodeUUID }},
	{"links", VersionVolumes, false, func(x *VolumeConnector) any { return orNone(x.Links) }},
}

// VolumeConnectorListFields are the fields of a list without detail.
var VolumeConnectorListFields = []string{"uuid", "node_uuid", "type", "connector_id"}

// VolumeTarget is a remote volume of a node, as the API shows it: secrets in Properties are masked.
type VolumeTarget struct {
	UUID       string         `json:"uuid"`
	CreatedAt  NullTime       `json:"created_at"`
	UpdatedAt  NullTime       `json:"updated_at"`
	BootIndex  int            `json:"boot_index"`
	Extra      map[string]any `json:"extra"`
	Properties map[string]any `json:"properties"`
	VolumeID   string         `json:"volume_id"`
	VolumeType string         `json:"volume_type"`
	NodeUUID   string         `json:"node_uuid"`
	Links      []Link         `json:"links"`
}

// VolumeTargetFields is the table of a target's fields.
var VolumeTargetFields = Fields[VolumeTarget]{
	{"uuid", VersionVolumes, true, func(x *VolumeTarget) any { return x.UUID }},
	{"created_at", VersionVolumes, true, func(x *VolumeTarget) any { return x.CreatedAt }},
	{"updated_at", VersionVolumes, true, func(x *VolumeTarget) any { return x.UpdatedAt }},
	{"boot_index", VersionVolumes, true, func(x *VolumeTarget) any { return x.BootIndex }},
	{"extra", VersionVolumes, false, func(x *VolumeTarget) any { return orEmpty(x.Extra) }},
	{"properties", VersionVolumes, false, func(x *VolumeTarget) any { return orEmpty(x.Properties) }},
	{"volume_id", VersionVolumes, true, func(x *VolumeTarget) any { return x.VolumeID }},
	{"volume_type", VersionVolumes, true, func(x *VolumeTarget) any { return x.VolumeType }},
	{"node_uuid", VersionVolumes, false, func(x *VolumeTarget) any { return x.NodeUUID }},
	{"links", VersionVolumes, false, func(x *VolumeTarget) any { return orNone(x.Links) }},
}

// VolumeTargetListFields are the fields of a list without detail.
var VolumeTargetListFields = []string{"uuid", "node_uuid", "volume_type", "boot_index", "volume_id"}
