package raid

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"testing"
)

// machine has a controller of six SSDs of 900 GiB and one disk of 2,000 GiB, and a smaller one of two SSDs.
func machine(volumes ...Volume) []*Controller {
	var six, two []Disk
	for i := range 6 {
		six = append(six, Disk{ID: fmt.Sprint("d", i), Path: fmt.Sprint("/a/d", i), Media: "ssd", Protocol: "sas",
			Bytes: 900 << 30})
	}
	six = append(six, Disk{ID: "big", Path: "/a/big", Media: "hdd", Protocol: "sata", Bytes: 2000 << 30})
	for i := range 2 {
		two = append(two, Disk{ID: fmt.Sprint("m", i), Path: fmt.Sprint("/b/m", i), Media: "ssd", Protocol: "sata",
			Bytes: 400 << 30})
	}
	return []*Controller{{ID: "A", Path: "/a", Collection: "/a/v", Disks: six, Volumes: volumes},
		{ID: "B", Path: "/b", Collection: "/b/v", Disks: two, Types: []string{"RAID0", "RAID1"}}}
}

// shown are orders in short: controller, type, disks and GiB (0: all).
func shown(orders []Order) string {
	var all []string
	for _, o := range orders {
		var disks []string
		for _, d := range o.Drives {
			disks = append(disks, path.Base(d))
		}
		all = append(all, fmt.Sprintf("%s %s %s %d", o.Controller, o.Type, strings.Join(disks, "+"), o.Bytes>>30))
	}
	return strings.Join(all, "; ")
}

func TestPlan(t *testing.T) {
	mirror := Volume{ID: "v", Path: "/a/v/1", Type: "RAID1", Bytes: 100 << 30, Drives: []string{"/a/d0", "/a/d1"}}
	for _, tt := range []struct {
		name, disks string // of target_raid_config, without the list
		volumes     []Volume
		without     []string
		want        string // orders, or a part of the error
	}{
		{"as few disks as do", `{"size_gb":100,"raid_level":"1"}`, nil, nil, "/a RAID1 d0+d1 100"},
		{"more where the size needs it", `{"size_gb":2500,"raid_level":"5"}`, nil, nil, "/a RAID5 d0+d1+d2+d3 2500"},
		{"a number of disks", `{"size_gb":100,"raid_level":"6","number_of_physical_disks":6}`, nil, nil,
			"/a RAID6 d0+d1+d2+d3+d4+d5 100"},
		{"a controller", `{"size_gb":"MAX","raid_level":"1","controller":"B"}`, nil, nil, "/b RAID1 m0+m1 0"},
		{"a kind of disk", `{"size_gb":10,"raid_level":"0","disk_type":"hdd"}`, nil, nil, "/a RAID0 big 10"},
		{"an interface", `{"size_gb":10,"raid_level":"1","interface_type":"sata"}`, nil, nil, "/b RAID1 m0+m1 10"},
		{"named disks", `{"size_gb":10,"raid_level":"1+0","controller":"A","physical_disks":["d5","d2","d3","d1"]}`, nil,
			nil, "/a RAID10 d1+d2+d3+d5 10"},
		{"disks that others name are left to them",
			`{"size_gb":10,"raid_level":"1"},{"size_gb":10,"raid_level":"1","controller":"A","physical_disks":["d0","d1"]}`,
			nil, nil, "/a RAID1 d2+d3 10; /a RAID1 d0+d1 10"},
		{"a choice that leaves no disks for the next is undone",
			`{"size_gb":10,"raid_level":"1","interface_type":"sata"},{"size_gb":3000,"raid_level":"6"}`, nil, nil,
			"/b RAID1 m0+m1 10; /a RAID6 d0+d1+d2+d3+d4+d5 3000"},
		{"shared disks", `{"size_gb":100,"raid_level":"1","controller":"A","physical_disks":["d0","d1"]},` +
			`{"size_gb":"MAX","raid_level":"1","controller":"A","physical_disks":["d0","d1"],"share_physical_disks":true}`,
			nil, nil, "/a RAID1 d0+d1 100; /a RAID1 d0+d1 0"},
		{"disks with a volume are left alone", `{"size_gb":10,"raid_level":"1"}`, []Volume{mirror}, nil, "/a RAID1 d2+d3 10"},
		{"but for one that is deleted before", `{"size_gb":10,"raid_level":"1"}`, []Volume{mirror}, []string{"/a/v/1"},
			"/a RAID1 d0+d1 10"},
		{"beside a volume, if they are shared", `{"size_gb":800,"raid_level":"1","controller":"A","physical_disks":["d0","d1"],` +
			`"share_physical_disks":true}`, []Volume{mirror}, nil, "/a RAID1 d0+d1 800"},

		{"no room beside it", `{"size_gb":801,"raid_level":"1","controller":"A","physical_disks":["d0","d1"],` +
			`"share_physical_disks":true}`, []Volume{mirror}, nil, "has room for 800 GiB on 2 disks, not for 801 GiB"},
		{"a disk with a volume", `{"size_gb":1,"raid_level":"1","controller":"A","physical_disks":["d0","d2"]}`,
			[]Volume{mirror}, nil, "logical disk 1: A: disk d0 has a volume: delete it first (delete_existing)"},
		{"too large", `{"size_gb":6000,"raid_level":"5"}`, nil, nil, "level 5 has room for 4500 GiB on 6 disks, not for 6000"},
		{"too few disks", `{"size_gb":1,"raid_level":"6+0"}`, nil, nil,
			"A: level 6+0 needs 8 or more, a multiple of 2 free disks of one kind; B has no level 6+0"},
		{"too few of a kind", `{"size_gb":1,"raid_level":"5","disk_type":"hdd"}`, nil, nil, "free disks of one kind (hdd)"},
		{"too few for all", `{"size_gb":1,"raid_level":"6"},{"size_gb":1,"raid_level":"5"}`, nil, nil, "logical disk 2: A: "},
		{"no such controller", `{"size_gb":1,"raid_level":"1","controller":"C"}`, nil, nil,
			"there is no controller C; there are A, B"},
		{"no such disk", `{"size_gb":1,"raid_level":"1","controller":"B","physical_disks":["m0","d1"]}`, nil, nil,
			"B: it has no disk d1"},
		{"a wrong number of disks", `{"size_gb":1,"raid_level":"1","number_of_physical_disks":3}`, nil, nil,
			"RAID level 1 can't be made of 3 disks: it needs 2"},
		{"an odd number of disks", `{"size_gb":1,"raid_level":"1+0","number_of_physical_disks":5}`, nil, nil,
			"it needs 4 or more, a multiple of 2"},
		{"two numbers", `{"size_gb":1,"raid_level":"0","number_of_physical_disks":1,"controller":"A","physical_disks":["d0","d1"]}`,
			nil, nil, "number_of_physical_disks is 1, and physical_disks has 2"},
		{"a disk twice", `{"size_gb":1,"raid_level":"1","controller":"A","physical_disks":["d0","d0"]}`, nil, nil, "d0 twice"},
		{"hints in place of disks", `{"size_gb":1,"raid_level":"1","controller":"A","physical_disks":[{"size":"> 1"},{"size":"> 2"}]}`,
			nil, nil, "are the Ids of drives"},
		{"a level that needs none", `{"size_gb":1,"raid_level":"JBOD"}`, nil, nil, "0, 1, 5, 6, 1+0, 5+0, 6+0, not JBOD"},
		{"no size", `{"size_gb":0,"raid_level":"1"}`, nil, nil, "a size of 0 GiB"},
		{"scsi", `{"size_gb":1,"raid_level":"1","interface_type":"scsi"}`, nil, nil, "`scsi` not supported"},
		{"a name twice", `{"size_gb":1,"raid_level":"1","volume_name":"x"},{"size_gb":1,"raid_level":"1","volume_name":"x"}`,
			nil, nil, "logical disk 2: another one has the name x"},
	} {
		var config map[string]any
		if err := json.Unmarshal([]byte(`{"logical_disks":[`+tt.disks+`]}`), &config); err != nil {
			t.Fatal(err)
		}
		orders, err := Plan(machine(tt.volumes...), config, tt.without, true, true)
		if err != nil && !strings.Contains(err.Error(), tt.want) || err == nil && shown(orders) != tt.want {
			t.Errorf("%s: %s, %v\nwant %s", tt.name, shown(orders), err, tt.want)
		}
	}
}

// A search for disks that would go on for hours ends with a sentence.
func TestPlanIsBounded(t *testing.T) {
	var disks []Disk
	for i := range 200 {
		disks = append(disks, Disk{ID: fmt.Sprint(i), Path: fmt.Sprint("/d/", i), Bytes: 100 << 30})
	}
	list := []any{}
	for range 30 {
		list = append(list, map[string]any{"size_gb": 1.0, "raid_level": "6+0"})
	}
	_, err := Plan([]*Controller{{ID: "A", Disks: disks}}, map[string]any{"logical_disks": list}, nil, true, true)
	if err == nil || !strings.Contains(err.Error(), "name them in physical_disks") {
		t.Errorf("%v", err)
	}
	if _, err = Plan(nil, map[string]any{"logical_disks": list}, nil, true, true); err == nil ||
		!strings.Contains(err.Error(), "no RAID controller") {
		t.Errorf("%v", err)
	}
}

// Only the volumes that are asked for are made.
func TestPlanOfSome(t *testing.T) {
	config := map[string]any{"logical_disks": []any{
		map[string]any{"size_gb": 1.0, "raid_level": "1", "is_root_volume": true},
		map[string]any{"size_gb": 1.0, "raid_level": "5"}}}
	for want, which := range map[string][2]bool{"true": {true, false}, "false": {false, true}} {
		orders, err := Plan(machine(), config, nil, which[0], which[1])
		if err != nil || len(orders) != 1 || fmt.Sprint(orders[0].Root) != want {
			t.Errorf("%v: %v, %v", which, orders, err)
		}
	}
}
