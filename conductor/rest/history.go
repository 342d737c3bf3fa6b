package rest

// History is a line of a node's history as the API shows it.
type History struct {
	UUID      string   `json:"uuid"`
	CreatedAt NullTime `json:"created_at"`
	Severity  string   `json:"severity"`
	Type      string   `json:"event_type"`
	Event     string   `json:"event"`
	Conductor Null     `json:"conductor"`
	User      Null     `json:"user"`
	Project   Null     `json:"project"` // that User asked in
	// State and Target are the states of the node when the line was written, Seconds is how long it had been in State.
	State   Null   `json:"state"`
	Target  Null   `json:"target_provision_state"`
	Seconds *int   `json:"duration_seconds"`
	Links   []Link `json:"links"`
}

// HistoryFields is the table of the fields of a line of a node's history.
var HistoryFields = Fields[History]{
	{"uuid", 1, true, func(x *History) any { return x.UUID }},
	{"created_at", 1, true, func(x *History) any { return x.CreatedAt }},
	{"severity", 1, true, func(x *History) any { return x.Severity }},
	{"event_type", 1, true, func(x *History) any { return x.Type }},
	{"event", 1, true, func(x *History) any { return x.Event }},
	{"conductor", 1, true, func(x *History) any { return x.Conductor }},
	{"user", 1, true, func(x *History) any { return x.User }},
	{"project", VersionHistoryProject, true, func(x *History) any { return x.Project }},
	{"state", VersionHistoryStates, true, func(x *History) any { return x.State }},
	{"target_provision_state", VersionHistoryStates, true, func(x *History) any { return x.Target }},
	{"duration_seconds", VersionHistoryStates, false, func(x *History) any { return x.Seconds }},
	{"links", 1, false, func(x *History) any { return orNone(x.Links) }},
}

// HistoryListFields are the fields of a history without detail.
var HistoryListFields = []string{"uuid", "created_at", "severity", "event", "links"}
