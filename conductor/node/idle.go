package node

// Idle is what has to be known of a node on which nothing is under way to watch its power: few enough columns that
// thousands are read in milliseconds.
type Idle struct {
	UUID      string
	Version   uint64
	Power     string
	Fault     string
	Conductor string
}
