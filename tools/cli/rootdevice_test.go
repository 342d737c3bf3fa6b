package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/compat/bench"
)

func TestExplainRootDevice(t *testing.T) {
	c := bench.Start(t, nil)
	u := &user{t: t, url: c.URL}
	u.ok(words("node create n1 --driver fake-hardware")...)
	u.fails(words("node explain-root-device n1"), "ingot node inspect n1")
	n, err := c.Store.Node(t.Context(), "n1")
	if err != nil {
		t.Fatal(err)
	}
	const doc = `{"inventory": {"disks": [
		{"name": "/dev/sda", "size": 500107862016, "serial": "S1", "model": "SSD", "rotational": false},
		{"name": "/dev/sdb", "size": 4000787030016, "serial": "S2", "model": "HDD", "rotational": true},
		{"name": "/dev/sdc", "size": 16000000000, "serial": "S3", "model": "STICK", "removable": true}]}}`
	if err := c.Store.SetInventory(t.Context(), n.UUID, []byte(doc)); err != nil {
		t.Fatal(err)
	}
	wants := func(out string, all ...string) {
		t.Helper()
		for _, w := range all {
			if !strings.Contains(out, w) {
				t.Errorf("%q is not said:\n%s", w, out)
			}
		}
	}
	wants(u.ok(words("node explain-root-device n1")...), "no hints", "yes", "the smallest of 2 disks",
		"it is larger than /dev/sda", "it is removable")

	// The node's own hints, and others in their place.
	u.fails([]string{"node", "set", "n1", "--property", `root_device={"serials":"S2"}`}, "serials", "root_device")
	u.fails([]string{"node", "create", "n2", "--driver", "fake-hardware", "--property",
		`root_device={"size":"<in> 3"}`}, "root_device", "<in> does not fit")
	u.ok("node", "set", "n1", "--property", `root_device={"rotational":true,"size":">= 1000"}`)
	wants(u.ok(words("node explain-root-device n1")...), "(properties)", "fits: rotational is true, wanted true",
		"does not fit: size is 465.76 GiB, wanted >= 1000", "the only disk that fits the hints")
	wants(u.ok("node", "explain-root-device", "n1", "--hint", "model=<or> ssd <or> x"), "(--hint)",
		"model is hdd, wanted <or> ssd <or> x")
	u.fails([]string{"node", "explain-root-device", "n1", "--hint", "modell=x"}, "modell", "there are by_path")
	u.fails([]string{"node", "explain-root-device", "n1", "--hint", "serial=S9"}, "no disk fits",
		"/dev/sdc (serial is s3, wanted S9)")

	var x struct {
		From   string `json:"hints_from"`
		Chosen struct{ Name string }
		Disks  []struct {
			Disk   struct{ Name string }
			Chosen bool
			Why    string
			Checks []struct {
				Hint string
				Fits bool
			}
		}
	}
	out, _, err := u.run(words("node explain-root-device n1 -o json")...)
	if err != nil || json.Unmarshal([]byte(out), &x) != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if x.From != "properties" || x.Chosen.Name != "/dev/sdb" || len(x.Disks) != 3 || !x.Disks[1].Chosen ||
		len(x.Disks[0].Checks) != 2 || x.Disks[0].Checks[1].Fits {
		t.Errorf("-o json: %s", out)
	}
}
