package rest

// Erasure is the report of an erased disk in short.
type Erasure struct {
	UUID     string   `json:"uuid"`
	Received NullTime `json:"received_at"`
	Step     string   `json:"step"`
	Disk     string   `json:"disk"`
	Serial   string   `json:"serial"`
	WWN      string   `json:"wwn"`
	Model    string   `json:"model"`
	Size     int64    `json:"size"`
	Method   Null     `json:"method"`
	Level    string   `json:"level"`
	Result   string   `json:"result"`
	Error    Null     `json:"error"`
}

// Erasures is a list of them, newest first.
type Erasures struct {
	Erasures []Erasure `json:"erasures"`
}

// ErasureKey is the public key with which signed reports are verified, as PEM.
type ErasureKey struct {
	PublicKey string `json:"public_key"`
}
