package hook

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestDocs: docs/howto/inspection.md has the table of hooks, in its order and its words.
func TestDocs(t *testing.T) {
	b, err := os.ReadFile("../../../docs/howto/inspection.md")
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for _, h := range table {
		fmt.Fprintf(&want, "| `%s` | %s |\n", h.Name, h.About)
	}
	if !strings.Contains(string(b), want.String()) {
		t.Errorf("docs/howto/inspection.md lacks the table of hooks:\n%s", want.String())
	}
}
