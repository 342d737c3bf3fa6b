package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab"
)

// TestKexecHangs deploys by kexec a system whose kernel stops right after the jump: the machine is started through
// its firmware by itself, from the disk, and the node becomes active. ingotd is killed while the image is written,
// when the kernel hangs, and when the machine starts again. Killed in the write, it is not there for a while: the
// agent goes on by itself, and the write is not started again.
func TestKexecHangs(t *testing.T) {
	t.Parallel()
	r := newRig(t, []lab.NodeSpec{{Name: "hang", Disks: disk6()}}, set("deploy.fast_track", true),
		set("deploy.boot_instance", "kexec"), set("deploy.sign_of_life", []string{"dhcp"}),
		set("deploy.sign_of_life_timeout", "8m"), set("deploy.session_grace", "2m"))
	m := r.lab.Node("hang")
	n := r.must("POST", "/v1/nodes",
		object{"name": "hang", "driver": "ipmi", "driver_info": controller(m), "automated_clean": true,
			"network_interface": "flat"})
	r.must("POST", "/v1/ports", object{"node_uuid": n.str("uuid"), "address": m.MAC})
	r.provision("hang", "manage", nil)
	r.wait("hang", "manageable", stateLimit)
	r.provision("hang", "provide", nil)
	r.wait("hang", "available", bootLimit)

	kill := func() {
		t.Helper()
		if err := r.con.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	start := func(o ...option) {
		t.Helper()
		r.configure(o...)
		if err := r.con.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r.images.bytesPerSecond.Store(2 << 20)
	r.source("hang", r.images.url+"/slow/"+r.art.tiny.file, r.art.tiny.sha256)
	from := m.ConsoleSize()
	body := hostname("second-try")
	// No first process and no root: the kernel panics, and does not restart by itself.
	body["deploy_steps"] = []object{
		{"interface": "deploy", "step": "load_kernel", "priority": 50,
			"args": object{"kernel_append_params": "rdinit=/nothing root=/dev/nothing panic=0"}}}
	r.provision("hang", "active", body)
	r.progress("hang", 0.1)
	kill()
	sent := r.images.sent.Load()
	kit.Eventually(t, bootLimit, "the agent goes on without a conductor", func() bool {
		return r.images.sent.Load() > sent+2<<20
	})
	r.images.bytesPerSecond.Store(8 << 20)
	start()
	ctx, cancel := context.WithTimeout(t.Context(), bootLimit)
	defer cancel()
	if err := m.WaitConsole(ctx, from, "Kernel panic"); err != nil {
		t.Fatalf("the kernel that was to hang does not say so: %v", err)
	}
	if m.Starts() != 1 {
		t.Errorf("the machine was started %d times before the jump, want 1: its agent was kept", m.Starts())
	}
	// Now it is said to hang, and not before it does. What starts next has time again.
	kill()
	start(set("deploy.sign_of_life_timeout", "10s"))
	kit.Eventually(t, bootLimit, "the machine is started again", func() bool { return m.Starts() > 1 })
	kill()
	start(set("deploy.sign_of_life_timeout", "8m"))
	r.wait("hang", "active", bootLimit)
	r.boots(m, from, "second-try")
	// The number of ranges in a write is not fixed; a write that started again would request bytes twice.
	if n := r.images.sent.Load(); n > r.art.tiny.size+1<<20 {
		t.Errorf("%d bytes were sent of an image of %d: the write was to go on when ingotd was killed", n,
			r.art.tiny.size)
	}
	if m.Starts() != 2 {
		t.Errorf("the machine was started %d times, want 2: for its agent, and because the system hung", m.Starts())
	}
	kit.Eventually(t, stateLimit, "the history has the start through the firmware", func() bool {
		b, err := json.Marshal(r.must("GET", "/v1/nodes/hang/history?detail=True", nil))
		return err == nil &&
			strings.Contains(string(b), "after kexec; the machine is restarted and boots from its disk")
	})
}
