package cli

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// health shows failing parts, sensors and events, with the failure of the newest attempt beside them; what a machine
// says does nothing to a terminal.
func TestNodeHealth(t *testing.T) {
	const said = `{"node_uuid":"u","health":"Warning","read_at":"2026-11-01T10:00:00+00:00","tried_at":"2026-11-01T10:20:00+00:00",
		"error":"no answer","failing_parts":[{"kind":"drive","name":"Bay 1","health":null,"predicted":true}],
		"sensors":[{"name":"Fan1","kind":"fan","value":5400,"unit":"RPM","upper_critical":null,"health":"OK"},
		{"name":"CPU\u001b[2J","kind":"temperature","value":51.5,"unit":"Cel","upper_critical":95,"health":"OK"}],
		"log":[{"id":"7","time":null,"severity":"Critical","message":"Fan lost"}]}`
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/ingot/v1/nodes/n1/health" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, said)
	}))
	defer web.Close()
	run := func(args ...string) (string, string) {
		t.Helper()
		var out, errs bytes.Buffer
		if err := Run(t.Context(), append([]string{"node", "health", "n1", "--endpoint", web.URL}, args...), nil, &out,
			&errs, func(string) string { return "" }); err != nil {
			t.Fatal(err)
		}
		return out.String(), errs.String()
	}
	out, errs := run()
	for _, part := range []string{"n1: Warning, read at 2026-11-01T10:00:00Z", "is going to fail", "5400 RPM",
		"critical at 95", "Critical", "Fan lost"} {
		if !strings.Contains(strings.ReplaceAll(out, "+00:00", "Z"), part) {
			t.Errorf("it lacks %q:\n%s", part, out)
		}
	}
	if strings.Contains(out, "\x1b") || !strings.Contains(errs, "no answer") {
		t.Errorf("it says %q, and %q", out, errs)
	}
	if out, _ := run("-o", "json"); !strings.Contains(out, `"upper_critical": 95`) {
		t.Errorf("as JSON: %s", out)
	}
}
