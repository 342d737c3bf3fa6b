package disk

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/agent/fake"
	"github.com/ingot-metal/ingot/agent/step"
)

func TestHintOperators(t *testing.T) {
	d := Disk{Name: "/dev/sda", Size: 1000204886016, Model: "Samsung SSD 970", Vendor: "ATA", Serial: "S4EWNX0", WWN: "0x5000c500a1b2c3d4",
		HCTL: "0:0:0:0", ByPath: "/dev/disk/by-path/pci-0000:00:1f.2-ata-1.0", ByPathAlso: []string{"/dev/disk/by-path/pci-0000:00:1f.2-ata-1"}, Tran: "sata"}
	cases := []struct {
		hints string
		want  bool
	}{
		{`{"size": 931}`, true}, // 931.51 GiB
		{`{"size": "931"}`, true},
		{`{"size": 932}`, false},
		{`{"size": "== 931"}`, true},
		{`{"size": "!= 931"}`, false},
		{`{"size": "= 900"}`, true}, // Ironic's "=" is "at least"
		{`{"size": "= 1000"}`, false},
		{`{"size": ">= 931"}`, true},
		{`{"size": ">932"}`, false},
		{`{"size": "< 1000"}`, true},
		{`{"size": "<= 931"}`, true},
		{`{"size": "<or> 500 <or> 931"}`, true},
		{`{"size": "<range-in> [ 900 1000 )"}`, true},
		{`{"size": "<range-in> ( 931 931 ]"}`, true},
		{`{"size": "<range-in> [ 10 20 ]"}`, false},
		{`{"model": "samsung ssd 970"}`, true},
		{`{"model": "Samsung"}`, false},
		{`{"model": "<in> ssd"}`, true},
		{`{"model": "<all-in> samsung 970"}`, true},
		{`{"model": "<all-in> samsung 980"}`, false},
		{`{"vendor": "s!= qemu"}`, true},
		{`{"vendor": "s== ata"}`, true},
		{`{"vendor": "== ata"}`, true},
		{`{"name": "s> /dev/nvme0n1"}`, true},
		{`{"serial": "<or> x <or> S4EWNX0"}`, true},
		{`{"wwn": "0x5000C500A1B2C3D4"}`, true},
		{`{"wwn_vendor_extension": "s!= 0x1"}`, false}, // not known fits nothing
		{`{"rotational": false}`, true},
		{`{"rotational": "yes"}`, false},
		{`{"hctl": "0:0:0:0", "tran": "sata"}`, true},
		{`{"hctl": "0:0:0:0", "tran": "sas"}`, false}, // all must fit
		{`{"by_path": "/dev/disk/by-path/pci-0000:00:1f.2-ata-1"}`, true},
		{`{"by_path": "/dev/disk/by-path/pci-0000:00:1f.2-ata-1.0"}`, true},
	}
	for _, c := range cases {
		h, err := ParseHints(json.RawMessage(c.hints))
		if err != nil {
			t.Errorf("ParseHints(%s): %v", c.hints, err)
			continue
		}
		if got := h.mismatch(d); (got == "") != c.want {
			t.Errorf("%s fits = %v (%s), want %v", c.hints, got == "", got, c.want)
		}
	}
}

func TestParseHintsRefuses(t *testing.T) {
	for _, s := range []string{
		`[]`, `"x"`, `{"sizes": 3}`, `{"size": "big"}`, `{"size": ""}`, `{"size": {}}`, `{"size": ">"}`, `{"size": "<in> 3"}`,
		`{"model": "<range-in> [ 1 2 ]"}`, `{"size": "<range-in> 1 2"}`, `{"size": "<range-in> [ a b ]"}`, `{"rotational": "perhaps"}`,
		`{"model": "<or>"}`, `{"model": "<all-in>  "}`,
	} {
		if h, err := ParseHints(json.RawMessage(s)); err == nil {
			t.Errorf("ParseHints(%s) = %v, want an error", s, h)
		} else if step.AsError(err).Remedy == "" {
			t.Errorf("ParseHints(%s): no remedy", s)
		}
	}
	for _, s := range []string{``, `null`, `{}`, ` `} {
		if h, err := ParseHints(json.RawMessage(s)); err != nil || h != nil {
			t.Errorf("ParseHints(%q) = %v, %v", s, h, err)
		}
	}
}

func FuzzParseHints(f *testing.F) {
	f.Add(`{"size": "<range-in> [ 900 1000 )"}`)
	f.Add(`{"model": "<or> a <or> b", "rotational": true}`)
	f.Fuzz(func(t *testing.T, s string) {
		if h, err := ParseHints(json.RawMessage(s)); err == nil {
			h.mismatch(Disk{Name: "/dev/sda", Size: 5 << 30, Model: "x"})
		}
	})
}

func TestChoose(t *testing.T) {
	a := Disk{Name: "/dev/sda", Size: 100 << 30, Serial: "A"}
	b := Disk{Name: "/dev/sdb", Size: 50 << 30, Serial: "B", Model: "x"}
	b2 := Disk{Name: "/dev/sdc", Size: 50 << 30, Serial: "C", Model: "x"}
	small := Disk{Name: "/dev/sdd", Size: 3 << 30, Serial: "D"}
	stick := Disk{Name: "/dev/sde", Size: 8 << 30, Serial: "E", Removable: true}
	fixed := Disk{Name: "/dev/sdf", Size: 8 << 30, Serial: "F", ReadOnly: true}
	cases := []struct {
		name  string
		disks []Disk
		hints string
		want  string
		why   []string // must all be said
	}{
		{"smallest of at least 4 GiB", []Disk{a, b, small}, ``, "/dev/sdb", []string{"smallest of 2 disks", "not /dev/sda (100.0 GiB)", "/dev/sdd (smaller than 4 GiB"}},
		{"first by name among equals", []Disk{a, b, b2}, ``, "/dev/sdb", []string{"first by name among equals"}},
		{"neither removable nor read-only", []Disk{a, stick, fixed}, ``, "/dev/sda", []string{"removable", "read-only", "the only disk"}},
		{"small by hint", []Disk{a, small}, `{"size": 3}`, "/dev/sdd", []string{`fits the hints size "3"`, "/dev/sda (size is 100 GiB, wanted 3)"}},
		{"first of several", []Disk{a, b, b2}, `{"model": "x"}`, "/dev/sdb", []string{"first by name of 2 disks"}},
		{"removable by hint", []Disk{a, stick}, `{"serial": "e"}`, "/dev/sde", nil},
	}
	for _, c := range cases {
		h, err := ParseHints(json.RawMessage(c.hints))
		if err != nil {
			t.Fatal(err)
		}
		got, err := Choose(c.disks, h)
		if err != nil || got.Disk.Name != c.want {
			t.Errorf("%s: chose %s, %v, want %s", c.name, got.Disk.Name, err, c.want)
		}
		for _, w := range c.why {
			if !strings.Contains(got.Why, w) {
				t.Errorf("%s: why = %q, lacks %q", c.name, got.Why, w)
			}
		}
	}
}

func TestChooseRefuses(t *testing.T) {
	twin := Disk{Name: "/dev/sdb", Size: 5 << 30, Serial: "A", WWN: "0x1"}
	cases := []struct {
		name  string
		disks []Disk
		hints string
		want  []string
	}{
		{"no disk", nil, ``, []string{"no disk found"}},
		{"all too small", []Disk{{Name: "/dev/sda", Size: 1 << 30}}, ``, []string{"/dev/sda", "smaller than 4 GiB"}},
		{"none fits", []Disk{{Name: "/dev/sda", Size: 5 << 30, Serial: "X"}, {Name: "/dev/sdb", Size: 6 << 30}}, `{"serial": "Y"}`,
			[]string{`/dev/sda (serial is x, wanted Y)`, `/dev/sdb (serial is not known, wanted Y)`}},
		{"two paths to one disk", []Disk{{Name: "/dev/sda", Size: 5 << 30, Serial: "A", WWN: "0x1"}, twin}, ``, []string{"ambiguous", "/dev/sda and /dev/sdb"}},
	}
	for _, c := range cases {
		h, err := ParseHints(json.RawMessage(c.hints))
		if err != nil {
			t.Fatal(err)
		}
		_, err = Choose(c.disks, h)
		if err == nil {
			t.Errorf("%s: no error", c.name)
			continue
		}
		for _, w := range append(c.want, "choose the root disk") {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q lacks %q", c.name, err, w)
			}
		}
		if step.AsError(err).Remedy == "" {
			t.Errorf("%s: no remedy", c.name)
		}
	}
}

func TestOpenVerified(t *testing.T) {
	m := fake.NewDisks(t.TempDir())
	m.Add(fake.DiskSpec{Name: "vda", Size: 1 << 30, Serial: "one"})
	disks, err := List(t.Context(), m.Root())
	if err != nil {
		t.Fatal(err)
	}
	id := disks[0].Identity()
	dev, d, err := OpenVerified(t.Context(), m, id)
	if err != nil || d.Name != "/dev/vda" {
		t.Fatalf("OpenVerified = %v, %v", d, err)
	}
	if _, _, err := OpenVerified(t.Context(), m, id); err == nil || !strings.Contains(err.Error(), "busy") {
		t.Errorf("second open: %v, want busy", err)
	}
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}

	// The disk is swapped for another one of the same name and size.
	m.Remove("vda")
	m.Add(fake.DiskSpec{Name: "vda", Size: 1 << 30, Serial: "two"})
	if _, _, err := OpenVerified(t.Context(), m, id); err == nil || !strings.Contains(err.Error(), `serial is "two", not "one"`) {
		t.Errorf("open of a swapped disk: %v", err)
	}
	// Gone altogether.
	m.Remove("vda")
	if _, _, err := OpenVerified(t.Context(), m, id); err == nil || !strings.Contains(err.Error(), "is gone") {
		t.Errorf("open of a pulled disk: %v", err)
	}
	if _, _, err := OpenVerified(t.Context(), m, Identity{Name: "/dev/vda", Size: 1 << 30}); err == nil {
		t.Error("a disk that nothing identifies was opened")
	}
}
