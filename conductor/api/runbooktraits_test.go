package api

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

const bookSteps = `"steps":[{"interface":"deploy","step":"x","order":1}]`

// in sends a request in version v.
func (f *fixture) in(v rest.Version, method, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set(rest.VersionHeader, v.String())
	w := httptest.NewRecorder()
	f.srv.ServeHTTP(w, r)
	return w
}

func sentence(w *httptest.ResponseRecorder) string {
	var out struct {
		Error string `json:"error_message"`
	}
	var fault struct {
		Text string `json:"faultstring"`
		Why  string `json:"description"` // where routing refuses
	}
	if json.Unmarshal(w.Body.Bytes(), &out) != nil || json.Unmarshal([]byte(out.Error), &fault) != nil {
		return w.Body.String()
	}
	return fault.Text + fault.Why
}

// TestRunbookTraitRoutes: the routes came with 1.112. Before, no method finds them, and before there were runbooks the
// collection says so.
func TestRunbookTraitRoutes(t *testing.T) {
	f := newFixture(t, Config{})
	f.want(201, "POST", "/v1/runbooks", `{"name":"CUSTOM_R",`+bookSteps+`}`)
	const all, one = "/v1/runbooks/CUSTOM_R/traits", "/v1/runbooks/CUSTOM_R/traits/CUSTOM_T"
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", all, "", 200}, {"PUT", all, `{"traits":[]}`, 204}, {"PUT", one, "", 204}, {"DELETE", one, "", 204},
		{"DELETE", all, "", 204}, {"POST", all, "", 405}, {"PATCH", one, "", 405},
	} {
		if w := f.in(rest.VersionRunbookTraits, c.method, c.path, c.body); w.Code != c.status {
			t.Errorf("%s %s = %d %s, want %d", c.method, c.path, w.Code, w.Body, c.status)
		}
		for _, v := range []rest.Version{rest.VersionRunbooks, rest.VersionRunbookTraits - 1} {
			if w := f.in(v, c.method, c.path, c.body); w.Code != 404 ||
				sentence(w) != "The API version does not allow runbook traits" {
				t.Errorf("%s %s in version %s = %d %s", c.method, c.path, v, w.Code, w.Body)
			}
		}
		w := f.in(rest.VersionRunbooks-1, c.method, c.path, c.body)
		if c.method == "GET" && (w.Code != 404 || sentence(w) != "The API version does not allow runbooks") ||
			c.method != "GET" && w.Code != 405 {
			t.Errorf("%s %s before there were runbooks = %d %s", c.method, c.path, w.Code, w.Body)
		}
	}
}

// TestRunbookTraits: what the routes take, refuse and leave.
func TestRunbookTraits(t *testing.T) {
	f := newFixture(t, Config{})
	f.want(201, "POST", "/v1/runbooks", `{"name":"CUSTOM_R",`+bookSteps+`}`)
	const choose = "A single runbook trait may be added via PUT /v1/runbooks/<runbook identifier>/traits/<trait> with no body, or all runbook traits may be replaced via PUT /v1/runbooks/<runbook identifier>/traits with the list of traits specified in the request body."
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string // of the refusal; else the traits afterwards
	}{
		{"GET", "", "", 200, ""}, // none, although the name is a trait
		{"PUT", "", `{"traits":["CUSTOM_B","HW_CPU_X86_VMX","CUSTOM_B"]}`, 204, "CUSTOM_B HW_CPU_X86_VMX"},
		{"PUT", "/CUSTOM_A", "", 204, "CUSTOM_B HW_CPU_X86_VMX CUSTOM_A"},
		{"PUT", "/CUSTOM_A", "", 204, "CUSTOM_B HW_CPU_X86_VMX CUSTOM_A"},
		{"PUT", "/CUSTOM_C", "{}", 204, "CUSTOM_B HW_CPU_X86_VMX CUSTOM_A CUSTOM_C"},
		{"DELETE", "/HW_CPU_X86_VMX", "", 204, "CUSTOM_B CUSTOM_A CUSTOM_C"},
		{"DELETE", "/CUSTOM_NONE", "", 204, "CUSTOM_B CUSTOM_A CUSTOM_C"},
		{"PUT", "", "", 400, choose},
		{"PUT", "", "{}", 400, choose},
		{"PUT", "/CUSTOM_D", `{"traits":["CUSTOM_E"]}`, 400, choose},
		{"PUT", "/CUSTOM_D", `{"traits":[]}`, 400, choose},
		{"PUT", "/CUSTOM_D", `{"x":1}`, 400, "Additional properties are not allowed"},
		{"PUT", "", `{"traits":[],"x":1}`, 400, "Additional properties are not allowed"},
		{"PUT", "", `{"traits":["gold"]}`, 400,
			"Schema error for trait: 'gold' is not valid under any of the given schemas"},
		{"PUT", "/gold", "", 400, "Schema error for trait: 'gold' is not valid under any of the given schemas"},
		{"PUT", "", `{"traits":"CUSTOM_A"}`, 400, "'CUSTOM_A' is not of type 'array'"},
		{"PUT", "", `{"traits":[1]}`, 400, "1 is not of type 'string'"},
		{"GET", "", "", 200, "CUSTOM_B CUSTOM_A CUSTOM_C"},
		{"PUT", "", `{"traits":[]}`, 204, ""},
		{"PUT", "/CUSTOM_A", "", 204, "CUSTOM_A"},
		{"DELETE", "", "", 204, ""},
	} {
		w := f.in(rest.VersionRunbookTraits, c.method, "/v1/runbooks/CUSTOM_R/traits"+c.path, c.body)
		if w.Code != c.status || c.status >= 400 && !strings.Contains(sentence(w), c.want) {
			t.Errorf("%s traits%s %s = %d %s, want %d %s", c.method, c.path, c.body, w.Code, w.Body, c.status, c.want)
		}
		if at := w.Header().Get("Location"); (at != "") != (c.method == "PUT" && c.path != "" && c.status == 204) ||
			at != "" && !strings.HasSuffix(at, "/v1/runbooks/CUSTOM_R/traits"+c.path) {
			t.Errorf("%s traits%s has Location %q", c.method, c.path, at)
		}
		if r, err := f.st.Runbook(t.Context(), "CUSTOM_R"); err != nil || c.status < 400 &&
			strings.Join(r.Traits, " ") != c.want {
			t.Errorf("after %s traits%s %s: %v, %v", c.method, c.path, c.body, r.Traits, err)
		}
	}
	many := make([]string, 300) // nodes have 50 at most, runbooks as many as they like
	for i := range many {
		many[i] = `"CUSTOM_` + strings.Repeat("X", i+1)[:min(i+1, 240)] + `"`
	}
	f.want(204, "PUT", "/v1/runbooks/CUSTOM_R/traits", `{"traits":[`+strings.Join(many, ",")+`]}`)
	if got := f.want(200, "GET", "/v1/runbooks/CUSTOM_R", "")["traits"].([]any); len(got) != 240 {
		t.Errorf("the runbook has %d traits", len(got))
	}
	for _, c := range []struct{ method, path, body string }{{"GET", "", ""}, {"PUT", "", `{"traits":[]}`},
		{"PUT", "/CUSTOM_A", ""}, {"DELETE", "", ""}, {"DELETE", "/CUSTOM_A", ""}} {
		if w := f.in(rest.VersionRunbookTraits, c.method, "/v1/runbooks/none/traits"+c.path, c.body); w.Code != 404 ||
			sentence(w) != "Runbook none could not be found." {
			t.Errorf("%s traits of no runbook = %d %s", c.method, w.Code, w.Body)
		}
	}
}

// TestRunbookTraitAccess: who may read and change traits. That a runbook is public does not show them.
func TestRunbookTraitAccess(t *testing.T) {
	f := newFixture(t, Config{})
	for _, r := range []*node.Runbook{{Head: node.Head{Name: "own", Owner: "p1"}},
		{Head: node.Head{Name: "public"}, Public: true}} {
		r.Steps = []node.TemplateStep{{Interface: "deploy", Step: "x"}}
		if err := f.st.Runbooks().Create(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	in := func(project string, r access.Role) access.Actor { return access.Actor{ProjectID: project, Role: r} }
	for name, c := range map[string]struct {
		who                                        access.Actor
		getOwn, putOwn, getPublic, show, putPublic int
	}{
		"system reader":   {access.Actor{System: true, Role: access.Reader}, 200, 403, 200, 200, 403},
		"system member":   {access.Actor{System: true, Role: access.Member}, 200, 204, 200, 200, 204},
		"owner's reader":  {in("p1", access.Reader), 200, 403, 403, 200, 403},
		"owner's member":  {in("p1", access.Member), 200, 403, 403, 200, 403},
		"owner's manager": {in("p1", access.Manager), 200, 204, 403, 200, 403},
		"other's admin":   {in("p2", access.Admin), 404, 404, 403, 200, 403},
		"service":         {access.Actor{ProjectID: "p3", Service: true}, 200, 204, 200, 200, 204},
	} {
		f.as(c.who)
		for _, r := range []struct {
			method, path string
			want         int
		}{
			{"GET", "own/traits", c.getOwn}, {"PUT", "own/traits/CUSTOM_A", c.putOwn},
			{"DELETE", "own/traits/CUSTOM_A", c.putOwn}, {"DELETE", "own/traits", c.putOwn},
			{"GET", "public/traits", c.getPublic}, {"GET", "public", c.show},
			{"PUT", "public/traits/CUSTOM_A", c.putPublic}, {"DELETE", "public/traits", c.putPublic},
		} {
			if w := f.in(rest.VersionRunbookTraits, r.method, "/v1/runbooks/"+r.path, ""); w.Code != r.want {
				t.Errorf("%s: %s %s = %d %s, want %d", name, r.method, r.path, w.Code, w.Body, r.want)
			}
		}
	}
}

// TestRunbookVersions: each rule that 1.112 brought, and what it was before.
func TestRunbookVersions(t *testing.T) {
	long := strings.Repeat("n", 255)
	patch := func(path, value string) string {
		return `[{"op":"replace","path":"/` + path + `","value":"` + value + `"}]`
	}
	const before = rest.VersionRunbookTraits - 1
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		want                     string // part of the answer
		before                   int
		wantBefore               string
	}{
		{"description is shown", "GET", "/R", "", 200, `"description":"words"`, 200, `"name":"CUSTOM_R"`},
		{"traits are shown", "GET", "/R", "", 200, `"traits":["CUSTOM_T"]`, 200, `"name":"CUSTOM_R"`},
		{"fields with traits", "GET", "/R?fields=name,traits", "", 200, `"traits":["CUSTOM_T"]`, 400,
			`Field(s) "traits" are not valid`},
		{"fields with description", "GET", "/R?fields=description", "", 200, `"description":"words"`, 400,
			`Field(s) "description" are not valid`},
		{"list with traits", "GET", "?fields=traits", "", 200, `"traits":["CUSTOM_T"]`, 400,
			`Field(s) "traits" are not valid`},
		{"list with detail", "GET", "?detail=true", "", 200, `"traits":["CUSTOM_T"]`, 200, `"name":"CUSTOM_R"`},
		{"sorted by traits", "GET", "?sort_key=traits", "", 400,
			"The sort_key value traits is an invalid field for sorting", 400,
			"The sort_key value traits is an invalid field for sorting"},
		{"a description", "POST", "", `{"name":"CUSTOM_S","description":"d",` + bookSteps + `}`, 201,
			`"description":"d"`, 400, "Additional properties are not allowed ('description' was unexpected)"},
		{"a long description", "POST", "", `{"name":"CUSTOM_S","description":"` + long + `d",` + bookSteps + `}`, 400,
			"is too long", 400, "Additional properties"},
		{"traits of a new one", "POST", "", `{"name":"CUSTOM_S","traits":["CUSTOM_T"],` + bookSteps + `}`, 400,
			"Additional properties are not allowed ('traits' was unexpected)", 400,
			"Additional properties are not allowed ('traits' was unexpected)"},
		{"no traits by the name", "POST", "", `{"name":"CUSTOM_S",` + bookSteps + `}`, 201, `"traits":[]`, 201,
			`"name":"CUSTOM_S"`},
		{"any name", "POST", "", `{"name":"a-Name_1.~",` + bookSteps + `}`, 201, `"name":"a-Name_1.~"`, 400,
			"'a-Name_1.~' is not valid under any of the given schemas"},
		{"a long name", "POST", "", `{"name":"` + long + `",` + bookSteps + `}`, 201, long, 400,
			"is not valid under any of the given schemas"},
		{"a name too long", "POST", "", `{"name":"` + long + `n",` + bookSteps + `}`, 400, "is too long", 400,
			"is too long"},
		{"a name with a blank", "POST", "", `{"name":"a b",` + bookSteps + `}`, 400, "'a b' does not match", 400,
			"'a b' is not valid under any of the given schemas"},
		{"no name", "POST", "", `{"name":"",` + bookSteps + `}`, 400, "'' does not match", 400,
			"'' is not valid under any of the given schemas"},
		{"a new name", "PATCH", "/R", patch("name", "any-name"), 200, `"name":"any-name"`, 200, `"name":"any-name"`},
		{"a new name with a blank", "PATCH", "/R", patch("name", "a b"), 400,
			"Schema error for patch: 'a b' does not match", 400, "Schema error for patch: 'a b' does not match"},
		{"a new description", "PATCH", "/R", patch("description", "d"), 200, `"description":"d"`, 400,
			"Cannot patch /description. Only the following can be updated: disable_ramdisk, extra, name, owner, public, steps"},
		{"no description", "PATCH", "/R", `[{"op":"remove","path":"/description"}]`, 200, `"description":null`, 400,
			"Cannot patch /description"},
		{"new traits", "PATCH", "/R", `[{"op":"add","path":"/traits","value":["CUSTOM_T"]}]`, 400,
			"Cannot patch /traits", 400, "Cannot patch /traits"},
		{"another order of boot", "PATCH", "/R", `[{"op":"replace","path":"/disable_ramdisk","value":true}]`, 200,
			`"disable_ramdisk":true`, 200, `"disable_ramdisk":true`},
	} {
		for _, v := range []rest.Version{before, rest.VersionRunbookTraits} {
			f := newFixture(t, Config{})
			r := &node.Runbook{Head: node.Head{Name: "CUSTOM_R"}, Description: "words", Traits: []string{"CUSTOM_T"},
				Steps: []node.TemplateStep{{Interface: "deploy", Step: "x"}}}
			if err := f.st.Runbooks().Create(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			status, want := c.before, c.wantBefore
			if v >= rest.VersionRunbookTraits {
				status, want = c.status, c.want
			}
			w := f.in(v, c.method, "/v1/runbooks"+strings.Replace(c.path, "/R", "/"+r.UUID, 1), c.body)
			text := w.Body.String()
			if w.Code >= http.StatusBadRequest {
				text = sentence(w)
			}
			if w.Code != status || !strings.Contains(text, want) {
				t.Errorf("%s in version %s: %d %s, want %d with %s", c.name, v, w.Code, text, status, want)
			}
			if v < rest.VersionRunbookTraits && w.Code < 400 &&
				(strings.Contains(text, `"description"`) || strings.Contains(text, `"traits"`)) {
				t.Errorf("%s: version %s shows %s", c.name, v, text)
			}
			if got, err := f.st.Runbook(t.Context(), r.UUID); err != nil || len(got.Traits) != 1 ||
				v < rest.VersionRunbookTraits && got.Description != "words" {
				t.Errorf("%s in version %s left %+v, %v", c.name, v, got, err)
			}
		}
	}
	f := newFixture(t, Config{})
	f.want(201, "POST", "/v1/runbooks", `{"name":"b",`+bookSteps+`}`)
	if all := f.want(200, "GET", "/v1/runbooks", "")["runbooks"].([]any); len(all[0].(map[string]any)) != 3 {
		t.Errorf("the short list has %v", all)
	}
}
