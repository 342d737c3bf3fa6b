package ironic

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// api answers as an Ironic, and keeps the last request.
type api struct {
	status int
	answer string
	last   *http.Request
	body   string
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	a.last, a.body = r, string(b)
	if a.status != 0 {
		w.Header().Set("Location", "http://elsewhere.example/")
		w.WriteHeader(a.status)
	}
	_, _ = io.WriteString(w, a.answer)
}

func newAPI(t *testing.T) (*api, string) {
	a := &api{}
	srv := httptest.NewServer(a)
	t.Cleanup(srv.Close)
	return a, srv.URL
}

// TestRequests holds the paths, versions and bodies by which Ironic knows an agent.
func TestRequests(t *testing.T) {
	a, at := newAPI(t)
	c := New(Options{URLs: []string{"http://127.0.0.1:1", at + "/"}, RequestID: "req-1"})
	version := func() string { return a.last.Header.Get("X-OpenStack-Ironic-API-Version") }

	a.answer = `{"default_version":{"version":"1.82"}}`
	minor, clock, err := c.Discover(t.Context())
	if err != nil || minor != 82 || time.Since(clock).Abs() > time.Minute || a.last.URL.Path != "/" || version() != "" {
		t.Errorf("version %d, clock %v, %v; asked %s by %q", minor, clock, err, a.last.URL, version())
	}
	a.answer = `{"node":{"uuid":"u","extra":{}},"config":{"heartbeat_timeout":300,"agent_token":"******",
		"agent_md5_checksum_enable":false,"permitted_image_formats":["raw"],"a_new_one":1}}`
	n, set, err := c.Lookup(t.Context(), []string{"aa:bb:cc:dd:ee:01", "aa:bb:cc:dd:ee:02"}, "u")
	if err != nil || n.UUID != "u" || set.HeartbeatTimeout != 300 || set.Token != Masked || set.MD5 == nil || *set.MD5 {
		t.Errorf("lookup: %+v, %+v, %v", n, set, err)
	}
	if q := a.last.URL.Query(); a.last.URL.Path != "/v1/lookup" ||
		q.Get("addresses") != "aa:bb:cc:dd:ee:01,aa:bb:cc:dd:ee:02" || q.Get("node_uuid") != "u" || version() != "1.62" || a.last.Header.Get("X-OpenStack-Request-ID") != "req-1" {
		t.Errorf("lookup asked %s by %s", a.last.URL, version())
	}
	a.status, a.answer = 202, ""
	b := Beat{CallbackURL: "https://192.0.2.5:9999", Version: "1", Token: "t", VerifyCA: "PEM"}
	if err := c.Heartbeat(t.Context(), "u", b); err != nil {
		t.Error(err)
	}
	want := `{"callback_url":"https://192.0.2.5:9999","agent_version":"1","agent_token":"t","agent_verify_ca":"PEM"}`
	if a.last.Method != "POST" || a.last.URL.Path != "/v1/heartbeat/u" || version() != "1.68" || a.body != want {
		t.Errorf("heartbeat: %s %s by %s: %s", a.last.Method, a.last.URL, version(), a.body)
	}
	for answer, want := range map[string]string{`{"uuid":"u"}`: "u", `{"node":{"uuid":"v"}}`: "v"} {
		a.answer = answer
		got, err := c.ContinueInspection(t.Context(), []string{at + "/v1/continue?x=1"}, map[string]any{"inventory": 1})
		if err != nil || got != want || a.last.URL.String() != "/v1/continue?x=1" || version() != "" {
			t.Errorf("inspection: %q, %v; asked %s by %q", got, err, a.last.URL, version())
		}
	}
}

// TestRefusals holds the words of errors, which of them pass, and that no redirect is followed with the token.
func TestRefusals(t *testing.T) {
	a, at := newAPI(t)
	c := New(Options{URLs: []string{at}})
	inner, err := json.Marshal(
		`{"faultcode":"Client","faultstring":"Invalid or missing agent token\nreceived.","debuginfo":null}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		status            int
		answer, want      string
		passing, conflict bool
	}{
		{400, `{"error_message":` + string(inner) + `}`, "400 Bad Request: Invalid or missing agent token", false, false},
		{404, `{"error_message":{"faultstring":"Resource could not be found."}}`, "404 Not Found: Resource", false, false},
		{409, `{"error_message":"Node is locked"}`, "409 Conflict: Node is locked", true, true},
		{503, `no JSON`, "503 Service Unavailable", true, false},
		{500, `{"error_message":"` + strings.Repeat("x", 5000) + `"}`, "xxx...", true, false},
		{307, ``, "307 Temporary Redirect", false, false},
		{200, `[]`, "no JSON of the expected form", true, false},
		{200, `{}`, "lacks the node's uuid", true, false},
	} {
		a.status, a.answer = x.status, x.answer
		_, _, err := c.Lookup(t.Context(), nil, "u")
		if err == nil || !strings.Contains(err.Error(), x.want) || len(err.Error()) > 600 ||
			Passing(err) != x.passing || Conflict(err) != x.conflict {
			t.Errorf("%d %.60s: %v, passing %v, conflict %v", x.status, x.answer, err, Passing(err), Conflict(err))
		}
	}
	a.status, a.answer = 400, "no"
	if err := c.Heartbeat(t.Context(), "u", Beat{Token: "the secret"}); err == nil ||
		strings.Contains(err.Error(), "secret") {
		t.Errorf("a refused heartbeat: %v, want an error without the token", err)
	}
	none := New(Options{})
	if _, _, err := none.Discover(t.Context()); err == nil {
		t.Error("no URL at all is no error")
	}
}

// FuzzFault: a conductor's error is one bounded line.
func FuzzFault(f *testing.F) {
	f.Add(`{"error_message":"{\"faultstring\":\"x\"}"}`)
	f.Add(`{"error_message":{"faultstring":"\u0000\n"}}`)
	f.Fuzz(func(t *testing.T, body string) {
		if got := fault([]byte(body)); strings.ContainsAny(got, "\r\n\x00") || len([]rune(got)) > maxFault+3 {
			t.Errorf("%q", got)
		}
	})
}
