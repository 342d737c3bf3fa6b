package rest

import (
	"strings"
	"testing"
)

func TestAttributesAreBounded(t *testing.T) {
	text := strings.Repeat("x", 1<<10)
	many := map[string]any{}
	for i := range 70 {
		many[strings.Repeat("k", i+1)] = text
	}
	list := []any{}
	for range 30 << 10 {
		list = append(list, []any{})
	}
	for _, tt := range []struct {
		name  string
		value any
		want  bool // it is refused
	}{
		{"extra", map[string]any{"a": text}, false},
		{"extra", many, true},
		{"extra", map[string]any{"a": list}, true},
		{"extra", map[string]any{"a": map[string]any{strings.Repeat("k", 70<<10): true}}, true},
		{"raid_config", map[string]any{"logical_disks": []any{map[string]any{"volume_name": text}}}, false},
		{"raid_config", map[string]any{"logical_disks": []any{many}}, true},
		{"target_raid_config", map[string]any{"logical_disks": []any{map[string]any{"volume_name": text}}}, false},
		{"target_raid_config", map[string]any{"logical_disks": []any{many}}, true},
		{"retired_reason", strings.Repeat("x", 70<<10), true},
		{"instance_info", many, false},
		{"instance_info", map[string]any{"a": strings.Repeat("x", 1<<20)}, true},
	} {
		err := Oversized(map[string]any{tt.name: tt.value, "name": "n"}, nil, 0)
		if (err != nil) != tt.want || err != nil &&
			(err.Status != 413 || !strings.Contains(err.Message, tt.name) || strings.Contains(err.Message, "xxx")) {
			t.Errorf("%s: %v, want a refusal: %v", tt.name, err, tt.want)
		}
	}
}

// One that is too large already can be made smaller, but not larger.
func TestOversizedCanShrink(t *testing.T) {
	old := func() map[string]any {
		return map[string]any{
			"extra": map[string]any{"a": strings.Repeat("x", 100<<10), "b": strings.Repeat("x", 100<<10)}}
	}
	for _, tt := range []struct {
		op   map[string]any
		want int
	}{
		{map[string]any{"op": "remove", "path": "/extra/a"}, 0},
		{map[string]any{"op": "replace", "path": "/extra", "value": map[string]any{}}, 0},
		{map[string]any{"op": "add", "path": "/extra/c", "value": 1.0}, 413},
	} {
		p, err := ParsePatch([]any{tt.op}, MaxVersion, []string{"extra"})
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		if err := p.Apply(old()); err != nil {
			got = err.Status
		}
		if got != tt.want {
			t.Errorf("%v = %d, want %d", tt.op, got, tt.want)
		}
	}
}

// TestDocumentsAreBounded: attributes that are small enough each are not too many together. What is too many already
// may be changed, but not grow, and a config drive does not count.
func TestDocumentsAreBounded(t *testing.T) {
	piece := strings.Repeat("x", 60<<10)
	for _, tt := range []struct {
		name  string
		drive int
		large bool // it was too large before
		op    map[string]any
		want  int
	}{
		{"an attribute more", 0, false,
			map[string]any{"op": "add", "path": "/extra", "value": map[string]any{"a": piece}}, 413},
		{"a small one more", 0, false, map[string]any{"op": "add", "path": "/extra", "value": map[string]any{"a": "x"}},
			0},
		{"beside a config drive", 10 << 20, false,
			map[string]any{"op": "add", "path": "/extra", "value": map[string]any{"a": "x"}}, 0},
		{"too large, and more", 0, true, map[string]any{"op": "add", "path": "/name", "value": "longer"}, 413},
		{"too large, and less", 0, true,
			map[string]any{"op": "replace", "path": "/properties", "value": map[string]any{}}, 0},
	} {
		doc := map[string]any{"name": "n", "properties": map[string]any{"a": piece},
			"network_data": map[string]any{"a": strings.Repeat("x", 1000<<10)},
			"instance_info": map[string]any{"a": strings.Repeat("x", 450<<10),
				"configdrive": strings.Repeat("x", tt.drive)}}
		if tt.large {
			doc["driver_info"] = map[string]any{"a": piece}
		}
		p, err := ParsePatch([]any{tt.op}, MaxVersion, []string{"extra", "name", "properties"})
		if err != nil {
			t.Fatal(err)
		}
		got, text := 0, ""
		if err := p.Apply(doc); err != nil {
			got, text = err.Status, err.Message
		}
		if got != tt.want || got != 0 && !strings.Contains(text, "1572864 bytes") {
			t.Errorf("%s = %d %s, want %d", tt.name, got, text, tt.want)
		}
	}
}
