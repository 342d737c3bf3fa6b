package app

import (
	"bytes"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/test/kit"
)

// TestReference keeps docs/reference/ingotd.md true to the program's own help.
func TestReference(t *testing.T) {
	usage, _, _ := strings.Cut(config.Help(), "\nLists are")
	var b strings.Builder
	b.WriteString("# ingotd\n\n<!-- made by go test ./conductor/app -run Reference -update -->\n\n```text\n" + usage +
		"\n```\n\n[Configuration](configuration.md) lists the keys.\n")
	for _, c := range commands() {
		var out bytes.Buffer
		if err := c.run(t.Context(), []string{"--help"}, nil, &out, &out); err != nil {
			t.Errorf("ingotd %s --help: %v", c.name, err)
		}
		text := strings.ReplaceAll(out.String(), "\t", "    ")
		b.WriteString("\n## ingotd " + c.name + "\n\n```text\n" + text + "```\n")
	}
	kit.Document(t, "../../docs/reference/ingotd.md", b.String())
}
