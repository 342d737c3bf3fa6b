package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
)

func (p *program) ruleCommand() *cobra.Command {
	return group(&cobra.Command{Use: "rule", Short: "Inspection rules: conditions on what an inspection finds, and actions"},
		p.ruleList(), p.ruleShow(), p.ruleCreate(), p.ruleSet(), p.ruleDelete(), p.ruleCheck())
}

var oneRule = oneArg("the UUID of one rule (ingot rule list)")

// readRules reads a file, or the standard input, with one rule or a list of them, in YAML or JSON.
func (p *program) readRules(name string) ([]map[string]any, error) {
	b, err := p.read(name)
	if err != nil {
		return nil, fmt.Errorf("read the rules: %w", err)
	}
	var v any
	if err := yaml.Unmarshal(b, &v); err != nil {
		return nil, fmt.Errorf("read the rules of %s: %w", name, err)
	}
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	var out []map[string]any
	for i, item := range list {
		rule, ok := item.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("read the rules of %s: rule %d is not an object", name, i+1)
		}
		out = append(out, rule)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("read the rules of %s: there are none", name)
	}
	return out, nil
}

func (p *program) ruleList() *cobra.Command {
	return p.online(&cobra.Command{Use: "list", Short: "List inspection rules, in the order in which they are applied"}, nil,
		func(ctx context.Context, c *client.Client, _ []string) error {
			rules, err := c.Rules(ctx)
			if err != nil {
				return err
			}
			// As the conductor does: the highest first, those made first among equals.
			slices.SortStableFunc(rules, func(a, b rest.InspectionRule) int {
				return cmp.Compare(b.Priority, a.Priority)
			})
			return list(p, rules, []string{"UUID", "PRIORITY", "CONDITIONS", "ACTIONS", "DESCRIPTION"},
				func(r *rest.InspectionRule) []string {
					return []string{r.UUID, strconv.Itoa(r.Priority), ops(r.Conditions, r.Sensitive),
						ops(r.Actions, r.Sensitive), dash(string(r.Description))}
				})
		})
}

func ops(parts []map[string]any, sensitive bool) string {
	if sensitive {
		return "(sensitive)"
	}
	names := mapped(parts, func(part *map[string]any) string { return fmt.Sprint((*part)["op"]) })
	return dash(strings.Join(names, " "))
}

func (p *program) ruleShow() *cobra.Command {
	return p.online(&cobra.Command{Use: "show UUID", Short: "Show an inspection rule", Args: oneRule,
		ValidArgsFunction: cobra.NoFileCompletions}, nil,
		func(ctx context.Context, c *client.Client, args []string) error {
			r, err := c.Rule(ctx, args[0])
			if err != nil {
				return err
			}
			return p.showRule(r)
		})
}

func (p *program) showRule(r *rest.InspectionRule) error {
	if p.values() {
		return p.print(r)
	}
	lines := func(parts []map[string]any) string {
		if r.Sensitive {
			return "(sensitive: not shown)"
		}
		var out []string
		for _, part := range parts {
			line := fmt.Sprintf("%v %s", part["op"], compact(part["args"]))
			if loop, ok := part["loop"]; ok {
				line += " loop " + compact(loop)
			}
			if m, ok := part["multiple"]; ok {
				line += fmt.Sprintf(" (%v)", m)
			}
			out = append(out, line)
		}
		return dash(strings.Join(out, "\n"))
	}
	return p.sheet(
		[][2]string{{"uuid", r.UUID}, {"description", dash(string(r.Description))},
			{"priority", strconv.Itoa(r.Priority)}, {"phase", r.Phase}, {"conditions", lines(r.Conditions)},
			{"actions", lines(r.Actions)}})
}

func (p *program) ruleCreate() *cobra.Command {
	return p.online(&cobra.Command{
		Use: "create FILE|-", Short: "Create inspection rules from a file (YAML or JSON: one rule, or a list)",
		Long: `Make inspection rules of a file, or of the standard input: one rule, or a list of rules, in YAML or JSON, with the fields of the API:

  description: roomy machines get a trait
  priority: 100
  conditions:
    - op: gt
      args: {values: ["{inventory[memory][physical_mb]}", 262144]}
  actions:
    - op: add-trait
      args: {name: CUSTOM_ROOMY}

Try a rule out first: ingot rule check FILE --node NAME`,
		Args: oneArg("one file, or - for its standard input"),
	}, nil, func(ctx context.Context, c *client.Client, args []string) error {
		rules, err := p.readRules(args[0])
		if err != nil {
			return err
		}
		var made []*rest.InspectionRule
		for i, rule := range rules {
			r, err := c.CreateRule(ctx, rule)
			if err != nil {
				return fmt.Errorf("rule %d of %s (%d were made before it): %w", i+1, args[0], len(made), err)
			}
			made = append(made, r)
			if !p.values() {
				fmt.Fprintf(p.stdout, "rule %s is made\n", r.UUID)
			}
		}
		if p.values() {
			return p.print(made)
		}
		return nil
	})
}

func (p *program) ruleSet() *cobra.Command {
	var file, description string
	var priority int
	var sensitive bool
	cmd := &cobra.Command{Use: "set UUID", Short: "Change an inspection rule", Args: oneRule,
		ValidArgsFunction: cobra.NoFileCompletions}
	return p.online(cmd, []option{
		opt("file,f", &file, "file with the new rule; fields that it omits stay unchanged"),
		opt("description", &description, "description"),
		opt("priority", &priority, "0 to 9999: higher ones are applied first"),
		opt("sensitive", &sensitive, "hide its conditions and actions; this cannot be undone"),
	}, func(ctx context.Context, c *client.Client, args []string) error {
		values := map[string]any{}
		if file != "" {
			rules, err := p.readRules(file)
			if err != nil {
				return err
			}
			if len(rules) != 1 {
				return usage("--file %s has %d rules, want one", file, len(rules))
			}
			values = rules[0]
			delete(values, "uuid")
		}
		for name, v := range map[string]any{"description": description, "priority": priority, "sensitive": sensitive} {
			if cmd.Flags().Changed(name) {
				values[name] = v
			}
		}
		if len(values) == 0 {
			return usage("nothing to change: see ingot rule set --help")
		}
		var patch []rest.Operation
		for k, v := range values {
			patch = append(patch, rest.Operation{Op: "add", Path: "/" + k, Value: v})
		}
		r, err := c.UpdateRule(ctx, args[0], patch)
		if err != nil {
			return err
		}
		return p.result(r, "rule %s is changed", r.UUID)
	})
}

func (p *program) ruleDelete() *cobra.Command {
	return p.deletion("rule", &cobra.Command{Use: "delete UUID", Short: "Delete an inspection rule", Args: oneRule,
		ValidArgsFunction: cobra.NoFileCompletions}, (*client.Client).DeleteRule)
}

func (p *program) ruleCheck() *cobra.Command {
	var node string
	return local(&cobra.Command{
		Use:   "check UUID|FILE|- --node NAME",
		Short: "Show what an inspection rule would change, without applying it",
		Long: `Apply an inspection rule to what the newest inspection of a machine found, and say what would change. Nothing is changed and nothing is
called. The rule is one of the conductor's, by its UUID, or in a file that is not stored yet. The exit status is 1 when the rule would
make the inspection fail.`,
		Args: oneArg("the UUID of a rule, or a file with one"),
	}, []option{opt("node", &node, "on which machine")}, func(ctx context.Context, args []string) error {
		if node == "" {
			return usage("--node is missing: a rule is tried out on what was found on a machine")
		}
		rules := []any{args[0]}
		_, err := os.Stat(args[0])
		switch {
		case err == nil || args[0] == "-":
			read, err := p.readRules(args[0])
			if err != nil {
				return err
			}
			rules = mapped(read, func(r *map[string]any) any { return *r })
		case !isUUID.MatchString(args[0]):
			return usage("%s is neither the UUID of a rule nor a file that can be read: %v", args[0], err)
		}
		return p.checkRules(ctx, node, rules)
	})
}

// checkRules shows what rules, each of them a UUID or an object, would do with what was found on a node.
func (p *program) checkRules(ctx context.Context, node string, rules []any) error {
	c, err := p.client(ctx)
	if err != nil {
		return err
	}
	failed := false
	for i, rule := range rules {
		found, err := c.CheckRule(ctx, node, rule)
		if err != nil {
			return about(node, uninspected(node, err))
		}
		failed = failed || found.Failure != ""
		if len(rules) > 1 && !p.values() {
			fmt.Fprintf(p.stdout, "rule %d\n", i+1)
		}
		if err := p.showCheck(found); err != nil {
			return err
		}
	}
	if failed {
		return errors.New("the inspection would fail")
	}
	return nil
}

var isUUID = regexp.MustCompile(`^[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}$`)

func (p *program) showCheck(check *rest.RuleCheck) error {
	if p.values() {
		return p.print(check)
	}
	for i, holds := range check.Conditions {
		if !holds {
			fmt.Fprintf(p.stdout, "condition %d does not hold: nothing is done\n", i+1)
		}
	}
	if check.Matched && len(check.Changes) == 0 && check.Failure == "" {
		fmt.Fprintln(p.stdout, "it applies, and changes nothing")
	}
	if len(check.Changes) > 0 {
		rows := mapped(check.Changes, func(ch *rest.RuleChange) []string {
			return []string{ch.Path, shown(ch.From), shown(ch.To)}
		})
		if err := p.table([]string{"WHAT", "FROM", "TO"}, rows); err != nil {
			return err
		}
	}
	for _, url := range check.Calls {
		fmt.Fprintf(p.stdout, "would get %s\n", url)
	}
	for _, n := range check.Notes {
		fmt.Fprintf(p.stdout, "would log %s: %s\n", strings.ToLower(n.Severity), n.Text)
	}
	if check.Failure != "" {
		fmt.Fprintf(p.stdout, "would fail: %s\n", check.Failure)
	}
	return nil
}

func shown(v any) string {
	if v == nil {
		return "-"
	}
	return dash(plain(v))
}
