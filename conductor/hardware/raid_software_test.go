package hardware

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestSoftwareRAID(t *testing.T) {
	for _, c := range []struct{ disks, err string }{
		{`[{"raid_level":"1","size_gb":"MAX"}]`, ""},
		{`[{"raid_level":"1","size_gb":100,"is_root_volume":true,"volume_name":"root","controller":"software"},{"raid_level":"6","size_gb":"MAX"}]`, ""},
		{`[{"raid_level":"1","size_gb":"MAX","controller":"software","physical_disks":[{"size":1},{"size":1}]},{"raid_level":"0","size_gb":"MAX","controller":"software","physical_disks":[{"size":2},{"size":2}]}]`, ""},
		{`[]`, "too short"},
		{`[{"raid_level":"1","size_gb":1},{"raid_level":"1","size_gb":1},{"raid_level":"1","size_gb":1}]`,
			"one or two"},
		{`[{"raid_level":"5","size_gb":"MAX"}]`, "RAID-1 for the first"},
		{`[{"raid_level":"1","size_gb":1},{"raid_level":"5+0","size_gb":"MAX"}]`, "levels 0, 1, 1+0, 5 and 6"},
		{`[{"raid_level":"1","size_gb":1},{"raid_level":"5","size_gb":1,"is_root_volume":true}]`,
			"root volume must be the first"},
		{`[{"raid_level":"1","size_gb":"MAX"},{"raid_level":"5","size_gb":1}]`, "MAX"},
		{`[{"raid_level":"1","size_gb":0}]`, "0 GiB"},
		{`[{"raid_level":"1","size_gb":1,"controller":"RAID.Slot.1"}]`, "'software'"},
		{`[{"raid_level":"1","size_gb":1,"volume_name":"a:b"}]`, "colon"},
		{`[{"raid_level":"1","size_gb":1,"volume_name":"a"},{"raid_level":"1","size_gb":1,"volume_name":"a"}]`,
			"the name 'a'"},
	} {
		var config map[string]any
		if err := json.Unmarshal([]byte(`{"logical_disks":`+c.disks+`}`), &config); err != nil {
			t.Fatal(err)
		}
		err := CheckSoftwareRAID(config)
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("Check(%s) = %v, want %q", c.disks, err, c.err)
		}
	}
	if err := CheckSoftwareRAID(nil); err != nil {
		t.Errorf("an empty configuration: %v", err)
	}
}
