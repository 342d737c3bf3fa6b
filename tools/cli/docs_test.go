package cli

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/cli/manual"
)

// TestReference keeps docs/reference/ingot*.md true to the commands: the pages are made from them, one for each command
// below ingot that has commands itself, and one for the others.
func TestReference(t *testing.T) {
	p := &program{getenv: func(string) string { return "" }}
	root := p.root()
	const head = "<!-- made by go test ./tools/cli -run Reference -update -->\n"
	pages := map[string]string{}
	var index, single strings.Builder
	for _, c := range root.Commands() {
		if !c.IsAvailableCommand() {
			continue
		}
		if !c.HasAvailableSubCommands() {
			describe(&single, c)
			fmt.Fprintf(&index, "| [`%s`](#%s) | %s |\n", c.CommandPath(), anchor(c), c.Short)
			continue
		}
		name := "ingot-" + c.Name() + ".md"
		var b strings.Builder
		fmt.Fprintf(&b, "# %s\n\n%s\n%s.\n\n", c.CommandPath(), head, c.Short)
		for _, sub := range manual.Leaves(c) {
			fmt.Fprintf(&b, "- [%s](#%s)\n", strings.TrimPrefix(sub.CommandPath(), c.CommandPath()+" "), anchor(sub))
		}
		for _, sub := range manual.Leaves(c) {
			describe(&b, sub)
		}
		pages[name] = b.String()
		fmt.Fprintf(&index, "| [`%s`](%s) | %s |\n", c.CommandPath(), name, c.Short)
	}
	pages["ingot.md"] = "# ingot\n\n" + head + "\n```text\n" + root.Long + "\n```\n\n| command | |\n|---|---|\n" + index.String() +
		"\n## Flags of all commands\n\n" + "```text\n" + root.PersistentFlags().FlagUsages() + "```\n" + single.String()

	dir := filepath.Join("..", "..", "docs", "reference")
	have, err := filepath.Glob(filepath.Join(dir, "ingot-*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range have {
		if name := filepath.Base(file); pages[name] == "" && name != "ingot-agent.md" {
			kit.Document(t, file, "") // of a command that is gone
		}
	}
	for name, want := range pages {
		kit.Document(t, filepath.Join(dir, name), want)
	}
}

func anchor(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

func describe(b *strings.Builder, c *cobra.Command) {
	fmt.Fprintf(b, "\n## %s\n\n", c.CommandPath())
	text := c.Short
	if c.Long != "" {
		text = c.Long
	}
	for i, paragraph := range strings.Split(text, "\n\n") {
		// What is aligned or indented stays as it is.
		if strings.Contains("\n"+paragraph, "\n ") {
			paragraph = "```text\n" + paragraph + "\n```"
		} else if i == 0 && !strings.HasSuffix(paragraph, ".") && !strings.HasSuffix(paragraph, ":") {
			paragraph += "."
		}
		fmt.Fprintf(b, "%s\n\n", paragraph)
	}
	fmt.Fprintf(b, "```text\n%s\n```\n", c.UseLine())
	if c.Example != "" {
		fmt.Fprintf(b, "\n```text\n%s\n```\n", c.Example)
	}
	if usages := c.LocalNonPersistentFlags().FlagUsages(); usages != "" {
		fmt.Fprintf(b, "\n```text\n%s```\n", usages)
	}
}
