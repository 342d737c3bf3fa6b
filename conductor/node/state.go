package node

import (
	"fmt"
	"slices"
)

// State is a provision state, or a target of one, in Ironic's exact words.
type State string

// Provision states. The values are what API clients compare with; they never change.
const (
	None           State = "" // null on the API: no target
	Enroll         State = "enroll"
	Verifying      State = "verifying"
	Manageable     State = "manageable"
	Inspecting     State = "inspecting"
	InspectWait    State = "inspect wait"
	InspectFailed  State = "inspect failed"
	Adopting       State = "adopting"
	AdoptFailed    State = "adopt failed"
	Cleaning       State = "cleaning"
	CleanWait      State = "clean wait"
	CleanHold      State = "clean hold"
	CleanFailed    State = "clean failed"
	Available      State = "available"
	Deploying      State = "deploying"
	DeployWait     State = "wait call-back"
	DeployHold     State = "deploy hold"
	DeployFailed   State = "deploy failed"
	Active         State = "active"
	Deleting       State = "deleting"
	Error          State = "error"
	Rescuing       State = "rescuing"
	RescueWait     State = "rescue wait"
	RescueFailed   State = "rescue failed"
	Rescue         State = "rescue"
	Unrescuing     State = "unrescuing"
	UnrescueFailed State = "unrescue failed"
	Servicing      State = "servicing"
	ServiceWait    State = "service wait"
	ServiceHold    State = "service hold"
	ServiceFailed  State = "service failed"
)

// Verb makes a node change state: a client's target, or an event of the work in progress.
type Verb string

// Verbs that clients send. Their values are the targets of PUT states/provision.
const (
	Manage   Verb = "manage"
	Provide  Verb = "provide"
	Inspect  Verb = "inspect"
	Deploy   Verb = "active" // alias "deploy"
	Rebuild  Verb = "rebuild"
	Delete   Verb = "deleted" // alias "undeploy"
	Abort    Verb = "abort"
	Clean    Verb = "clean"
	Adopt    Verb = "adopt"
	DoRescue Verb = "rescue"
	Unrescue Verb = "unrescue"
	Unhold   Verb = "unhold"
	Service  Verb = "service"
)

// Verbs of the engine.
const (
	Wait   Verb = "wait"       // the agent has the next move
	Resume Verb = "resume"     // the conductor has it again
	Hold   Verb = "hold"       // a hold step parks the node
	Done   Verb = "done"       // the work ended well
	Fail   Verb = "fail"       // the work failed
	ToMgmt Verb = "manageable" // cleaning ended well and leads to manageable (manual, or retired)
)

// Transition is one row of the table: in state From, Verb leads to To; while in To the node is heading for Target.
type Transition struct {
	From   State
	Verb   Verb
	To     State
	Target State // None: a place to stay
}

// transitions is the state machine. Next reads it; nothing else decides on a state. Keep is the target "as it was".
var transitions = []Transition{
	// Enrolment.
	{Enroll, Manage, Verifying, Manageable},
	{Verifying, Done, Manageable, None},
	{Verifying, Fail, Enroll, None},

	// Inspection.
	{Manageable, Inspect, Inspecting, Manageable},
	{InspectFailed, Inspect, Inspecting, Manageable},
	{InspectFailed, Manage, Manageable, None},
	{Inspecting, Wait, InspectWait, Manageable},
	{Inspecting, Done, Manageable, None},
	{Inspecting, Fail, InspectFailed, Manageable},
	{InspectWait, Resume, Inspecting, Manageable},
	{InspectWait, Done, Manageable, None},
	{InspectWait, Fail, InspectFailed, Manageable},
	{InspectWait, Abort, InspectFailed, Manageable},

	// Cleaning. Automated: on the way to available. Manual: back to manageable; the target says which.
	{Manageable, Provide, Cleaning, Available},
	{Manageable, Clean, Cleaning, Manageable},
	{Cleaning, Done, Available, None},
	{Cleaning, ToMgmt, Manageable, None},
	{Cleaning, Wait, CleanWait, keep},
	{Cleaning, Hold, CleanHold, keep},
	{Cleaning, Fail, CleanFailed, keep},
	{CleanWait, Resume, Cleaning, keep},
	{CleanWait, Hold, CleanHold, keep},
	{CleanWait, Abort, CleanFailed, keep},
	{CleanWait, Fail, CleanFailed, keep},
	{CleanHold, Unhold, CleanWait, keep},
	{CleanHold, Abort, CleanFailed, keep},
	{CleanHold, Fail, CleanFailed, keep},
	{CleanFailed, Manage, Manageable, None},
	{Available, Manage, Manageable, None},

	// Deployment.
	{Available, Deploy, Deploying, Active},
	{DeployFailed, Deploy, Deploying, Active},
	{DeployFailed, Rebuild, Deploying, Active},
	{Active, Rebuild, Deploying, Active},
	{Error, Rebuild, Deploying, Active},
	{Deploying, Done, Active, None},
	{Deploying, Wait, DeployWait, Active},
	{Deploying, Hold, DeployHold, Active},
	{Deploying, Fail, DeployFailed, Active},
	{DeployWait, Resume, Deploying, Active},
	{DeployWait, Hold, DeployHold, Active},
	{DeployWait, Fail, DeployFailed, Active},
	{DeployWait, Abort, DeployFailed, Active},
	{DeployHold, Unhold, DeployWait, Active},
	{DeployHold, Abort, DeployFailed, Active},
	{DeployHold, Fail, DeployFailed, Active},

	// Tear-down.
	{Active, Delete, Deleting, Available},
	{DeployWait, Delete, Deleting, Available},
	{DeployFailed, Delete, Deleting, Available},
	{Error, Delete, Deleting, Available},
	{Rescue, Delete, Deleting, Available},
	{RescueWait, Delete, Deleting, Available},
	{RescueFailed, Delete, Deleting, Available},
	{UnrescueFailed, Delete, Deleting, Available},
	{ServiceWait, Delete, Deleting, Available},
	{ServiceFailed, Delete, Deleting, Available},
	{Deleting, Clean, Cleaning, Available},
	{Deleting, Fail, Error, Available},

	// Adoption.
	{Manageable, Adopt, Adopting, Active},
	{AdoptFailed, Adopt, Adopting, Active},
	{AdoptFailed, Manage, Manageable, None},
	{Adopting, Done, Active, None},
	{Adopting, Fail, AdoptFailed, Active},

	// Rescue.
	{Active, DoRescue, Rescuing, Rescue},
	{RescueFailed, DoRescue, Rescuing, Rescue},
	{UnrescueFailed, DoRescue, Rescuing, Rescue},
	{ServiceFailed, DoRescue, Rescuing, Rescue},
	{Rescuing, Done, Rescue, None},
	{Rescuing, Wait, RescueWait, Rescue},
	{Rescuing, Fail, RescueFailed, Rescue},
	{RescueWait, Resume, Rescuing, Rescue},
	{RescueWait, Fail, RescueFailed, Rescue},
	{RescueWait, Abort, RescueFailed, Rescue},
	{Rescue, Unrescue, Unrescuing, Active},
	{RescueFailed, Unrescue, Unrescuing, Active},
	{UnrescueFailed, Unrescue, Unrescuing, Active},
	{Unrescuing, Done, Active, None},
	{Unrescuing, Fail, UnrescueFailed, Active},

	// Service.
	{Active, Service, Servicing, Active},
	{ServiceHold, Service, Servicing, Active},
	{ServiceFailed, Service, Servicing, Active},
	{Servicing, Done, Active, None},
	{Servicing, Wait, ServiceWait, Active},
	{Servicing, Hold, ServiceHold, Active},
	{Servicing, Fail, ServiceFailed, Active},
	{ServiceWait, Resume, Servicing, Active},
	{ServiceWait, Hold, ServiceHold, Active},
	{ServiceWait, Abort, ServiceFailed, Active},
	{ServiceWait, Fail, ServiceFailed, Active},
	{ServiceHold, Unhold, ServiceWait, Active},
	{ServiceHold, Abort, ServiceFailed, Active},
	{ServiceHold, Fail, ServiceFailed, Active},
	{ServiceFailed, Abort, Active, None},
}

// keep in a row's Target means that the node goes on heading where it was heading.
const keep State = "keep"

// clients are the verbs that clients send.
var clients = []Verb{Manage, Provide, Inspect, Deploy, Rebuild, Delete, Abort, Clean, Adopt, DoRescue, Unrescue, Unhold,
	Service}

// Offered returns the verbs that clients may send for nodes of each state, in the order of the table.
func Offered() map[State][]Verb {
	offered := map[State][]Verb{}
	for _, t := range transitions {
		if slices.Contains(clients, t.Verb) && (t.From != Deleting || t.Verb != Clean) {
			offered[t.From] = append(offered[t.From], t.Verb)
		}
	}
	return offered
}

// Transitions returns a copy of the table, for tests and documentation.
func Transitions() []Transition { return append([]Transition(nil), transitions...) }

// TransitionError says that a verb is not allowed in a state.
type TransitionError struct {
	UUID  string // of the node, if known
	State State
	Verb  Verb
}

func (e *TransitionError) Error() string {
	return fmt.Sprintf("the node is in state %q, which does not allow %q", e.State, e.Verb)
}

// ProtectedError says that a request would end an instance that is protected from it.
type ProtectedError struct{ UUID string }

func (e *ProtectedError) Error() string {
	return fmt.Sprintf("Node %s is protected and cannot be undeployed, rebuilt or deleted", e.UUID)
}

// InvalidError says that a request does not fit the node's present state or settings.
type InvalidError struct{ Reason string }

func (e *InvalidError) Error() string { return e.Reason }

// Invalidf makes an *InvalidError.
func Invalidf(format string, args ...any) error {
	return &InvalidError{Reason: fmt.Sprintf(format, args...)}
}

// Next returns the state and the target that verb leads to from a node in state from heading for target.
// The error is a *TransitionError.
func Next(from, target State, verb Verb) (to, toTarget State, err error) {
	for _, t := range transitions {
		if t.From == from && t.Verb == verb {
			if t.Target == keep {
				return t.To, target, nil
			}
			return t.To, t.Target, nil
		}
	}
	return "", "", &TransitionError{State: from, Verb: verb}
}

// IsStable reports whether a node in s stays there until a client requests something.
func (s State) IsStable() bool {
	return slices.Contains([]State{Enroll, Manageable, Available, Active, Rescue}, s) || s.IsFailure()
}

// IsFailure reports whether s is a state in which failed work ends. API clients stop waiting there.
func (s State) IsFailure() bool {
	return slices.Contains([]State{
		InspectFailed, AdoptFailed, CleanFailed, DeployFailed, Error, RescueFailed, UnrescueFailed, ServiceFailed,
	}, s)
}

// IsWaiting reports whether the agent has the next move.
func (s State) IsWaiting() bool {
	return slices.Contains([]State{InspectWait, CleanWait, DeployWait, RescueWait, ServiceWait}, s)
}

// IsHeld reports whether a hold step parked the node.
func (s State) IsHeld() bool { return s == CleanHold || s == DeployHold || s == ServiceHold }

// IsWorking reports whether the conductor has the next move.
func (s State) IsWorking() bool { return !s.IsStable() && !s.IsWaiting() && !s.IsHeld() }
