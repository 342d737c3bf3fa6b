package rootdevice

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHintOperators(t *testing.T) {
	d := Disk{Name: "/dev/sda", Size: 1000204886016, Model: "Samsung SSD 970", Vendor: "ATA", Serial: "S4EWNX0",
		WWN: "0x5000c500a1b2c3d4", HCTL: "0:0:0:0", ByPath: "/dev/disk/by-path/pci-0000:00:1f.2-ata-1.0",
		ByPathAlso: []string{"/dev/disk/by-path/pci-0000:00:1f.2-ata-1"}, Tran: "sata"}
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
		{`{"by_path": "s!= /dev/disk/by-path/pci-0000:00:1f.2-ata-1"}`, false}, // it is one of its names
		{`{"by_path": "s!= /dev/disk/by-path/pci-0000:00:1f.2-ata-1.0"}`, false},
		{`{"by_path": "s!= /dev/disk/by-path/pci-0000:00:1f.2-ata-2"}`, true},
		{`{"by_path": "s> /dev/disk/by-path/pci-0000:00:1f.2-ata-1"}`, true}, // the first name is asked
		{`{"by_path": "s> /dev/disk/by-path/pci-0000:00:1f.2-ata-1.0"}`, false},
	}
	for _, c := range cases {
		h, err := ParseHints(json.RawMessage(c.hints))
		if err != nil {
			t.Errorf("ParseHints(%s): %v", c.hints, err)
			continue
		}
		if got := h.Fit(d); got != c.want {
			t.Errorf("%s fits = %v (%s), want %v", c.hints, got, h.check(d), c.want)
		}
	}
}

func remedy(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Remedy
	}
	return ""
}

func TestParseHintsRefuses(t *testing.T) {
	for _, s := range []string{
		`[]`, `"x"`, `{"sizes": 3}`, `{"size": "big"}`, `{"size": ""}`, `{"size": {}}`, `{"size": ">"}`,
		`{"size": "<in> 3"}`, `{"model": "<range-in> [ 1 2 ]"}`, `{"size": "<range-in> 1 2"}`,
		`{"size": "<range-in> [ a b ]"}`, `{"rotational": "perhaps"}`, `{"model": "<or>"}`,
		`{"model": "<in> a <in> b"}`, `{"size": 0}`, `{"size": -1}`, `{"size": "inf"}`, `{"size": "0x10"}`,
		`{"size": "<range-in> [ 20 10 ]"}`, `{"size": true}`, `{"model": null}`, `{"model": "<all-in>  "}`,
	} {
		if h, err := ParseHints(json.RawMessage(s)); err == nil {
			t.Errorf("ParseHints(%s) = %v, want an error", s, h)
		} else if remedy(err) == "" {
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
			h.Fit(Disk{Name: "/dev/sda", Size: 5 << 30, Model: "x"})
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
		{"smallest of at least 4 GiB", []Disk{a, b, small}, ``, "/dev/sdb",
			[]string{"smallest of 2 disks", "not /dev/sda (100 GiB)", "/dev/sdd (smaller than 4 GiB"}},
		{"first by name among equals", []Disk{a, b, b2}, ``, "/dev/sdb", []string{"first by name among equals"}},
		{"neither removable nor read-only", []Disk{a, stick, fixed}, ``, "/dev/sda",
			[]string{"removable", "read-only", "the only disk"}},
		{"small by hint", []Disk{a, small}, `{"size": 3}`, "/dev/sdd",
			[]string{`fits the hints size "3"`, "/dev/sda (size is 100 GiB, wanted 3)"}},
		{"first of several", []Disk{a, b, b2}, `{"model": "x"}`, "/dev/sdb", []string{"first by name of 2 disks"}},
		{"removable by hint", []Disk{a, stick}, `{"serial": "e"}`, "/dev/sde", nil},
	}
	for _, c := range cases {
		h, err := ParseHints(json.RawMessage(c.hints))
		if err != nil {
			t.Fatal(err)
		}
		got := Explain(c.disks, h)
		if got.Chosen == nil || got.Chosen.Name != c.want {
			t.Fatalf("%s: chose %v, %v, want %s", c.name, got.Chosen, got.Err, c.want)
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
		{"none fits", []Disk{{Name: "/dev/sda", Size: 5 << 30, Serial: "X"}, {Name: "/dev/sdb", Size: 6 << 30}},
			`{"serial": "Y"}`,
			[]string{`/dev/sda (serial is x, wanted Y)`, `/dev/sdb (serial is not known, wanted Y)`}},
		{"two paths to one disk", []Disk{{Name: "/dev/sda", Size: 5 << 30, Serial: "A", WWN: "0x1"}, twin}, ``,
			[]string{"ambiguous", "/dev/sda and /dev/sdb"}},
	}
	for _, c := range cases {
		h, err := ParseHints(json.RawMessage(c.hints))
		if err != nil {
			t.Fatal(err)
		}
		x := Explain(c.disks, h)
		if x.Err == nil || x.Chosen != nil {
			t.Errorf("%s: chose %v", c.name, x.Chosen)
			continue
		}
		err = x.Err
		for _, w := range append(c.want, "choose the root disk") {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q lacks %q", c.name, err, w)
			}
		}
		if remedy(err) == "" {
			t.Errorf("%s: no remedy", c.name)
		}
	}
}

// TestExplainHintByHint holds that each disk says of each hint whether it fits, and that JSON keeps it all.
func TestExplainHintByHint(t *testing.T) {
	disks := []Disk{
		{Name: "/dev/sda", Size: 100 << 30, Serial: "A", Rotational: true},
		{Name: "/dev/sdb", Size: 200 << 30, Serial: "B", Removable: true, ByPathAlso: []string{"/dev/disk/by-path/x"}},
		{Name: "/dev/sdc", Size: 200 << 30, Serial: "C"},
		{Name: "/dev/sdd", Size: 200 << 30, Serial: "D", ReadOnly: true},
	}
	h, err := ParseHints(json.RawMessage(`{"size": ">= 150", "rotational": "no", "wwn": "s!= 0x1"}`))
	if err != nil {
		t.Fatal(err)
	}
	x := Explain(disks, h)
	if x.Err == nil || x.Chosen != nil {
		t.Fatalf("chose %v", x.Chosen)
	}
	want := []Check{{"rotational", "no", "true", false}, {"size", ">= 150", "100 GiB", false},
		{"wwn", "s!= 0x1", "", false}}
	if diff := cmp.Diff(want, x.Verdicts[0].Checks); diff != "" {
		t.Error(diff)
	}
	if w := "rotational is true, wanted no; size is 100 GiB, wanted >= 150; wwn is not known, wanted s!= 0x1"; x.Verdicts[0].Why != w {
		t.Errorf("why = %q, want %q", x.Verdicts[0].Why, w)
	}
	h, _ = ParseHints(json.RawMessage(`{"size": ">= 150"}`))
	x = Explain(disks, h)
	b, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	var back struct {
		Disks  []Verdict
		Chosen Disk
	}
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(x.Verdicts, back.Disks); diff != "" || back.Chosen.Name != "/dev/sdb" {
		t.Errorf("JSON loses something, or chose %s: %s", back.Chosen.Name, diff)
	}
	for i, w := range []string{"size is 100 GiB, wanted >= 150", "first by name of 2 disks",
		"it fits too, but /dev/sdb comes first", "it is read-only"} {
		if !strings.Contains(back.Disks[i].Why, w) {
			t.Errorf("%s: why = %q, want %q", back.Disks[i].Disk.Name, back.Disks[i].Why, w)
		}
	}
}

// TestWhatIsChosenFits holds, over many disks and hints, that the chosen disk fits, that no smaller or earlier one
// does, and that every disk has a reason.
func TestWhatIsChosenFits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	hints := []string{``, `{"size": ">= 20"}`, `{"size": "<range-in> [ 10 30 )"}`, `{"model": "<or> a <or> b"}`,
		`{"model": "<in> a", "rotational": true}`, `{"name": "s> /dev/d1"}`, `{"size": "!= 20", "serial": "s!= 3"}`}
	chosen := 0
	for range 2000 {
		var disks []Disk
		for i := range r.IntN(5) {
			disks = append(disks,
				Disk{Name: fmt.Sprintf("/dev/d%d", i), Size: r.Int64N(40) << 30, Model: string("abc"[r.IntN(3)]),
					Rotational: r.IntN(2) == 0, Serial: fmt.Sprint(r.IntN(9)), ReadOnly: r.IntN(5) == 0,
					Removable: r.IntN(5) == 0})
		}
		h, err := ParseHints(json.RawMessage(hints[r.IntN(len(hints))]))
		if err != nil {
			t.Fatal(err)
		}
		x := Explain(disks, h)
		if (x.Chosen == nil) != (x.Err != nil) {
			t.Fatalf("%v: chose %v and %v", disks, x.Chosen, x.Err)
		}
		for i, v := range x.Verdicts {
			if v.Why == "" || v.Disk.Name != disks[i].Name {
				t.Fatalf("%v: no reason", v)
			}
			if x.Chosen == nil {
				continue
			}
			if v.Chosen != (v.Disk.Name == x.Chosen.Name) || v.Chosen &&
				(!v.Fits || !h.Fit(v.Disk) || v.Disk.ReadOnly) {
				t.Fatalf("chosen %v: %v", x.Chosen, v)
			}
			if v.Fits && !v.Chosen &&
				(h == nil && v.Disk.Size < x.Chosen.Size || h != nil && v.Disk.Name < x.Chosen.Name) {
				t.Fatalf("%v would have been better than %v", v.Disk, x.Chosen)
			}
		}
		if x.Chosen != nil {
			chosen++
		}
	}
	if chosen < 500 {
		t.Errorf("only %d of 2000 chose a disk: the test does not test", chosen)
	}
}

// A disk that is replaced by an array is not chosen, with any hints; the array is.
func TestMembersAreNotChosen(t *testing.T) {
	disks := []Disk{
		{Name: "/dev/sda", Serial: "A", Size: 5 << 30, MemberOf: []string{"1-2"}},
		{Name: "/dev/sdb", Serial: "B", Size: 5 << 30, MemberOf: []string{"1-2"}},
		{Name: "/dev/sdc", Serial: "C", Size: 9 << 30}, {Name: "/dev/md0", Serial: "1-2", Size: 6 << 30},
	}
	for raw, want := range map[string]string{``: "/dev/md0", `{"serial": "1-2"}`: "/dev/md0",
		`{"size": "> 8"}`: "/dev/sdc", `{"serial": "A"}`: ""} {
		h, err := ParseHints([]byte(raw))
		if err != nil {
			t.Fatal(err)
		}
		x, got := Explain(disks, h), ""
		if x.Chosen != nil {
			got = x.Chosen.Name
		}
		if got != want || want == "" && !strings.Contains(x.Err.Error(), "it is a member of the array 1-2") {
			t.Errorf("%s chooses %q, want %q (%v)", raw, got, want, x.Err)
		}
	}
	b, err := json.Marshal(disks[0])
	if err != nil {
		t.Fatal(err)
	}
	var back Disk
	if err := json.Unmarshal(b, &back); err != nil || !slices.Equal(back.MemberOf, disks[0].MemberOf) {
		t.Errorf("%s comes back as %+v, %v", b, back, err)
	}
}
