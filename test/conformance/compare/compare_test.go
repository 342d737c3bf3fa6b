package compare

import (
	"net/http"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/conformance/ask"
)

func answer(status int, header http.Header, body string) Answer {
	return Normal(ask.Ask{Route: "GET /v1/nodes/{node}"}, "http://127.0.0.1:1", nil, status, header, []byte(body))
}

// TestWhatCounts: what clients can see is a difference, and what differs from run to run is none.
func TestWhatCounts(t *testing.T) {
	version := func(v string) http.Header { return http.Header{"X-Openstack-Ironic-Api-Version": {v}} }
	for _, c := range []struct {
		what      string
		one, two  Answer
		different string // the field, or "" for none
		shape     bool
	}{
		{"status", answer(200, nil, `{}`), answer(404, nil, `{"error_message": "x"}`), "status", false},
		{"a header", answer(200, version("1.1"), `{}`), answer(200, version("1.2"), `{}`),
			"header X-Openstack-Ironic-Api-Version", false},
		{"no header", answer(200, version("1.1"), `{}`), answer(200, nil, `{}`),
			"header X-Openstack-Ironic-Api-Version", false},
		{"a member is missing", answer(200, nil, `{"a": {"b": 1}}`), answer(200, nil, `{"a": {}}`), "body/a/b", true},
		{"a member too much", answer(200, nil, `{}`), answer(200, nil, `{"b": null}`), "body/b", true},
		{"a type", answer(200, nil, `{"a": 1}`), answer(200, nil, `{"a": "1"}`), "body/a", false},
		{"a large number", answer(200, nil, `{"a": 9007199254740993}`), answer(200, nil, `{"a": 9007199254740992}`),
			"body/a", false},
		{"null", answer(200, nil, `{"a": null}`), answer(200, nil, `{"a": ""}`), "body/a", false},
		{"a time", answer(200, nil, `{"created_at": "2026-01-01T00:00:00+00:00"}`),
			answer(200, nil, `{"created_at": "2027-01-01T00:00:01+00:00"}`), "", false},
		{"no time", answer(200, nil, `{"created_at": "2026-01-01T00:00:00+00:00"}`),
			answer(200, nil, `{"created_at": null}`), "body/created_at", false},
		{"order", answer(200, nil, `{"a": ["x", "y"]}`), answer(200, nil, `{"a": ["y", "x"]}`), "body/a", false},
		{"length", answer(200, nil, `{"a": ["x", "y"]}`), answer(200, nil, `{"a": ["x"]}`), "body/a", false},
		{"words of an error", answer(400, nil, `{"error_message": "{\"faultstring\": \"no\"}"}`),
			answer(400, nil, `{"error_message": "{\"faultstring\": \"never\"}"}`), "", false},
		{"kind of an error", answer(400, nil, `{"error_message": "{\"faultstring\": \"no\"}"}`),
			answer(400, nil, `{"error_message": "{\"title\": \"no\"}"}`), "body/error_message", false},
		{"another object", answer(200, nil, `{"a": "5eed0000-0000-4000-8000-000000000001"}`),
			answer(200, nil, `{"a": "5eed0000-0000-4000-8000-000000000002"}`), "body/a", false},
		{"no JSON", answer(200, nil, `{}`), answer(200, nil, `<html>`), "body", false},
		{"a link", answer(200, nil, `{"href": "http://127.0.0.1:1/v1"}`),
			answer(200, nil, `{"href": "http://127.0.0.1:1/v2"}`), "body/href", false},
	} {
		ds := Answers(c.one, c.two)
		if c.different == "" && len(ds) > 0 || c.different != "" && len(ds) == 0 {
			t.Errorf("%s: differences %v, want %q", c.what, ds, c.different)
			continue
		}
		for _, d := range ds {
			if d.Field != c.different || d.Shape != c.shape {
				t.Errorf("%s: %+v, want %s (shape %v)", c.what, d, c.different, c.shape)
			}
		}
	}
	if a := answer(200, nil, `{"href": "http://127.0.0.1:1/v1"}`); strings.Contains(short(a.Body), "127.0.0.1") {
		t.Errorf("the server's address stays in %v", a.Body)
	}
}
