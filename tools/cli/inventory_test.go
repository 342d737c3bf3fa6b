package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/client"
)

// A node's inventory names its software arrays with their members, and which disks are members.
func TestShowInventoryArrays(t *testing.T) {
	var out bytes.Buffer
	p := &program{stdout: &out}
	inv := &client.Inventory{
		Inventory: json.RawMessage(
			`{"disks": [{"name": "/dev/sda", "size": 5368709120, "serial": "A", "member_of": ["u-1"]}, {"name": "/dev/md0", "size": 4294967296, "serial": "u-1"}]}`),
		PluginData: map[string]json.RawMessage{"software_raid": json.RawMessage(`[{"name": "/dev/md0", "volume_name": "root", "uuid": "u-1", "raid_level": "1", "size": 4294967296,
			"state": "clean", "raid_disks": 2, "degraded": 1, "members": [{"name": "/dev/sda2", "state": "in_sync"}]}, {"name": "", "uuid": "u-2", "raid_level": "5", "state": "incomplete"}]`)}}
	if err := p.showInventory(inv); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"/dev/sda 5.00 GiB serial A member of u-1 ",
		"software RAID /dev/md0 level 1 4.00 GiB clean, 1 of 2 missing, name root, uuid u-1, sda2 in_sync ",
		"level 5 0 B incomplete, uuid u-2"} {
		if !strings.Contains(got, want) {
			t.Errorf("the inventory has no %q:\n%s", want, &out)
		}
	}
	// A hook or a rule may have put something else there.
	inv.PluginData["software_raid"] = json.RawMessage(`"none"`)
	out.Reset()
	if err := p.showInventory(inv); err != nil || strings.Contains(out.String(), "software RAID") {
		t.Errorf("with a rule's own: %v\n%s", err, &out)
	}
}
