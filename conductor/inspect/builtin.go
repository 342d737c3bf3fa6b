package inspect

import (
	"cmp"
	"fmt"

	"gopkg.in/yaml.v3"

	"github.com/ingot-metal/ingot/conductor/node"
)

// ParseRules reads rules of the site from YAML or JSON: a list of objects with the fields that the API takes. Their
// priorities may be any number, so that they can come before and after all rules of the API; a rule without uuid gets
// one by its place.
func ParseRules(b []byte) ([]*node.InspectionRule, error) {
	var docs []struct {
		UUID        string           `yaml:"uuid"`
		Description string           `yaml:"description"`
		Phase       string           `yaml:"phase"`
		Priority    int              `yaml:"priority"`
		Sensitive   bool             `yaml:"sensitive"`
		Conditions  []map[string]any `yaml:"conditions"`
		Actions     []map[string]any `yaml:"actions"`
	}
	if err := yaml.Unmarshal(b, &docs); err != nil {
		return nil, fmt.Errorf("not a list of rules: %w", err)
	}
	var out []*node.InspectionRule
	seen := map[string]bool{}
	for i, d := range docs {
		r := &node.InspectionRule{Head: node.Head{UUID: d.UUID}, Description: d.Description, Phase: d.Phase,
			Priority: d.Priority, Sensitive: d.Sensitive}
		r.UUID = cmp.Or(r.UUID, fmt.Sprintf("00000000-0000-0000-0000-%012x", i))
		r.Phase = cmp.Or(r.Phase, PhaseMain)
		for _, list := range []struct {
			from []map[string]any
			to   *[]map[string]any
		}{{d.Conditions, &r.Conditions}, {d.Actions, &r.Actions}} {
			for _, p := range list.from {
				// As JSON has it: numbers of one kind, keys that are texts.
				plain, ok := jsonLike(p).(map[string]any)
				if !ok {
					return nil, fmt.Errorf("rule %d (%s): a condition or an action is not an object", i+1, r.UUID)
				}
				*list.to = append(*list.to, plain)
			}
		}
		err := validateParts(r)
		switch {
		case seen[r.UUID]:
			err = fmt.Errorf("its uuid is that of another rule")
		case r.Phase != PhaseMain:
			err = fmt.Errorf("invalid phase %q: the one phase there is is %q", r.Phase, PhaseMain)
		}
		if err != nil {
			return nil, fmt.Errorf("rule %d (%s): %w", i+1, r.UUID, err)
		}
		seen[r.UUID] = true
		out = append(out, r)
	}
	return out, nil
}

func jsonLike(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, in := range v {
			out[k] = jsonLike(in)
		}
		return out
	case map[any]any:
		out := make(map[string]any, len(v))
		for k, in := range v {
			out[fmt.Sprint(k)] = jsonLike(in)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = jsonLike(v[i])
		}
		return out
	case int:
		return float64(v)
	case int64:
		return float64(v)
	case uint64:
		return float64(v)
	}
	return v
}
