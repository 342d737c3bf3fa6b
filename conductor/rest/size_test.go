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
		{"retired_reason", strings.Repeat("x", 70<<10), true},
		{"instance_info", many, false},
		{"instance_info", map[string]any{"a": strings.Repeat("x", 1<<20)}, true},
	} {
		err := Oversized(map[string]any{tt.name: tt.value, "name": "n"}, nil)
		if (err != nil) != tt.want || err != nil && (err.Status != 413 || !strings.Contains(err.Message, tt.name) || strings.Contains(err.Message, "xxx")) {
			t.Errorf("%s: %v, want a refusal: %v", tt.name, err, tt.want)
		}
	}
}

// One that is too large already can be made smaller, but not larger.
func TestOversizedCanShrink(t *testing.T) {
	old := func() map[string]any {
		return map[string]any{"extra": map[string]any{"a": strings.Repeat("x", 100<<10), "b": strings.Repeat("x", 100<<10)}}
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
