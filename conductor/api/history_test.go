package api

import (
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
)

func TestHistorySortsAndShortens(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n"})
	n, err := f.st.Node(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("é", 200)
	for _, e := range []node.HistoryEntry{{Event: "b", Type: "power", User: "zoe"}, {Event: "a", Type: "boot", Severity: "ERROR"}, {Event: long, Type: "power", User: "ann"}} {
		e.NodeUUID = n.UUID
		if err := f.st.AddHistory(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	list := func(query string) []map[string]any {
		t.Helper()
		var out []map[string]any
		for _, v := range f.want(200, "GET", "/v1/nodes/n/history"+query, "")["history"].([]any) {
			out = append(out, v.(map[string]any))
		}
		return out
	}
	all := list("")
	if got, _ := all[2]["event"].(string); len(all) != 3 || len(got) > 254 || !strings.HasSuffix(got, "é...") {
		t.Errorf("a long event is listed as %q", got)
	}
	if got := list("?detail=true")[2]["event"]; got != long {
		t.Errorf("with detail it is %q", got)
	}
	for query, want := range map[string]string{"": "b", "?sort_dir=desc&detail=true": long, "?sort_key=event": "a", "?sort_key=severity": "a", "?sort_key=user&sort_dir=desc": "b"} {
		if got := list(query); len(got) != 3 || got[0]["event"] != want {
			t.Errorf("history%s begins with %v, want %q", query, got[0]["event"], want)
		}
	}
	page := f.want(200, "GET", "/v1/nodes/n/history?limit=2&sort_key=event", "")
	next, _ := page["next"].(string)
	if _, query, ok := strings.Cut(next, "?"); !ok {
		t.Errorf("next = %q", next)
	} else if rest := list("?" + query); len(rest) != 1 {
		t.Errorf("the second page has %d records", len(rest))
	}
	f.want(400, "GET", "/v1/nodes/n/history?sort_key=nonsense", "")
}
