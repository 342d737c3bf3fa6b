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
