package instance

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/node"
)

// TestRootDevice holds which hints a deployment takes, in whatever form they are stored, and that bad ones are refused
// before it begins.
func TestRootDevice(t *testing.T) {
	hints := map[string]any{"serial": "S1"}
	for _, c := range []struct {
		name           string
		instance, prop any
		want           map[string]any
		err            string
	}{
		{"none", nil, nil, nil, ""},
		{"properties", nil, hints, hints, ""},
		{"instance_info first", map[string]any{"size": ">= 10"}, hints, map[string]any{"size": ">= 10"}, ""},
		{"empty says nothing", map[string]any{}, hints, hints, ""},
		{"text of an object", `{"serial": "S1"}`, nil, hints, ""},
		{"text of nothing", `null`, hints, hints, ""},
		{"no text of an object", `S1`, hints, nil, "root_device"},
		{"a list", []any{"S1"}, nil, nil, "not an object"},
		{"unknown key", map[string]any{"sn": "S1"}, nil, nil, "sn"},
		{"operator that does not fit", nil, map[string]any{"size": "<in> 10"}, nil, "<in> does not fit"},
	} {
		n := &node.Node{InstanceInfo: map[string]any{"root_device": c.instance},
			Properties: map[string]any{"root_device": c.prop}}
		got, err := RootDevice(n)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, want %q", c.name, err, c.err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		n.InstanceInfo["image_source"], n.InstanceInfo["image_checksum"] = "http://x/i", strings.Repeat("ab", 32)
		if err := (Site{}).CheckImage(n); (err == nil) != (c.err == "") {
			t.Errorf("%s: CheckImage = %v", c.name, err)
		}
	}
}
