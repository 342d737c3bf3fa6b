package command

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

const token = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"

// table has commands that end in every way.
func table(release <-chan struct{}) Table {
	return Table{
		"clean": {
			"execute_clean_step": {Async: true, Run: func(ctx context.Context, _ Params) (any, error) {
				select {
				case <-release:
				case <-ctx.Done():
				}
				return map[string]int{"n": 1}, nil
			}},
			"text": {Async: true, Run: func(context.Context, Params) (any, error) { return "done", nil }},
			"mismatch": {Async: true, Run: func(context.Context, Params) (any, error) {
				return nil, Mismatch("other")
			}},
		},
		"standby": {
			"sync":  {Run: func(context.Context, Params) (any, error) { return nil, nil }},
			"say":   {Run: func(context.Context, Params) (any, error) { return "hello", nil }},
			"fail":  {Run: func(context.Context, Params) (any, error) { return nil, errors.New("no disk") }},
			"panic": {Run: func(context.Context, Params) (any, error) { panic("nil map") }},
			"strict": {Check: func(Params) error { return InvalidParams("step is missing") },
				Run: func(context.Context, Params) (any, error) { return nil, nil }},
		},
		"log": {"collect_system_logs": {Private: true, Run: func(context.Context, Params) (any, error) {
			return map[string]string{"system_logs": "c2VjcmV0"}, nil
		}}},
	}
}

func newServer(t testing.TB, release <-chan struct{}) *Server {
	ctx, cancel := context.WithCancel(context.Background())
	s := New(ctx, Options{Commands: table(release), Token: token, Version: "1.2.3",
		Started: time.Unix(1700000000, 5e8)})
	t.Cleanup(func() {
		cancel()
		s.Wait()
	})
	return s
}

func ask(s *Server, method, target, body string) (int, string, http.Header) {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader(body)))
	return w.Code, strings.TrimSpace(w.Body.String()), w.Header()
}

func run(s *Server, name string, more ...string) (int, Result) {
	code, body, _ := ask(s, "POST", "/v1/commands/?agent_token="+token+strings.Join(more, ""),
		`{"name":"`+name+`","params":{}}`)
	var r Result
	_ = json.Unmarshal([]byte(body), &r)
	return code, r
}

// TestAnswers holds the shapes and the errors of the API, as conductors read them.
func TestAnswers(t *testing.T) {
	s := newServer(t, nil)
	const with = "/v1/commands/?agent_token=" + token
	for _, c := range []struct {
		method, target, body string
		code                 int
		want                 string
	}{
		{"GET", "/", "", 200, `"default_version":{"id":"v1","links":[{"href":"http://example.com/v1","rel":"self"}`},
		{"GET", "/v1/", "", 200, `"status":[{"href":"http://example.com/v1/status","rel":"self"}`},
		{"GET", "/v1/status", "", 200, `{"started_at":1700000000.5,"version":"1.2.3"}`},
		{"GET", "/status", "", 200, `{"started_at":1700000000.5,"version":"1.2.3"}`},
		{"GET", "/v1/commands/", "", 200, `{"commands":[]}`},
		{"GET", "/commands/", "", 200, `{"commands":[]}`},
		{"GET", "/v1/commands/7", "", 404,
			`{"faultcode":"Client","faultstring":"Not found: Command with id \"7\" not found."}`},
		{"GET", "/v1", "", 308, ""}, {"GET", "/v1/commands", "", 308, ""},
		{"POST", "/v1/commands?wait=true", "{}", 308, ""},
		{"DELETE", "/v1/commands/", "", 405, `"faultcode":"Client"`},
		{"POST", "/v1/status", "", 405, `"faultstring":"405`},
		{"GET", "/v2/", "", 404, `"faultstring":"404`}, {"GET", "/v1/commands/a/b", "", 404, `"faultstring":"404`},
		{"POST", "/v1/commands/", `{"name":"standby.sync","params":{}}`, 401,
			`{"faultcode":"Client","faultstring":"401 Unauthorized: Token invalid."}`},
		{"POST", "/v1/commands/?agent_token=wrong", `{"name":"standby.sync","params":{}}`, 401, "Token invalid"},
		{"POST", with, `{"name":"standby.sync"}`, 400,
			`"faultstring":"400 Bad Request: Missing or invalid name or params"`},
		{"POST", with, `{"name":"standby.sync","params":[]}`, 400, "Missing or invalid name or params"},
		{"POST", with, `{"name":7,"params":{}}`, 400, "Missing or invalid name or params"},
		{"POST", with, `no JSON`, 400, "Missing or invalid name or params"},
		{"POST", with, `{"name":"sync","params":{}}`, 400,
			"Invalid command: Command name must be of the form <extension>.<name>"},
		{"POST", with, `{"name":"standby.x","params":{}}`, 400, "Invalid command: Unknown command: x"},
		{"POST", with, `{"name":"iscsi.start","params":{}}`, 404, "Not found: Extension with id iscsi not found."},
		{"POST", with, `{"name":"standby.strict","params":{}}`, 400, "Invalid command parameters: step is missing"},
	} {
		code, body, head := ask(s, c.method, c.target, c.body)
		if code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("%s %s %s: %d %s, want %d %s", c.method, c.target, c.body, code, body, c.code, c.want)
		}
		if code == 308 && !strings.HasPrefix(head.Get("Location"), strings.Replace(c.target, "?", "/?", 1)) &&
			head.Get("Location") != c.target+"/" {
			t.Errorf("%s leads to %q", c.target, head.Get("Location"))
		}
		if code >= 400 {
			var f struct{ Faultcode, Faultstring string }
			if json.Unmarshal([]byte(body), &f) != nil || f.Faultstring == "" || f.Faultcode != "Client" {
				t.Errorf("%s %s: error %s without a reason that a conductor can read", c.method, c.target, body)
			}
		}
	}
}

// TestResults holds how commands end: what was refused is in no list, all others are, in their order.
func TestResults(t *testing.T) {
	s := newServer(t, nil)
	for _, c := range []struct{ name, more, status, want string }{
		{"standby.sync", "", Succeeded, `"command_error":null,"command_result":null`},
		{"standby.say", "", Succeeded, `"command_result":{"result":"hello"}`},
		{"clean.text", "&wait=true", Succeeded, `"command_result":{"result":"text: done"}`},
		{"standby.fail", "", Failed,
			`{"type":"CommandExecutionError","code":500,"message":"Command execution failed","details":"no disk"}`},
		{"standby.panic", "", Failed, `a bug of the agent: nil map`},
		{"clean.mismatch", "&wait=true", VersionMismatch, `"type":"VersionMismatch","code":409`},
		{"log.collect_system_logs", "", Succeeded, `"system_logs":"c2VjcmV0"`},
	} {
		code, body, _ := ask(s, "POST", "/v1/commands/?agent_token="+token+c.more,
			`{"name":"`+c.name+`","params":{"x":1}}`)
		if code != 200 || !strings.Contains(body, `"command_status":"`+c.status) || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %s, want %s and %s", c.name, code, body, c.status, c.want)
		}
	}
	_, body, _ := ask(s, "GET", "/v1/commands/", "")
	var list struct{ Commands []Result }
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range list.Commands {
		names = append(names, r.Name)
	}
	want := []string{"sync", "say", "text", "fail", "panic", "mismatch", "collect_system_logs"}
	if !slices.Equal(names, want) {
		t.Errorf("the list has %v, want %v", names, want)
	}
	if strings.Contains(body, "c2VjcmV0") {
		t.Error("a list has the logs, which any client may read")
	}
	code, one, _ := ask(s, "GET", "/v1/commands/"+list.Commands[1].ID+"?wait=true", "")
	if code != 200 || !strings.Contains(one, `"result":"hello"`) {
		t.Errorf("one command: %d %s", code, one)
	}
}

// TestOneAtATime holds that every command is refused while one runs, and that the list says so meanwhile.
func TestOneAtATime(t *testing.T) {
	release := make(chan struct{})
	s := newServer(t, release)
	code, r := run(s, "clean.execute_clean_step", "&wait=false")
	if code != 200 || r.Status != Running {
		t.Fatalf("%d %+v", code, r)
	}
	for _, name := range []string{"clean.execute_clean_step", "standby.sync"} {
		code, body, _ := ask(s, "POST", "/v1/commands/?agent_token="+token, `{"name":"`+name+`","params":{}}`)
		if code != 409 || !strings.Contains(body, "Agent is busy: executing command execute_clean_step") {
			t.Errorf("%s meanwhile: %d %s", name, code, body)
		}
	}
	if _, body, _ := ask(s, "GET", "/v1/commands/", ""); !strings.Contains(body, Running) {
		t.Errorf("the list meanwhile: %s", body)
	}
	close(release)
	if code, body, _ := ask(s, "GET", "/v1/commands/"+r.ID+"?wait=true", ""); code != 200 ||
		!strings.Contains(body, `"command_status":"SUCCEEDED"`) || !strings.Contains(body, `{"n":1}`) {
		t.Errorf("at its end: %d %s", code, body)
	}
	if code, r := run(s, "standby.sync"); code != 200 || r.Status != Succeeded {
		t.Errorf("afterwards: %d %+v", code, r)
	}
}

// TestTokenForReading: results are open until a client has shown that it has the token; a wrong one never opens them.
func TestTokenForReading(t *testing.T) {
	s := newServer(t, nil)
	for _, c := range []struct {
		target string
		want   int
	}{
		{"/v1/commands/", 200}, {"/v1/commands/?agent_token=wrong", 401}, {"/v1/commands/", 200},
		{"/v1/commands/?agent_token=" + token, 200}, {"/v1/commands/", 401}, {"/v1/commands/x", 401},
		{"/v1/commands/?agent_token=" + token, 200}, {"/v1/status", 200},
	} {
		if code, body, _ := ask(s, "GET", c.target, ""); code != c.want {
			t.Errorf("%s: %d %s, want %d", c.target, code, body, c.want)
		}
	}
	none := New(t.Context(), Options{Commands: table(nil)})
	if code, _, _ := ask(none, "POST", "/v1/commands/?agent_token=", `{"name":"standby.sync","params":{}}`); code != 401 {
		t.Errorf("an agent without a token answers %d to an empty one", code)
	}
}

// TestEndingComesAfterTheAnswer: the conductor has the result before the agent stops to serve.
func TestEndingComesAfterTheAnswer(t *testing.T) {
	for _, async := range []bool{false, true} {
		done := make(chan struct{})
		s := New(t.Context(), Options{Token: token, Commands: Table{"standby": {"power_off": {Async: async,
			Run: func(context.Context, Params) (any, error) {
				return Ending{Then: func() { close(done) }}, nil
			}}}}})
		w := &slowWriter{ResponseRecorder: httptest.NewRecorder(), done: done}
		s.ServeHTTP(w, httptest.NewRequest("POST", "/v1/commands/?wait=true&agent_token="+token,
			strings.NewReader(`{"name":"standby.power_off","params":{}}`)))
		if w.late {
			t.Errorf("async %v: the end came before the answer", async)
		}
		<-done
		s.Wait()
	}
}

// slowWriter notes whether the ending had begun when the answer was written.
type slowWriter struct {
	*httptest.ResponseRecorder
	done <-chan struct{}
	late bool
}

func (w *slowWriter) Write(b []byte) (int, error) {
	select {
	case <-w.done:
		w.late = true
	case <-time.After(50 * time.Millisecond):
	}
	return w.ResponseRecorder.Write(b)
}

// TestResultsAreBounded: a conductor that asks for ever does not fill the memory.
func TestResultsAreBounded(t *testing.T) {
	s := newServer(t, nil)
	for range maxResults + 50 {
		run(s, "standby.say")
	}
	all := s.Results()
	if len(all) != maxResults || string(all[0].Result) != "null" || string(all[maxResults-1].Result) == "null" {
		t.Errorf("%d results, the oldest %s", len(all), all[0].Result)
	}
}

// FuzzCommand: whatever is sent is answered with JSON, and with a reason if it is refused; nothing is a fault of the
// agent.
func FuzzCommand(f *testing.F) {
	f.Add("POST", "/v1/commands/?agent_token="+token, `{"name":"standby.sync","params":{}}`)
	f.Add("POST", "/v1/commands/?agent_token="+token+"&wait=TRUE", `{"name":"clean.text","params":{"step":{"a":[1e999]}}}`)
	f.Add("GET", "/v1/commands/../v1/status", "")
	f.Add("POST", "/v1/commands/?agent_token=%zz", `{"name":".","params":{}}`)
	f.Add("HEAD", "//", "\x00")
	f.Fuzz(func(t *testing.T, method, target, body string) {
		r, err := http.NewRequest(method, "http://a"+target, strings.NewReader(body))
		if err != nil || r.URL.Path == "" {
			return
		}
		released := make(chan struct{})
		close(released)
		s := New(t.Context(), Options{Commands: table(released), Token: token})
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		s.Wait()
		if w.Code == http.StatusPermanentRedirect {
			return
		}
		var got map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code >= 500 {
			t.Errorf("%d %s: %v", w.Code, w.Body, err)
		}
		if reason, _ := got["faultstring"].(string); w.Code >= 400 && reason == "" {
			t.Errorf("%d %s has no reason", w.Code, w.Body)
		}
	})
}
