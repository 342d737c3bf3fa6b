package rest

// Pool is a policy that keeps available nodes warm: booted into the agent, so that a deployment needs no firmware.
type Pool struct {
	UUID        string `json:"uuid"`
	Name        string `json:"name"`
	Description Null   `json:"description"`
	// The nodes that it is for. Null is any; the conductor group "" is the one without a name.
	ConductorGroup *string        `json:"conductor_group"`
	ResourceClass  Null           `json:"resource_class"`
	Count          int            `json:"count"`
	Percent        int            `json:"percent"`
	MaxOn          int            `json:"max_on"`    // 0: no limit
	MaxWatts       int            `json:"max_watts"` // 0: no limit
	WattsPerNode   int            `json:"watts_per_node"`
	Image          map[string]any `json:"image" shape:"null"`
	CreatedAt      NullTime       `json:"created_at"`
	UpdatedAt      NullTime       `json:"updated_at"`

	// As it is now.
	Matching int    `json:"matching"` // nodes that belong to it
	Wanted   int    `json:"wanted"`
	Warm     int    `json:"warm"`
	Warming  int    `json:"warming"`
	On       int    `json:"on"`
	Watts    int    `json:"watts"`
	Short    Null   `json:"short"`           // why fewer are warm than wanted
	Nodes    []Warm `json:"nodes,omitempty"` // of one pool
}

// Pools is a list of them.
type Pools struct {
	Pools []Pool `json:"pools"`
}

// Warm is where a node stands on its way to being warm.
type Warm struct {
	NodeUUID string `json:"node_uuid"`
	Name     Null   `json:"name"`
	Pool     Null   `json:"pool"`
	// State is "warm", "warming", "staging" (warm, and an image is being written ahead), "cooling", "cold", "lost" (its
	// agent is out of reach), "busy", or "out" (it is not available).
	State       string   `json:"state"`
	Since       NullTime `json:"since"`
	Staged      Null     `json:"staged"` // digest of the image that was written ahead
	On          bool     `json:"on"`
	Watts       int      `json:"watts"`
	Reason      Null     `json:"reason"`   // why it is not warm
	Failures    int      `json:"failures"` // in a row
	LastFailure Null     `json:"last_failure"`
	StageFault  Null     `json:"stage_failure"` // why the pool's image was not written
}
