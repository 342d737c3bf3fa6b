//go:build !race

package app_test

import (
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit/redfish"
)

// The volumes of target_raid_config are made by a step of cleaning, at once or at restarts of the machine, and deleted
// by another; what can't be made is refused before anything is changed.
func TestRAIDThroughRedfish(t *testing.T) {
	r := newRacked(t)
	for _, name := range []string{"generic", "dell-idrac9-5"} {
		b := redfish.Start(t, redfish.Personality(t, name))
		r.enrol(name, b, "")
		out := r.ask(200, "GET", "/v1/drivers/"+driverOf(name)+"/raid/logical_disk_properties", "")
		if !strings.Contains(out, `"physical_disks"`) {
			t.Errorf("properties: %s", out)
		}
		r.ask(400, "PUT", "/v1/nodes/"+name+"/states/raid", `{"logical_disks":[{"size_gb":1,"raid_level":"2"}]}`)
		clean := func(step string, parts ...string) {
			t.Helper()
			r.ask(202, "PUT", "/v1/nodes/"+name+"/states/provision",
				`{"target":"clean","disable_ramdisk":true,"clean_steps":[{"interface":"raid","step":"`+step+`"}]}`)
			r.until("/v1/nodes/"+name, parts...)
		}
		r.ask(204, "PUT", "/v1/nodes/"+name+"/states/raid",
			`{"logical_disks":[{"size_gb":100,"raid_level":"1","volume_name":"root","is_root_volume":true},{"size_gb":"MAX","raid_level":"5"}]}`)
		clean("create_configuration", `"provision_state":"manageable"`, `"last_error":null`, `"raid_level":"1"`,
			`"raid_level":"5"`, `"wwn":"0x600508b1001c00000000000000000001"`, `raid_level:1`)
		lab := b.Service.RAID()
		if got := lab.Volumes(); len(got) != 2 || got[0] != "root RAID1 2" || lab.Asked() != 2 {
			t.Errorf("%s: volumes %v", name, got)
		}
		clean("create_configuration", `"provision_state":"clean failed"`, "nothing was changed")
		r.ask(202, "PUT", "/v1/nodes/"+name+"/states/provision", `{"target":"manage"}`)
		r.until("/v1/nodes/"+name, `"provision_state":"manageable"`)
		clean("delete_configuration", `"provision_state":"manageable"`, `"logical_disks":[]`)
		if got := lab.Volumes(); len(got) > 0 {
			t.Errorf("%s: volumes %v", name, got)
		}
	}
}
