package api

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

func TestHistorySortsAndShortens(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "n"})
	n, err := f.st.Node(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("é", 200)
	for _, e := range []node.HistoryEntry{{Event: "b", Type: "power", User: "zoe"},
		{Event: "a", Type: "boot", Severity: "ERROR"}, {Event: long, Type: "power", User: "ann"}} {
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
	for query, want := range map[string]string{"": "b", "?sort_dir=desc&detail=true": long, "?sort_key=event": "a",
		"?sort_key=severity": "a", "?sort_key=user&sort_dir=desc": "b"} {
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

// TestHistoryDetailByVersion: what later versions tell of a line is in detail only, and older ones don't have it.
func TestHistoryDetailByVersion(t *testing.T) {
	f := newFixture(t, Config{},
		node.Node{Name: "n", Provision: node.Deploying, TargetProvision: node.Active,
			ProvisionUpdatedAt: time.Now().Add(-90 * time.Second)})
	id := mustNode(t, f, "n").UUID
	ann := node.WithRequester(t.Context(), node.Requester{User: "ann", Project: "p1"})
	if err := f.st.AddHistory(ann, node.HistoryEntry{NodeUUID: id, Event: "asked", User: "ann"}); err != nil {
		t.Fatal(err)
	}
	one, _ := f.want(200, "GET", "/v1/nodes/n/history", "")["history"].([]any)[0].(map[string]any)["uuid"].(string)
	for _, c := range []struct {
		field string
		since rest.Version
		want  func(any) bool
	}{
		{"user", 78, func(v any) bool { return v == "ann" }},
		{"project", 113, func(v any) bool { return v == "p1" }},
		{"state", 115, func(v any) bool { return v == "deploying" }},
		{"target_provision_state", 115, func(v any) bool { return v == "active" }},
		{"duration_seconds", 115, func(v any) bool {
			s, ok := v.(float64)
			return ok && s >= 90 && s < 300 && s == float64(int(s))
		}},
	} {
		for _, v := range []rest.Version{78, c.since - 1, c.since, rest.NewestVersion} {
			if v < 78 {
				continue
			}
			f.version = v
			for path, detail := range map[string]bool{"?detail=true": true, "/" + one: true, "": false,
				"?detail=false": false} {
				out := f.want(200, "GET", "/v1/nodes/n/history"+path, "")
				if list, ok := out["history"].([]any); ok {
					out = list[0].(map[string]any)
				}
				got, there := out[c.field]
				if want := detail && v >= c.since; there != want || there && !c.want(got) {
					t.Errorf("%s of history%s in version %s is %v, there: %v, want %v", c.field, path, v, got, there,
						want)
				}
			}
		}
	}
	f.version = rest.NewestVersion
	for _, key := range []string{"project", "state", "target_provision_state"} {
		if code := f.at(rest.NewestVersion, "GET", "/v1/nodes/n/history?sort_key="+key, ""); code != 200 {
			t.Errorf("sorted by %s = %d", key, code)
		}
		if code := f.at(112, "GET", "/v1/nodes/n/history?sort_key="+key, ""); code != 406 {
			t.Errorf("sorted by %s in version 1.112 = %d", key, code)
		}
	}
	f.want(400, "GET", "/v1/nodes/n/history?fields=state", "")
	for _, path := range []string{"/v1/nodes/n/history?detail=true", "/v1/nodes/n/history/" + one} {
		if code := f.at(77, "GET", path, ""); code != 404 {
			t.Errorf("GET %s in version 1.77 = %d", path, code)
		}
	}
}

// TestHistoryOfCleaning: the start and the end of a cleaning are in the history, each with the user and project that
// requested it, and with its states and its time; arguments that are secret are not.
func TestHistoryOfCleaning(t *testing.T) {
	f := newFixture(t, Config{}).withEngine()
	f.want(201, "POST", "/v1/nodes", `{"driver":"fake-hardware","name":"n"}`)
	f.want(202, "PUT", "/v1/nodes/n/states/provision", `{"target":"manage"}`)
	f.until("/v1/nodes/n", "provision_state", "manageable")
	f.as(access.Actor{UserName: "ann", ProjectID: "ops", System: true, Role: access.Admin})
	f.want(202, "PUT", "/v1/nodes/n/states/provision",
		`{"target":"clean","clean_steps":[{"interface":"bios","step":"apply_configuration","args":{"settings":[{"name":"a","value":"b","password":"hush"}]}}]}`)
	f.until("/v1/nodes/n", "provision_state", "manageable")
	var got []string
	for _, v := range f.want(200, "GET", "/v1/nodes/n/history?detail=true", "")["history"].([]any) {
		o := v.(map[string]any)
		if user, _ := o["user"].(string); strings.HasPrefix(user, "ann") {
			got = append(got,
				fmt.Sprint(o["event_type"], " ", o["severity"], " ", o["project"], " ", o["state"], " to ",
					o["target_provision_state"]))
			if _, ok := o["duration_seconds"].(float64); !ok {
				t.Errorf("no duration: %v", o)
			}
		}
		if event := fmt.Sprint(o["event"]); strings.Contains(event, "hush") ||
			strings.HasPrefix(fmt.Sprint(o["event_type"]), "manual_cleaning") &&
				(!strings.Contains(event, "bios.apply_configuration {") ||
					!strings.HasPrefix(event, "Starting manual cleaning with steps=[") &&
						!strings.HasPrefix(event, "Manual Cleaning completed successfully with steps=[")) {
			t.Errorf("event %s", event)
		}
	}
	want := []string{"provisioning INFO ops manageable to <nil>",
		"manual_cleaning_start INFO ops cleaning to manageable", "manual_cleaning_end INFO ops cleaning to manageable"}
	if !slices.Equal(got, want) {
		b, _ := json.Marshal(got)
		t.Errorf("history has %s, want %q", b, want)
	}
}
