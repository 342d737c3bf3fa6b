package main

import (
	"bytes"
	"errors"
	"flag"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
)

// TestReference keeps docs/reference/ingot-agent.md true to the program's own help.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("# ingot-agent\n\n<!-- made by go test ./agent/cmd/ingot-agent -run Reference -update -->\n\n```text\n" + usage +
		"```\n")
	for _, name := range []string{"write", "inventory"} {
		var out bytes.Buffer
		err := run(t.Context(), []string{"ingot-agent", name, "--help"}, &out, &out)
		if err != nil && !errors.Is(err, flag.ErrHelp) {
			t.Errorf("ingot-agent %s --help: %v", name, err)
		}
		text := strings.ReplaceAll(out.String(), "\t", "    ")
		b.WriteString("\n## ingot-agent " + name + "\n\n```text\n" + text + "```\n")
	}
	kit.Document(t, "../../../docs/reference/ingot-agent.md", b.String())
}
