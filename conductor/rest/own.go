package rest

// Quarantine says whether a node in use is marked as broken.
type Quarantine struct {
	NodeUUID    string   `json:"node_uuid"`
	Quarantined bool     `json:"quarantined"`
	Reason      Null     `json:"reason"`
	Since       NullTime `json:"since"`
	By          Null     `json:"by"`
}

// Lock says who holds a node, and for what.
type Lock struct {
	NodeUUID   string   `json:"node_uuid"`
	Locked     bool     `json:"locked"`
	Holder     Null     `json:"holder"`
	Purpose    Null     `json:"purpose"`
	Since      NullTime `json:"since"`
	AgeSeconds float64  `json:"age_seconds"`
}

// Access says who the caller is and which rules let the caller act: on any object, and besides on those that the
// caller's project owns or leases. Rules have the names of Ironic's policies without "baremetal:".
type Access struct {
	User       Null     `json:"user"`
	ProjectID  Null     `json:"project_id"`
	Everywhere []string `json:"everywhere"`
	Owned      []string `json:"owned"`
	Leased     []string `json:"leased"`
	// Verbs are the targets of PUT states/provision that are known in each provision state.
	Verbs map[string][]string `json:"verbs"`
}
