package steparg

import (
	"slices"
	"strings"
	"testing"
)

func TestPrecedes(t *testing.T) {
	rows := []Row{
		{Interface: "deploy", Name: "erase", Before: []string{"write"}},
		{Interface: "deploy", Name: "write", Provides: []string{"image"}},
		{Interface: "deploy", Name: "drive", After: []string{"write"}, Before: []string{"commit"}},
		{Interface: "deploy", Name: "commit", From: []string{"image"}},
		{Interface: "raid", Name: "write"},
	}
	for _, c := range []struct {
		a, b int
		want bool
	}{{0, 1, true}, {1, 0, false}, {0, 3, true}, {0, 2, true}, {1, 2, true}, {1, 3, true}, {3, 1, false}, {2, 3, true},
		{0, 4, false}, {4, 3, false}, {1, 1, false}} {
		if got := Precedes(rows, rows[c.a], rows[c.b]); got != c.want {
			t.Errorf("%s before %s: %v, want %v", rows[c.a].Title(), rows[c.b].Title(), got, c.want)
		}
	}
}

// TestCompare: by priority, then by interface as in Ironic.
func TestCompare(t *testing.T) {
	got := []string{"raid", "site", "bios", "deploy", "firmware", "management", "power", "vendor", "network"}
	slices.SortStableFunc(got, func(a, b string) int { return Compare(10, a, 10, b) })
	if want := "network vendor power management firmware deploy bios raid site"; strings.Join(got, " ") != want {
		t.Errorf("order is %v, want %s", got, want)
	}
	if Compare(20, "site", 10, "network") >= 0 {
		t.Error("the interface goes before the priority")
	}
}

func TestCheckRows(t *testing.T) {
	for want, rows := range map[string][]Row{
		"is in the table twice": {{Interface: "a", Name: "b"}, {Interface: "a", Name: "b"}},
		"lacks an interface":    {{Name: "b"}},
		"place before itself": {{Interface: "a", Name: "b", After: []string{"c"}},
			{Interface: "a", Name: "c", After: []string{"b"}}},
		`has "rain", which`:     {{Interface: "a", Name: "b", When: "rain"}},
		`step a.b: argument ""`: {{Interface: "a", Name: "b", Args: []Arg{{}}}},
	} {
		if err := CheckRows(rows); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", rows, err, want)
		}
	}
}
