package engine

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// startOS runs the installed system, if there is one.
func (m *machine) startOS(kexec bool) {
	if !m.bootable {
		return
	}
	m.osStarted++
	ctx, stop := context.WithCancel(context.Background())
	m.osStop = stop
	if m.os != nil {
		m.w.wg.Go(func() { m.os(ctx, m, kexec) })
	}
}

// Kexec is the agent's leave: it jumps, unless a plan runs or nothing is loaded, about which it says nothing.
func (l link) Kexec(ctx context.Context, id string, delay time.Duration) error {
	a, err := l.agent(id)
	if err != nil {
		return err
	}
	a.m.mu.Lock()
	a.m.asks = append(a.m.asks, "agent kexec")
	a.m.mu.Unlock()
	idle := a.idle()
	a.mu.Lock()
	ready := a.facts["kernel"] != ""
	a.mu.Unlock()
	if !idle || !ready {
		<-ctx.Done()
		return errors.New("the agent did not leave")
	}
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	if a.m.agent != a { // jumped, or turned off, meanwhile
		return errNoSession
	}
	a.m.stopAgent()
	a.m.kexecs++
	a.m.delay = delay
	a.m.startOS(true)
	return nil
}

var phoneHomeURL = regexp.MustCompile(`http://home/ingot/v1/phone_home/([A-Za-z0-9_-]+)`)

// phoneHome calls until it gets through, as cloud-init does with its vendor data.
func phoneHome(ctx context.Context, m *machine, _ bool) {
	m.mu.Lock()
	found := phoneHomeURL.FindStringSubmatch(m.drive)
	m.mu.Unlock()
	for found != nil && ctx.Err() == nil {
		c := m.w.current()
		if c != nil && !c.isDead() && c.eng.PhoneHome(ctx, found[1], "192.0.2.9") == nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// asksDHCP is a system that asks for an address, and asks again until it gets an answer.
func asksDHCP(ctx context.Context, m *machine, _ bool) {
	for ctx.Err() == nil {
		if c := m.w.current(); c != nil && !c.isDead() {
			c.eng.DHCPSeen(ctx, "52:54:00:"+m.macTail())
		}
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// onlyCold is a system that hangs unless firmware started it.
func onlyCold(then func(context.Context, *machine, bool)) func(context.Context, *machine, bool) {
	return func(ctx context.Context, m *machine, kexec bool) {
		if !kexec {
			then(ctx, m, kexec)
		}
	}
}

// kexecConfig is a conductor's whose ramdisk can load kernels.
func kexecConfig(method string, signs ...string) Config {
	c := testConfig()
	c.AgentSteps = catalog.BuiltinSteps()
	has := false
	for _, s := range c.AgentSteps {
		has = has || s.Name == catalog.StepLoadKernel
	}
	if !has {
		c.AgentSteps = append(c.AgentSteps, steparg.Row{Interface: "deploy", Name: catalog.StepLoadKernel,
			Args: []steparg.Arg{{Name: "kernel_append_params", Type: "string"}}})
	}
	c.BootInstance, c.SignOfLife = method, signs
	c.SignTimeout = 2 * patience
	c.PhoneHomeURL, c.PhoneHomeKey = "http://home/", []byte("key")
	return c
}

// available is a world with a machine that is ready to be deployed.
func available(t interface{ Helper() }, w *world, name string) *machine {
	t.Helper()
	m := w.add(name)
	w.walk(m, node.Available)
	m.mu.Lock()
	m.asks = nil
	m.mu.Unlock()
	return m
}

// startResult returns the final result of boot_instance.
func startResult(n *node.Node) (r struct {
	Method     string
	ColdBooted bool             `json:"cold_booted"`
	Sign       *node.SignOfLife `json:"sign_of_life"`
}) {
	if j := n.Past[node.PhaseDeploy]; j != nil {
		for _, s := range j.Steps {
			if s.Name == catalog.StepBootInstance {
				_ = json.Unmarshal(s.Result, &r)
			}
		}
	}
	return r
}
