package e2e

import (
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab"
)

// TestPool keeps a real machine warm, with an image on its disk: somebody turns it off, the pool turns it on again,
// and an allocation takes it, which then needs no more than its config drive, the table and a jump.
// conductor/app.TestWarmPoolHeals does it with racks of simulated ones.
func TestPool(t *testing.T) {
	t.Parallel()
	r := newRig(t, []lab.NodeSpec{{Name: "warm", Disks: disk6()}}, set("deploy.session_grace", "5s"),
		set("power.sync_interval", "5s"), set("pools.interval", "2s"), set("pools.pause", "1s"),
		set("deploy.boot_instance", "kexec"))
	m := r.lab.Node("warm")
	r.enrol(m)
	r.must("PATCH", "/v1/nodes/warm", []object{{"op": "add", "path": "/resource_class", "value": "tiny"}})
	info := object{"image_source": r.ours(r.art.tiny), "image_os_hash_algo": "sha256",
		"image_os_hash_value": r.art.tiny.sha256}
	r.must("PUT", "/ingot/v1/pools/ready", object{"resource_class": "tiny", "count": 1, "max_on": 1, "image": info})
	staged := func() {
		t.Helper()
		kit.Eventually(t, bootLimit, "the pool's machine is warm and has the image", func() bool {
			p := r.must("GET", "/ingot/v1/pools/ready", nil)
			n := object(p["nodes"].([]any)[0].(map[string]any))
			if f := n.str("stage_failure"); f != "" {
				t.Fatalf("the image is not written ahead: %s", f)
			}
			return n.str("state") == "warm" && n.str("staged") != ""
		})
	}
	staged()
	if n := r.must("GET", "/v1/nodes/warm", nil); n.str("provision_state") != "available" || n["reservation"] != nil ||
		n["last_error"] != nil {
		t.Errorf("a warm node is %q, reserved by %v, last error %v", n.str("provision_state"), n["reservation"],
			n["last_error"])
	}
	if head, err := readAt(m.DiskFile(0), 0, 1<<20); err != nil || !zero(head) {
		t.Errorf("the disk of a machine with an image ahead has a beginning that could boot (%v)", err)
	}

	// The conductor is not notified. Its agent is out of reach, and the machine is off.
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, bootLimit, "the pool turns the machine on again", func() bool { return m.Starts() == 2 })
	staged()

	a := r.must("POST", "/v1/allocations", object{"name": "mine", "resource_class": "tiny"})
	kit.Eventually(t, stateLimit, "the allocation has the machine", func() bool {
		return r.must("GET", "/v1/allocations/"+a.str("uuid"), nil).str("state") == "active"
	})
	r.must("PATCH", "/v1/nodes/warm",
		[]object{{"op": "add", "path": "/instance_info/image_source", "value": info["image_source"]},
			{"op": "add", "path": "/instance_info/image_os_hash_algo", "value": "sha256"},
			{"op": "add", "path": "/instance_info/image_os_hash_value", "value": r.art.tiny.sha256}})
	from := m.ConsoleSize()
	r.provision("warm", "active", hostname("pooled-1"))
	r.wait("warm", "active", bootLimit)
	r.boots(m, from, "pooled-1")
	if m.Starts() != 2 {
		t.Errorf("the machine was started %d times, want 2: once for the pool, once because it was turned off",
			m.Starts())
	}
	found := false
	for _, j := range r.must("GET", "/ingot/v1/nodes/warm/steps", nil)["past"].([]any) {
		for _, s := range j.(map[string]any)["steps"].([]any) {
			o := object(s.(map[string]any))
			res, _ := o["result"].(map[string]any)
			found = found || j.(map[string]any)["phase"] == "deploy" && o.str("step") == "write_image" &&
				res["staged"] == true
		}
	}
	if !found {
		t.Error("the deployment wrote the image again, although it was there")
	}
}
