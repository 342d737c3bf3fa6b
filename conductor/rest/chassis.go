package rest

// Chassis is a group of nodes as the API shows it.
type Chassis struct {
	UUID        string         `json:"uuid"`
	CreatedAt   NullTime       `json:"created_at"`
	UpdatedAt   NullTime       `json:"updated_at"`
	Description Null           `json:"description"`
	Extra       map[string]any `json:"extra"`
	Links       []Link         `json:"links"`
	Nodes       [][]Link       `json:"nodes"` // a list in a list: so it has always been
}

// ChassisFields is the table of a chassis' fields.
var ChassisFields = Fields[Chassis]{
	{"uuid", 1, true, func(x *Chassis) any { return x.UUID }},
	{"created_at", 1, true, func(x *Chassis) any { return x.CreatedAt }},
	{"updated_at", 1, true, func(x *Chassis) any { return x.UpdatedAt }},
	{"description", 1, true, func(x *Chassis) any { return x.Description }},
	{"extra", 1, false, func(x *Chassis) any { return orEmpty(x.Extra) }},
	{"links", 1, false, func(x *Chassis) any { return orNone(x.Links) }},
	{"nodes", 1, false, func(x *Chassis) any { return orNone(x.Nodes) }},
}

// ChassisListFields are the fields of a list without detail.
var ChassisListFields = []string{"uuid", "description"}
