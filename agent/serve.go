package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/agent/image/swarm"
	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
	"google.golang.org/grpc"
)

// endGrace is how long the agent waits for the conductor's acknowledgement of results before it ends the boot.
const endGrace = 5 * time.Second

var (
	errLeave = errors.New("the boot is to end")
	// errNetworkReset ends a session before its network is acquired again.
	errNetworkReset = errors.New("the network is to be acquired again")
)

// redirectedError ends a session because the node belongs to another conductor.
type redirectedError struct{ address string }

func (e *redirectedError) Error() string { return "redirected to the conductor at " + e.address }

// redirectTo returns the redirectedError for a conductor's message, or what is wrong with its address: then the session
// has ended like any other. The message has an address and nothing else to follow: whom the agent trusts is decided in
// the handshake with that address, as with any other.
func redirectTo(r *agentv1.Redirect) error {
	if err := agentv1.CheckAddress(r.Address); err != nil {
		return fmt.Errorf("the conductor redirects this agent to what is no address: %w", err)
	}
	return &redirectedError{r.Address}
}

// serving is one open stream: one goroutine sends from the queue, one receives.
type serving struct {
	stream      grpc.BidiStreamingClient[agentv1.AgentMessage, agentv1.ConductorMessage]
	log         *slog.Logger
	q           *queue
	mem         *memory
	plans       *plans
	swarm       *swarm.Node
	loaded      func() bool // a kernel is ready for a jump
	collectLogs func()

	mu  sync.Mutex
	end ending
}

// ending is how the boot should end, on the conductor's request; how is "" until then.
type ending struct {
	how   string
	by    time.Time
	delay time.Duration // before a jump
}

// send sends until the stream ends or the boot is to end.
func (s *serving) send(ctx context.Context) error {
	q := s.q
	for {
		e, wait := q.next(time.Now())
		if e != nil {
			if err := s.stream.Send(&agentv1.AgentMessage{Body: &agentv1.AgentMessage_Event{Event: e}}); err != nil {
				return err
			}
			continue
		}
		if end := s.ending(); end.how != "" {
			if q.pending() == 0 || !time.Now().Before(end.by) {
				return errLeave
			}
			wait = time.Until(end.by)
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

func (s *serving) ending() ending {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

// receive executes the conductor's messages until the stream ends.
func (s *serving) receive() error {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			return err
		}
		switch b := m.Body.(type) {
		case *agentv1.ConductorMessage_Plan:
			s.plans.accept(b.Plan)
		case *agentv1.ConductorMessage_Cancel:
			s.log.Warn("the conductor cancels the plan", "plan", b.Cancel.PlanId)
			s.plans.cancel(b.Cancel.PlanId)
		case *agentv1.ConductorMessage_Ack:
			s.q.ack(b.Ack.Seq)
		case *agentv1.ConductorMessage_Power:
			s.power(b.Power)
		case *agentv1.ConductorMessage_Redirect:
			return redirectTo(b.Redirect)
		case *agentv1.ConductorMessage_NetworkReset:
			s.log.Info("the conductor has requested to acquire the network again")
			return errNetworkReset
		case *agentv1.ConductorMessage_CollectLogs:
			s.plans.work.Go(s.collectLogs)
		case *agentv1.ConductorMessage_SwarmPeers:
			if err := hearPeers(s.swarm, b.SwarmPeers); err != nil {
				s.log.Warn("the conductor's word of neighbours makes no sense", "err", err)
			}
		case *agentv1.ConductorMessage_Welcome:
		default:
			s.log.Warn("the conductor sent a message that this agent does not know", "message",
				fmt.Sprintf("%T", b))
		}
	}
}

// maxDelay bounds the wait before a jump: the agent can't be reached meanwhile.
const maxDelay = 5 * time.Minute

func (s *serving) power(p *agentv1.Power) {
	how := map[agentv1.PowerAction]string{agentv1.PowerAction_POWER_ACTION_REBOOT: "reboot",
		agentv1.PowerAction_POWER_ACTION_OFF: "off", agentv1.PowerAction_POWER_ACTION_KEXEC: "kexec"}[p.Action]
	if how == "" {
		s.log.Warn("power action refused: this agent can reboot, power off and jump into a loaded kernel", "action",
			p.Action.String())
		return
	}
	if plan, ended := s.plans.busy(); plan != "" {
		s.log.Info("power action waits for the end of the plan", "action", how, "plan", plan)
		s.plans.work.Go(func() { s.powerAfter(p, how, plan, ended) })
		return
	}
	if how == "kexec" && !s.loaded() {
		s.log.Warn("power action refused: no kernel is loaded", "action", how)
		return
	}
	s.log.Info("the conductor ends this boot", "action", how)
	s.mu.Lock()
	s.end = ending{how, time.Now().Add(endGrace), min(max(0, p.Delay.AsDuration()), maxDelay)}
	s.mu.Unlock()
	s.q.rouse()
}

// planGrace is how long a request to end the boot waits for the end of a plan.
const planGrace = 5 * time.Second

// powerAfter handles a request during a plan: the conductor sends it after the last step's result, when the plan is
// just about to end. A plan that continues is not disturbed.
func (s *serving) powerAfter(p *agentv1.Power, how, plan string, ended <-chan struct{}) {
	select {
	case <-ended:
		if next, _ := s.plans.busy(); next == "" {
			s.power(p)
			return
		}
	case <-time.After(planGrace):
	case <-s.stream.Context().Done():
		return
	}
	s.log.Warn("power action refused: a plan is running", "action", how, "plan", plan)
}
