package quirk

import (
	"slices"
	"testing"
)

func TestMatch(t *testing.T) {
	dell := Identity{Vendor: "Dell", Manufacturer: "Dell Inc.", Model: "PowerEdge R670"}
	with := func(id Identity, firmware string) Identity {
		id.Firmware = firmware
		return id
	}
	dell10 := dell
	dell10.Manager = "17G Monolithic"
	for _, tt := range []struct {
		name string
		id   Identity
		want []string
	}{
		{"iDRAC9", with(dell, "7.00.00.171"),
			[]string{"dell-same-state", "dell-account-slots", "dell-insert-again", "dell-task-gone"}},
		{"iDRAC9 before 6.00", with(dell, "5.10.50.00"), []string{"dell-same-state", "idrac9-virtual-cd",
			"dell-account-slots", "dell-insert-again", "dell-task-gone"}},
		{"iDRAC9 of 6.00", with(dell, "6.00.02.00"),
			[]string{"dell-same-state", "dell-account-slots", "dell-insert-again", "dell-task-gone"}},
		{"iDRAC10", with(dell10, "1.20.50.00"), []string{"dell-same-state", "dell-account-slots",
			"idrac10-on-after-off", "dell-insert-again", "dell-task-gone"}},
		{"iDRAC10 of 2.10", with(dell10, "2.10.10.10"), []string{"dell-same-state", "dell-account-slots",
			"idrac10-on-after-off", "dell-insert-again", "dell-task-gone"}},
		{"iDRAC8", with(dell, "2.86.86.86"), []string{"dell-same-state", "idrac9-virtual-cd", "dell-account-slots",
			"dell-insert-again", "dell-task-gone"}},
		{"firmware not known", dell,
			[]string{"dell-same-state", "dell-account-slots", "dell-insert-again", "dell-task-gone"}},
		{"firmware without a number", with(dell, "latest"),
			[]string{"dell-same-state", "dell-account-slots", "dell-insert-again", "dell-task-gone"}},
		{"Gen9 under its long name",
			Identity{Manufacturer: "Hewlett Packard Enterprise", Model: "ProLiant DL380 Gen9", Firmware: "iLO 4 v2.82"},
			[]string{"hpe-gen9-boot-mode", "hpe-target-none", "hpe-connections", "hpe-retry-policy"}},
		{"Gen10", Identity{Vendor: "HPE", Product: "ProLiant DL380 Gen10", Firmware: "iLO 5 v3.02"},
			[]string{"hpe-target-none", "hpe-connections", "hpe-retry-policy"}},
		{"iLO 7", Identity{Vendor: "HPE", Firmware: "iLO 7 v1.10"}, []string{"hpe-target-none", "hpe-retry-policy"}},
		{"a long name", Identity{Manufacturer: "Super Micro Computer, Inc."},
			[]string{"supermicro-boot-mode", "supermicro-usb-cd"}},
		{"a machine that a row is not for", Identity{Vendor: "Supermicro", Model: "ARS-111GL-NHR"},
			[]string{"supermicro-boot-mode"}},
		{"XCC", Identity{Vendor: "Lenovo"}, []string{"xcc-monitor", "xcc-version-prefix"}},
		{"a name within a word", Identity{Manufacturer: "Miami Amiable"}, nil},
		{"nothing known", Identity{}, nil},
	} {
		var got []string
		for _, r := range Match(Table, tt.id) {
			got = append(got, r.Name)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: rows %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestTableIsComplete(t *testing.T) {
	names := map[string]bool{}
	for _, r := range Table {
		if r.Name == "" || r.Vendor == "" || r.Does == "" || r.Source == "" || r.Test == "" || names[r.Name] {
			t.Errorf("row %+v lacks something, or has the name of another", r)
		}
		names[r.Name] = true
	}
}
