package node

import (
	"strings"
	"time"
)

// Names of marks. The component that sees an event writes the mark with the ID of the node's job. The time line, the
// table of phases, and the explanation of a boot that got stuck are made from marks.
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
	MarkKexecAsked  = "kexec requested"      // of the agent
	MarkKexec       = "kexec"                // the agent has left, and the system's kernel starts
	MarkSign        = "sign of life"         // of the deployed system; Detail: which
	// when it had answered; Detail: the request and how long it took, see CallDetail
	MarkBMC    = "controller called"
	MarkMedia  = "boot image inserted" // into the virtual drive
	MarkReset  = "reset requested"     // of a machine that stays on
	MarkRetry  = "waits to try again"  // Detail: why
	MarkPaused = "paused"              // while the node is in maintenance

	// By network boot and enrolment, in the order in which a machine goes through them.
	MarkDHCP = "dhcp answered" // Detail: address, boot file
	// it requests an address, and the agent was to boot; Detail: MAC, class of its DHCP client
	MarkSystem       = "installed system up"
	MarkBootProgram  = "boot program fetched" // over TFTP; Detail: file
	MarkMediaRead    = "boot image read"      // first by the BMC
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

// CallDetail is the Detail of a MarkBMC.
func CallDetail(op string, took time.Duration) string {
	return op + " took " + took.Round(time.Millisecond).String()
}

// ParseCall reads the Detail of a MarkBMC. One that can't be read took no time.
func ParseCall(detail string) (op string, took time.Duration) {
	i := strings.LastIndex(detail, " took ")
	if i < 0 {
		return detail, 0
	}
	took, err := time.ParseDuration(detail[i+len(" took "):])
	if err != nil || took < 0 {
		return detail, 0
	}
	return detail[:i], took
}
