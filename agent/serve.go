package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
	"google.golang.org/grpc"
)

// endGrace is how long the agent waits, before it ends the boot, for the conductor to acknowledge results.
const endGrace = 5 * time.Second

var (
	errLeave      = errors.New("the boot is to end")
	errRedirected = errors.New("redirected to another conductor")
	// errNetworkReset ends a session whose network is to be acquired anew.
	errNetworkReset = errors.New("the network is to be acquired anew")
)

// serving is one open stream: one goroutine sends what the queue has, one receives.
type serving struct {
	a      *Agent
	stream grpc.BidiStreamingClient[agentv1.AgentMessage, agentv1.ConductorMessage]

	mu    sync.Mutex
	how   string // how the boot is to end, once the conductor has asked
	by    time.Time
	delay time.Duration // before a jump
}

// send sends until the stream ends or the boot is to end.
func (s *serving) send(ctx context.Context) error {
	q := s.a.q
	for {
		e, wait := q.next(time.Now())
		if e != nil {
			if err := s.stream.Send(&agentv1.AgentMessage{Body: &agentv1.AgentMessage_Event{Event: e}}); err != nil {
				return err
			}
			continue
		}
		how, by := s.ending()
		if how != "" {
			if q.pending() == 0 || !time.Now().Before(by) {
				return errLeave
			}
			wait = time.Until(by)
		}
		var timer <-chan time.Time
		if wait > 0 {
			timer = time.After(wait)
		}
		select {
		case <-q.wake:
		case <-timer:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *serving) ending() (string, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.how, s.by
}

// receive obeys the conductor until the stream ends.
func (s *serving) receive() error {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			return err
		}
		switch b := m.Body.(type) {
		case *agentv1.ConductorMessage_Plan:
			s.a.accept(b.Plan)
		case *agentv1.ConductorMessage_Cancel:
			s.a.log.Warn("the conductor cancels the plan", "plan", b.Cancel.PlanId)
			s.a.cancelPlan(b.Cancel.PlanId)
		case *agentv1.ConductorMessage_Ack:
			s.a.q.ack(b.Ack.Seq)
		case *agentv1.ConductorMessage_Power:
			s.power(b.Power)
		case *agentv1.ConductorMessage_Redirect:
			s.a.log.Info("redirected", "conductor", b.Redirect.Address)
			s.a.change(func(st *saved) { st.Conductor = b.Redirect.Address })
			return errRedirected
		case *agentv1.ConductorMessage_NetworkReset:
			s.a.log.Info("the conductor has the network acquired anew")
			return errNetworkReset
		case *agentv1.ConductorMessage_CollectLogs:
			s.a.plans.Go(s.a.collectLogs)
		case *agentv1.ConductorMessage_SwarmPeers:
			if err := s.a.swarmPeers(b.SwarmPeers); err != nil {
				s.a.log.Warn("the conductor's word of neighbours makes no sense", "err", err)
			}
		case *agentv1.ConductorMessage_Welcome:
		default:
			s.a.log.Warn("the conductor asks for something that this agent does not know", "message",
				fmt.Sprintf("%T", b))
		}
	}
}

// maxDelay bounds the wait before a jump: nobody can call the agent back any more.
const maxDelay = 5 * time.Minute

func (s *serving) power(p *agentv1.Power) {
	how := map[agentv1.PowerAction]string{agentv1.PowerAction_POWER_ACTION_REBOOT: "reboot",
		agentv1.PowerAction_POWER_ACTION_OFF: "off", agentv1.PowerAction_POWER_ACTION_KEXEC: "kexec"}[p.Action]
	if how == "" {
		s.a.log.Warn("power action refused: this agent can reboot, power off and jump into a loaded kernel", "action",
			p.Action.String())
		return
	}
	if plan, ended := s.a.busy(); plan != "" {
		s.a.log.Info("power action waits for the end of the plan", "action", how, "plan", plan)
		s.a.plans.Go(func() { s.powerAfter(p, how, plan, ended) })
		return
	}
	if how == "kexec" && !s.a.o.System.KernelLoaded() {
		s.a.log.Warn("power action refused: no kernel is loaded", "action", how)
		return
	}
	s.a.log.Info("the conductor ends this boot", "action", how)
	s.mu.Lock()
	s.how, s.by, s.delay = how, time.Now().Add(endGrace), min(max(0, p.Delay.AsDuration()), maxDelay)
	s.mu.Unlock()
	s.a.q.rouse()
}

// planGrace is how long a request to end the boot waits for the end of a plan.
const planGrace = 5 * time.Second

// powerAfter obeys a request that has come while a plan runs: the conductor asks as soon as it has the last step's
// result, when the plan is just about to end. A plan that goes on is not disturbed.
func (s *serving) powerAfter(p *agentv1.Power, how, plan string, ended <-chan struct{}) {
	select {
	case <-ended:
		if next, _ := s.a.busy(); next == "" {
			s.power(p)
			return
		}
	case <-time.After(planGrace):
	case <-s.stream.Context().Done():
		return
	}
	s.a.log.Warn("power action refused: a plan is running", "action", how, "plan", plan)
}

// leave ends the boot. When that fails the agent says so and stays, so that the conductor can take other means.
func (s *serving) leave(ctx context.Context) error {
	how, _ := s.ending()
	s.a.o.Status.Line("the conductor ends this boot: %s", how)
	s.a.closeRescue("the boot ends") // whoever is logged in may hold what is to be unmounted
	if how == "kexec" {
		return s.jump(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := s.a.o.System.End(ctx, how); err != nil {
		s.a.log.Error("this boot could not be ended", "action", how, "err", err)
		return err
	}
	return errEnded
}

// jump goes into the loaded kernel. The network is left first, while its server can still hear that; then the conductor
// has as much time as it asked for to switch it.
func (s *serving) jump(ctx context.Context) error {
	s.mu.Lock()
	delay := s.delay
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, delay+time.Minute)
	defer cancel()
	quick, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	if err := s.a.o.Network.Leave(quick); err != nil {
		s.a.log.Warn("the network is not quite stopped", "err", err)
	}
	sleep(ctx, delay)
	err := s.a.o.System.End(ctx, "kexec")
	if err == nil {
		return errEnded
	}
	s.a.log.Error("the jump into the loaded kernel failed", "err", err)
	s.a.resetNetwork(ctx)
	return err
}

func (a *Agent) collectLogs() {
	b, err := bundleLogs(a.o.System, a.o.LogFiles...)
	if err != nil {
		a.log.Warn("some logs could not be collected", "err", err)
	}
	a.q.logBundle(b)
}
