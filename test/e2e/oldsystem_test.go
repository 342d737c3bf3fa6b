package e2e

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab"
)

// TestOldSystemStarts has a machine with a system on its disk miss its network boot, because its switch port forwards
// nothing while firmware waits for DHCP. The system starts in the middle of an automated cleaning. It is noticed by its
// DHCP request, the machine is turned off, booted again and cleaned.
func TestOldSystemStarts(t *testing.T) {
	t.Parallel()
	kit.NeedPrograms(t, "zstd")
	file := filepath.Join(t.TempDir(), "old.raw")
	r := newRig(t, []lab.NodeSpec{{Name: "old", Disks: disk6()}}, set("deploy.boot_timeout", "30m"))
	m := r.lab.Node("old")
	kit.Run(t, "zstd", "-q", "-d", "-o", file, r.art.tinyZst)
	kit.Run(t, "dd", "if="+file, "of="+m.DiskFile(0), "bs=1M", "conv=notrunc,sparse", "status=none")
	if head, err := readAt(m.DiskFile(0), 0, 1<<20); err != nil || zero(head) {
		t.Fatalf("there is no system on the disk (%v)", err)
	}
	port := func(args ...string) {
		t.Helper()
		if out, err := r.lab.Command(t.Context(), "ip",
			append([]string{"link", "set", "n0e0"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("switch port: %v\n%s", err, out)
		}
	}
	n := r.must("POST", "/v1/nodes",
		object{"name": "old", "driver": "ipmi", "automated_clean": true, "driver_info": controller(m),
			"properties": object{"capabilities": "boot_mode:bios"}})
	r.must("POST", "/v1/ports", object{"node_uuid": n.str("uuid"), "address": m.MAC})
	r.provision("old", "manage", nil)
	r.wait("old", "manageable", stateLimit)

	port("nomaster")
	from := m.ConsoleSize()
	r.provision("old", "provide", nil)
	ctx, cancel := context.WithTimeout(t.Context(), osLimit)
	defer cancel()
	if err := m.WaitConsole(ctx, from, "INGOT-TINY up="); err != nil {
		t.Fatalf("the old system does not start: %v", err)
	}
	port("master", "prov")
	r.wait("old", "available", bootLimit)

	if m.Starts() != 2 {
		t.Errorf("the machine was started %d times, want 2: with the old system, and with the agent", m.Starts())
	}
	if m.On() {
		t.Error("the machine is on")
	}
	if head, err := readAt(m.DiskFile(0), 0, 4096); err != nil || !zero(head) {
		t.Errorf("the disk still begins with a partition table (%v)", err)
	}
	var marks struct {
		Marks []struct {
			Name, Detail string
			At           time.Time
		}
	}
	b, err := json.Marshal(r.must("GET", "/ingot/v1/nodes/old/timeline", nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &marks); err != nil {
		t.Fatal(err)
	}
	var seen, off time.Time
	for _, k := range marks.Marks {
		switch {
		case k.Name == "installed system up" && strings.Contains(k.Detail, "udhcp"):
			seen = k.At
		case k.Name == "power is off" && off.IsZero() && !seen.IsZero():
			off = k.At
		}
	}
	asked := r.firstOffer(m.MAC)
	if seen.IsZero() || seen.Sub(asked).Abs() > 10*time.Second || off.IsZero() || off.Sub(seen) > time.Minute {
		t.Errorf("the system asked at %s, was seen at %s, and the machine was off at %s:\n%s", asked, seen, off, b)
	}
	h, err := json.Marshal(r.must("GET", "/v1/nodes/old/history?detail=True", nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{"the installed system started instead of the agent: DHCP request by " + m.MAC,
		"the machine is restarted (1 of 2)"} {
		if !strings.Contains(string(h), words) {
			t.Errorf("the history lacks %q: %s", words, h)
		}
	}
}

var logTime = regexp.MustCompile(`time=(\S+)`)

// firstOffer is when ingotd first offered a machine an address, by its log.
func (r *rig) firstOffer(mac string) time.Time {
	r.t.Helper()
	b, err := os.ReadFile(r.log)
	if err != nil {
		r.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "msg=DHCP ") && strings.Contains(line, mac) && strings.Contains(line, "reply=OFFER") {
			at, err := time.Parse(time.RFC3339Nano, logTime.FindStringSubmatch(line)[1])
			if err != nil {
				r.t.Fatal(err)
			}
			return at
		}
	}
	r.t.Fatalf("the machine %s was never offered an address", mac)
	return time.Time{}
}
