package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/image/swarm"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/index"
	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
)

// objects is an image's server that has one object.
type objects []byte

func (o objects) Object(_ context.Context, _ index.Object, dst []byte) error {
	copy(dst, o)
	return nil
}

// TestSwarmSession holds what the conductor hears of a swarm, that it decides whether there is one, and that the
// listener goes with the plan.
func TestSwarmSession(t *testing.T) {
	stored := objects("not a chunk, but its digest is right")
	x := &index.Index{Size: 1 << 20, Chunks: []index.Object{index.Of(stored)}, Lists: make([]index.Object, 1)}
	image := swarm.Image(sha256.Sum256([]byte("index")))
	for _, on := range []bool{true, false} {
		c := newConductor(t)
		if on {
			c.policy = &agentv1.Policy{Swarm: &agentv1.SwarmPolicy{UploadRate: 1 << 20}}
		}
		b := newBench(t, c)
		joined := make(chan bool, 1)
		b.opts.Steps = append(b.opts.Steps,
			step.Step{Row: step.Row{Interface: "deploy", Name: "join"},
				Run: func(ctx context.Context, call *step.Call) (step.Outcome, error) {
					m := swarm.Of(call.Facts).Join(x, image, stored, nil)
					joined <- m != nil
					if m != nil {
						m.Have(0)
					}
					<-b.release
					return step.Outcome{}, nil
				}})
		b.run()
		c.plan("p1", 3, "join")
		if got := <-joined; got != on {
			t.Fatalf("joined %v, want %v", got, on)
		}
		received := func(ok func(*agentv1.SwarmState) bool) func() bool {
			return func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				for _, e := range c.other {
					if s := e.GetSwarmState(); s != nil && bytes.Equal(s.Image, image[:]) && ok(s) {
						return true
					}
				}
				return false
			}
		}
		if !on {
			close(b.release)
			poll(t, "the plan's end", func() bool { return c.finished("p1") != nil })
			if received(func(*agentv1.SwarmState) bool { return true })() {
				t.Error("the conductor received chunks though it has switched swarms off")
			}
			continue
		}
		var port uint32
		poll(t, "the first state",
			received(func(s *agentv1.SwarmState) bool { port = s.Port; return s.Whole && s.Chunks == 1 && s.Port > 0 }))
		c.say(&agentv1.ConductorMessage{
			Body: &agentv1.ConductorMessage_SwarmPeers{SwarmPeers: &agentv1.SwarmPeers{Image: image[:], Whole: true,
				Peers: []*agentv1.SwarmPeer{{Node: "n2", Address: "nonsense"}}}}})
		poll(t, "a word about nonsense", func() bool {
			return c.logged("the conductor's word of neighbours makes no sense")
		})
		poll(t, "the chunk", received(func(s *agentv1.SwarmState) bool {
			return len(s.Added) == 1 && s.Added[0] == 0 || s.Whole && len(s.Have) == 1 && s.Have[0] == 1
		}))
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))
		dial := func() error {
			conn, err := net.DialTimeout("tcp", addr, time.Second)
			if err == nil {
				_ = conn.Close()
			}
			return err
		}
		if err := dial(); err != nil {
			t.Error(err)
		}
		close(b.release)
		poll(t, "the last state", received(func(s *agentv1.SwarmState) bool { return s.Left }))
		poll(t, "the listener's end", func() bool { return dial() != nil })
	}
}
