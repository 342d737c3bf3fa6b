package trace

import (
	"cmp"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// leaf is a span without spans in it, with the groups that it is in.
type leaf struct {
	span   rest.Span
	step   string
	failed bool
	path   []group
}

// group is one run of a step, or a part of one. n is its number in the trace.
type group struct {
	name, step string
	n          int
}

// stage is how far a boot of the machine is.
type stage int

// Stages, in their order.
const (
	nowhere  stage = iota
	started        // it has power, or was restarted
	asked          // it has requested an address
	loaded         // it has a boot program
	scripted       // it has its boot script
	fetched        // it has the kernel
	complete       // it has the ramdisk
	kernel         // its kernel runs
	agent          // the agent runs
	enrolled       //
	up             // the agent is connected
)

// walk goes through the marks of a job in the order of their times. All time up to at is attributed.
type walk struct {
	at     time.Time
	leaves []leaf
	state  string // the newest provision state

	step  string // that runs; "" between steps
	run   group  // of the step that runs
	n     int    // groups so far
	inner bool   // the step that runs has leaves
	part  group  // inside the step, the part of the boot

	gap    string // the work between steps; "" is the conductor's
	stage  stage
	offing bool // power off was requested, or the agent was asked to leave
	oning  bool // power on was requested, and has not been seen
	retry  string

	leaving bool // the agent was asked to jump
	kexeced bool // the newest start of the machine was one kernel's by another
	boots   int
	kexecs  int
}

// title names steps whose names don't say what takes the time.
func title(step string) string {
	if step == "deploy" || step == "boot_agent" {
		return "boot the agent"
	}
	return step
}

// add attributes the time up to at to a leaf.
func (w *walk) add(at time.Time, l leaf) {
	if at.Before(w.at) {
		at = w.at
	}
	l.span.Begin, l.span.End, l.span.Seconds, l.span.Failed = w.at, at, at.Sub(w.at).Seconds(), l.failed
	if n := len(w.leaves) - 1; n >= 0 && at.After(w.at) && w.leaves[n].same(l) { // nothing was in between
		last := &w.leaves[n].span
		last.End, last.Seconds = at, at.Sub(last.Begin).Seconds()
		last.Detail = cmp.Or(l.span.Detail, last.Detail)
	} else {
		w.leaves = append(w.leaves, l)
	}
	w.at = at
}

func (l leaf) same(o leaf) bool {
	if l.span.Name != o.span.Name || l.failed || o.failed || l.step != "" || len(l.path) != len(o.path) {
		return false
	}
	for i := range l.path {
		if l.path[i].n != o.path[i].n {
			return false
		}
	}
	return true
}

// between attributes the time up to at, which no step took.
func (w *walk) between(at time.Time) {
	if !at.After(w.at) {
		return
	}
	name, kind := cmp.Or(w.gap, "conductor"), Conductor
	if w.gap == gapHeld || w.gap == gapPaused || w.gap == gapRetry {
		kind = Wait
	}
	w.add(at, leaf{span: rest.Span{Name: name, Kind: kind}})
}

// What a job can do between its steps, besides going on.
const (
	gapPlan   = "plan to the agent"
	gapHeld   = "held"
	gapPaused = "paused for maintenance"
	gapRetry  = "waits to try again"
)

// inside attributes the time up to at to a part of the step that runs. Without a step it is the job's.
func (w *walk) inside(at time.Time, name, kind, detail string) {
	if !at.After(w.at) {
		return
	}
	l := leaf{span: rest.Span{Name: name, Kind: kind, Detail: detail}}
	if w.step != "" {
		l.path, w.inner = append(l.path, w.run), true
	}
	part := ""
	switch {
	case kind == Network:
		part = "network boot"
	case kind == Kernel, kind == Agent:
		part = "ramdisk"
	}
	if part != "" {
		if w.part.name != part {
			w.n++
			w.part = group{name: part, n: w.n}
		}
		l.path = append(l.path, w.part)
	} else {
		w.part = group{}
	}
	w.add(at, l)
}

// rest ends the step that runs, or else the time between steps.
func (w *walk) rest(at time.Time, detail string, failed bool) {
	if w.step == "" {
		w.between(at)
		return
	}
	l := leaf{span: rest.Span{Name: title(w.step), Kind: Step, Step: w.step, Detail: detail}, step: w.step,
		failed: failed, path: []group{w.run}}
	if w.inner {
		l.step, l.span.Step = "", ""
		l.span.Name, l.span.Kind = w.waited(), Conductor
		switch {
		// it was waited for a sign of the machine in vain
		case w.stage > nowhere && w.stage < up && (failed || title(w.step) != w.step):
			l.span.Name, l.span.Kind = "no sign of the machine", Unknown
		case l.span.Name != "conductor":
			l.span.Kind = BMC
		}
		if w.retry != "" {
			l.span.Name, l.span.Kind = gapRetry, Wait
		}
	}
	if !w.inner || at.After(w.at) || failed {
		w.add(at, l)
	}
	w.step, w.inner, w.part, w.retry, w.offing, w.oning = "", false, group{}, "", false, false
}

// waited names the work of a step without a further mark.
func (w *walk) waited() string {
	if w.oning && w.stage == nowhere {
		return "power on"
	}
	if w.offing && w.stage == nowhere {
		return "power off"
	}
	return "conductor"
}

// begin begins a step.
func (w *walk) begin(name string) {
	w.n++
	w.step, w.run, w.inner, w.gap, w.retry = name, group{name: title(name), step: name, n: w.n}, false, "", ""
	if title(name) != name || name == "boot_instance" {
		w.stage = nowhere
	}
}

// took attributes the time up to m to the step that runs, unless it was spent on waiting.
func (w *walk) took(m node.Mark, name, kind string) {
	if w.retry != "" {
		w.inside(m.At, gapRetry, Wait, w.retry)
		w.retry = ""
		return
	}
	if w.step == "" && w.gap != "" {
		w.between(m.At)
		return
	}
	w.inside(m.At, name, kind, m.Detail)
}

// pending names the work since the last action, while the machine follows it.
func (w *walk) pending() (name, kind string) {
	if w.oning {
		return "power on", BMC
	}
	if w.offing {
		return "power off", BMC
	}
	return "conductor", Conductor
}

// take goes on to the next mark.
func (w *walk) take(m node.Mark) {
	switch m.Name {
	case node.MarkState:
		w.toState(m)
	case node.MarkStepBegan:
		if m.Detail == "power_off_after_failure" {
			w.gap = ""
		}
		w.rest(m.At, "", false)
		w.begin(m.Detail)
	case node.MarkStepDone:
		if m.Detail != w.step { // known only now: it ran while no conductor listened
			if w.step != "" && w.inner {
				w.rest(m.At, "", false)
			}
			w.begin(m.Detail)
		}
		w.rest(m.At, "", false)
	case node.MarkStepFailed:
		name, why, _ := strings.Cut(m.Detail, ": ")
		if w.step == "" {
			w.begin(name)
		}
		w.rest(m.At, why, true)
		w.gap = gapRetry
	case node.MarkBootAgain:
		if w.step != "" {
			w.rest(m.At, m.Detail, true)
		}
		w.between(m.At)
		w.gap, w.stage = "", nowhere
	case node.MarkPlan:
		w.between(m.At)
		w.gap = gapPlan
	case node.MarkPaused:
		w.between(m.At)
		w.gap = gapPaused
	case node.MarkRetry:
		name, kind := w.pending()
		w.took(m, name, kind)
		w.retry = m.Detail
	default:
		w.takePower(m)
	}
}

// toState handles a change of the provision state, which shows when a job is held, and how it ended.
func (w *walk) toState(m node.Mark) {
	w.state = m.Detail
	if w.gap == gapRetry && (strings.HasSuffix(m.Detail, " failed") || m.Detail == "error") {
		w.gap = ""
	}
	held := strings.HasSuffix(m.Detail, " hold")
	if w.step == "" && (held || w.gap == gapHeld) {
		w.between(m.At)
		w.gap = ""
		if held {
			w.gap = gapHeld
		}
	}
}

// takePower is about the machine's power and its controller.
func (w *walk) takePower(m node.Mark) {
	name, kind := w.pending()
	switch m.Name {
	case node.MarkBMC:
		op, took := node.ParseCall(m.Detail)
		if op == "reset" {
			w.restarted()
		}
		if w.stage > started && w.stage < up {
			return // the machine is busy with something known
		}
		call := m
		if call.At = m.At.Add(-took); call.At.After(w.at) {
			call.Detail = ""
			w.took(call, name, kind)
		}
		w.inside(m.At, "BMC: "+op, BMC, "")
	case node.MarkOffAsked:
		w.took(m, name, kind)
		w.offing, w.oning = true, false
	case node.MarkOff:
		if !w.offing && w.step != "tear_down_agent" && w.step != "power_off_agent" &&
			w.step != "power_off_after_failure" {
			w.took(m, name, kind) // it was off already, and the controller has only now reported it
		} else {
			w.took(m, "power off", BMC)
		}
		w.offing, w.stage = false, nowhere
	case node.MarkWindow:
		w.took(m, name, kind)
		w.stage, w.kexeced = nowhere, false
	case node.MarkBootDevice:
		w.took(m, "boot device", BMC)
	case node.MarkMedia:
		w.took(m, "virtual media", BMC)
	case node.MarkOnAsked:
		w.took(m, name, kind)
		if !w.oning {
			w.restarted()
		}
		w.oning, w.offing, w.stage = true, false, nowhere
	case node.MarkOn:
		if w.stage > started {
			return // it is known already
		}
		w.took(m, "power on", BMC)
		w.oning, w.stage = false, started
	case node.MarkReset:
		w.took(m, name, kind)
		w.restarted()
	default:
		w.takeBoot(m)
	}
}

// restarted counts a way through the firmware.
func (w *walk) restarted() {
	w.boots++
	w.stage, w.kexeced, w.leaving = started, false, false
}

// takeBoot is about how far the machine is in booting the agent, or the system.
func (w *walk) takeBoot(m node.Mark) {
	to, name, kind := nowhere, "", Network
	switch m.Name {
	case node.MarkDHCP:
		w.takeDHCP(m)
		return
	case node.MarkBootProgram:
		to, name = loaded, "TFTP: boot program"
	case node.MarkBootScript:
		to, name = scripted, "HTTP: boot script"
	case node.MarkKernel:
		to, name = fetched, "HTTP: kernel"
	case node.MarkRamdisk:
		to, name = complete, "HTTP: ramdisk"
	case node.MarkKernelStart:
		to, name, kind = kernel, "kernel is unpacked", Kernel
	case node.MarkAgentStart:
		to, name, kind = agent, "kernel and drivers", Kernel
	case node.MarkEnrolled:
		to, name, kind = enrolled, "agent: enrolment", Agent
	case node.MarkSession:
		to, name, kind = up, "agent: session", Agent
	default:
		w.takeJump(m)
		return
	}
	if to <= w.stage || to == up && w.stage == nowhere && !w.inner {
		return // it comes late, or the agent comes back
	}
	switch {
	case to <= kernel && w.oning:
		name, kind = "power on", BMC // the controller is slower to tell than the machine to start
	case to <= kernel && w.stage <= started:
		name, kind = "firmware", Firmware
	case to == enrolled && w.stage == kernel:
		name, kind = "kernel, drivers and agent", Kernel
	case to > kernel && w.stage < kernel, to == up && w.stage < enrolled:
		name, kind = "boot of which nothing is known", Unknown
	}
	w.took(m, name, kind)
	w.stage, w.oning = to, false
}

// takeDHCP attributes a DHCP request: the first comes from the firmware, the next from its boot program, then the
// agent.
func (w *walk) takeDHCP(m node.Mark) {
	switch {
	case w.oning:
		w.took(m, "power on", BMC)
		w.stage, w.oning = asked, false
	case w.stage <= started:
		w.took(m, "firmware", Firmware)
		w.stage = asked
	case w.stage < kernel:
		w.took(m, "DHCP", Network)
	case w.stage == kernel:
		w.took(m, "kernel and drivers", Kernel)
		w.stage = agent
	case w.stage == agent:
		w.took(m, "agent: network", Agent)
	}
}

// takeJump is about one kernel that starts the next, and the system's first sign of life.
func (w *walk) takeJump(m node.Mark) {
	switch m.Name {
	case node.MarkKexecAsked:
		name, kind := w.pending()
		w.took(m, name, kind)
		w.leaving = true
	case node.MarkSessionLost:
		w.left(m)
	case node.MarkKexec: // the engine's word for it, which may come late
		w.left(m)
		w.kexecs++
		w.kexeced = true
	case node.MarkSign:
		w.left(m)
		name := "firmware and OS boot"
		if w.kexeced {
			name = "kexec and OS boot"
		}
		w.took(m, name, OS)
		w.stage, w.oning = up, false
	}
}

// left notes that the agent has closed its session to jump. Flushing, unmounting and the jump itself follow, unseen.
func (w *walk) left(m node.Mark) {
	if !w.leaving {
		return
	}
	w.took(m, "kexec: the agent leaves", Kexec)
	w.leaving, w.kexeced, w.stage = false, true, nowhere
}
