package agent

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

func TestPlanOverSession(t *testing.T) {
	c := newConductor(t)
	b := newBench(t, c)
	b.run()
	c.plan("p1", 3, "quick", "fail", "quick")
	poll(t, "the plan's end", func() bool { return c.finished("p1") != nil })
	var got []string
	c.mu.Lock()
	for _, e := range c.results {
		switch {
		case e.GetStepStarted() != nil:
			got = append(got, "start "+e.GetStepStarted().Name)
		case e.GetStepFinished() != nil:
			f := e.GetStepFinished()
			got = append(got,
				fmt.Sprintf("%s %s %s|%s|%s|%v", f.Name, f.Outcome, f.Result, f.Error, f.Remedy, f.Retryable))
		case e.GetPlanFinished() != nil:
			got = append(got, fmt.Sprintf("plan done=%v", e.GetPlanFinished().Done))
		}
	}
	hello := c.hellos[0]
	c.mu.Unlock()
	want := []string{"start quick", `quick OUTCOME_DONE {"n":7}|||false`, "start fail",
		"fail OUTCOME_FAILED |no cable|plug it in|true", "plan done=false"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("events\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if hello.BootId != "boot-1" || hello.Generation != 3 || len(hello.StepsDigest) != 64 {
		t.Errorf("hello = %v", hello)
	}
}

// TestConductorRestarts holds that a conductor may go away in the middle of a step: the plan goes on, results wait,
// nothing is lost or told twice to the store.
func TestConductorRestarts(t *testing.T) {
	c := newConductor(t)
	b := newBench(t, c)
	b.run()
	c.plan("p1", 3, "wait", "quick")
	<-b.ran
	c.stop()
	close(b.release)
	if got := <-b.ran; got != "quick" {
		t.Fatalf("ran %s", got)
	}
	c.mu.Lock()
	c.stream = nil
	c.mu.Unlock()
	begin := time.Now()
	c.start()
	poll(t, "the plan's end", func() bool { return c.finished("p1") != nil })
	if took := time.Since(begin); took > 15*time.Second {
		t.Errorf("a restart was bridged in %s, want less than 15 s on whatever machine", took)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range c.results {
		if e.Seq != uint64(i+1) {
			t.Fatalf("result %d has seq %d: results must come in order and complete", i, e.Seq)
		}
	}
	if len(c.keys) != 1 {
		t.Errorf("enrolled %d times, want once per boot", len(c.keys))
	}
	if last := c.hellos[len(c.hellos)-1]; last.PlanId != "p1" || last.LastSeq == 0 {
		t.Errorf("the second hello is %v", last)
	}
}

func TestUnackedResultsAreSentAgain(t *testing.T) {
	c := newConductor(t)
	c.noAck = true
	b := newBench(t, c)
	b.run()
	c.plan("p1", 3, "quick")
	poll(t, "the plan's end", func() bool { return c.finished("p1") != nil })
	c.stop()
	c.mu.Lock()
	c.noAck, c.stream = false, nil
	c.mu.Unlock()
	c.start()
	poll(t, "sending again", func() bool { return c.count(func() int { return c.dups }) >= 3 })
	poll(t, "the state file to be empty of results",
		func() bool { s, _ := loadState(b.opts.State, "boot-1"); return s != nil && len(s.Results) == 0 })
}

func TestFencing(t *testing.T) {
	c := newConductor(t)
	b := newBench(t, c)
	b.run()
	c.plan("p1", 5, "quick")
	poll(t, "plan p1", func() bool { return c.finished("p1") != nil })
	c.plan("p1", 5, "quick") // the same again: ignored
	c.plan("old", 4, "quick")
	poll(t, "the refusal of a lower generation",
		func() bool { return c.logged("plan refused: a plan of a higher generation came before it") })
	if n := len(b.ran); n != 1 {
		t.Errorf("steps ran %d times, want once", n)
	}
	<-b.ran
	c.plan("p2", 5, "abortable")
	<-b.ran
	c.plan("p3", 5, "quick")
	poll(t, "the refusal of a second plan",
		func() bool { return c.logged("plan refused: another plan of this generation is still running") })
	c.plan("p4", 6, "quick")
	poll(t, "plan p4", func() bool { return c.finished("p4") != nil })
	if f := c.finished("p2"); f == nil || !f.Cancelled || f.Done {
		t.Errorf("the replaced plan ended with %v, want cancelled", f)
	}
	if f := c.finished("p4"); !f.Done {
		t.Errorf("p4 = %v", f)
	}
}

func TestCancelAndPower(t *testing.T) {
	c := newConductor(t)
	b := newBench(t, c)
	b.run()
	c.plan("p1", 3, "abortable")
	<-b.ran
	power := func(a agentv1.PowerAction) {
		c.say(&agentv1.ConductorMessage{Body: &agentv1.ConductorMessage_Power{Power: &agentv1.Power{Action: a}}})
	}
	power(agentv1.PowerAction_POWER_ACTION_OFF)
	poll(t, "the refusal of a power action", func() bool { return c.logged("power action refused: a plan is running") })
	c.say(&agentv1.ConductorMessage{Body: &agentv1.ConductorMessage_Cancel{Cancel: &agentv1.Cancel{PlanId: "p1"}}})
	poll(t, "the end of the plan", func() bool { return c.finished("p1") != nil })
	if !c.finished("p1").Cancelled {
		t.Errorf("plan = %v, want cancelled", c.finished("p1"))
	}
	power(agentv1.PowerAction_POWER_ACTION_OFF)
	poll(t, "the end of the boot", func() bool { return b.box.how() == "off" })
	poll(t, "a clean end of the stream", func() bool { return c.count(func() int { return c.closed }) == 1 })
	poll(t, "the agent's end", b.ended)
	if err := b.stop(); !errors.Is(err, errEnded) {
		t.Errorf("Run = %v", err)
	}
}

// TestPowerAtThePlansEnd: a request that comes between the result of a plan's last step and the plan's end is carried
// out when that has come.
func TestPowerAtThePlansEnd(t *testing.T) {
	c := newConductor(t)
	b := newBench(t, c)
	b.run()
	c.plan("p1", 3, "wait")
	<-b.ran
	c.say(&agentv1.ConductorMessage{
		Body: &agentv1.ConductorMessage_Power{Power: &agentv1.Power{Action: agentv1.PowerAction_POWER_ACTION_OFF}}})
	poll(t, "the agent has the request", func() bool { return c.logged("power action waits for the end of the plan") })
	close(b.release)
	poll(t, "the end of the boot", func() bool { return b.box.how() == "off" })
	if f := c.finished("p1"); f == nil || !f.Done {
		t.Errorf("the plan ended with %v, want done, and told before the boot's end", f)
	}
	poll(t, "the agent's end", b.ended)
	if err := b.stop(); !errors.Is(err, errEnded) {
		t.Errorf("Run = %v", err)
	}
}

// TestFailedEndKeepsSession holds that an agent whose machine would not reboot is still there to say so.
func TestFailedEndKeepsSession(t *testing.T) {
	c := newConductor(t)
	b := newBench(t, c)
	b.box.fail = errors.New("the kernel refuses")
	b.run()
	c.say(&agentv1.ConductorMessage{
		Body: &agentv1.ConductorMessage_Power{Power: &agentv1.Power{Action: agentv1.PowerAction_POWER_ACTION_REBOOT}}})
	poll(t, "a new session", func() bool { return c.logged("this boot could not be ended") })
}

// TestJump holds the order of a start by kexec: it is refused while nothing is loaded, then the session ends, the
// network is left, the conductor gets the requested time, and the jump comes last. If it fails, the network and the
// session are restored.
func TestJump(t *testing.T) {
	kexec := func(c *conductor, delay time.Duration) {
		c.say(&agentv1.ConductorMessage{
			Body: &agentv1.ConductorMessage_Power{
				Power: &agentv1.Power{Action: agentv1.PowerAction_POWER_ACTION_KEXEC, Delay: durationpb.New(delay)}}})
	}
	left := func(b *bench) int { b.wire.mu.Lock(); defer b.wire.mu.Unlock(); return b.wire.left }
	load := func(b *bench) { b.box.mu.Lock(); b.box.loaded = true; b.box.mu.Unlock() }
	t.Run("done", func(t *testing.T) {
		c := newConductor(t)
		b := newBench(t, c)
		b.run()
		kexec(c, 0)
		poll(t, "the refusal", func() bool { return c.logged("power action refused: no kernel is loaded") })
		if left(b) != 0 || b.box.how() != "" {
			t.Error("something was done all the same")
		}
		load(b)
		const delay = 300 * time.Millisecond
		begin := time.Now()
		kexec(c, delay)
		poll(t, "the jump", func() bool { return b.box.how() == "kexec" })
		if took := time.Since(begin); took < delay || left(b) != 1 {
			t.Errorf("after %v: left %d networks", took, left(b))
		}
		poll(t, "a clean end of the stream", func() bool { return c.count(func() int { return c.closed }) == 1 })
		poll(t, "the agent's end", b.ended)
		if err := b.stop(); !errors.Is(err, errEnded) {
			t.Errorf("Run = %v", err)
		}
	})
	t.Run("failed", func(t *testing.T) {
		c := newConductor(t)
		b := newBench(t, c)
		b.box.fail = errors.New("the kernel refuses")
		load(b)
		b.run()
		kexec(c, 0)
		poll(t, "a new session", func() bool { return c.logged("the jump into the loaded kernel failed") })
		b.wire.mu.Lock()
		defer b.wire.mu.Unlock()
		if b.wire.resets == 0 {
			t.Error("the network was not brought back")
		}
	})
}

func TestCollectLogs(t *testing.T) {
	c := newConductor(t)
	b := newBench(t, c)
	file := t.TempDir() + "/agent.log"
	if err := os.WriteFile(file, []byte("agent says hello\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.opts.LogFiles = []string{file + ".1", file}
	b.run()
	c.say(&agentv1.ConductorMessage{Body: &agentv1.ConductorMessage_CollectLogs{CollectLogs: &agentv1.CollectLogs{}}})
	var bundle []byte
	poll(t, "a log bundle", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, e := range c.other {
			if lb := e.GetLogBundle(); lb != nil {
				bundle = lb.TarGz
			}
		}
		return bundle != nil
	})
	gz, err := gzip.NewReader(bytes.NewReader(bundle))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for tr := tar.NewReader(gz); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, _ := io.ReadAll(tr)
		got[h.Name] = string(data)
	}
	if got["kernel.log"] != "kernel says hello\n" || got["agent.log"] != "agent says hello\n" || len(got) != 2 {
		t.Errorf("bundle = %v", got)
	}
}

// TestWorkerDies holds what a new worker makes of the state of one that died in a step.
func TestWorkerDies(t *testing.T) {
	c := newConductor(t)
	c.noAck = true
	b := newBench(t, c)
	b.run()
	c.plan("p1", 3, "quick", "wait")
	<-b.ran
	<-b.ran
	poll(t, "the start of the second step", func() bool {
		s, _ := loadState(b.opts.State, "boot-1")
		return s != nil && s.Plan.Name == "wait" && len(s.Results) == 3
	})
	// The worker dies: what it left is this file.
	left, err := os.ReadFile(b.opts.State)
	if err != nil {
		t.Fatal(err)
	}
	if fi, _ := os.Stat(b.opts.State); fi.Mode().Perm() != 0o600 {
		t.Errorf("the state file's mode is %v: it holds a private key", fi.Mode())
	}
	close(b.release)
	_ = b.stop()
	poll(t, "the end of what it said", func() bool { return c.count(func() int { return c.open }) == 0 })
	if err := os.WriteFile(b.opts.State, left, 0o600); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	c.noAck, c.results, c.stream = false, nil, nil
	c.mu.Unlock()

	b2 := newBench(t, c)
	b2.opts.State, b2.opts.Restarts, b2.opts.Reason = b.opts.State, 1, "exit status 2: panic: index out of range"
	b2.run()
	poll(t, "the failed plan", func() bool { return c.finished("p1") != nil })
	c.mu.Lock()
	defer c.mu.Unlock()
	var restarted, failed bool
	for i, e := range c.results {
		if e.Seq != uint64(i+1) {
			t.Errorf("result %d has seq %d", i, e.Seq)
		}
		if w := e.GetWorkerRestarted(); w != nil {
			restarted = w.Count == 1 && strings.Contains(w.Reason, "index out of range")
		}
		if f := e.GetStepFinished(); f != nil && f.Name == "wait" {
			failed = f.Outcome == agentv1.Outcome_OUTCOME_FAILED &&
				strings.Contains(f.Error, "the agent died in step wait") && f.StepIndex == 1
		}
	}
	if !restarted || !failed {
		t.Errorf("restart told: %v, step failed: %v; events %v", restarted, failed, c.results)
	}
	if len(c.keys) != 1 || c.hellos[len(c.hellos)-1].WorkerRestarts != 1 {
		t.Errorf("enrolled %d times; hello %v", len(c.keys), c.hellos[len(c.hellos)-1])
	}
}

func TestRefusedEnrolment(t *testing.T) {
	c := newConductor(t)
	c.refuse = status.Error(codes.PermissionDenied, "no")
	b := newBench(t, c)
	var out strings.Builder
	b.opts.Status = NewStatus(&out)
	b.run()
	poll(t, "the refusal", func() bool {
		b.opts.Status.mu.Lock()
		defer b.opts.Status.mu.Unlock()
		return strings.Contains(out.String(), "it refuses this machine (no)")
	})
	_ = b.stop()
	if n := c.count(func() int { return len(c.hellos) }); n != 0 {
		t.Errorf("%d sessions without enrolment", n)
	}
}

func TestClock(t *testing.T) {
	c := newConductor(t)
	c.clock = time.Now().AddDate(3, 0, 0)
	b := newBench(t, c)
	b.run()
	poll(t, "setting the clock", func() bool {
		b.box.mu.Lock()
		defer b.box.mu.Unlock()
		return b.box.clock.Sub(c.clock).Abs() < time.Minute
	})
}

func TestTrust(t *testing.T) {
	now := time.Now()
	ours, foreign := newAuthority(t, now.AddDate(30, 0, 0)), newAuthority(t, now)
	pin := trust{pin: sha256.Sum256(ours.cert.Raw)}
	chain := func(c tls.Certificate) (out []*x509.Certificate) {
		for _, der := range c.Certificate {
			x, err := x509.ParseCertificate(der)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, x)
		}
		return out
	}
	server := chain(ours.server(t, x509.ExtKeyUsageServerAuth))
	stranger := chain(foreign.server(t, x509.ExtKeyUsageServerAuth))
	for name, c := range map[string]struct {
		t     trust
		peers []*x509.Certificate
		ok    bool
	}{
		"pinned":                     {pin, server, true},
		"built in, CA not presented": {trust{built: ours.cert}, server[:1], true},
		"another CA":                 {pin, stranger, false},
		"our CA beside a stranger":   {pin, append(stranger[:1:1], ours.cert), false},
		"an agent as server":         {pin, chain(ours.server(t, x509.ExtKeyUsageClientAuth)), false},
		"a conductor's for others":   {pin, chain(ours.server(t, towardsConductors)), false},
		"no pin":                     {trust{}, server, false},
		"the CA that follows":        {trust{pin: sha256.Sum256(foreign.cert.Raw), next: pin.pin}, server, true},
		"the CA before it":           {trust{pin: pin.pin, next: sha256.Sum256(foreign.cert.Raw)}, server, true},
		"neither of two":             {trust{pin: [32]byte{1}, next: [32]byte{2}}, server, false},
		"the built one counts":       {trust{built: foreign.cert, pin: pin.pin}, server, false},
	} {
		err := c.t.verify(tls.ConnectionState{PeerCertificates: c.peers})
		if (err == nil) != c.ok || err != nil && !errors.Is(err, errForeignServer) {
			t.Errorf("%s: %v, want ok=%v", name, err, c.ok)
		}
	}
}

func TestForeignConductor(t *testing.T) {
	c := newConductor(t)
	b := newBench(t, c)
	b.opts.Config.CA[0]++
	b.run()
	poll(t, "a rotation of links", func() bool {
		b.wire.mu.Lock()
		defer b.wire.mu.Unlock()
		return b.wire.rotated > 0
	})
	if n := c.count(func() int { return len(c.keys) }); n != 0 {
		t.Error("the token was given to a foreign server")
	}
}

func TestParseCmdline(t *testing.T) {
	pin := strings.Repeat("ab", 32)
	c, err := ParseCmdline("console=ttyS0 ingot.conductor=[fd00::1]:6386 ingot.ca=" + pin +
		" ingot.token=u.t BOOTIF=01-52-54-00-AA-00-01 quiet ingot.debug=1\n")
	if err != nil || !slices.Equal(c.Conductors, []string{"[fd00::1]:6386"}) || c.CA[0] != 0xab || c.Token != "u.t" ||
		c.BootIF.String() != "52:54:00:aa:00:01" || !c.Debug {
		t.Errorf("ParseCmdline = %+v, %v", c, err)
	}
	if s := fmt.Sprintf("%v %s", c, c.Token); strings.Contains(s, "u.t") {
		t.Errorf("the token is printed: %s", s)
	}
	if _, err := ParseCmdline("ingot.conductor=host ingot.ca=xyz"); err == nil ||
		strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("two faults gave %v", err)
	}
	if c, err := ParseCmdline("BOOTIF=rubbish"); err != nil || c.BootIF != nil || c.Validate() == nil {
		t.Errorf("rubbish in BOOTIF: %v", err)
	}
}

// TestPlain: the console shows the cause without the text around it.
func TestPlain(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	conn, err := (&session{o: &Options{}}).dial(address, trust{}.config(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = agentv1.NewAgentsClient(conn).Enroll(t.Context(), &agentv1.EnrollRequest{})
	for in, want := range map[error]string{
		fmt.Errorf("enrol: %w", conn.explain(err)): "dial tcp " + address + ": connect: connection refused",
		errors.New("no frame"):                     "no frame",
		conn.explain(fmt.Errorf("session ended: %w", status.Error(codes.Aborted, "replaced"))): "replaced",
	} {
		if got := plain(in); got != want || isUnreachable(err) != isUnreachable(conn.explain(err)) {
			t.Errorf("plain(%v) = %q, want %q", in, got, want)
		}
	}
}
