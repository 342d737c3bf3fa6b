package node

// Names of marks. Whoever sees the thing happen writes the mark with the ID of the node's job; the time line, the table of where
// the time went, and the explanation of a boot that got stuck are made from them.
const (
	// By the engine.
	MarkRequested   = "requested"            // a job begins; Detail is its phase
	MarkWindow      = "boot window opened"   //
	MarkOffAsked    = "power off requested"  //
	MarkOff         = "power is off"         // as the BMC says
	MarkBootDevice  = "boot device set"      // Detail: device, mode
	MarkOnAsked     = "power on requested"   //
	MarkOn          = "power is on"          // as the BMC says
	MarkSession     = "agent connected"      //
	MarkSessionLost = "agent disconnected"   //
	MarkPlan        = "plan sent"            // Detail: its steps
	MarkStepBegan   = "step started"         // Detail: the step
	MarkStepDone    = "step done"            // Detail: the step
	MarkStepFailed  = "step failed"          // Detail: the step and why
	MarkState       = "provision state"      // Detail: the new state
	MarkBootAgain   = "agent is booted anew" // Detail: why

	// By network boot and enrolment, in the order in which a machine goes through them.
	MarkDHCP         = "dhcp answered"        // Detail: address, boot file
	MarkBootProgram  = "boot program fetched" // over TFTP; Detail: file
	MarkBootScript   = "boot script fetched"  //
	MarkKernel       = "kernel fetched"       // last byte sent
	MarkRamdisk      = "ramdisk fetched"      // last byte sent
	MarkKernelStart  = "kernel started"       // from the agent's uptime at enrolment
	MarkAgentStart   = "agent started"        // likewise
	MarkEnrolRefused = "enrolment refused"    // Detail: why
	MarkEnrolled     = "agent enrolled"       //
	MarkImageFetch   = "image download began" // when the conductor serves the image
	MarkImageFetched = "image download ended" //
)
