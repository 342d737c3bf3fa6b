package limit

import "time"

// This is the one list of bounds on requests, answers, listeners and stored data of strangers, apart from those that
// the configuration sets (conductor/config.Limits and History). docs/reference/limits.md names each of them with its
// effect; test/arch compares the values.

// HTTP connections and the bodies on them.
const (
	Refusals      = 64               // connections that are answered with 503 at one time; more are closed
	Header        = 64 << 10         // bytes of a request's header
	HeaderTime    = 10 * time.Second // from the first byte of a connection or request to the end of its header; TLS too
	IdleTime      = 2 * time.Minute  // between two requests
	StallTime     = 30 * time.Second // how long a peer may leave its data unread
	BodyTime      = 10 * time.Second // how long a body may take, and besides that
	BodyRate      = 16 << 10         // a second for each so many bytes
	AnonymousBody = 64 << 10         // of an unauthenticated request
)

// Requests of the REST API.
const (
	RequestBody = 1 << 20        // bytes of a body, unless its route has another limit
	DriveBody   = 64<<20 + 1<<20 // of a request with a config drive, which may have 64 MiB
	Inspection  = 16 << 20       // of an inventory for a node that waits for one; others are read as AnonymousBody
	Values      = 500_000        // JSON values in a body: each takes some 50 bytes of memory besides its text
	PageEntries = 1000           // entries of a page of a list
	MatchHeader = 8 << 10        // bytes of an If-Match
	MatchTags   = 100            // ETags in it: a client names those of the answers that it has read
	StreamTime  = time.Hour      // of a stream of events; then the reader has to authenticate again
)

// Requests that another conductor passes on.
const (
	PeerRequests              = 32              // to one conductor at a time
	PeerConnections           = 512             // that a conductor has open
	PeerConnectionsPerAddress = 64              // conductors may share one, as in tests
	PeerTime                  = 5 * time.Minute // of a request with its answer
	PeerAnswer                = 8 << 20         // bytes of an answer
	PeerMessage               = 11 << 20        // of a request or an answer as JSON, which takes a third more
)

// Bytes of JSON of a resource's attributes. Ironic has columns of 64 KiB for most attributes; where it has larger ones,
// Ingot has too. A config drive is stored apart from its node.
const (
	Attribute      = 64 << 10
	LargeAttribute = 1 << 20
	Document       = 1536 << 10 // all attributes of a resource together
)

// Readers of the stream of events.
const (
	EventReaders        = 512
	EventReadersPerUser = 64
)

// Reservations that have not ended.
const (
	Reservations           = 10_000
	ReservationsPerProject = 200  // that its own people asked for
	ReservedMachines       = 1000 // of one
)

// Consoles of machines that people work at through the API.
const (
	Consoles        = 16              // that a conductor has open
	ConsolesPerUser = 8               // the same of one user
	ConsoleOutput   = 256 << 10       // bytes of the newest output, for a reader who comes back
	ConsoleInput    = 4 << 10         // bytes that were typed and wait for the machine to take them
	ConsoleWait     = 8 * time.Second // of a reader for output: half of the requests to a peer may wait so
	ConsoleIdle     = 20 * time.Second
	ConsoleLife     = 8 * time.Hour
)

// Images that the conductor looks at for users: their beginnings and their tables.
const (
	ImageChecks     = 4 // at one time
	ImageCheckTime  = 20 * time.Second
	ImageCheckBytes = 64 << 20
)

// Scrapes of metrics.
const (
	ScrapesAtOnce      = 4  // that are answered at one time, at all listeners
	Scrapers           = 32 // open connections to metrics.listen
	ScrapersPerAddress = 16
)

// Agents.
const (
	AgentsAtOnce  = 16                     // that open their connections at a time, for each two processors
	AgentWait     = 7 * time.Second        // for that; then the agent is sent away and comes again
	AgentShake    = 150 * time.Millisecond // that count so many; a slower handshake is one beside them
	AgentOpen     = 2 * time.Second        // the same from the end of the handshake until the session is open
	EnrollMessage = 64 << 10               // of an agent that has no certificate yet
	EnrollTime    = 30 * time.Second       // for the request of an enrolment to arrive and be answered
	AgentMessage  = 16 << 20               // the largest message is a log bundle
	StepResult    = 1 << 20
	Inventory     = 8 << 20             // the result of an inspection has what links and disks say of themselves
	NextSteps     = 64                  // steps that one step requests
	LogLines      = 1000                // of a node, in memory
	LogLine       = 4096                // bytes of one message or attribute
	LogBundles    = 10                  // of a node, on disk
	LogBundleTime = 30 * 24 * time.Hour // from the last one until all of a deleted node are removed
)

// Jobs of a node.
const (
	KeptResult   = 64 << 10    // bytes of a step's result kept with the node; longer ones are stored apart
	KeptResults  = 256 << 10   // the same of all steps of a job
	JobSteps     = 512         // with those that steps requested
	JobArgs      = 2 << 20     // bytes of all arguments
	RuleCallTime = time.Minute // for all requests that rules make for one inspection
)

// Network boot. The source addresses of TFTP and DHCP packets can be forged, so that the answers must not be much
// larger than the requests until the receiver has shown that it exists.
const (
	BootScripts    = 10 // in one boot window: iPXE may try again, a machine that loops must end
	TFTPTransfers  = 512
	TFTPPerAddress = 8
	TFTPTime       = 5 * time.Minute  // for a whole transfer
	TFTPSilent     = 8                // transfers to an address that answered none of their packets
	TFTPForgive    = 10 * time.Second // then one more in each
	DHCPReplies    = 40               // to a machine in a row; firmware, iPXE and agent ask eight times in a start
	DHCPRefill     = time.Second      // then one more in each
	ProbeServers   = 8                // that the probe for other DHCP servers reports
	ProbeAnswers   = 1000             // that it reads
	ProbeText      = 128              // bytes of a name from the wire
)

// Logins.
const (
	LoginFailures        = 5                // wrong passwords in a row for one user from one address
	LoginRefill          = 20 * time.Second // then one more in each
	AddressFailures      = 40               // names with a wrong password from one address
	AddressRefill        = 2 * time.Second  // then one more in each
	LoginsWaitingPerUser = 4                // different passwords of a user that wait at one address
	LoginsWaiting        = 256
	KeystoneRequests     = 16        // tokens that are validated at once
	KeystoneWaiting      = 1000      // tokens that wait to be validated
	KeystoneHeader       = 128 << 10 // enough for a token, which comes in one, many times over
	KeystoneBody         = 4 << 20
)

// Sessions of the dashboard. A cookie may have 4096 bytes with its name and attributes.
const (
	SessionIdle   = 30 * time.Minute // without a request of its user
	SessionLife   = 8 * time.Hour    // in any case
	SessionCookie = 3800             // bytes
	SessionsEnded = 64               // of a user that are remembered after they were signed out
	SessionLook   = 10 * time.Second // how often a request that lasts looks whether its session has ended
	SignInBody    = 16 << 10         // bytes of a sign-in, which may have a token
)

// What a BMC may send. The fastest serial line makes 12 KB a second, some ten times that with the headers of small
// packets; more is no console.
const (
	IPMIFloodBytes = 4 << 20
	IPMIFloodTime  = 10 * time.Second
)

// Requests to a BMC over Redfish. A system with all its links has some 10 KiB, a long collection some 100 KiB.
const (
	RedfishAnswer  = 4 << 20          // bytes of an answer
	RedfishTime    = 30 * time.Second // of one request and its answer
	RedfishWaiting = 64               // requests that wait for the one that is under way
	RedfishIdle    = 5 * time.Minute  // then a session that is not used is deleted
	RedfishReading = 400              // requests of one inspection, reading of health or probe
	RedfishMembers = 1000             // of a collection that are looked at
)

// A reading of a machine's health: what of it is kept.
const (
	HealthChassis = 8
	HealthSensors = 500
	HealthParts   = 200 // that are not well; also drives that are looked at
	HealthEntries = 20  // of the controller's log, the newest
)

// BIOS settings of a machine.
const (
	RedfishSettings = 2000 // that are kept
	RedfishValues   = 64   // that are kept of those that one may have
)

// Firmware of a machine.
const (
	RedfishFirmware = 64      // components that are kept
	FirmwareFile    = 2 << 30 // bytes of a file whose checksum is compared
)

// What the store keeps.
const (
	KeptMarks       = 5000    // points of a node's time lines
	KeptEvents      = 100_000 // events for readers who come back
	KeptErasures    = 10_000  // reports of erased disks of a node
	KeptAllocations = 1000    // that got no node
)
