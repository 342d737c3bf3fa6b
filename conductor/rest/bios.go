package rest

// BIOSSetting is one setting of a node's firmware as the API shows it.
type BIOSSetting struct {
	CreatedAt       NullTime `json:"created_at"`
	UpdatedAt       NullTime `json:"updated_at"`
	Name            string   `json:"name"`
	Value           Null     `json:"value"`
	AttributeType   Null     `json:"attribute_type"`
	AllowableValues []string `json:"allowable_values"`
	LowerBound      *int     `json:"lower_bound"`
	MaxLength       *int     `json:"max_length"`
	MinLength       *int     `json:"min_length"`
	ReadOnly        *bool    `json:"read_only"`
	ResetRequired   *bool    `json:"reset_required"`
	Unique          *bool    `json:"unique"`
	UpperBound      *int     `json:"upper_bound"`
	Links           []Link   `json:"links"`
}

// BIOSFields is the table of a setting's fields.
var BIOSFields = Fields[BIOSSetting]{
	{"created_at", 40, false, func(b *BIOSSetting) any { return b.CreatedAt }},
	{"updated_at", 40, false, func(b *BIOSSetting) any { return b.UpdatedAt }},
	{"name", 40, false, func(b *BIOSSetting) any { return b.Name }},
	{"value", 40, false, func(b *BIOSSetting) any { return b.Value }},
	{"attribute_type", VersionBIOSRegistry, false, func(b *BIOSSetting) any { return b.AttributeType }},
	{"allowable_values", VersionBIOSRegistry, false, func(b *BIOSSetting) any { return orNone(b.AllowableValues) }},
	{"lower_bound", VersionBIOSRegistry, false, func(b *BIOSSetting) any { return b.LowerBound }},
	{"max_length", VersionBIOSRegistry, false, func(b *BIOSSetting) any { return b.MaxLength }},
	{"min_length", VersionBIOSRegistry, false, func(b *BIOSSetting) any { return b.MinLength }},
	{"read_only", VersionBIOSRegistry, false, func(b *BIOSSetting) any { return b.ReadOnly }},
	{"reset_required", VersionBIOSRegistry, false, func(b *BIOSSetting) any { return b.ResetRequired }},
	{"unique", VersionBIOSRegistry, false, func(b *BIOSSetting) any { return b.Unique }},
	{"upper_bound", VersionBIOSRegistry, false, func(b *BIOSSetting) any { return b.UpperBound }},
	{"links", 40, false, func(b *BIOSSetting) any { return orNone(b.Links) }},
}

// BIOSListFields are the fields of a list without detail.
var BIOSListFields = []string{"created_at", "updated_at", "name", "value", "links"}

// Firmware is a piece of firmware in a node as the API shows it.
type Firmware struct {
	CreatedAt          NullTime `json:"created_at"`
	UpdatedAt          NullTime `json:"updated_at"`
	Component          string   `json:"component"`
	InitialVersion     Null     `json:"initial_version"`
	CurrentVersion     Null     `json:"current_version"`
	LastVersionFlashed Null     `json:"last_version_flashed"`
	Vendor             Null     `json:"vendor"`
	Model              Null     `json:"model"`
	SerialNumber       Null     `json:"serial_number"`
}

// FirmwareFields is the table of Firmware. There are no links: a component has no address.
var FirmwareFields = Fields[Firmware]{
	{"created_at", VersionFirmware, false, func(f *Firmware) any { return f.CreatedAt }},
	{"updated_at", VersionFirmware, false, func(f *Firmware) any { return f.UpdatedAt }},
	{"component", VersionFirmware, false, func(f *Firmware) any { return f.Component }},
	{"initial_version", VersionFirmware, false, func(f *Firmware) any { return f.InitialVersion }},
	{"current_version", VersionFirmware, false, func(f *Firmware) any { return f.CurrentVersion }},
	{"last_version_flashed", VersionFirmware, false, func(f *Firmware) any { return f.LastVersionFlashed }},
	{"vendor", VersionFirmwareNames, false, func(f *Firmware) any { return f.Vendor }},
	{"model", VersionFirmwareNames, false, func(f *Firmware) any { return f.Model }},
	{"serial_number", VersionFirmwareNames, false, func(f *Firmware) any { return f.SerialNumber }},
}
