package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/test/compat/bench"
)

func TestPools(t *testing.T) {
	c := bench.Start(t, nil)
	u := &user{t: t, url: c.URL}
	for _, n := range []node.Node{
		{Name: "n1", ResourceClass: "large", Provision: node.Available, Power: "power off"},
		{Name: "n2", ResourceClass: "large", Provision: node.Available, Power: "power off", Maintenance: true,
			MaintenanceReason: "new disks"},
		{Name: "n3", ResourceClass: "large", Provision: node.Active, Power: "power on",
			InstanceUUID: "00000000-0000-4000-8000-000000000001"},
	} {
		n.Driver = "ipmi"
		if err := c.Store.CreateNode(t.Context(), &n); err != nil {
			t.Fatal(err)
		}
	}
	if out := u.ok("pool", "list"); !strings.Contains(out, "WANTED") || strings.Count(out, "\n") != 1 {
		t.Errorf("no pools: %q", out)
	}
	for args, want := range map[string]string{
		"pool set": "wants the name of one pool", "pool set web": "nothing is said",
		"pool show web": "Pool web could not be found", "pool delete web": "ingot pool list",
		"pool set web --count 1 --percent 3": "don't go together", "pool set web --count -1": "less than none",
		"pool set web --percent 101": "more than all", "pool set web --count many": "--help",
		"pool set web --max-watts 100": "watts_per_node", "pool set web --image http://h/i": "--checksum is missing",
		"pool set web --checksum sha256:ab":                 "without --image",
		"pool set web --image http://h/i --checksum md4:ab": "neither sha256:HEX",
		"pool set web --any-group --conductor-group x":      "don't go together",
		"pool set a/b --count 1":                            "can't be the name",
		"pool show a b":                                     "wants the name of one pool",
		"node warm absent":                                  "could not be found", "node warm n3": "available",
		"node warm":                           "wants the name or UUID of one node",
		"node warm n1 --image http://h/i":     "--checksum is missing",
		"node cool":                           "wants the name or UUID of one node",
		"pool set web --count 1 --frobnicate": "--help",
		"pool set web --count 1 --max-on 1 --watts-per-node": "--help",
	} {
		u.fails(words(args), want)
	}
	if out := u.ok(words("pool set web --resource-class large --count 2 --max-on 3")...); !strings.Contains(out,
		"pool web is made: 2 of 3 machines are to be warm, 0 are") {
		t.Errorf("set says %q", out)
	}
	if out := u.ok(words("pool set none --resource-class tiny --percent 50")...); !strings.Contains(out,
		"There is no machine like that") {
		t.Errorf("set says %q", out)
	}
	u.fails(words("pool set other --resource-class large --count 2"), "There is a pool for", "large", "already")
	sum := strings.Repeat("ab", 32)
	u.ok("pool", "set", "web", "--description", "fast ones", "--image", "http://h/i", "--checksum", "sha256:"+sum)
	u.ok(words("pool set web --percent 34")...)
	var p rest.Pool
	if out := u.ok(words("-o json pool show web")...); json.Unmarshal([]byte(out), &p) != nil {
		t.Fatalf("show: %s", out)
	}
	if p.Count != 0 || p.Percent != 34 || p.MaxOn != 3 || p.Description != "fast ones" || p.ResourceClass != "large" ||
		p.Image["image_os_hash_value"] != sum || p.Wanted != 2 || p.ConductorGroup != nil {
		t.Errorf("after three changes: %+v", p)
	}
	out := u.ok(words("pool show web")...)
	for _, want := range []string{"2 of 3 machines (34 %)", "0 of 3", "it is in maintenance: new disks", "it is active",
		"http://h/i", "why fewer"} {
		if !strings.Contains(out, want) {
			t.Errorf("show lacks %q:\n%s", want, out)
		}
	}
	u.ok(words("pool set web --no-image --conductor-group rack1")...)
	if out := u.ok(words("pool list")...); !strings.Contains(out, `class large, group "rack1"`) ||
		!strings.Contains(out, "class tiny") {
		t.Errorf("list says %q", out)
	}
	u.ok(words("pool set web --any-group")...)

	if out := u.ok(words("node warm n1 --status")...); !strings.Contains(out, "n1 is cold") {
		t.Errorf("status says %q", out)
	}
	if out := u.ok(words("node warm n1")...); !strings.Contains(out, "n1 is warming") {
		t.Errorf("warm says %q", out)
	}
	if out := u.ok(words("node cool n1")...); !strings.Contains(out, "belongs to pool web") ||
		!strings.Contains(out, "n1 is co") {
		t.Errorf("cool says %q", out)
	}
	u.ok(words("pool delete web")...)
	u.fails(words("pool show web"), "could not be found")
}
