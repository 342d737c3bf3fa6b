package rest

// Console is a session at a node's console, which its user has begun.
type Console struct {
	NodeUUID string `json:"node_uuid"`
	Session  string `json:"session"` // is in the address of what follows, and known to its user alone
}

// ConsoleOutput is the text that a machine wrote on its console.
type ConsoleOutput struct {
	Output string `json:"output"` // base64
	Next   int64  `json:"next"`   // the place after it
	Lost   int64  `json:"lost"`   // bytes before it that are not kept any more
	Ended  Null   `json:"ended"`  // why the session has ended
}
