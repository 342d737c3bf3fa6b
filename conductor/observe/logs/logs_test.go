package logs

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
)

type traceKey struct{}

func traced(ctx context.Context) string {
	id, _ := ctx.Value(traceKey{}).(string)
	return id
}

// TestLevelsByPart: a part's level can be changed while loggers of it are in use, also those made before.
func TestLevelsByPart(t *testing.T) {
	var b bytes.Buffer
	l := New(&b, Options{Level: "info"})
	engine, api := l.Part("engine").With("node", "n1"), l.Part("api")
	try := func() string {
		b.Reset()
		engine.Debug("one")
		engine.Info("two")
		api.Debug("three")
		api.WithGroup("g").Info("four")
		var words []string
		for _, w := range []string{"one", "two", "three", "four"} {
			if strings.Contains(b.String(), "msg="+w) {
				words = append(words, w)
			}
		}
		return strings.Join(words, " ")
	}
	for _, c := range []struct{ part, level, want string }{
		{"", "info", "two four"}, {"engine", "debug", "one two four"}, {"api", "error", "one two"},
		{"", "warn", ""}, {"", "debug", "one two three four"},
	} {
		if err := l.Set(c.part, c.level); err != nil {
			t.Fatal(err)
		}
		if got := try(); got != c.want {
			t.Errorf("after %q %s: %q, want %q", c.part, c.level, got, c.want)
		}
	}
	if err := l.Set("kitchen", "debug"); err == nil || !strings.Contains(err.Error(), "api, engine") {
		t.Errorf("a part that there is not: %v", err)
	}
	if err := l.Set("", "loud"); err == nil {
		t.Error("loud is a level")
	}
	if got := slices.Sorted(maps.Keys(l.Levels())); !slices.Equal(got, []string{"api", "engine"}) ||
		l.Levels()["api"] != "debug" {
		t.Errorf("levels %v", l.Levels())
	}
	if New(&b, Options{Level: "nonsense"}).Part("a"); l.Part("new").Enabled(t.Context(), slog.LevelDebug) {
		t.Error("a new part does not begin with the level of the configuration")
	}
}

// TestTraceIDs: a line about a traced request has the trace's ID, in both formats, and any other has none.
func TestTraceIDs(t *testing.T) {
	ctx := context.WithValue(t.Context(), traceKey{}, "abc")
	for _, format := range []bool{true, false} {
		var b bytes.Buffer
		l := New(&b, Options{JSON: format, Trace: traced,
			Replace: func(a slog.Attr) slog.Attr {
				if a.Key == "password" {
					return slog.String(a.Key, "******")
				}
				return a
			}}).Part("api")
		l.InfoContext(ctx, "with", "password", "hush")
		l.Info("without")
		lines := strings.Split(strings.TrimSpace(b.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], "abc") || strings.Contains(lines[1], "trace") ||
			strings.Contains(b.String(), "hush") {
			t.Errorf("lines %q", lines)
		}
		var v map[string]any
		err := json.Unmarshal([]byte(lines[0]), &v)
		if format && (err != nil || v["trace"] != "abc" || v["part"] != "api") {
			t.Errorf("%s: %v", lines[0], err)
		}
	}
}
