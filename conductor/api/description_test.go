package api

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi"
	"github.com/pb33f/libopenapi-validator/schema_validation"

	"github.com/ingot-metal/ingot/conductor/agents/erasure"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/test/kit/described"
)

// operations gives what a document describes, by method and path.
func operations(t *testing.T, doc []byte) map[string]map[string]any {
	t.Helper()
	var root struct {
		Paths map[string]map[string]map[string]any
	}
	if err := json.Unmarshal(doc, &root); err != nil {
		t.Fatal(err)
	}
	ops := map[string]map[string]any{}
	for path, methods := range root.Paths {
		for method, op := range methods {
			ops[strings.ToUpper(method)+" "+path] = op
		}
	}
	return ops
}

// TestDescription: the document is one of OpenAPI 3.1, by another's reader and by OpenAPI's own schema, and describes
// each route of the table under a name of its own, and nothing else.
func TestDescription(t *testing.T) {
	f := newFixture(t, Config{})
	w := httptest.NewRecorder()
	f.srv.ServeHTTP(w, httptest.NewRequest("GET", "/openapi.json", nil))
	if w.Code != 200 || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("GET /openapi.json = %d %v", w.Code, w.Header())
	}
	again := httptest.NewRequest("GET", "/openapi.json", nil)
	again.Header.Set("If-None-Match", w.Header().Get("ETag"))
	w2 := httptest.NewRecorder()
	if f.srv.ServeHTTP(w2, again); w2.Code != http.StatusNotModified || w2.Body.Len() > 0 {
		t.Errorf("the same again = %d with %d bytes, want 304", w2.Code, w2.Body.Len())
	}
	doc, err := libopenapi.NewDocument(w.Body.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := doc.BuildV3Model(); err != nil {
		t.Errorf("the document does not hold together: %v", err)
	}
	if ok, faults := schema_validation.ValidateOpenAPIDocument(doc); !ok || doc.GetSpecInfo().Version != "3.1.0" {
		for _, fault := range faults {
			t.Errorf("no document of OpenAPI 3.1: %v", fault)
		}
	}

	ops, ids := operations(t, w.Body.Bytes()), map[any]string{}
	for _, rt := range f.srv.table() {
		name := rt.Method + " " + rt.Path
		op := ops[name]
		switch {
		case op == nil:
			t.Errorf("%s is not described", name)
			continue
		case rt.Answers == nil:
			t.Errorf("%s does not say what it answers", name)
		case rt.Query == call.Named && len(rt.Args) == 0:
			t.Errorf("%s does not say what may be in its query", name)
		case ids[op["operationId"]] != "":
			t.Errorf("%s and %s are both called %v", name, ids[op["operationId"]], op["operationId"])
		}
		if since, _ := op["x-openstack-min-version"].(string); rt.Since > rest.MinVersion &&
			since != rt.Since.String() {
			t.Errorf("%s is described as of version %q, and came with %s", name, since, rt.Since)
		}
		ids[op["operationId"]] = name
		delete(ops, name)
	}
	for name := range ops {
		t.Errorf("%s is described, and not there", name)
	}
	t.Logf("%d operations in %d bytes", len(ids), w.Body.Len())
}

// TestDescriptionOfAnOlderAPI: what is newer than the newest version on offer is not described.
func TestDescriptionOfAnOlderAPI(t *testing.T) {
	f := newFixture(t, Config{})
	f.srv.cfg.MaxVersion = rest.VersionRunbooks - 1
	f.reassemble()
	doc, err := f.srv.description()
	if err != nil {
		t.Fatal(err)
	}
	for name, op := range operations(t, doc) {
		if since, _ := op["x-openstack-min-version"].(string); strings.Contains(name, "runbooks") ||
			since == rest.VersionRunbooks.String() {
			t.Errorf("%s of version %s is described", name, since)
		}
	}
	if strings.Contains(string(doc), `"`+rest.VersionRunbooks.String()+`"`) ||
		!strings.Contains(string(doc), `"`+rest.VersionAttachMedia.String()+`"`) {
		t.Errorf("the document mentions version %s, or lacks %s", rest.VersionRunbooks, rest.VersionAttachMedia)
	}
}

// TestDescriptionFindsFaults plants faults in answers that are as described, and requests that are not described: each
// is found.
func TestDescriptionFindsFaults(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{UUID: ownedNode, Name: "n", Provision: node.Available})
	d := f.srv.document()
	answered := func(method, path, of, version, body string) described.Exchange {
		t.Helper()
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set(rest.VersionHeader, version)
		w := httptest.NewRecorder()
		f.srv.ServeHTTP(w, r)
		v, _, _ := rest.Negotiate(r.Header, rest.NewestVersion)
		x := described.Exchange{Method: method, Path: of, Version: v, Query: r.URL.Query(), Sent: []byte(body),
			Status: w.Code, Header: w.Header(), Body: w.Body.Bytes()}
		if err := d.Check(x); err != nil {
			t.Fatalf("%s %s as it is: %v", method, path, err)
		}
		return x
	}
	one := answered("GET", "/v1/nodes/n", "/v1/nodes/{node}", "1.50", "")
	list := answered("GET", "/v1/nodes/detail", "/v1/nodes/detail", "1.50", "")
	power := answered("PUT", "/v1/nodes/n/states/power", "/v1/nodes/{node}/states/power", "1.50",
		`{"target":"power on"}`)
	refused := answered("GET", "/v1/nodes/other", "/v1/nodes/{node}", "1.50", "")
	progress := answered("GET", "/ingot/v1/nodes/n/progress", "/ingot/v1/nodes/{node}/progress", "1.50", "")
	replaced := func(x described.Exchange, old, with string) described.Exchange {
		if !strings.Contains(string(x.Body), old) {
			t.Fatalf("%s has no %s", x.Body, old)
		}
		x.Body = []byte(strings.ReplaceAll(string(x.Body), old, with))
		return x
	}
	with := func(x described.Exchange, change func(*described.Exchange)) described.Exchange {
		change(&x)
		return x
	}
	for what, c := range map[string]struct {
		x    described.Exchange
		says string
	}{
		"an extra member":           {replaced(one, `"uuid":`, `"colour":"red","uuid":`), "colour"},
		"an extra member in a list": {replaced(list, `"uuid":`, `"colour":"red","uuid":`), "colour"},
		"a wrong type":              {replaced(one, `"maintenance":false`, `"maintenance":"no"`), "/maintenance"},
		"null where none may be":    {replaced(list, `"driver_info":{}`, `"driver_info":null`), "/driver_info"},
		"no time":                   {replaced(one, `"created_at":"`, `"created_at":"about `), "/created_at"},
		"a member of a later version": {replaced(one, `"uuid":`, `"lessee":null,"uuid":`),
			"lessee is not in version 1.50"},
		"a later member in a list": {replaced(list, `"uuid":`, `"lessee":null,"uuid":`),
			"lessee is not in version 1.50"},
		"a member that is missing":    {replaced(progress, `"last_error":null,`, ``), "last_error"},
		"a field that is missing":     {replaced(one, `"maintenance":false,`, ``), "maintenance"},
		"the same in a list":          {replaced(list, `"maintenance":false,`, ``), "maintenance"},
		"a field of its version":      {replaced(one, `"protected":false,`, ``), "protected is missing"},
		"a member of another name":    {replaced(progress, `"agent_connected"`, `"connected"`), "connected"},
		"a status that is not listed": {with(one, func(x *described.Exchange) { x.Status = 206 }), "status 206"},
		"another type of content": {
			with(one, func(x *described.Exchange) { x.Header = http.Header{"Content-Type": {"text/html"}} }),
			"text/html"},
		"a body where there is none": {with(power, func(x *described.Exchange) { x.Body = []byte("{}") }),
			"has a body"},
		"a body that is no JSON": {with(one, func(x *described.Exchange) { x.Body = x.Body[1:] }), "no JSON"},
		"an argument that is unknown": {
			with(one, func(x *described.Exchange) { x.Query = map[string][]string{"colour": {"red"}} }), "colour"},
		"an argument of a later version": {
			with(list, func(x *described.Exchange) { x.Query = map[string][]string{"lessee": {"x"}} }), "lessee"},
		"a member that was sent": {
			with(power, func(x *described.Exchange) { x.Sent = []byte(`{"target":"power on","colour":1}`) }), "colour"},
		"an unknown address": {with(one, func(x *described.Exchange) { x.Path = "" }), "not described"},
		"an address of a later version": {
			with(one, func(x *described.Exchange) { x.Path = "/v1/nodes/{node}/inventory" }), "not described"},
		"an error in another shape": {replaced(refused, `error_message`, `message`), "message"},
		"an error that is no JSON":  {replaced(refused, `{\"`, `\"`), "error_message"},
	} {
		if err := d.Check(c.x); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want an error that mentions %q", what, err, c.says)
		}
	}
}

// TestDescriptionSaysNothingOfTheSite: an unauthenticated client learns from it what the program can do, and nothing
// else.
func TestDescriptionSaysNothingOfTheSite(t *testing.T) {
	bare := newFixture(t, Config{})
	full := newFixture(t,
		Config{PublicURL: "https://canary.example", HostNames: []string{"canary"}, ErasureKey: "canary"},
		node.Node{Name: "canary", Driver: "ipmi", DriverInfo: map[string]any{"ipmi_password": "canary"}})
	full.srv.cfg.Hostname, full.srv.cfg.Drivers = "canary", nil
	full.reassemble()
	a, aerr := bare.srv.description()
	b, berr := full.srv.description()
	if aerr != nil || berr != nil || !bytes.Equal(a, b) || bytes.Contains(b, []byte("canary")) {
		t.Errorf("the descriptions of two sites differ, or name one: %v, %v", aerr, berr)
	}
}

// reset is an engine whose agents are all connected.
type reset struct{ instant }

func (reset) ResetNetwork(context.Context, string, string) error { return nil }

func (reset) SetControllerPassword(context.Context, string, string, string) error { return nil }

func (reset) ExportOf(n *node.Node) (*engine.Export, error) {
	return &engine.Export{ID: "x", Portal: "192.0.2.50:3260", Lent: &program.Lent{User: "ingot", Password: "p",
		Initiator: "iqn.2004-10.com.example:" + n.Name, Image: map[string]any{"image_source": "http://images/x"}}}, nil
}

func (reset) ExportFailed(context.Context, string, string, string, string) error { return nil }

// TestAnswersOfOurOwn asks for what no other test sees answered: newServer holds it against the description.
func TestAnswersOfOurOwn(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{UUID: ownedNode, Name: "n", Provision: node.Active},
		node.Node{Name: "l", Provision: node.DeployWait}, node.Node{Name: "m", Provision: node.Deploying})
	key, err := erasure.OpenKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	book := &erasure.Book{Key: key, Store: f.st, Conductor: "c1"}
	report := `{"format":"ingot-erasure-1","id":"A","disk":{"name":"/dev/sda","size":1000},"method":"overwrite","level":"clear","result":"erased"}`
	if err := book.Take(t.Context(), ownedNode, "n", []byte(`{"erasures":[`+report+`]}`)); err != nil {
		t.Fatal(err)
	}
	f.srv = newServer(t, f.st, reset{instant{f.st}},
		Config{Hostname: "c1", MaxVersion: rest.NewestVersion, ErasureKey: string(key.PEM()),
			Certificates: func() ([]rest.Certificate, error) {
				return []rest.Certificate{{Name: "api", NotAfter: "2030-01-01T00:00:00Z"}}, nil
			}}, slog.New(slog.DiscardHandler))
	list := f.want(200, "GET", "/ingot/v1/nodes/n/erasures", "")["erasures"].([]any)
	if len(list) != 1 {
		t.Fatalf("reports = %v, want one", list)
	}
	id := list[0].(map[string]any)["uuid"].(string)
	if doc := f.want(200, "GET", "/ingot/v1/nodes/n/erasures/"+id, ""); doc["format"] == nil {
		t.Errorf("the report is %v", doc)
	}
	if out := f.want(200, "GET", "/ingot/v1/erasure_key", ""); out["public_key"] != string(key.PEM()) {
		t.Errorf("the key is %v", out)
	}
	if out := f.want(200, "GET", "/ingot/v1/certificates", ""); len(out["certificates"].([]any)) != 1 {
		t.Errorf("the certificates are %v", out)
	}
	f.want(204, "POST", "/ingot/v1/nodes/n/network_reset", "")
	f.want(204, "POST", "/ingot/v1/nodes/n/controller_password", `{"password":"canary-password"}`)
	if out := f.want(200, "GET", "/ingot/v1/exports", ""); len(out["exports"].([]any)) != 2 {
		t.Errorf("the exports are %v", out)
	}
	lent := f.want(200, "GET", "/ingot/v1/exports?initiator_name=iqn.2004-10.com.example:l", "")["exports"].([]any)
	if len(lent) != 1 || lent[0].(map[string]any)["node_name"] != "l" {
		t.Errorf("the exports of one initiator are %v", lent)
	}
	f.want(204, "POST", "/ingot/v1/nodes/l/export_failure", `{"export":"x","reason":"y"}`)
	f.want(201, "PUT", "/ingot/v1/pools/web", `{"count":1}`)
	if out := f.want(200, "GET", "/ingot/v1/pools/web", ""); out["count"] != 1.0 {
		t.Errorf("the pool is %v", out)
	}
}
