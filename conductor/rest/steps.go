package rest

// Steps lists the steps of a node's work: the answer of GET /ingot/v1/nodes/{node}/steps.
type Steps struct {
	NodeUUID string    `json:"node_uuid"`
	Job      *Job      `json:"job"`  // under way
	Past     []PastJob `json:"past"` // the newest of each phase that is over, the newest first
}

// PastJob is a job that is over.
type PastJob struct {
	Job
	EndedAt NullTime `json:"ended_at"`
	Failure Null     `json:"failure"` // why it failed
}

// Plan lists the steps that a change of provision state would begin: the answer of POST /ingot/v1/nodes/{node}/plan.
type Plan struct {
	NodeUUID string     `json:"node_uuid"`
	Target   string     `json:"target"`
	Phase    string     `json:"phase"` // "" when there is nothing to do but to change the state
	Steps    []PlanStep `json:"steps"`
	// Refused is why the request would be refused now although its steps make sense, such as the node's state.
	Refused Null `json:"refused"`
}

// PlanStep is one step of a Plan, with the arguments that it would run with; secrets are masked.
type PlanStep struct {
	Interface string         `json:"interface"`
	Step      string         `json:"step"`
	Priority  int            `json:"priority"`
	InBand    bool           `json:"in_band"`
	Abortable bool           `json:"abortable"`
	Args      map[string]any `json:"args"`
}

// ItemProgress is how far the running step is with one of several things that it works on at the same time, such as a
// disk.
type ItemProgress struct {
	Name  string `json:"name"`
	Bytes uint64 `json:"bytes"`
	Total uint64 `json:"total"` // 0 when it is not known
	Done  bool   `json:"done"`  // over, well or not
	Error Null   `json:"error"`
}
