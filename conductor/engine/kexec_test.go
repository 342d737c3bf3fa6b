package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/engine/start"
	"github.com/ingot-metal/ingot/conductor/guard/dial"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/signoflife"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// historyOf is a node's history as one text.
func historyOf(t *testing.T, w *world, m *machine) string {
	t.Helper()
	entries, err := w.store.History(t.Context(), m.id, 0)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, h := range entries {
		fmt.Fprintf(&b, "%s %s\n", h.Severity, h.Event)
	}
	return b.String()
}

func wantHistory(t *testing.T, w *world, m *machine, severity, words string) {
	t.Helper()
	h := historyOf(t, w, m)
	for line := range strings.SplitSeq(h, "\n") {
		if strings.HasPrefix(line, severity) && strings.Contains(line, words) {
			return
		}
	}
	t.Errorf("history has no %s with %q:\n%s", severity, words, h)
}

// deployed deploys a machine and returns its node, which is active, and what was asked of its power meanwhile.
func deployed(t *testing.T, w *world, m *machine) (*node.Node, []string) {
	t.Helper()
	m.mu.Lock()
	m.asks = nil
	m.mu.Unlock()
	n := w.walk(m, node.Active)
	m.mu.Lock()
	defer m.mu.Unlock()
	return n, slices.Clone(m.asks)
}

// TestKexec: the agent jumps into the system, and nothing is asked of the machine's power after that it booted the
// agent.
func TestKexec(t *testing.T) {
	w := newWorld(t)
	w.cfg = kexecConfig(start.Kexec)
	w.start(nil)
	m := available(t, w, "n1")
	n, asks := deployed(t, w, m)
	checkDeployed(t, m, 1)
	if want := []string{"on", "agent kexec"}; !slices.Equal(asks, want) || m.kexecs != 1 || m.osStarted != 1 {
		t.Errorf("asked for %q, want %q; %d jumps, %d starts of the system", asks, want, m.kexecs, m.osStarted)
	}
	if m.boot.Device != power.BootDisk || !m.boot.Persistent || !n.Boot.Ended || n.Boot.Connected {
		t.Errorf("the safety net: boot device %+v, boot of the agent %+v", m.boot, n.Boot)
	}
	if r := startResult(n); r.Method != start.Kexec || r.Sign != nil {
		t.Errorf("result %+v", r)
	}
	wantHistory(t, w, m, "INFO", "by kexec")
	marks, err := w.store.Marks(t.Context(), m.id, n.Past[node.PhaseDeploy].ID)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, k := range marks {
		names = append(names, k.Name)
	}
	if a, b := slices.Index(names, node.MarkKexecAsked), slices.Index(names, node.MarkKexec); a < 0 || b < a {
		t.Errorf("marks %q", names)
	}
}

// TestKexecNot: whatever stands in the way of a kexec, the machine's firmware starts the system, and the history says
// why.
func TestKexecNot(t *testing.T) {
	for _, c := range []struct {
		name, words string
		load        func(*agent, node.PlanStep) (node.StepResult, bool)
		stays       bool // the agent is asked, and does not leave
	}{
		{"not loaded", "lockdown", func(*agent, node.PlanStep) (node.StepResult, bool) {
			return node.StepResult{
				Outcome: node.OutcomeDone,
				Result:  json.RawMessage(`{"loaded":false,"reason":"the kernel is in lockdown."}`)}, true
		}, false},
		{"no result", "did not say", func(*agent, node.PlanStep) (node.StepResult, bool) {
			return node.StepResult{Outcome: node.OutcomeDone, Result: json.RawMessage(`"x"`)}, true
		}, false},
		{"the agent stays", "did not leave", func(*agent, node.PlanStep) (node.StepResult, bool) {
			// and it has nothing
			return node.StepResult{Outcome: node.OutcomeDone, Result: json.RawMessage(`{"loaded":true}`)}, true
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg = kexecConfig(start.Kexec, "dhcp")
			w.cfg.AgentOff = 50 * time.Millisecond
			w.start(nil)
			m := available(t, w, "n1")
			m.behave[catalog.StepLoadKernel], m.os = c.load, asksDHCP
			n, asks := deployed(t, w, m)
			checkDeployed(t, m, 1)
			asked := slices.Contains(asks, "agent kexec")
			if r := startResult(n); m.kexecs != 0 || asked != c.stays || r.Method != start.Reboot || r.Sign == nil ||
				asks[len(asks)-1] != "on" {
				t.Errorf("asked for %q, %d jumps, result %+v", asks, m.kexecs, r)
			}
			wantHistory(t, w, m, "WARNING", c.words)
		})
	}
}

// TestSignsOfLife: the node becomes active by each kind of sign, after a kexec and after an ordinary start, and not
// before.
func TestSignsOfLife(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	port := fmt.Sprint("port:", l.Addr().(*net.TCPAddr).Port)
	for _, c := range []struct {
		sign string
		os   func(context.Context, *machine, bool)
	}{
		{"phone_home", phoneHome}, {"dhcp", asksDHCP}, {port, nil}, {"console:demo login:", nil},
	} {
		for _, method := range []string{start.Kexec, start.Reboot} {
			kind, _, _ := strings.Cut(c.sign, ":")
			t.Run(kind+" after "+method, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.cfg = kexecConfig(start.Reboot)
				w.cfg.signGuard = dial.New([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")})
				w.start(nil)
				m := available(t, w, "n1")
				m.console = "Debian GNU/Linux 12 demo tty\r\n\r\ndemo login: "
				shown := make(chan struct{})
				m.os = func(ctx context.Context, m *machine, hot bool) {
					<-shown
					if c.os != nil {
						c.os(ctx, m, hot)
					}
				}
				w.edit(m, func(n *node.Node) {
					n.InstanceInfo["boot_instance"], n.InstanceInfo["sign_of_life"] = method, []any{c.sign}
					n.InstanceInfo["configdrive"] = map[string]any{"user_data": "mine"}
				})
				if kind == "port" {
					if err := w.store.PutLease(t.Context(),
						node.Lease{MAC: "52:54:00:00:00:01", IP: "127.0.0.1", NodeUUID: m.id,
							ExpiresAt: time.Now().Add(time.Hour)}); err != nil {
						t.Fatal(err)
					}
				}
				if err := w.current().eng.Provision(t.Context(), m.id, Request{Verb: node.Deploy}); err != nil {
					t.Fatal(err)
				}
				if c.os != nil {
					n := w.until(m, "the wait for a sign",
						func(n *node.Node) bool { return n.Job != nil && n.Job.Note == "sign" })
					if n.Provision != node.DeployWait || n.Reservation != "" || n.Job.Sign != nil {
						t.Errorf("waiting for a sign in state %s, reserved by %q, sign %+v", n.Provision, n.Reservation,
							n.Job.Sign)
					}
				}
				close(shown)
				n := w.untilState(m, node.Active, node.DeployFailed)
				r := startResult(n)
				if n.Provision != node.Active || r.Method != method || r.Sign == nil || r.Sign.Kind != c.sign ||
					r.Sign.At.IsZero() || m.osStarted != 1 {
					t.Errorf("%s: state %s, error %q, result %+v, %d starts", c.sign, n.Provision, n.LastError, r,
						m.osStarted)
				}
				wantHistory(t, w, m, "INFO", "sign of life: "+c.sign)
				if kind == "phone_home" && !strings.Contains(m.drive, "mine") {
					t.Errorf("the user's data is lost: %s", m.drive)
				}
				if len(n.InstanceInfo["configdrive"].(map[string]any)) != 1 {
					t.Errorf("what the user gave was changed: %v", n.InstanceInfo["configdrive"])
				}
			})
		}
	}
}

// TestHangingKernel: a system that hangs after a kexec is started once more by the machine's firmware, by itself.
func TestHangingKernel(t *testing.T) {
	for _, stays := range []bool{false, true} {
		t.Run(fmt.Sprint("must stay on ", stays), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg = kexecConfig(start.Kexec, "phone_home")
			w.cfg.SignTimeout = 10 * time.Second // in which the second start has to show itself
			w.start(nil)
			m := available(t, w, "n1")
			m.os = onlyCold(phoneHome)
			w.edit(m, func(n *node.Node) { n.DisablePowerOff = stays })
			// with no config drive of its own
			if err := w.current().eng.Provision(t.Context(), m.id, Request{Verb: node.Deploy}); err != nil {
				t.Fatal(err)
			}
			n := w.untilState(m, node.Active, node.DeployFailed)
			r := startResult(n)
			if n.Provision != node.Active || m.kexecs != 1 || m.osStarted != 2 || !m.on || n.LastError != "" ||
				!r.ColdBooted || r.Sign == nil || r.Method != start.Kexec {
				t.Errorf("state %s, error %q, %d jumps, %d starts, on %v, result %+v", n.Provision, n.LastError,
					m.kexecs, m.osStarted, m.on, r)
			}
			if tail := m.asks[len(m.asks)-1]; tail != map[bool]string{false: "on", true: "reset"}[stays] {
				t.Errorf("asked for %q", m.asks)
			}
			wantHistory(t, w, m, "WARNING", "the machine is restarted and boots from its disk")
		})
	}
}

// TestNoSignOfLife: a system that never shows itself fails the deployment, with a sentence.
func TestNoSignOfLife(t *testing.T) {
	for method, starts := range map[string]int{start.Kexec: 2, start.Reboot: 1} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg = kexecConfig(method, "dhcp", "port:9")
			w.cfg.SignTimeout = 100 * time.Millisecond
			w.start(nil)
			m := available(t, w, "n1")
			w.must(m, node.Deploy)
			n := w.untilState(m, node.Active, node.DeployFailed)
			if n.Provision != node.DeployFailed || m.osStarted != starts || m.on {
				t.Errorf("state %s, %d starts, on %v", n.Provision, m.osStarted, m.on)
			}
			wantError(t, n, "no sign of life (dhcp, port:9) within 100ms")
		})
	}
}

// TestTokenOnce: a token counts once, for its own job only.
func TestTokenOnce(t *testing.T) {
	w := newWorld(t)
	w.cfg = kexecConfig(start.Kexec, "phone_home")
	eng := w.start(nil).eng
	m := available(t, w, "n1")
	urls := make(chan string, 2)
	m.os = func(_ context.Context, m *machine, _ bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		urls <- phoneHomeURL.FindStringSubmatch(m.drive)[1]
	}
	goOn := m.hold("write_image")
	w.must(m, node.Deploy)
	w.until(m, "the image being written", func(n *node.Node) bool {
		return n.Job != nil && n.Job.Current() != nil && n.Job.Current().InBand
	})
	early := signoflife.Token(w.cfg.PhoneHomeKey, m.id, w.node(m).Job.ID)
	if err := eng.PhoneHome(t.Context(), early, "x"); !errors.Is(err, node.ErrNotFound) {
		t.Errorf("a token counts while the agent is at work: %v", err)
	}
	goOn()
	tok := <-urls
	if tok != early {
		t.Errorf("token %q, want %q", tok, early)
	}
	for name, bad := range map[string]string{
		"none": "", "noise": "abc", "other job": signoflife.Token(w.cfg.PhoneHomeKey, m.id, "x"),
		"no such node": signoflife.Token(w.cfg.PhoneHomeKey, "00000000-0000-4000-8000-000000000000", "x"),
		"other key":    signoflife.Token([]byte("?"), m.id, w.node(m).Job.ID)} {
		if err := eng.PhoneHome(t.Context(), bad, "x"); !errors.Is(err, node.ErrNotFound) {
			t.Errorf("token %s: %v", name, err)
		}
	}
	if err := eng.PhoneHome(t.Context(), tok, "192.0.2.1"); err != nil {
		t.Fatal(err)
	}
	if err := eng.PhoneHome(t.Context(), tok, "192.0.2.1"); !errors.Is(err, node.ErrNotFound) {
		t.Errorf("the second time: %v", err)
	}
	n := w.untilState(m, node.Active)
	if r := startResult(n); r.Sign == nil || r.Sign.Detail != "192.0.2.1" {
		t.Errorf("result %+v", r)
	}
	if err := eng.PhoneHome(t.Context(), tok, "192.0.2.1"); !errors.Is(err, node.ErrNotFound) {
		t.Errorf("after the end: %v", err)
	}
}

// TestStartIsChecked: what can't be done is refused when it is asked for.
func TestStartIsChecked(t *testing.T) {
	w := newWorld(t)
	w.cfg = kexecConfig("")
	w.start(nil)
	m := available(t, w, "n1")
	step := func(name string, priority int, args string) []node.JobStep {
		return []node.JobStep{{Interface: "deploy", Name: name, Priority: priority, Args: json.RawMessage(args)}}
	}
	for _, c := range []struct {
		words string
		info  map[string]any
		drive any
		steps []node.JobStep
	}{
		{"use reboot or kexec", map[string]any{"boot_instance": "magic"}, nil, nil},
		{"use reboot or kexec", map[string]any{"boot_instance": 3}, nil, nil},
		{"use reboot or kexec", nil, nil, step(catalog.StepBootInstance, 20, `{"method":"x"}`)},
		{"takes the arguments", nil, nil, step(catalog.StepBootInstance, 20, `{"how":"x"}`)},
		{"takes no arguments", nil, nil, step(catalog.StepTearDown, 40, `{"how":"x"}`)},
		{"not a sign of life", map[string]any{"sign_of_life": []any{"ping"}}, nil, nil},
		{"not a TCP port", nil, nil, step(catalog.StepBootInstance, 20, `{"sign_of_life":"port:x"}`)},
		{"seconds", map[string]any{"sign_of_life": "dhcp", "sign_of_life_timeout": 5}, nil, nil},
		{"seconds", map[string]any{"sign_of_life": "dhcp", "sign_of_life_timeout": "soon"}, nil, nil},
		{"can't be left out", map[string]any{"boot_instance": "kexec"}, nil, step(catalog.StepLoadKernel, 0, "")},
		{"has to run before", map[string]any{"boot_instance": "kexec"}, nil, step(catalog.StepLoadKernel, 65, "")},
		{"finished image", map[string]any{"sign_of_life": "phone_home"}, "H4sIAAAA", nil},
		{"finished image", map[string]any{"sign_of_life": "phone_home"}, nil,
			step("write_configdrive", 70, `{"configdrive":"http://x/y"}`)},
		{"phone_home of its own", map[string]any{"sign_of_life": "phone_home"},
			map[string]any{"user_data": "#cloud-config\nphone_home:\n"}, nil},
		{"can't be left out", map[string]any{"sign_of_life": "phone_home"}, nil, step("write_configdrive", 0, "")},
	} {
		w.edit(m, func(n *node.Node) {
			n.InstanceInfo = map[string]any{"image_source": "http://images/n1", "image_os_hash_algo": "sha256",
				"image_os_hash_value": strings.Repeat("ab", 32)}
			for k, v := range c.info {
				n.InstanceInfo[k] = v
			}
		})
		var invalid *InvalidError
		err := w.current().eng.Provision(t.Context(), m.id,
			Request{Verb: node.Deploy, ConfigDrive: c.drive, DeploySteps: c.steps})
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%v %v %v = %v, want a refusal with %q", c.info, c.drive, c.steps, err, c.words)
		}
		if n := w.node(m); n.Job != nil || n.Provision != node.Available {
			t.Fatalf("%v was begun", c.info)
		}
	}
	// Without what it needs.
	for words, spoil := range map[string]func(*Config){
		"no step deploy.load_kernel": func(c *Config) {
			c.AgentSteps = slices.DeleteFunc(catalog.BuiltinSteps(),
				func(s steparg.Row) bool { return s.Name == catalog.StepLoadKernel })
			c.BootInstance = start.Kexec
		},
		"set deploy.phone_home_url": func(c *Config) { c.PhoneHomeURL = ""; c.SignOfLife = []string{"phone_home"} },
		"the console of node":       func(c *Config) { c.SignOfLife = []string{"console:x"} },
	} {
		w.kill()
		w.cfg = kexecConfig("")
		spoil(&w.cfg)
		w.start(nil)
		w.edit(m, func(n *node.Node) {
			n.InstanceInfo = map[string]any{"image_source": "http://images/n1", "image_os_hash_algo": "sha256",
				"image_os_hash_value": strings.Repeat("ab", 32)}
			n.Interfaces = map[string]string{}
			if strings.Contains(words, "console") {
				n.Interfaces["power"] = "mute"
			}
		})
		if err := w.ask(m, node.Deploy); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("deploy = %v, want a refusal with %q", err, words)
		}
	}
}

// TestDieDuringKexec kills the conductor at each write of a deployment on a machine whose agent stayed, started by
// kexec, with that write lost and with it done. The system becomes active, its image written once, without a firmware
// in between.
func TestDieDuringKexec(t *testing.T) {
	once := func(t *testing.T, w *world, name string, k int, commit bool) (writes int) {
		co := w.start(nil)
		m := w.add(name)
		m.os = phoneHome
		w.walk(m, node.Available)
		m.mu.Lock()
		m.asks = nil
		m.mu.Unlock()
		kept := w.node(m)
		if kept.Boot == nil || !kept.Boot.Kept {
			t.Fatalf("the agent was not kept: %+v", kept.Boot)
		}
		co.crash.arm(k, commit)
		done := w.successor(co, k > 0)
		n := w.walk(m, node.Active)
		co.die()
		<-done
		w.kill()
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.writes != 1 || !m.bootable || !m.on || !strings.Contains(m.drive, "http://drive-of/"+name) ||
			n.LastError != "" || n.Reservation != "" || n.Power != "power on" {
			t.Errorf("%d writes, bootable %v, on %v, config drive %s, last error %q, reservation %q, power %q",
				m.writes, m.bootable, m.on, m.drive, n.LastError, n.Reservation, n.Power)
		}
		if m.kexecs != 1 || m.osStarted != 1 {
			t.Errorf("%d jumps, %d starts of the system, asked for %q\n%s", m.kexecs, m.osStarted, m.asks,
				historyOf(t, w, m))
		}
		if slices.ContainsFunc(m.asks, func(a string) bool { return a != "agent kexec" }) {
			t.Errorf("asked for %q", m.asks)
		}
		if r := startResult(n); r.Method != start.Kexec || r.ColdBooted || r.Sign == nil {
			t.Errorf("result %+v", r)
		}
		co.crash.mu.Lock()
		defer co.crash.mu.Unlock()
		return co.crash.count
	}
	world := func(t *testing.T) *world {
		w := newWorld(t)
		w.cfg = kexecConfig(start.Kexec, "phone_home")
		w.cfg.FastTrack, w.objects = true, true
		return w
	}
	total := once(t, world(t), "n", 0, false)
	if t.Failed() {
		t.FailNow()
	}
	if total < 8 {
		t.Fatalf("only %d writes: the count is wrong", total)
	}
	t.Logf("%d writes", total)
	step := 1
	if raceOn && os.Getenv("INGOT_FULL") == "" {
		step = 6
	}
	const worlds = 4
	for i := range worlds {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			w := world(t)
			for k := 1 + i*step; k <= total; k += worlds * step {
				for _, commit := range []bool{false, true} {
					once(t, w, fmt.Sprintf("write-%d-committed-%v", k, commit), k, commit)
					if t.Failed() {
						t.Fatalf("killed at write %d (done: %v)", k, commit)
					}
				}
			}
		})
	}
}

// TestKexecWithoutController: a machine that only its agent can restart is started by kexec as any other; when that
// hangs, it can't be restarted, and the node says so.
func TestKexecWithoutController(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		t.Run(fmt.Sprint("hangs ", hangs), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg = kexecConfig(start.Kexec, "dhcp")
			w.cfg.FastTrack = true // so that no person has to turn it on
			if hangs {
				w.cfg.SignTimeout = 100 * time.Millisecond
			}
			w.start(nil)
			m := available(t, w, "n1")
			m.os = asksDHCP
			if hangs {
				m.os = onlyCold(asksDHCP)
			}
			w.edit(m, func(n *node.Node) { n.Interfaces = map[string]string{"power": program.AgentPower} })
			w.must(m, node.Deploy)
			n := w.untilState(m, node.Active, node.DeployFailed)
			if !slices.Equal(m.asks, []string{"agent kexec"}) || m.kexecs != 1 || m.osStarted != 1 {
				t.Errorf("asked for %q, %d jumps, %d starts", m.asks, m.kexecs, m.osStarted)
			}
			if hangs {
				wantError(t, n, "no controller to restart the machine with")
			} else if r := startResult(n); n.Provision != node.Active || r.Sign == nil {
				t.Errorf("state %s, error %q, result %+v", n.Provision, n.LastError, r)
			}
		})
	}
}

// failing is a network whose tenant's part can't be reached.
type failing struct{ movable }

func (f *failing) Attach(ctx context.Context, n *node.Node, to NetworkName) error {
	if to == TenantNetwork {
		return errors.New("switch leaf-1 refuses")
	}
	return f.movable.Attach(ctx, n, to)
}

// TestKexecIntoNoNetwork: the system of a machine that jumped, but whose network could not be switched, would run on
// the provisioning network: the machine is turned off.
func TestKexecIntoNoNetwork(t *testing.T) {
	w := newWorld(t)
	w.cfg = kexecConfig(start.Kexec)
	eng := w.start(nil).eng
	m := available(t, w, "n1")
	eng.network = &failing{}
	w.must(m, node.Deploy)
	n := w.untilState(m, node.DeployFailed)
	if !strings.Contains(n.LastError, "switch leaf-1 refuses") {
		t.Errorf("last error %q", n.LastError)
	}
	if m.isOn() {
		t.Error("the machine is on")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kexecs == 0 {
		t.Error("the machine did not jump: the test shows nothing")
	}
}

// TestKexecDelay: the agent waits before its jump where there is a network to switch, and only there.
func TestKexecDelay(t *testing.T) {
	w := newWorld(t)
	w.cfg = kexecConfig(start.Kexec)
	w.cfg.KexecDelay = 7 * time.Second
	w.start(nil)
	for network, want := range map[string]time.Duration{"": 0, "noop": 0, "flat": 0, "switch": 7 * time.Second} {
		m := available(t, w, "n-"+network)
		w.edit(m, func(n *node.Node) { n.Interfaces = map[string]string{"network": network} })
		deployed(t, w, m)
		m.mu.Lock()
		if m.delay != want || m.kexecs != 1 {
			t.Errorf("network %q: %d jumps, delay %s, want %s", network, m.kexecs, m.delay, want)
		}
		m.mu.Unlock()
	}
}

// TestUndeployWithoutSign: an undeploy does not wait for a sign that won't come.
func TestUndeployWithoutSign(t *testing.T) {
	w := newWorld(t)
	w.cfg = kexecConfig(start.Kexec, "phone_home", "console:never", "port:9")
	e := w.start(nil).eng
	m := available(t, w, "n1")
	w.must(m, node.Deploy)
	n := w.until(m, "the wait", func(n *node.Node) bool { return n.Job != nil && n.Job.Note == "sign" })
	tok := signoflife.Token(w.cfg.PhoneHomeKey, m.id, n.Job.ID)
	w.must(m, node.Delete)
	if err := e.PhoneHome(t.Context(), tok, "x"); !errors.Is(err, node.ErrNotFound) {
		t.Errorf("the token of a deployment that was given up counts: %v", err)
	}
	w.untilState(m, node.Available)
	if m.on || m.bootable {
		t.Errorf("on %v, bootable %v", m.on, m.bootable)
	}
	wantHistory(t, w, m, "INFO", "undeploy requested")
}

// TestDieDuringColdBoot kills the conductor at each point of the second start of a system that hung after a kexec.
func TestDieDuringColdBoot(t *testing.T) {
	for _, note := range []string{"cold off", "cold off asked", "cold disk", "cold on", "cold on asked",
		"sign after cold boot"} {
		t.Run(note, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg = kexecConfig(start.Kexec, "phone_home")
			w.cfg.SignTimeout, w.objects = 500*time.Millisecond, true // no system shows itself to the first conductor
			seen := make(chan struct{})
			first := w.start(&crash{moment: func(n *node.Node) bool {
				if n.Job == nil || n.Job.Note != note {
					return false
				}
				close(seen)
				return true
			}})
			m := w.add("n1")
			m.os = onlyCold(phoneHome)
			go func() {
				<-seen
				<-first.ended
				w.cfg.SignTimeout = 2 * patience
				w.start(nil)
			}()
			n := w.walk(m, node.Active)
			select {
			case <-seen:
			default:
				t.Fatal("the moment did not come")
			}
			r := startResult(n)
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.kexecs != 1 || m.osStarted != 2 || m.writes != 1 || !m.on || !r.ColdBooted || r.Sign == nil ||
				m.boot.Device != power.BootDisk {
				t.Errorf("%d jumps, %d starts, %d writes, on %v, boot device %+v, result %+v\n%s", m.kexecs,
					m.osStarted, m.writes, m.on, m.boot, r, historyOf(t, w, m))
			}
		})
	}
}

// TestAgentThatDidNotJump: one that was thought to have jumped, and shows up again, has its machine started the
// ordinary way.
func TestAgentThatDidNotJump(t *testing.T) {
	for _, sign := range []string{"dhcp", "none"} {
		t.Run(sign, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg = kexecConfig(start.Kexec, sign)
			e := w.start(nil).eng
			m := available(t, w, "n1")
			m.os = onlyCold(asksDHCP)
			w.must(m, node.Deploy)
			n := w.until(m, "the jump", func(n *node.Node) bool { return n.Job == nil || n.Job.Note == "sign" })
			boot := n.Boot.BootID
			e.AgentStale(t.Context(), m.id, "another boot")
			if n := w.node(m); m.osStarted != 1 || n.Job != nil && n.Job.Phase == node.PhasePower {
				t.Errorf("an agent of another boot counts: %+v", n.Job)
			}
			e.AgentStale(t.Context(), m.id, boot)
			e.AgentStale(t.Context(), m.id, boot) // it tries again and again
			n = w.until(m, "the second start",
				func(n *node.Node) bool { return n.Job == nil && n.Provision == node.Active })
			if m.mu.Lock(); m.osStarted != 2 || !m.on || n.LastError != "" {
				t.Errorf("%d starts, on %v, last error %q", m.osStarted, m.on, n.LastError)
			}
			m.mu.Unlock()
			wantHistory(t, w, m, "WARNING", "the agent still runs")
			if strings.Count(historyOf(t, w, m), "the agent still runs") != 1 {
				t.Errorf("history:\n%s", historyOf(t, w, m))
			}
			e.AgentStale(t.Context(), m.id, boot)
			if n := w.node(m); n.Job != nil {
				t.Errorf("once more: %+v", n.Job)
			}
		})
	}
}
