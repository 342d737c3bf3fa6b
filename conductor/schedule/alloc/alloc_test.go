package alloc

import (
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

func TestChoose(t *testing.T) {
	from := []store.Candidate{
		{UUID: "big", Name: "big", Properties: map[string]any{"memory_mb": 131072.0, "cpus": "64"},
			Traits: []string{"CUSTOM_A", "CUSTOM_B"}},
		{UUID: "small", Name: "small", Properties: map[string]any{"memory_mb": "16384", "cpus": 4.0, "arch": "x86_64"},
			Traits: []string{"CUSTOM_A"}},
		{UUID: "busy", Name: "busy", Locked: true, Properties: map[string]any{"memory_mb": 16384.0}},
	}
	ab, cd := strings.Repeat("ab", 32), strings.Repeat("cd", 32)
	warm := append([]store.Candidate{
		{UUID: "warm", Warm: true, Traits: []string{"CUSTOM_A"}}, {UUID: "staged", Warm: true, Staged: "sha256:" + ab},
		{UUID: "held", Locked: true, Warm: true, Staged: "sha256:" + cd},
	}, from...)
	image := func(digest string) node.Allocation { return node.Allocation{Extra: map[string]any{ImageKey: digest}} }
	for _, c := range []struct {
		name string
		a    node.Allocation
		from []store.Candidate
		want []string // what may be chosen
		why  string
	}{
		{"nothing asked: none that is busy", node.Allocation{}, from, []string{"big", "small"}, ""},
		{"all busy", node.Allocation{}, from[2:], []string{"busy"}, ""},
		{"traits", node.Allocation{Traits: []string{"CUSTOM_B", "CUSTOM_A"}}, from, []string{"big"}, ""},
		{"traits that none has", node.Allocation{Traits: []string{"CUSTOM_C", "CUSTOM_A"}}, from, nil,
			"no suitable nodes have the requested traits CUSTOM_C, CUSTOM_A."},
		{"16 GB is not 128 GB", node.Allocation{Properties: map[string]any{"memory_mb": 16384.0}}, from,
			[]string{"small"}, ""},
		{"as text", node.Allocation{Properties: map[string]any{"memory_mb": "131072", "cpus": 64.0}}, from,
			[]string{"big"}, ""},
		{"text", node.Allocation{Properties: map[string]any{"arch": "x86_64"}}, from, []string{"small"}, ""},
		{"more than asked is not it", node.Allocation{Properties: map[string]any{"memory_mb": 8192.0, "cpus": 4.0}},
			from, nil, "no suitable nodes have exactly the requested properties cpus = 4, memory_mb = 8192."},
		{"a property that none has", node.Allocation{Properties: map[string]any{"gpu": true}}, from, nil,
			"exactly the requested properties gpu = true."},
		{"its own name", node.Allocation{Head: node.Head{Name: "busy"}}, from, []string{"busy"}, ""},
		{"a name that does not fit",
			node.Allocation{Head: node.Head{Name: "big"}, Properties: map[string]any{"cpus": 4.0}}, from,
			[]string{"small"}, ""},
		{"warm ones first", node.Allocation{}, warm, []string{"warm", "staged"}, ""},
		{"what is asked for before that", node.Allocation{Traits: []string{"CUSTOM_B"}}, warm, []string{"big"}, ""},
		{"a name before that", node.Allocation{Head: node.Head{Name: "small"}}, warm, []string{"small"}, ""},
		{"the image that is there", image("SHA256:" + strings.ToUpper(ab)), warm, []string{"staged"}, ""},
		{"by its digits alone", image(ab), warm, []string{"staged"}, ""},
		{"an image that is not there, but where it is locked", image("sha256:" + cd), warm, []string{"warm", "staged"},
			""},
		{"none", node.Allocation{Head: node.Head{UUID: "u1"}, ResourceClass: "rc"}, nil, nil,
			"Failed to process allocation u1: no available nodes match the resource class rc."},
		{"none of those named", node.Allocation{ResourceClass: "rc", CandidateNodes: []string{"x"}}, nil, nil,
			"none of the requested nodes are available and match the resource class rc."},
	} {
		seen := map[string]bool{}
		for i := range 12 {
			got, why := Choose(&c.a, c.from, func(n int) int { return i % n })
			if !strings.HasSuffix(why, c.why) || (got == "") != (c.why != "") {
				t.Errorf("%s: Choose = %q, %q, want %q", c.name, got, why, c.why)
			}
			if got != "" {
				seen[got] = true
			}
		}
		if len(seen) != len(c.want) {
			t.Errorf("%s: chosen were %v, want %v", c.name, seen, c.want)
		}
		for _, id := range c.want {
			if !seen[id] {
				t.Errorf("%s: %s was never chosen, but %v", c.name, id, seen)
			}
		}
	}
}

func TestSame(t *testing.T) {
	for _, c := range []struct {
		a, b any
		want bool
	}{
		{16384.0, "16384", true}, {"16384", 16384.0, true}, {"16384", "16384.0", true}, {4.0, 4.0, true},
		{4.0, 5.0, false}, {"x", "x", true}, {"x", "X", false}, {"1e3", 1000.0, false}, {"0x10", 16.0, false},
		{true, true, true}, {true, "true", false}, {true, 1.0, false}, {[]any{"a", 1.0}, []any{"a", 1.0}, true},
		{[]any{"a"}, []any{"b"}, false}, {"", 0.0, false}, {".", 0.0, false}, {nil, "", false},
	} {
		if got := same(c.a, c.b); got != c.want {
			t.Errorf("same(%#v, %#v) = %v", c.a, c.b, got)
		}
		if got := same(c.b, c.a); got != c.want {
			t.Errorf("same(%#v, %#v) = %v", c.b, c.a, got)
		}
	}
}

func TestProperties(t *testing.T) {
	for _, extra := range []map[string]any{nil, {"k": "v"}, {PropertiesKey: nil}} {
		if p, err := Properties(extra); p != nil || err != nil {
			t.Errorf("Properties(%v) = %v, %v", extra, p, err)
		}
	}
	if p, err := Properties(map[string]any{PropertiesKey: map[string]any{"cpus": 4.0}}); err != nil ||
		p["cpus"] != 4.0 {
		t.Errorf("Properties = %v, %v", p, err)
	}
	many := map[string]any{}
	for i := range maxProperties + 1 {
		many[string(rune('a'+i))] = i
	}
	for _, v := range []any{"cpus=4", []any{"cpus"}, 4.0, map[string]any{"": 1.0}, map[string]any{"cpus": nil}, many} {
		if _, err := Properties(map[string]any{PropertiesKey: v}); err == nil ||
			!strings.Contains(err.Error(), PropertiesKey) {
			t.Errorf("Properties of %v: %v", v, err)
		}
	}
}

func TestImage(t *testing.T) {
	good := "sha256:" + strings.Repeat("aB", 32)
	for _, extra := range []map[string]any{nil, {"k": "v"}, {ImageKey: nil}, {ImageKey: good}} {
		want, _ := extra[ImageKey].(string)
		if got, err := Image(extra); got != want || err != nil {
			t.Errorf("Image(%v) = %q, %v", extra, got, err)
		}
	}
	for _, v := range []any{"", "sha256:", "http://h/i", 3.0, map[string]any{}, "sha256:" + strings.Repeat("xy", 32)} {
		if _, err := Image(map[string]any{ImageKey: v}); err == nil || !strings.Contains(err.Error(), ImageKey) {
			t.Errorf("Image of %v: %v", v, err)
		}
	}
}

func TestUnfit(t *testing.T) {
	n := &node.Node{UUID: "n", Provision: node.Active, ResourceClass: "rc", Traits: []string{"CUSTOM_A"},
		Properties: map[string]any{"cpus": 4.0}, Owner: "p1", Lessee: "p2"}
	for _, c := range []struct {
		a    node.Allocation
		want string // "" fits
	}{
		{node.Allocation{ResourceClass: "rc"}, ""},
		{node.Allocation{ResourceClass: "rc", Traits: []string{"CUSTOM_A"}, Properties: map[string]any{"cpus": "4"},
			CandidateNodes: []string{"n"}, Head: node.Head{Owner: "p2"}}, ""},
		{node.Allocation{ResourceClass: "other"},
			"Resource class rc does not match the requested resource class other"},
		{node.Allocation{ResourceClass: "rc", Traits: []string{"CUSTOM_B"}},
			"traits [CUSTOM_A] does not match the requested traits [CUSTOM_B]"},
		{node.Allocation{ResourceClass: "rc", Properties: map[string]any{"cpus": 2.0}}, "cpus = 2"},
		{node.Allocation{ResourceClass: "rc", CandidateNodes: []string{"m"}}, "but got m"},
		{node.Allocation{ResourceClass: "rc", Head: node.Head{Owner: "p3"}}, "owner p3"},
	} {
		got := Unfit(&c.a, n)
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("Unfit(%+v) = %q, want %q", c.a, got, c.want)
		}
	}
	n.Provision = node.Available
	if got := Unfit(&node.Allocation{ResourceClass: "rc"}, n); !strings.Contains(got,
		`must be in the "active" state, but the current state is "available"`) {
		t.Errorf("of an available node: %q", got)
	}
}
