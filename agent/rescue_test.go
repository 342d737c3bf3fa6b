package agent

import (
	"encoding/json"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/agent/rescue"
	"github.com/ingot-metal/ingot/agent/step"
	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
	"golang.org/x/crypto/bcrypt"
	"golang.org/x/crypto/ssh"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// rescued lets the conductor rescue the machine, and returns the step's result.
func rescued(t *testing.T, c *conductor, b *bench, plan string) rescue.Info {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte("sesame"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	args, err := json.Marshal(map[string]string{"password_hash": string(hash)})
	if err != nil {
		t.Fatal(err)
	}
	c.say(&agentv1.ConductorMessage{
		Body: &agentv1.ConductorMessage_Plan{Plan: &agentv1.Plan{Id: plan, Generation: 3, Phase: "rescue",
			Steps: []*agentv1.Step{{Interface: "rescue", Name: "rescue", Args: args}}}}})
	poll(t, "the plan's end", func() bool { return c.finished(plan) != nil })
	var info rescue.Info
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.results {
		if f := e.GetStepFinished(); f != nil && f.PlanId == plan {
			if f.Outcome != agentv1.Outcome_OUTCOME_DONE {
				t.Fatalf("the step failed: %s", f.Error)
			}
			if err := json.Unmarshal(f.Result, &info); err != nil {
				t.Fatal(err)
			}
		}
	}
	return info
}

func rescueBench(t *testing.T, c *conductor) *bench {
	b := newBench(t, c)
	b.opts.Shell, b.opts.SSH = linux.Machine{}, "127.0.0.1:0"
	b.opts.Steps = append(b.opts.Steps,
		step.Step{Row: step.Row{Interface: "rescue", Name: "rescue", Args: rescue.Args}, Run: rescue.Step()})
	return b
}

// login reports whether a login succeeds.
func login(info rescue.Info) bool {
	c, err := ssh.Dial("tcp", sshAt(info),
		&ssh.ClientConfig{User: "rescue", Auth: []ssh.AuthMethod{ssh.Password("sesame")},
			HostKeyCallback: ssh.InsecureIgnoreHostKey(), Timeout: time.Minute})
	if err != nil {
		return false
	}
	defer c.Close()
	return ssh.FingerprintSHA256(hostKey(info)) == info.HostKey
}

func hostKey(info rescue.Info) ssh.PublicKey {
	k, _, _, _, err := ssh.ParseAuthorizedKey([]byte(info.HostKeyLine))
	if err != nil {
		return nil
	}
	return k
}

func sshAt(info rescue.Info) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(info.Port)) }

func closed(info rescue.Info) bool {
	c, err := net.Dial("tcp", sshAt(info))
	if err == nil {
		c.Close()
	}
	return err != nil
}

// TestRescueOverSession holds when a machine is open to people: from its step on, without a conductor too, and until
// another plan, the end of the boot, or the conductor's word that it does not know this boot.
func TestRescueOverSession(t *testing.T) {
	c := newConductor(t)
	b := rescueBench(t, c)
	b.run()
	info := rescued(t, c, b, "r1")
	if !login(info) {
		t.Fatal("login fails")
	}
	c.stop()
	if !login(info) {
		t.Error("login fails without a conductor")
	}
	c.mu.Lock()
	c.stream = nil
	c.mu.Unlock()
	c.start()
	c.plan("p2", 3, "quick")
	poll(t, "the plan's end", func() bool { return c.finished("p2") != nil })
	if !closed(info) {
		t.Error("it is open while another plan runs")
	}

	info = rescued(t, c, b, "r3")
	if !login(info) {
		t.Fatal("login fails after reopening")
	}
	c.say(&agentv1.ConductorMessage{
		Body: &agentv1.ConductorMessage_Power{Power: &agentv1.Power{Action: agentv1.PowerAction_POWER_ACTION_OFF}}})
	poll(t, "the end of the boot", func() bool { return b.box.how() == "off" })
	if !closed(info) {
		t.Error("it is open although the boot has ended")
	}
}

// TestRescueRefused holds that a conductor that does not want this boot any more closes the machine to people.
func TestRescueRefused(t *testing.T) {
	c := newConductor(t)
	b := rescueBench(t, c)
	b.run()
	info := rescued(t, c, b, "r1")
	c.mu.Lock()
	c.deny = status.Error(codes.PermissionDenied, "another boot")
	c.mu.Unlock()
	c.stop()
	c.mu.Lock()
	c.stream = nil
	c.mu.Unlock()
	c.start()
	poll(t, "the end of the rescue", func() bool { return closed(info) })
}

// TestRescueOutsideOfRescue holds that no other plan can open the machine.
func TestRescueOutsideOfRescue(t *testing.T) {
	c := newConductor(t)
	b := rescueBench(t, c)
	b.run()
	c.say(&agentv1.ConductorMessage{
		Body: &agentv1.ConductorMessage_Plan{Plan: &agentv1.Plan{Id: "p1", Generation: 3, Phase: "clean",
			Steps: []*agentv1.Step{
				{Interface: "rescue", Name: "rescue", Args: []byte(`{"password_hash":"$2a$04$x"}`)}}}}})
	poll(t, "the plan's end", func() bool { return c.finished("p1") != nil })
	if c.finished("p1").Done {
		t.Error("a cleaning opened the machine to people")
	}
}

// TestRescueOutlivesTheWorker holds that the next worker of the same boot opens the same, with the same host key,
// unless it was closed.
func TestRescueOutlivesTheWorker(t *testing.T) {
	c := newConductor(t)
	b := rescueBench(t, c)
	b.run()
	info := rescued(t, c, b, "r1")
	if err := b.stop(); err == nil {
		t.Log("ended by itself")
	}
	next := b.opts
	next.Restarts, next.Reason, next.SSH = 1, "a test", sshAt(info)
	a, err := New(next)
	if err != nil {
		t.Fatal(err)
	}
	if !login(info) {
		t.Error("the next worker has not opened the same")
	}
	a.plans.closeRescue("test")
	if a, err = New(next); err != nil {
		t.Fatal(err)
	}
	defer a.rescue.Close("test")
	if !closed(info) {
		t.Error("what was closed is open again")
	}
}

// TestNetworkReset holds that the agent acquires its network anew and comes back by itself, while its plan goes on.
func TestNetworkReset(t *testing.T) {
	c := newConductor(t)
	b := newBench(t, c)
	b.run()
	c.plan("p1", 3, "wait", "quick")
	<-b.ran
	sessions := func() int { return c.count(func() int { return len(c.hellos) }) }
	was := sessions()
	c.say(&agentv1.ConductorMessage{
		Body: &agentv1.ConductorMessage_NetworkReset{NetworkReset: &agentv1.NetworkReset{}}})
	poll(t, "another session", func() bool { return sessions() > was })
	b.wire.mu.Lock()
	if b.wire.resets != 1 {
		t.Errorf("the network was reset %d times", b.wire.resets)
	}
	b.wire.mu.Unlock()
	c.mu.Lock()
	if h := c.hellos[len(c.hellos)-1]; h.PlanId != "p1" || !h.PlanRunning {
		t.Errorf("after the reset the agent says %v", h)
	}
	c.mu.Unlock()
	close(b.release)
	poll(t, "the plan's end", func() bool { return c.finished("p1") != nil })
	if !c.finished("p1").Done {
		t.Error("the plan did not go on")
	}
}
