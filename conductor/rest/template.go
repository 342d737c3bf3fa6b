package rest

// DeployTemplate is a list of deploy steps as the API shows it.
type DeployTemplate struct {
	UUID      string         `json:"uuid"`
	CreatedAt NullTime       `json:"created_at"`
	UpdatedAt NullTime       `json:"updated_at"`
	Name      string         `json:"name"`
	Extra     map[string]any `json:"extra"`
	Links     []Link         `json:"links"`
	Steps     []Object       `json:"steps"`
}

// DeployTemplateFields is the table of a deploy template's fields.
var DeployTemplateFields = Fields[DeployTemplate]{
	{"uuid", 1, true, func(x *DeployTemplate) any { return x.UUID }},
	{"created_at", 1, true, func(x *DeployTemplate) any { return x.CreatedAt }},
	{"updated_at", 1, true, func(x *DeployTemplate) any { return x.UpdatedAt }},
	{"name", 1, true, func(x *DeployTemplate) any { return x.Name }},
	{"extra", 1, false, func(x *DeployTemplate) any { return orEmpty(x.Extra) }},
	{"links", 1, false, func(x *DeployTemplate) any { return orNone(x.Links) }},
	{"steps", 1, false, func(x *DeployTemplate) any { return orNone(x.Steps) }},
}

// Runbook is a list of clean or service steps as the API shows it.
type Runbook struct {
	UUID           string         `json:"uuid"`
	CreatedAt      NullTime       `json:"created_at"`
	UpdatedAt      NullTime       `json:"updated_at"`
	Name           string         `json:"name"`
	Extra          map[string]any `json:"extra"`
	Public         bool           `json:"public"`
	Owner          Null           `json:"owner"`
	DisableRamdisk bool           `json:"disable_ramdisk"`
	Description    Null           `json:"description"`
	Links          []Link         `json:"links"`
	Steps          []Object       `json:"steps"`
	Traits         []string       `json:"traits"`
}

// RunbookFields is the table of a runbook's fields.
var RunbookFields = Fields[Runbook]{
	{"uuid", 1, true, func(x *Runbook) any { return x.UUID }},
	{"created_at", 1, true, func(x *Runbook) any { return x.CreatedAt }},
	{"updated_at", 1, true, func(x *Runbook) any { return x.UpdatedAt }},
	{"name", 1, true, func(x *Runbook) any { return x.Name }},
	{"extra", 1, false, func(x *Runbook) any { return orEmpty(x.Extra) }},
	{"public", 1, true, func(x *Runbook) any { return x.Public }},
	{"owner", 1, true, func(x *Runbook) any { return x.Owner }},
	{"disable_ramdisk", 1, true, func(x *Runbook) any { return x.DisableRamdisk }},
	{"description", VersionRunbookTraits, true, func(x *Runbook) any { return x.Description }},
	{"links", 1, false, func(x *Runbook) any { return orNone(x.Links) }},
	{"steps", 1, false, func(x *Runbook) any { return orNone(x.Steps) }},
	{"traits", VersionRunbookTraits, false, func(x *Runbook) any { return orNone(x.Traits) }},
}

// NamedListFields are the fields of lists of templates and runbooks without detail.
var NamedListFields = []string{"uuid", "name"}
