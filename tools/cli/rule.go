package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
)

func (p *program) ruleCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "rule", Short: "Inspection rules: conditions on what an inspection finds, and actions"}
	cmd.AddCommand(p.ruleList(), p.ruleShow(), p.ruleCreate(), p.ruleSet(), p.ruleDelete(), p.ruleCheck())
	return cmd
}

var oneRule = oneArg("the UUID of one rule (ingot rule list)")

// readRules reads a file, or the standard input, with one rule or a list of them, in YAML or JSON.
func (p *program) readRules(name string) ([]map[string]any, error) {
	var b []byte
	var err error
	if name == "-" {
		b, err = io.ReadAll(p.stdin)
	} else {
		b, err = os.ReadFile(name)
	}
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
	cmd := &cobra.Command{Use: "list", Short: "List inspection rules, in the order in which they are applied",
		Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions}
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
		rules, err := c.Rules(ctx)
		if err != nil {
			return err
		}
		byPriority(rules)
		if p.output == "json" {
			if rules == nil {
				rules = []rest.InspectionRule{}
			}
			return p.printJSON(rules)
		}
		rows := make([][]string, len(rules))
		for i, r := range rules {
			rows[i] = []string{r.UUID, strconv.Itoa(r.Priority), ops(r.Conditions, r.Sensitive),
				ops(r.Actions, r.Sensitive), dash(string(r.Description))}
		}
		return table(p.stdout, []string{"UUID", "PRIORITY", "CONDITIONS", "ACTIONS", "DESCRIPTION"}, rows)
	})
	return cmd
}

// byPriority sorts as the conductor does: the highest first, those made first among equals.
func byPriority(rules []rest.InspectionRule) {
	for i := 1; i < len(rules); i++ {
		for j := i; j > 0 && rules[j].Priority > rules[j-1].Priority; j-- {
			rules[j], rules[j-1] = rules[j-1], rules[j]
		}
	}
}

func ops(parts []map[string]any, sensitive bool) string {
	if sensitive {
		return "(sensitive)"
	}
	var names []string
	for _, part := range parts {
		names = append(names, fmt.Sprint(part["op"]))
	}
	return dash(strings.Join(names, " "))
}

func (p *program) ruleShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show UUID", Short: "Show an inspection rule", Args: oneRule,
		ValidArgsFunction: cobra.NoFileCompletions}
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		r, err := c.Rule(ctx, args[0])
		if err != nil {
			return err
		}
		return p.showRule(r)
	})
	return cmd
}

func (p *program) showRule(r *rest.InspectionRule) error {
	if p.output == "json" {
		return p.printJSON(r)
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
	return sheet(p.stdout,
		[][2]string{{"uuid", r.UUID}, {"description", dash(string(r.Description))},
			{"priority", strconv.Itoa(r.Priority)}, {"phase", r.Phase}, {"conditions", lines(r.Conditions)},
			{"actions", lines(r.Actions)}})
}

func compact(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Sprint(v)
	}
	return strings.TrimSpace(b.String())
}

func (p *program) ruleCreate() *cobra.Command {
	cmd := &cobra.Command{
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
	}
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
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
			if p.output != "json" {
				fmt.Fprintf(p.stdout, "rule %s is made\n", r.UUID)
			}
		}
		if p.output == "json" {
			return p.printJSON(made)
		}
		return nil
	})
	return cmd
}

func (p *program) ruleSet() *cobra.Command {
	var file, description string
	var priority int
	var sensitive bool
	cmd := &cobra.Command{Use: "set UUID", Short: "Change an inspection rule", Args: oneRule,
		ValidArgsFunction: cobra.NoFileCompletions}
	cmd.Flags().StringVarP(&file, "file", "f", "", "file with the new rule; fields that it omits stay unchanged")
	cmd.Flags().StringVar(&description, "description", "", "description")
	cmd.Flags().IntVar(&priority, "priority", 0, "0 to 9999: higher ones are applied first")
	cmd.Flags().BoolVar(&sensitive, "sensitive", false, "hide its conditions and actions; this cannot be undone")
	run := func(changed func(string) bool) func(context.Context, *client.Client, []string) error {
		return func(ctx context.Context, c *client.Client, args []string) error {
			values := map[string]any{}
			if file != "" {
				rules, err := p.readRules(file)
				if err != nil {
					return err
				}
				if len(rules) != 1 {
					return usage("--file %s has %d rules, want one", file, len(rules))
				}
				for k, v := range rules[0] {
					if k != "uuid" {
						values[k] = v
					}
				}
			}
			for name, v := range map[string]any{"description": description, "priority": priority,
				"sensitive": sensitive} {
				if changed(name) {
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
			if p.output == "json" {
				return p.printJSON(r)
			}
			fmt.Fprintf(p.stdout, "rule %s is changed\n", r.UUID)
			return nil
		}
	}
	cmd.RunE = p.withClient(run(func(name string) bool { return cmd.Flags().Changed(name) }))
	return cmd
}

func (p *program) ruleDelete() *cobra.Command {
	return p.deletion("rule", cobra.Command{Use: "delete UUID", Short: "Delete an inspection rule", Args: oneRule,
		ValidArgsFunction: cobra.NoFileCompletions}, (*client.Client).DeleteRule)
}

func (p *program) ruleCheck() *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use:   "check UUID|FILE|- --node NAME",
		Short: "Show what an inspection rule would change, without applying it",
		Long: `Apply an inspection rule to what the newest inspection of a machine found, and say what would change. Nothing is changed and nothing is
called. The rule is one of the conductor's, by its UUID, or in a file that is not stored yet. The exit status is 1 when the rule would
make the inspection fail.`,
		Args: oneArg("the UUID of a rule, or a file with one"),
	}
	cmd.Flags().StringVar(&node, "node", "", "on which machine")
	var rules []any
	check := p.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
		failed := false
		for i, rule := range rules {
			found, err := c.CheckRule(ctx, node, rule)
			if err != nil {
				var answer *rest.Error
				if errors.As(err, &answer) && strings.Contains(answer.Message, "inventory") {
					return advise(err, "Is it inspected? ingot node inspect %s", node)
				}
				return about(node, err)
			}
			failed = failed || found.Failure != ""
			if p.output == "json" {
				if err := p.printJSON(found); err != nil {
					return err
				}
				continue
			}
			if len(rules) > 1 {
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
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if node == "" {
			return usage("--node is missing: a rule is tried out on what was found on a machine")
		}
		rules = []any{args[0]}
		_, err := os.Stat(args[0])
		switch {
		case err == nil || args[0] == "-":
			read, err := p.readRules(args[0])
			if err != nil {
				return err
			}
			rules = nil
			for _, r := range read {
				rules = append(rules, r)
			}
		case !isUUID.MatchString(args[0]):
			return usage("%s is neither the UUID of a rule nor a file that can be read: %v", args[0], err)
		}
		return check(cmd, args)
	}
	return cmd
}

var isUUID = regexp.MustCompile(`^[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}$`)

func (p *program) showCheck(check *rest.RuleCheck) error {
	for i, holds := range check.Conditions {
		if !holds {
			fmt.Fprintf(p.stdout, "condition %d does not hold: nothing is done\n", i+1)
		}
	}
	if check.Matched && len(check.Changes) == 0 && check.Failure == "" {
		fmt.Fprintln(p.stdout, "it applies, and changes nothing")
	}
	var rows [][]string
	for _, ch := range check.Changes {
		rows = append(rows, []string{ch.Path, shown(ch.From), shown(ch.To)})
	}
	if len(rows) > 0 {
		if err := table(p.stdout, []string{"WHAT", "FROM", "TO"}, rows); err != nil {
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
	switch v := v.(type) {
	case nil:
		return "-"
	case string:
		return dash(v)
	}
	return compact(v)
}
