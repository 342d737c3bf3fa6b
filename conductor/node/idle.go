package node

// Idle holds the fields of a node without work that are needed to watch its power: few enough columns that thousands
// are read in milliseconds.
type Idle struct {
	UUID      string
	Version   uint64
	Power     string
	Fault     string
	Conductor string
}
