package rest

// InspectionRule is a rule that changes nodes by what inspection found, as the API shows it. What a sensitive one does
// is not shown.
type InspectionRule struct {
	UUID        string           `json:"uuid"`
	CreatedAt   NullTime         `json:"created_at"`
	UpdatedAt   NullTime         `json:"updated_at"`
	Description Null             `json:"description"`
	Priority    int              `json:"priority"`
	Sensitive   bool             `json:"sensitive"`
	Phase       string           `json:"phase"`
	Conditions  []map[string]any `json:"conditions"` // null in sensitive ones
	Actions     []map[string]any `json:"actions"`    // null in sensitive ones
	Links       []Link           `json:"links"`
}

// InspectionRuleFields is the table of a rule's fields.
var InspectionRuleFields = Fields[InspectionRule]{
	{"uuid", VersionRules, true, func(x *InspectionRule) any { return x.UUID }},
	{"created_at", VersionRules, true, func(x *InspectionRule) any { return x.CreatedAt }},
	{"updated_at", VersionRules, true, func(x *InspectionRule) any { return x.UpdatedAt }},
	{"description", VersionRules, true, func(x *InspectionRule) any { return x.Description }},
	{"priority", VersionRules, true, func(x *InspectionRule) any { return x.Priority }},
	{"sensitive", VersionRules, true, func(x *InspectionRule) any { return x.Sensitive }},
	{"phase", VersionRules, true, func(x *InspectionRule) any { return x.Phase }},
	{"conditions", VersionRules, false, func(x *InspectionRule) any { return x.Conditions }},
	{"actions", VersionRules, false, func(x *InspectionRule) any { return x.Actions }},
	{"links", VersionRules, false, func(x *InspectionRule) any { return orNone(x.Links) }},
}

// InspectionRuleListFields are the fields of a list without detail.
var InspectionRuleListFields = []string{"uuid", "priority", "phase", "description"}
