package rest

// RuleCheck says what an inspection rule would do to a node, given the results of its newest inspection.
type RuleCheck struct {
	NodeUUID   string       `json:"node_uuid"`
	Matched    bool         `json:"matched"`
	Conditions []bool       `json:"conditions"` // up to the first that does not hold
	Changes    []RuleChange `json:"changes"`
	Calls      []string     `json:"calls"` // URLs that api-call would get; none is called
	Notes      []RuleNote   `json:"notes"`
	Failure    Null         `json:"failure"` // why the inspection would fail
}

// RuleChange is a value that would change; null is "not there".
type RuleChange struct {
	Path string `json:"path"`
	From any    `json:"from"`
	To   any    `json:"to"`
}

// RuleNote is a line that would be written.
type RuleNote struct {
	Severity string `json:"severity"`
	Text     string `json:"text"`
}
