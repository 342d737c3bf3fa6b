package manual

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/test/kit"
)

func commands() *cobra.Command {
	run := func(*cobra.Command, []string) {}
	root := &cobra.Command{Use: "prog", Short: "Do things", Long: "prog does things.\n\n  aligned   as it is\n\n.hidden isn't a request"}
	root.PersistentFlags().String("where", "here", "place of it")
	group := &cobra.Command{Use: "thing", Short: "Things"}
	add := &cobra.Command{Use: `add "NAME"`, Short: "Add a thing", Example: `  prog thing add C:\x`, Run: run}
	add.Flags().Bool("dry-run", false, "only say what `would` be done")
	group.AddCommand(add)
	root.AddCommand(group, &cobra.Command{Use: "stop", Short: "Stop", Run: run},
		&cobra.Command{Use: "secret", Short: "Secret", Hidden: true, Run: run})
	return root
}

func TestPages(t *testing.T) {
	pages := Pages(commands(), time.Date(2026, 11, 28, 23, 0, 0, 0, time.UTC))
	if got := slices.Sorted(maps.Keys(pages)); !slices.Equal(got, []string{"prog-thing.1", "prog.1"}) {
		t.Fatalf("pages %v, want prog.1 and prog-thing.1", got)
	}
	for name, page := range pages {
		kit.Golden(t, name, page)
	}
}

// TestPagesAreShownAsWritten: man prints the texts with their hyphens, backslashes, periods and quotes.
func TestPagesAreShownAsWritten(t *testing.T) {
	kit.NeedPrograms(t, "man")
	dir := t.TempDir()
	shown := ""
	for name, page := range Pages(commands(), time.Unix(0, 0)) {
		file := dir + "/" + name
		if err := os.WriteFile(file, page, 0o600); err != nil {
			t.Fatal(err)
		}
		shown += kit.Run(t, "man", "--warnings=w", "-l", file)
	}
	for _, want := range []string{"prog-thing - Things", `add "NAME"`, `prog thing add C:\x`, "--dry-run", "--where",
		".hidden isn't a request", "  aligned   as it is"} {
		if !strings.Contains(shown, want) {
			t.Errorf("man does not show %q:\n%s", want, shown)
		}
	}
}
