package build

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/initramfs/kernel"
	"github.com/ingot-metal/ingot/test/kit"
)

// TestAgainstDepmod holds our indices of a real kernel against those of kmod's depmod.
func TestAgainstDepmod(t *testing.T) {
	kit.NeedPrograms(t, "apt-get", "apt-cache", "depmod")
	cache, err := kernel.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	deb, err := kernel.Fetch(t.Context(), kernel.Cloud, cache, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	k, err := kernel.Open(t.Context(), deb, cache)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for name := range k.Modules {
		all = append(all, name)
	}
	s, err := k.Select(all)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	dir := filepath.Join(root, "lib/modules", k.Release)
	for _, m := range s.Modules {
		data, err := k.Read(m)
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, m.File)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kit.Run(t, "depmod", "-b", root, k.Release)
	read := func(file string) string {
		data, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if d := cmp.Diff(deps(t, read("modules.dep")), deps(t, string(s.Dep()))); d != "" {
		t.Errorf("modules.dep (-depmod +ours):\n%s", d)
	}
	if d := cmp.Diff(lines(read("modules.alias")), lines(string(s.Alias()))); d != "" {
		t.Errorf("modules.alias (-depmod +ours):\n%s", d)
	}
	ours := soft(string(s.Softdep()))
	for _, pair := range soft(read("modules.softdep")) {
		if !slices.Contains(ours, pair) {
			t.Errorf("modules.softdep lacks %q, which depmod finds", pair)
		}
	}
}

// deps parses modules.dep, checks that a dependency's own dependencies follow it, and returns the dependencies as
// sorted sets.
func deps(t *testing.T, text string) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	order := map[string][]string{}
	for line := range strings.Lines(text) {
		file, list, _ := strings.Cut(strings.TrimSpace(line), ":")
		order[file] = strings.Fields(list)
		sorted := strings.Fields(list)
		slices.Sort(sorted)
		out[file] = sorted
	}
	for file, list := range order {
		for i, d := range list {
			for _, need := range order[d] {
				if !slices.Contains(list[i+1:], need) {
					t.Errorf("%s: %s stands not before %s, which it needs", file, d, need)
				}
			}
		}
	}
	return out
}

func lines(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	slices.Sort(out)
	return out
}

// soft reads modules.softdep as pairs: depmod writes a line for each, and keeps entries of modules that lack their
// "pre:".
func soft(text string) []string {
	var out []string
	for _, line := range lines(text) {
		f := strings.Fields(line)
		when := "pre:"
		for _, w := range f[2:] {
			if strings.HasSuffix(w, ":") {
				when = w
				continue
			}
			out = append(out, f[1]+" "+when+" "+w)
		}
	}
	slices.Sort(out)
	return out
}
