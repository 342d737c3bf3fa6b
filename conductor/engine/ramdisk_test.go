package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/node/ramdiskdeploy"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// memoryConfig is a conductor's whose ramdisk can load workloads.
func memoryConfig() Config {
	c := kexecConfig("")
	c.ImageBase = "http://c/images"
	if !slices.ContainsFunc(c.AgentSteps, func(s steparg.Row) bool { return s.Name == catalog.StepLoadRamdisk }) {
		s := steparg.Row{Interface: "deploy", Name: catalog.StepLoadRamdisk}
		for _, a := range []string{"kernel", "ramdisk", "boot_iso", "kernel_checksum", "ramdisk_checksum",
			"kernel_append_params", "instance", "image_ca"} {
			s.Args = append(s.Args, steparg.Arg{Name: a, Type: "string"})
		}
		s.Args = append(s.Args, steparg.Arg{Name: "configdrive", Type: "any"})
		c.AgentSteps = append(c.AgentSteps, s)
	}
	return c
}

// ofMemory is a machine whose node runs from memory, up to before it is deployed. Its disk would boot, so that a start
// of it is seen.
func ofMemory(t *testing.T, w *world, name string) *machine {
	t.Helper()
	m := w.add(name)
	forMemory(w, m)
	w.walk(m, node.Available)
	m.mu.Lock()
	m.asks, m.bootable = nil, true
	m.mu.Unlock()
	return m
}

// forMemory gives a node what it is to run from memory.
func forMemory(w *world, m *machine) {
	w.edit(m, func(n *node.Node) {
		n.Interfaces = map[string]string{"deploy": "ramdisk"}
		n.InstanceInfo = map[string]any{"kernel": "http://h/k", "ramdisk": "rd", "kernel_append_params": "a=b",
			"kernel_checksum": strings.Repeat("ab", 32)}
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	// What conductor/netboot does.
	m.netboot = func() bool {
		n := w.node(m)
		return !n.Boot.WindowOpen(time.Now()) && ramdiskdeploy.Boots(n) && n.DriveWindow.IsOpen(time.Now())
	}
	m.behave[catalog.StepLoadRamdisk] = func(a *agent, s node.PlanStep) (node.StepResult, bool) {
		a.facts["kernel"], a.facts["args"] = "loaded", string(s.Args)
		m.mu.Lock()
		m.bootable, m.drive = true, string(s.Args)
		m.mu.Unlock()
		return node.StepResult{Outcome: node.OutcomeDone, Result: json.RawMessage(`{"loaded":true}`)}, true
	}
}

// inMemory checks that the machine runs its workload, started so often by network boot and so often by a jump, and
// never its disk. Only network boots may have opened its config drive.
func inMemory(t *testing.T, m *machine, byNetwork, byKexec int) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.workloads != byNetwork || m.kexecs != byKexec || m.osStarted != byKexec || m.writes != 0 {
		t.Errorf("the workload was started %d times from the network and %d times by kexec, want %d and %d; started in all %d, images written %d",
			m.workloads, m.kexecs, byNetwork, byKexec, m.osStarted, m.writes)
	}
	if n := m.w.node(m); byNetwork == 0 && n.DriveWindow != nil {
		t.Errorf("the config drive may be fetched: %+v", n.DriveWindow)
	}
	if !m.on || m.boot.Device != power.BootPXE || !m.boot.Persistent {
		t.Errorf("on %v, boot device %+v", m.on, m.boot)
	}
	if n := m.w.node(m); n.Power != "power on" || n.Reservation != "" || n.LastError != "" || n.Boot != nil &&
		!n.Boot.Ended {
		t.Errorf("the node shows power %q, reservation %q, last error %q, boot %+v", n.Power, n.Reservation,
			n.LastError, n.Boot)
	}
}

// The whole life of a workload that boots from the network: no agent is booted for it, each start of the machine is one
// of the workload, and the end of the instance is as usual.
func TestRamdiskByNetwork(t *testing.T) {
	w := newWorld(t)
	w.cfg = memoryConfig()
	w.start(nil)
	m := ofMemory(t, w, "n1")
	boots := m.boots()
	if err := w.current().eng.Provision(t.Context(), m.id,
		Request{Verb: node.Deploy, ConfigDrive: map[string]any{"user_data": "x"}}); err != nil {
		t.Fatal(err)
	}
	n := w.untilState(m, node.Active)
	inMemory(t, m, 1, 0)
	var names []string
	for _, s := range n.Past[node.PhaseDeploy].Steps {
		names = append(names, s.Name)
	}
	if want := []string{ramdiskdeploy.Step, catalog.StepSwitchNetwork, catalog.StepBootInstance}; !slices.Equal(names,
		want) {
		t.Errorf("the deployment had the steps %v, want %v", names, want)
	}
	if err := w.current().eng.SetPower(t.Context(), m.id, "rebooting", 0, "tester"); err != nil {
		t.Fatal(err)
	}
	w.until(m, "its restart", func(n *node.Node) bool { return n.Job == nil && n.TargetPower == "" })
	inMemory(t, m, 2, 0)

	w.edit(m, func(n *node.Node) { n.InstanceInfo["kernel"] = "http://h/k2" })
	w.must(m, node.Rebuild)
	w.untilState(m, node.Active)
	inMemory(t, m, 3, 0)
	if m.boots() != boots {
		t.Errorf("the agent was booted %d times for it", m.boots()-boots)
	}

	w.must(m, node.Delete)
	n = w.untilState(m, node.Available)
	if m.isOn() || len(n.InstanceInfo) != 0 || m.boots() != boots+1 {
		t.Errorf("after the end: on %v, instance_info %v, %d boots of the agent instead of one for cleaning", m.isOn(),
			n.InstanceInfo, m.boots()-boots)
	}
	m.mu.Lock()
	if m.workloads != 3 || m.bootable {
		t.Errorf("cleaning started the workload (%d starts), or did not clean", m.workloads)
	}
	m.mu.Unlock()
	// The same machine with a system on its disk boots from that again.
	w.edit(m, func(n *node.Node) {
		n.Interfaces = nil
		n.InstanceInfo = map[string]any{"image_source": "http://images/n1", "image_os_hash_algo": "sha256",
			"image_os_hash_value": strings.Repeat("ab", 32)}
	})
	w.walk(m, node.Active)
	checkDeployed(t, m, 1)
}

// A machine that must not be turned off is restarted.
func TestRamdiskStaysOn(t *testing.T) {
	w := newWorld(t)
	w.cfg = memoryConfig()
	w.start(nil)
	m := ofMemory(t, w, "n1")
	w.edit(m, func(n *node.Node) { n.DisablePowerOff = true })
	m.mu.Lock()
	m.on = true
	m.mu.Unlock()
	w.must(m, node.Deploy)
	w.untilState(m, node.Active)
	inMemory(t, m, 1, 0)
	m.mu.Lock()
	defer m.mu.Unlock()
	if want := []string{"reset"}; !slices.Equal(m.asks, want) {
		t.Errorf("the controller was asked for %v, want %v", m.asks, want)
	}
}

// By kexec: where it is asked for, and where an agent is there anyway.
func TestRamdiskByKexec(t *testing.T) {
	for _, c := range []struct {
		name           string
		change         func(*node.Node)
		fast           bool
		boots          int // of the agent, for the deployment
		network, kexec int // starts of the workload
	}{
		{"asked for", func(n *node.Node) { n.InstanceInfo["boot_instance"] = "kexec" }, false, 1, 0, 1},
		{"asked for, agent kept", func(n *node.Node) { n.InstanceInfo["boot_instance"] = "kexec" }, true, 0, 0, 1},
		{"agent kept", func(*node.Node) {}, true, 0, 0, 1},
		{"agent kept, but by reboot", func(n *node.Node) { n.InstanceInfo["boot_instance"] = "reboot" }, true, 0, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.cfg = memoryConfig()
			w.cfg.FastTrack = c.fast
			w.start(nil)
			m := ofMemory(t, w, "n1")
			if b := w.node(m).Boot; c.fast != (b != nil && b.Kept) {
				t.Fatalf("boot %+v, want the agent kept: %v", b, c.fast)
			}
			w.edit(m, c.change)
			boots := m.boots()
			if err := w.current().eng.Provision(t.Context(), m.id, Request{Verb: node.Deploy}); err != nil {
				t.Fatal(err)
			}
			n := w.untilState(m, node.Active)
			inMemory(t, m, c.network, c.kexec)
			if got := m.boots() - boots; got != c.boots {
				t.Errorf("the agent was booted %d times, want %d", got, c.boots)
			}
			if c.kexec == 0 {
				return
			}
			if r := startResult(n); r.Method != "kexec" {
				t.Errorf("boot_instance ended with %+v", r)
			}
			m.mu.Lock()
			got := m.drive
			m.mu.Unlock()
			want := fmt.Sprintf(
				`{"kernel":"http://h/k","kernel_append_params":"a=b","kernel_checksum":"sha256:%s","ramdisk":"http://c/images/rd"}`, strings.Repeat("ab", 32))
			if got != want {
				t.Errorf("arguments %s, want %s", got, want)
			}
			// Its next start is its firmware's.
			if err := w.current().eng.SetPower(t.Context(), m.id, "rebooting", 0, "tester"); err != nil {
				t.Fatal(err)
			}
			w.until(m, "its restart", func(n *node.Node) bool { return n.Job == nil && n.TargetPower == "" })
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.workloads != 1 || m.osStarted != 1 {
				t.Errorf("after a restart: %d starts from the network, %d otherwise", m.workloads, m.osStarted)
			}
		})
	}
}

// What the agent can't load is booted from the network, and the history says why.
func TestRamdiskNotLoaded(t *testing.T) {
	w := newWorld(t)
	w.cfg = memoryConfig()
	w.start(nil)
	m := ofMemory(t, w, "n1")
	m.mu.Lock()
	m.behave[catalog.StepLoadRamdisk] = func(*agent, node.PlanStep) (node.StepResult, bool) {
		return node.StepResult{
			Outcome: node.OutcomeDone,
			Result:  json.RawMessage(`{"loaded":false,"reason":"the kernel is locked down"}`)}, true
	}
	m.mu.Unlock()
	w.edit(m, func(n *node.Node) { n.InstanceInfo["boot_instance"] = "kexec" })
	w.must(m, node.Deploy)
	w.untilState(m, node.Active)
	inMemory(t, m, 1, 0)
	if !w.said(m, "not started by kexec", "the kernel is locked down") {
		t.Error("the history does not say why the workload was not started by kexec")
	}
}

// A download that fails is a failed deployment: the firmware would fare no better.
func TestRamdiskLoadFails(t *testing.T) {
	w := newWorld(t)
	w.cfg = memoryConfig()
	w.start(nil)
	m := ofMemory(t, w, "n1")
	m.mu.Lock()
	m.behave[catalog.StepLoadRamdisk] = func(*agent, node.PlanStep) (node.StepResult, bool) {
		return node.StepResult{Outcome: node.OutcomeFailed, Error: "the kernel has another digest"}, true
	}
	m.mu.Unlock()
	w.edit(m, func(n *node.Node) { n.InstanceInfo["boot_instance"] = "kexec" })
	w.must(m, node.Deploy)
	n := w.untilState(m, node.DeployFailed)
	wantError(t, n, "the kernel has another digest")
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.on || m.workloads+m.osStarted != 0 {
		t.Errorf("on %v, started %d times", m.on, m.workloads+m.osStarted)
	}
}

func TestRamdiskRefused(t *testing.T) {
	w := newWorld(t)
	w.cfg = memoryConfig()
	w.start(nil)
	m := ofMemory(t, w, "n1")
	info := func(kv ...any) func(*node.Node) {
		return func(n *node.Node) {
			for i := 0; i < len(kv); i += 2 {
				n.InstanceInfo[kv[i].(string)] = kv[i+1]
			}
		}
	}
	step := func(iface, name string, priority int, args string) []node.JobStep {
		return []node.JobStep{{Interface: iface, Name: name, Priority: priority, Args: json.RawMessage(args)}}
	}
	for _, c := range []struct {
		name   string
		change func(*node.Node)
		steps  []node.JobStep
		want   string // "" is taken
	}{
		{"as it is", nil, nil, ""},
		{"nothing to boot", info("kernel", nil, "ramdisk", nil, "kernel_checksum", nil), nil, "nothing to boot"},
		{"parameters", info("kernel_append_params", "a|b"), nil, "kernel parameter"},
		{"config drive", info("configdrive", "aGVsbG8="), nil, "config drive"},
		{"a way of starting it that is none", info("boot_instance", "x"), nil, "use reboot or kexec"},
		{"phone_home", info("sign_of_life", []any{"phone_home"}), nil, "phone_home can't be asked of a workload"},
		{"write_image", info("boot_instance", "kexec"), step("deploy", "write_image", 80, ""),
			"for a system on a disk"},
		{"the agent's step without an agent", nil, step("deploy", "erase_devices_metadata", 80, ""), "does without"},
		{"the agent's step with one", info("boot_instance", "kexec"), step("deploy", "erase_devices_metadata", 80, ""),
			""},
		{"the agent's step behind its end", info("boot_instance", "kexec"),
			step("deploy", "erase_devices_metadata", 35, ""), "does not lie between"},
		{"loading left out", info("boot_instance", "kexec"), step("deploy", catalog.StepLoadRamdisk, 0, ""),
			"can't be left out"},
		{"start left out", nil, step("deploy", catalog.StepBootInstance, 0, ""), "can't be left out"},
		{"start too early", nil, step("deploy", catalog.StepBootInstance, 110, ""), "has to run before it"},
		{"start by kexec in the request", nil, step("deploy", catalog.StepBootInstance, 20, `{"method":"kexec"}`), ""},
		{"arguments where there are none", nil, step("deploy", catalog.StepSwitchNetwork, 30, `{"x":1}`),
			"takes no arguments"},
		{"a reserved step", nil, step("deploy", "wait", 25, `{"seconds":1}`), ""},
		{"no such step", nil, step("deploy", "nothing", 25, ""), "there is no step"},
	} {
		n := w.node(m)
		if c.change != nil {
			c.change(n)
		}
		_, err := w.current().eng.planner().Deployment(t.Context(), n, c.steps)
		var invalid *InvalidError
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (!errors.As(err, &invalid) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want something of %q", c.name, err, c.want)
		}
	}
	w.edit(m, func(n *node.Node) { n.InstanceInfo = map[string]any{"kernel": "ftp://h/k"} })
	var invalid *InvalidError
	if err := w.ask(m, node.Deploy); !errors.As(err, &invalid) {
		t.Errorf("request: %v", err)
	}
	v, err := w.current().eng.Validate(t.Context(), m.id)
	if err != nil || v["deploy"].Result == nil || *v["deploy"].Result ||
		!strings.Contains(v["deploy"].Reason, "not an http or https URL") {
		t.Errorf("validation: %+v, %v", v["deploy"], err)
	}
}

// ingotd killed at each write of such a deployment: the workload runs all the same, and is all that was started.
func TestDieAtEveryWriteOfRamdisk(t *testing.T) {
	for _, c := range []struct {
		name  string
		start string
		least int
	}{{"network", "", 5}, {"kexec", "kexec", 9}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg = memoryConfig()
			step := 1
			if raceOn && os.Getenv("INGOT_FULL") == "" {
				step = 4
			}
			for k := 1; ; k += step {
				co := w.start(nil)
				m := ofMemory(t, w, fmt.Sprint("n", k))
				if c.start != "" {
					w.edit(m, func(n *node.Node) { n.InstanceInfo["boot_instance"] = c.start })
				}
				co.crash.arm(k, k%2 == 0)
				replaced := w.successor(co, true)
				deadline := time.Now().Add(patience)
				for {
					n := w.node(m)
					if n.Job == nil && n.Provision == node.Active {
						break
					}
					if n.Provision.IsFailure() || time.Now().After(deadline) {
						t.Fatalf("death at write %d: state %s, %s, job %+v", k, n.Provision, n.LastError, n.Job)
					}
					if n.Job == nil && n.Provision == node.Available {
						err := w.current().eng.Provision(context.Background(), m.id, Request{Verb: node.Deploy})
						var moved *node.TransitionError
						if err != nil && !errors.Is(err, errDead) && !errors.As(err, &moved) {
							t.Fatal(err)
						}
					}
					time.Sleep(2 * time.Millisecond)
				}
				died := co.crash.reached()
				m.mu.Lock()
				if !m.on || m.workloads+m.kexecs == 0 || m.osStarted != m.kexecs || m.writes != 0 ||
					m.boot.Device != power.BootPXE || !m.boot.Persistent {
					t.Errorf("death at write %d: on %v, %d starts from the network, %d jumps, %d others, boot device %+v", k, m.on, m.workloads, m.kexecs, m.osStarted-m.kexecs, m.boot)
				}
				m.mu.Unlock()
				co.die()
				<-replaced
				w.kill()
				if t.Failed() {
					return
				}
				if !died {
					if k <= c.least {
						t.Errorf("only %d writes: the count is wrong", k-1)
					}
					return
				}
			}
		})
	}
}

// TestDieWithISOInVirtualDrive kills the conductor at each write of the life of an instance that is an ISO image on
// virtual media, from the deployment to its end, with cleaning and without, also on a machine that is never turned off:
// the image runs, nothing else does, and at the end it is out of the drive.
func TestDieWithISOInVirtualDrive(t *testing.T) {
	for _, c := range []struct {
		name           string
		clean, staysOn bool
	}{
		{"cleaned", true, false}, {"not cleaned", false, false},
		{"cleaned, never off", true, true}, {"not cleaned, never off", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg = memoryConfig()
			step := 1
			if raceOn && os.Getenv("INGOT_FULL") == "" {
				step = 6
			}
			for k := 1; ; k += step {
				co := w.start(nil)
				m := w.add(fmt.Sprint("n", k))
				w.edit(m, func(n *node.Node) {
					n.Interfaces = map[string]string{"boot": MediaBoots[1], "deploy": "ramdisk"}
				})
				w.walk(m, node.Available)
				w.edit(m, func(n *node.Node) {
					n.InstanceInfo = map[string]any{"boot_iso": liveISO}
					n.AutomatedClean, n.DisablePowerOff = &c.clean, c.staysOn
				})
				m.mu.Lock()
				m.asks = nil
				m.mu.Unlock()
				co.crash.arm(k, k%2 == 0)
				replaced := w.successor(co, true)
				to := func(verb node.Verb, from, to node.State) *node.Node {
					for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
						n := w.node(m)
						if n.Job == nil && n.Provision == to {
							return n
						}
						if n.Provision.IsFailure() || time.Now().After(deadline) {
							t.Fatalf("death at write %d: state %s, %s, job %+v", k, n.Provision, n.LastError, n.Job)
						}
						if n.Job == nil && n.Provision == from {
							err := w.current().eng.Provision(context.Background(), m.id, Request{Verb: verb})
							var moved *node.TransitionError
							if err != nil && !errors.Is(err, errDead) && !errors.As(err, &moved) {
								t.Fatal(err)
							}
						}
					}
				}
				n := to(node.Deploy, node.Available, node.Active)
				m.mu.Lock()
				if m.disc != liveISO || !n.InstanceDisc || !m.on || m.workloads == 0 || m.writes+m.pxeBoots != 0 {
					t.Errorf("death at write %d: the drive has %q (recorded %v), on %v, %d starts of it, %d writes, %d boots from the network",
						k, m.disc, n.InstanceDisc, m.on, m.workloads, m.writes, m.pxeBoots)
				}
				m.mu.Unlock()
				n = to(node.Delete, node.Active, node.Available)
				died := co.crash.reached()
				m.mu.Lock()
				if m.disc != "" || n.InstanceDisc || n.MediaInserted || m.on != c.staysOn || len(n.InstanceInfo) != 0 ||
					c.staysOn && slices.Contains(m.asks, "off") {
					t.Errorf("death at write %d: at the end the drive has %q, recorded %v and %v; on %v, asked for %q", k, m.disc,
						n.InstanceDisc, n.MediaInserted, m.on, m.asks)
				}
				m.mu.Unlock()
				co.die()
				<-replaced
				w.kill()
				if t.Failed() {
					return
				}
				if !died {
					if k < 10 {
						t.Errorf("only %d writes: the count is wrong", k-1)
					}
					return
				}
			}
		})
	}
}

// TestISOInVirtualDrive: on a machine that boots the agent from virtual media, an instance that is an ISO image is in
// the same drive as long as it lives, but for the agent's boots; no start of it is one from the network.
func TestISOInVirtualDrive(t *testing.T) {
	w := newWorld(t)
	w.cfg = memoryConfig()
	w.start(nil)
	m := w.add("n1")
	w.edit(m, func(n *node.Node) { n.Interfaces = map[string]string{"boot": MediaBoots[1], "deploy": "ramdisk"} })
	w.walk(m, node.Available)
	deploy := func() {
		t.Helper()
		w.edit(m, func(n *node.Node) { n.InstanceInfo = map[string]any{"boot_iso": liveISO} })
		w.must(m, node.Deploy)
		w.untilState(m, node.Active)
	}
	runs := func(when string, starts int) {
		t.Helper()
		n := w.node(m)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.disc != liveISO || !n.InstanceDisc || n.MediaInserted || m.workloads != starts || !m.on ||
			m.boot.Device != power.BootCDROM || !m.boot.Persistent || m.pxeBoots != 0 {
			t.Errorf("%s: the drive has %q (recorded %v, to be ejected %v), %d starts of it, want %d; on %v, boots %+v, %d times from the network",
				when, m.disc, n.InstanceDisc, n.MediaInserted, m.workloads, starts, m.on, m.boot, m.pxeBoots)
		}
	}
	gone := func(when string) {
		t.Helper()
		if n := w.node(m); m.inDrive() != "" || n.InstanceDisc || n.MediaInserted || m.isOn() {
			t.Errorf("%s: the drive has %q, recorded %v and %v; on %v", when, m.inDrive(), n.InstanceDisc,
				n.MediaInserted, m.isOn())
		}
	}
	deploy()
	runs("deployed", 1)
	if err := w.current().eng.SetPower(t.Context(), m.id, "rebooting", 0, "tester"); err != nil {
		t.Fatal(err)
	}
	w.until(m, "its restart", func(n *node.Node) bool { return n.Job == nil && n.TargetPower == "" })
	runs("restarted", 2)
	w.must(m, node.Delete)
	w.untilState(m, node.Available)
	gone("deleted and cleaned")

	off := false
	w.edit(m, func(n *node.Node) { n.AutomatedClean = &off })
	deploy()
	runs("deployed again", 3)
	w.must(m, node.Delete)
	w.untilState(m, node.Available)
	gone("deleted without cleaning")
}
