package trace

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

var update = flag.Bool("update", false, "write the golden files anew")

var start = time.Date(2026, 11, 20, 14, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }

// line reads marks: "SECONDS NAME" or "SECONDS NAME | DETAIL", one a line.
func line(t *testing.T, job, text string) []node.Mark {
	t.Helper()
	var out []node.Mark
	for l := range strings.Lines(text) {
		if l = strings.TrimSpace(l); l == "" {
			continue
		}
		var seconds float64
		when, what, _ := strings.Cut(l, " ")
		if _, err := fmt.Sscan(when, &seconds); err != nil {
			t.Fatalf("line %q: %v", l, err)
		}
		name, detail, _ := strings.Cut(what, " | ")
		out = append(out, node.Mark{JobID: job, Name: strings.TrimSpace(name), Detail: detail, At: at(seconds)})
	}
	return out
}

const jobID = "0b6f2a52-7a0b-4c4f-9d3e-3f4f5a6b7c8d"

// ordinary is a deployment with two ways through the firmware, as a conductor recorded it, with rounded times.
const ordinary = `
	0.00 requested | deploy
	0.00 provision state | deploying
	0.01 step started | deploy
	0.02 boot window opened
	0.22 controller called | set boot device pxe took 180ms
	0.23 boot device set | pxe bios
	0.24 power on requested | on
	0.60 controller called | power on took 350ms
	0.61 power is on
	0.62 provision state | wait call-back
	3.10 dhcp answered | 10.77.0.50 undionly.kpxe
	3.60 boot program fetched | undionly.kpxe
	4.10 dhcp answered | 10.77.0.50 http://10.77.0.1:8080/boot.ipxe
	4.20 boot script fetched | 10.77.0.50
	4.60 kernel fetched
	5.20 ramdisk fetched
	6.00 kernel started
	8.30 agent started
	8.90 dhcp answered | 10.77.0.50
	9.20 agent enrolled | v1
	9.30 agent connected | v1
	9.31 step done | deploy
	9.31 provision state | deploying
	9.32 plan sent | write_image write_configdrive prepare_instance_boot
	9.32 provision state | wait call-back
	9.40 step started | write_image
	9.41 image download began | tiny
	19.00 image download ended | tiny
	19.40 step done | write_image
	19.40 step started | write_configdrive
	19.60 step done | write_configdrive
	19.60 step started | prepare_instance_boot
	20.10 step done | prepare_instance_boot
	20.11 provision state | deploying
	20.12 step started | tear_down_agent
	20.32 controller called | set boot device disk took 200ms
	21.50 power is off
	21.51 step done | tear_down_agent
	21.51 step started | switch_to_tenant_network
	21.51 step done | switch_to_tenant_network
	21.51 step started | boot_instance
	21.52 power on requested | on
	21.90 controller called | power on took 350ms
	21.92 power is on
	21.93 step done | boot_instance
	21.93 provision state | active`

func ordinaryJob() *node.Job {
	return &node.Job{ID: jobID, Phase: node.PhaseDeploy, EndedAt: at(21.93), Steps: []node.JobStep{
		{Interface: "deploy", Name: "deploy"},
		{Interface: "deploy", Name: "write_image",
			Result: json.RawMessage(`{"bytes_written":1200000000,"took_ms":9600,"limit":"disk"}`)},
	}}
}

// leavesOf lists the leaves of a trace, each with its groups, kind and seconds.
func leavesOf(tr rest.Trace) []string {
	var out []string
	var below func(prefix string, spans []rest.Span)
	below = func(prefix string, spans []rest.Span) {
		for _, s := range spans {
			if len(s.Spans) > 0 {
				below(prefix+s.Name+" > ", s.Spans)
				continue
			}
			l := fmt.Sprintf("%s%s [%s] %.2f", prefix, s.Name, s.Kind, s.Seconds)
			if s.Failed {
				l += " failed: " + s.Detail
			}
			out = append(out, l)
		}
	}
	below("", tr.Spans)
	return out
}

func only(t *testing.T, marks []node.Mark, jobs ...*node.Job) rest.Trace {
	t.Helper()
	all := Of(marks, jobs, at(1000))
	if len(all) != 1 {
		t.Fatalf("%d traces, want 1", len(all))
	}
	covers(t, all[0])
	return all[0]
}

// covers holds what is promised of every trace: its leaves follow each other without gap or overlap from its begin to
// its end, and spans are as long as what is in them.
func covers(t *testing.T, tr rest.Trace) {
	t.Helper()
	var below func(spans []rest.Span, from, to time.Time)
	below = func(spans []rest.Span, from, to time.Time) {
		for _, s := range spans {
			if !s.Begin.Equal(from) || s.End.Before(s.Begin) {
				t.Fatalf("span %q is from %v to %v, want it to begin at %v", s.Name, s.Begin, s.End, from)
			}
			if math.Abs(s.Seconds-s.End.Sub(s.Begin).Seconds()) > 1e-9 {
				t.Fatalf("span %q of %v says %v s", s.Name, s.End.Sub(s.Begin), s.Seconds)
			}
			if len(s.Spans) > 0 {
				below(s.Spans, s.Begin, s.End)
			}
			from = s.End
		}
		if !from.Equal(to) {
			t.Fatalf("the spans end at %v, want %v", from, to)
		}
	}
	below(tr.Spans, tr.Begin, tr.End)
	unknown := 0.0
	for _, s := range Leaves(tr.Spans) {
		if s.Kind == Unknown {
			unknown += s.Seconds
		}
		if s.Kind == Group || marksOf[s.Kind] == 0 {
			t.Fatalf("leaf %q is of kind %q", s.Name, s.Kind)
		}
	}
	if tr.Seconds > 0 && math.Abs(tr.Attributed-(1-unknown/tr.Seconds)) > 1e-9 || tr.Attributed < 0 ||
		tr.Attributed > 1 {
		t.Fatalf("%v of the time is attributed, with %v of %v s unknown", tr.Attributed, unknown, tr.Seconds)
	}
}

func TestOrdinary(t *testing.T) {
	tr := only(t, line(t, jobID, ordinary), ordinaryJob())
	want := []string{
		"conductor [conductor] 0.01",
		"boot the agent > conductor [conductor] 0.03", "boot the agent > BMC: set boot device pxe [bmc] 0.18",
		"boot the agent > boot device [bmc] 0.01", "boot the agent > conductor [conductor] 0.01",
		"boot the agent > power on [bmc] 0.01", "boot the agent > BMC: power on [bmc] 0.35",
		"boot the agent > power on [bmc] 0.01", "boot the agent > firmware [firmware] 2.49",
		"boot the agent > network boot > TFTP: boot program [network] 0.50",
		"boot the agent > network boot > DHCP [network] 0.50",
		"boot the agent > network boot > HTTP: boot script [network] 0.10",
		"boot the agent > network boot > HTTP: kernel [network] 0.40",
		"boot the agent > network boot > HTTP: ramdisk [network] 0.60",
		"boot the agent > ramdisk > kernel is unpacked [kernel] 0.80",
		"boot the agent > ramdisk > kernel and drivers [kernel] 2.30",
		"boot the agent > ramdisk > agent: network [agent] 0.60",
		"boot the agent > ramdisk > agent: enrolment [agent] 0.30",
		"boot the agent > ramdisk > agent: session [agent] 0.10", "boot the agent > conductor [conductor] 0.01",
		"conductor [conductor] 0.01", "plan to the agent [conductor] 0.08",
		"write_image [step] 10.00", "write_configdrive [step] 0.20", "prepare_instance_boot [step] 0.50",
		"conductor [conductor] 0.02", "tear_down_agent > BMC: set boot device disk [bmc] 0.20",
		"tear_down_agent > power off [bmc] 1.18", "tear_down_agent > conductor [conductor] 0.01",
		"switch_to_tenant_network [step] 0.00", "boot_instance > conductor [conductor] 0.01",
		"boot_instance > power on [bmc] 0.03", "boot_instance > BMC: power on [bmc] 0.35",
		"boot_instance > power on [bmc] 0.02", "boot_instance > conductor [conductor] 0.01",
	}
	if d := cmp.Diff(want, leavesOf(tr)); d != "" {
		t.Errorf("leaves (-want +got):\n%s", d)
	}
	if tr.Phase != "deploy" || tr.FirmwareBoots != 2 || tr.Kexecs != 0 || tr.Outcome != "active" || tr.Open ||
		tr.Attributed != 1 || math.Abs(tr.Seconds-21.93) > 1e-9 {
		t.Errorf("phase %s, %d boots through firmware, %d by kexec, outcome %s, open %v, %v attributed, %v s", tr.Phase,
			tr.FirmwareBoots, tr.Kexecs, tr.Outcome, tr.Open, tr.Attributed, tr.Seconds)
	}
	for _, s := range Leaves(tr.Spans) {
		if s.Name == "write_image" && (s.Bytes != 1200000000 || s.Rate != 125000000) {
			t.Errorf("write_image has %d bytes at %d bytes/s", s.Bytes, s.Rate)
		}
	}
}

// zeroReboot is a deployment on a machine whose agent was kept, into the system by kexec, with a sign of life.
const zeroReboot = `
	0.00 requested | deploy
	0.00 provision state | deploying
	0.01 step started | deploy
	0.02 kept agent taken up
	0.03 step done | deploy
	0.04 plan sent | write_image load_kernel
	0.05 step started | write_image
	6.05 step done | write_image
	6.05 step started | load_kernel
	6.55 step done | load_kernel
	6.56 step started | tear_down_agent
	6.76 controller called | set boot device disk took 190ms
	6.77 kexec requested
	7.27 agent disconnected
	7.27 kexec
	7.28 step done | tear_down_agent
	7.28 step started | boot_instance
	9.80 sign of life | dhcp
	9.81 step done | boot_instance
	9.81 provision state | active`

func TestZeroReboot(t *testing.T) {
	tr := only(t, line(t, jobID, zeroReboot))
	want := []string{
		"conductor [conductor] 0.01", "boot the agent [step] 0.02", "conductor [conductor] 0.01",
		"plan to the agent [conductor] 0.01", "write_image [step] 6.00", "load_kernel [step] 0.50",
		"conductor [conductor] 0.01", "tear_down_agent > conductor [conductor] 0.01",
		"tear_down_agent > BMC: set boot device disk [bmc] 0.19", "tear_down_agent > conductor [conductor] 0.01",
		"tear_down_agent > kexec: the agent leaves [kexec] 0.50", "tear_down_agent > conductor [conductor] 0.01",
		"boot_instance > kexec and OS boot [os] 2.52", "boot_instance > conductor [conductor] 0.01",
	}
	if d := cmp.Diff(want, leavesOf(tr)); d != "" {
		t.Errorf("leaves (-want +got):\n%s", d)
	}
	if tr.FirmwareBoots != 0 || tr.Kexecs != 1 || tr.Attributed != 1 {
		t.Errorf("%d boots through firmware, %d by kexec, %v attributed", tr.FirmwareBoots, tr.Kexecs, tr.Attributed)
	}
}

// TestRecorded goes through time lines on which something went another way.
func TestRecorded(t *testing.T) {
	for _, c := range []struct {
		name, marks string
		want        []string
		boots       int
		outcome     string
	}{{
		name: "the kernel hangs after kexec, and the machine is cold-booted",
		marks: `0 requested | deploy
			0 step started | tear_down_agent
			1 kexec requested
			2 kexec
			2 step done | tear_down_agent
			2 step started | boot_instance
			62 power off requested | off
			63 power is off
			63 power on requested | on
			64 power is on
			84 sign of life | port:22
			84 step done | boot_instance
			84 provision state | active`,
		want: []string{"tear_down_agent > conductor [conductor] 1.00",
			"tear_down_agent > kexec: the agent leaves [kexec] 1.00", "boot_instance > conductor [conductor] 60.00",
			"boot_instance > power off [bmc] 1.00", "boot_instance > power on [bmc] 1.00",
			"boot_instance > firmware and OS boot [os] 20.00"},
		boots: 1, outcome: "active",
	}, {
		name: "the system shows itself before the conductor has noticed that the agent jumped",
		marks: `0 requested | deploy
			0 step started | tear_down_agent
			1 kexec requested
			2 agent disconnected
			42 sign of life | dhcp
			43 kexec
			43 step done | tear_down_agent
			43 step started | boot_instance
			43 step done | boot_instance
			43 provision state | active`,
		want: []string{"tear_down_agent > conductor [conductor] 1.00",
			"tear_down_agent > kexec: the agent leaves [kexec] 1.00", "tear_down_agent > kexec and OS boot [os] 40.00",
			"tear_down_agent > conductor [conductor] 1.00", "boot_instance [step] 0.00"},
		outcome: "active",
	}, {
		name: "a step fails and its plan is sent again",
		marks: `0 requested | clean
			1 plan sent | erase
			2 step started | erase
			5 step failed | erase: write to /dev/sda: input/output error
			9 plan sent | erase
			10 step started | erase
			14 step done | erase
			14 provision state | available`,
		want: []string{"conductor [conductor] 1.00", "plan to the agent [conductor] 1.00",
			"erase [step] 3.00 failed: write to /dev/sda: input/output error", "waits to try again [wait] 4.00",
			"plan to the agent [conductor] 1.00", "erase [step] 4.00"},
		outcome: "available",
	}, {
		name: "the conductor was away while the agent worked: three results come at once, two of steps without a recorded begin",
		marks: `0 requested | deploy
			1 plan sent | a b c
			2 step started | a
			50 agent connected
			50 step done | a
			50 step started | b
			50 step done | b
			50 step done | c
			51 provision state | active`,
		want: []string{"conductor [conductor] 1.00", "plan to the agent [conductor] 1.00", "a [step] 48.00",
			"b [step] 0.00", "c [step] 0.00", "conductor [conductor] 1.00"},
		outcome: "active",
	}, {
		name: "the agent is lost in the middle, and the machine booted anew",
		marks: `0 requested | deploy
			0 step started | write_image
			5 agent disconnected
			40 agent is booted anew | the agent was lost
			40 step started | deploy
			41 power off requested | off
			42 power is off
			42 boot window opened
			42 power on requested | on
			43 power is on
			46 dhcp answered
			49 kernel started
			51 agent started
			52 agent enrolled
			52 agent connected
			52 step done | deploy
			53 step started | write_image
			60 step done | write_image
			60 provision state | active`,
		want: []string{"write_image [step] 40.00 failed: the agent was lost",
			"boot the agent > conductor [conductor] 1.00", "boot the agent > power off [bmc] 1.00",
			"boot the agent > power on [bmc] 1.00", "boot the agent > firmware [firmware] 3.00",
			"boot the agent > ramdisk > kernel is unpacked [kernel] 3.00",
			"boot the agent > ramdisk > kernel and drivers [kernel] 2.00",
			"boot the agent > ramdisk > agent: enrolment [agent] 1.00", "conductor [conductor] 1.00",
			"write_image [step] 7.00"},
		boots: 1, outcome: "active",
	}, {
		name: "nothing is seen of the machine, and the job fails",
		marks: `0 requested | inspect
			0 step started | boot_agent
			0 power on requested | on
			1 power is on
			601 step failed | boot_agent: the agent did not call back
			601 step started | power_off_after_failure
			601 power off requested | off
			603 power is off
			603 step done | power_off_after_failure
			603 provision state | inspect failed`,
		want: []string{"boot the agent > power on [bmc] 1.00",
			"boot the agent > no sign of the machine [unknown] 600.00 failed: the agent did not call back",
			"power_off_after_failure > power off [bmc] 2.00"},
		boots: 1, outcome: "inspect failed",
	}, {
		name: "the clocks differ: the kernel's start lies before the ramdisk's last byte, and before its request, and power is on is heard of last",
		marks: `10 requested | deploy
			10 step started | deploy
			10 power on requested | on
			12 dhcp answered
			13 power is on
			14 kernel fetched
			16 ramdisk fetched
			15 kernel started
			9 agent started
			20 agent enrolled
			21 agent connected
			21 step done | deploy
			21 provision state | active`,
		// The agent's start can't be what it says.
		want: []string{"boot the agent > power on [bmc] 2.00",
			"boot the agent > network boot > HTTP: kernel [network] 2.00",
			"boot the agent > ramdisk > kernel is unpacked [kernel] 1.00",
			"boot the agent > ramdisk > kernel, drivers and agent [kernel] 5.00",
			"boot the agent > ramdisk > agent: session [agent] 1.00"},
		boots: 1, outcome: "active",
	}, {
		name: "virtual media, with an agent that does not tell its uptime",
		marks: `0 requested | clean
			0 step started | boot_agent
			0 boot window opened
			2 boot image read
			4 controller called | insert virtual media took 3s
			4 boot image inserted
			4 boot device set
			4 power on requested | on
			5 power is on
			31 agent enrolled
			32 agent connected
			32 step done | boot_agent
			32 step started | power_off_agent
			34 power is off
			34 step done | power_off_agent
			34 provision state | manageable`,
		want: []string{"boot the agent > conductor [conductor] 1.00",
			"boot the agent > BMC: insert virtual media [bmc] 3.00", "boot the agent > power on [bmc] 1.00",
			"boot the agent > boot of which nothing is known [unknown] 26.00",
			"boot the agent > ramdisk > agent: session [agent] 1.00", "power_off_agent > power off [bmc] 2.00"},
		boots: 1, outcome: "manageable",
	}, {
		name: "the controller is out of reach for a while",
		marks: `0 requested | power: power on
			0 step started | power_on
			5 controller called | power on took 5s
			5 waits to try again | no answer
			7 controller called | power on took 1s
			8 power is on
			8 step done | power_on`,
		want: []string{"power_on > BMC: power on [bmc] 5.00", "power_on > waits to try again [wait] 1.00",
			"power_on > BMC: power on [bmc] 1.00", "power_on > power on [bmc] 1.00"},
		boots: 0,
	}, {
		name: "held, and in maintenance",
		marks: `0 requested | clean
			0 step started | hold
			0 step done | hold
			0 provision state | clean hold
			100 provision state | cleaning
			101 paused
			161 step started | erase
			162 step done | erase
			162 provision state | available`,
		want: []string{"hold [step] 0.00", "held [wait] 100.00", "conductor [conductor] 1.00",
			"paused for maintenance [wait] 60.00", "erase [step] 1.00"},
		outcome: "available",
	}, {
		name: "the clock is set back by an hour in the middle of a step",
		marks: `3600 requested | clean
			3601 step started | erase
			3611 agent disconnected
			5 step done | erase
			6 step started | inspect
			9 step done | inspect
			9 provision state | available`,
		want: []string{"conductor [conductor] 1.00", "erase [step] 10.00", "conductor [conductor] 1.00",
			"inspect [step] 3.00"},
		outcome: "available",
	}, {
		name: "a machine that stays on",
		marks: `0 requested | deploy
			0 step started | tear_down_agent
			1 reset requested | by the agent
			2 step done | tear_down_agent
			2 provision state | active`,
		want:  []string{"tear_down_agent > conductor [conductor] 2.00"},
		boots: 1, outcome: "active",
	}} {
		t.Run(c.name, func(t *testing.T) {
			tr := only(t, line(t, jobID, c.marks))
			if d := cmp.Diff(c.want, leavesOf(tr)); d != "" {
				t.Errorf("leaves (-want +got):\n%s", d)
			}
			if tr.FirmwareBoots != c.boots || string(tr.Outcome) != c.outcome {
				t.Errorf("%d boots, outcome %q; want %d, %q", tr.FirmwareBoots, tr.Outcome, c.boots, c.outcome)
			}
		})
	}
}

// TestOpen looks at a job while it is under way: it goes up to now.
func TestOpen(t *testing.T) {
	all := Of(line(t, jobID, `0 requested | deploy
		1 step started | write_image`), []*node.Job{nil, {ID: jobID, Phase: node.PhaseDeploy}}, at(11))
	covers(t, all[0])
	if d := cmp.Diff([]string{"conductor [conductor] 1.00", "write_image [step] 10.00"}, leavesOf(all[0])); d != "" ||
		!all[0].Open || all[0].Outcome != "" {
		t.Errorf("trace = %+v (-want +got):\n%s", all[0], d)
	}
}

// TestThen puts what was seen on the console behind a trace.
func TestThen(t *testing.T) {
	tr := only(t, line(t, jobID, zeroReboot))
	Then(&tr, "until the login prompt", OS, "", at(12))
	Then(&tr, "before its end", OS, "", at(3))
	covers(t, tr)
	if got := leavesOf(tr); got[len(got)-1] != "until the login prompt [os] 2.19" || math.Abs(tr.Seconds-12) > 1e-9 {
		t.Errorf("leaves = %q", got)
	}
}

// TestSeveralJobs keeps the jobs of a node apart, and marks of none out.
func TestSeveralJobs(t *testing.T) {
	// Before the second the clock was set back.
	marks := append(line(t, "a", "10 requested | inspect\n12 provision state | manageable"),
		line(t, "b", "0 requested | clean\n5 provision state | available")...)
	marks = append(marks, line(t, "", "7 agent disconnected")...)
	all := Of(marks, nil, at(100))
	if len(all) != 2 || all[0].JobID != "a" || all[1].Phase != "clean" {
		t.Fatalf("traces = %+v", all)
	}
	if got := Last(all, "inspect"); got == nil || got.JobID != "a" {
		t.Errorf("the last inspection is %+v", got)
	}
	if got := Last(all, ""); got == nil || got.JobID != "b" || Last(all, "deploy") != nil {
		t.Errorf("the last is %+v", got)
	}
	if got := Of(nil, nil, at(0)); got == nil || len(got) != 0 {
		t.Errorf("of no marks: %v", got)
	}
}

// TestAnyMarks makes time lines of marks in any order, and holds that each instant has one leaf.
func TestAnyMarks(t *testing.T) {
	names := []string{node.MarkRequested, node.MarkWindow, node.MarkOffAsked, node.MarkOff, node.MarkBootDevice,
		node.MarkOnAsked, node.MarkOn, node.MarkSession, node.MarkSessionLost, node.MarkPlan, node.MarkStepBegan,
		node.MarkStepDone, node.MarkStepFailed, node.MarkState, node.MarkBootAgain, node.MarkBMC, node.MarkReset,
		node.MarkRetry, node.MarkPaused, node.MarkDHCP, node.MarkBootProgram, node.MarkBootScript, node.MarkKernel,
		node.MarkRamdisk, node.MarkKernelStart, node.MarkAgentStart, node.MarkEnrolRefused, node.MarkEnrolled,
		node.MarkImageFetch, node.MarkImageFetched, node.MarkKexecAsked, node.MarkKexec, node.MarkSign, "of tomorrow"}
	details := []string{"", "deploy", "write_image", "tear_down_agent", "write_image: it broke", "reset took 3s",
		"power on took 90s", "read x took -4s", "clean hold", "deploy failed", "active"}
	r := rand.New(rand.NewPCG(6, 8))
	for i := range 3000 {
		var marks []node.Mark
		for range 1 + r.IntN(40) {
			marks = append(marks,
				node.Mark{JobID: "j", Name: names[r.IntN(len(names))], Detail: details[r.IntN(len(details))],
					At: at(math.Round(r.Float64() * 60))})
		}
		job := &node.Job{ID: "j", Phase: node.PhaseDeploy,
			Steps: []node.JobStep{{Name: "write_image", Result: json.RawMessage(`{"bytes_written":5}`)}}}
		if i%2 == 0 {
			job.EndedAt = at(60)
		}
		tr := Of(marks, []*node.Job{job}, at(61))[0]
		covers(t, tr)
		var b bytes.Buffer
		if err := Waterfall(&b, tr, 30+r.IntN(120)); err != nil || b.Len() == 0 {
			t.Fatalf("waterfall: %v, %q", err, &b)
		}
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s (-want +got), -update writes it anew:\n%s", file, d)
	}
}

func TestWaterfall(t *testing.T) {
	full := only(t, line(t, jobID, ordinary), ordinaryJob())
	failed := only(t, line(t, jobID, `0 requested | deploy
		0 step started | deploy
		1 power on requested | on
		2 power is on
		22 agent enrolled
		22 agent connected
		22 step done | deploy
		23 step started | write_image
		41 step failed | write_image: the image's digest is not the one asked for
		43 provision state | deploy failed`))
	for name, c := range map[string]struct {
		t     rest.Trace
		width int
	}{"ordinary-120.golden": {full, 120}, "ordinary-80.golden": {full, 80}, "ordinary-40.golden": {full, 40},
		"zero-reboot-80.golden": {only(t, line(t, jobID, zeroReboot)), 80}, "failed-80.golden": {failed, 80}} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := Waterfall(&b, c.t, c.width); err != nil {
				t.Fatal(err)
			}
			for l := range strings.Lines(b.String()) {
				if n := len([]rune(strings.TrimRight(l, "\n"))); n > max(c.width, 50) &&
					!strings.HasPrefix(l, "deploy:") {
					t.Errorf("a line of %d characters in %d: %q", n, c.width, l)
				}
			}
			golden(t, name, b.Bytes())
		})
	}
}

// TestOTLP checks the document against what the protocol asks for: IDs of their lengths, unique and connected, times as
// strings.
func TestOTLP(t *testing.T) {
	traces := Of(append(line(t, jobID, ordinary),
		line(t, "no-uuid",
			"100 requested | clean\n101 step started | erase\n102 step failed | erase: broken\n103 provision state | clean failed")...), []*node.Job{ordinaryJob()}, at(200))
	raw, err := OTLP("4d7f9a1e-0000-4000-8000-000000000001", traces)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "otlp.golden.json", append(raw, '\n'))
	var doc struct {
		ResourceSpans []struct {
			Resource   struct{ Attributes []struct{ Key string } }
			ScopeSpans []struct {
				Spans []struct {
					TraceID, SpanID, ParentSpanID, Name string
					StartTimeUnixNano, EndTimeUnixNano  string
					Kind                                int
					Status                              struct{ Code int }
				}
			}
		}
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	spans := doc.ResourceSpans[0].ScopeSpans[0].Spans
	ids, roots, failed := map[string]string{}, 0, 0
	for _, s := range spans {
		if len(s.TraceID) != 32 || len(s.SpanID) != 16 || s.Kind != 1 || s.Name == "" ||
			s.StartTimeUnixNano > s.EndTimeUnixNano {
			t.Errorf("span %+v", s)
		}
		if ids[s.SpanID] != "" {
			t.Errorf("two spans have the ID %s", s.SpanID)
		}
		ids[s.SpanID] = s.TraceID
		if s.ParentSpanID == "" {
			roots++
		} else if ids[s.ParentSpanID] != s.TraceID {
			t.Errorf("the parent %q of span %q is not before it in its trace", s.ParentSpanID, s.Name)
		}
		if s.Status.Code == 2 {
			failed++
		}
	}
	if roots != 2 || failed != 2 || spans[0].TraceID != strings.ReplaceAll(jobID, "-", "") {
		t.Errorf("%d roots, %d failed, trace %s", roots, failed, spans[0].TraceID)
	}
	again, err := OTLP("4d7f9a1e-0000-4000-8000-000000000001", traces)
	if err != nil || !bytes.Equal(raw, again) {
		t.Errorf("a second export differs (%v)", err)
	}
}
