package rest

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

// The structs decode what the tables render: both must know the same names, or a client silently misses a field.
func TestTablesAndStructsHaveTheSameFields(t *testing.T) {
	checkTable(t, NodeFields)
	checkTable(t, PortFields)
	checkTable(t, StatesFields)
	checkTable(t, ChassisFields)
	checkTable(t, PortgroupFields)
	checkTable(t, VolumeConnectorFields)
	checkTable(t, VolumeTargetFields)
	checkTable(t, InspectionRuleFields)
}

func checkTable[T any](t *testing.T, table Fields[T]) {
	t.Helper()
	typ := reflect.TypeFor[T]()
	tags := map[string]bool{}
	for i := range typ.NumField() {
		tags[typ.Field(i).Tag.Get("json")] = true
	}
	for _, f := range table {
		if !tags[f.Name] {
			t.Errorf("%s has no field for %q of its table", typ, f.Name)
		}
		delete(tags, f.Name)
		if f.Since < MinVersion || f.Since > max(NewestVersion, VersionFirmwareNames) {
			t.Errorf("%s: %s since %s, which is not known", typ, f.Name, f.Since)
		}
	}
	for tag := range tags {
		t.Errorf("%s: the table has no %q", typ, tag)
	}
}

func TestNodeSurvivesTheWire(t *testing.T) {
	yes := true
	n := Node{UUID: "u", Name: "n", AutomatedClean: &yes, Extra: map[string]any{"a": "<b>"},
		ProvisionState: "available"}
	b, err := Marshal(NodeFields.Render(&n, MaxVersion, nil))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), `"extra":{"a":"<b>"}`) || !strings.Contains(string(b), `"owner":null`) {
		t.Errorf("rendered node = %s", b)
	}
	var back Node
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if back.Name != "n" || back.Owner != "" || back.Extra["a"] != "<b>" || back.AutomatedClean == nil ||
		!*back.AutomatedClean {
		t.Errorf("node came back as %+v", back)
	}
}

func TestStateFor(t *testing.T) {
	for _, c := range []struct {
		v           Version
		state, want string
	}{
		{1, "available", ""}, {2, "available", "available"}, {38, "inspect wait", "inspecting"},
		{39, "inspect wait", "inspect wait"}, {1, "active", "active"},
	} {
		if got := StateFor(c.v, c.state); got != c.want {
			t.Errorf("StateFor(%s, %q) = %q, want %q", c.v, c.state, got, c.want)
		}
	}
}

func TestPatch(t *testing.T) {
	for _, c := range []struct {
		name, patch, want, err string
	}{
		{"add below a list", `[{"op":"add","path":"/extra/l/1","value":9}]`, `{"extra":{"a":{"b":1},"l":[1,9,2]}}`, ""},
		{"append", `[{"op":"add","path":"/extra/l/-","value":3}]`, `{"extra":{"a":{"b":1},"l":[1,2,3]}}`, ""},
		{"remove from a list", `[{"op":"remove","path":"/extra/l/0"}]`, `{"extra":{"a":{"b":1},"l":[2]}}`, ""},
		{"replace deep", `[{"op":"replace","path":"/extra/a/b","value":{"c":[]}}]`,
			`{"extra":{"a":{"b":{"c":[]}},"l":[1,2]}}`, ""},
		{"remove the attribute", `[{"op":"remove","path":"/extra"}]`, `{}`, ""},
		{"missing parent", `[{"op":"add","path":"/extra/x/y","value":1}]`, "", "member 'x' not found"},
		{"replace what is not there", `[{"op":"replace","path":"/extra/x","value":1}]`, "",
			"can't replace a non-existent object 'x'"},
		{"below a number", `[{"op":"add","path":"/extra/a/b/c","value":1}]`, "", "nothing below '/extra/a/b'"},
		{"list index", `[{"op":"remove","path":"/extra/l/7"}]`, "", "out of range"},
		{"not allowed", `[{"op":"add","path":"/uuid","value":1}]`, "", "Cannot patch /uuid"},
		{"all or nothing is the caller's", `[{"op":"add","path":"/extra"}]`, "", "does not contain a 'value'"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var doc map[string]any
			var body any
			if err := json.Unmarshal([]byte(`{"extra":{"a":{"b":1},"l":[1,2]}}`), &doc); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(c.patch), &body); err != nil {
				t.Fatal(err)
			}
			p, err := ParsePatch(body, MaxVersion, []string{"extra"})
			if err == nil {
				err = p.Apply(doc)
			}
			if c.err != "" {
				if err == nil || !strings.Contains(err.Message, c.err) {
					t.Fatalf("error = %v, want one with %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, _ := json.Marshal(doc); string(got) != c.want {
				t.Errorf("document = %s, want %s", got, c.want)
			}
		})
	}
}

func TestPatchEscapes(t *testing.T) {
	patch := func(v Version, path string) (string, *Error) {
		p, err := ParsePatch([]any{map[string]any{"op": "add", "path": path, "value": 1.0}}, v, []string{"extra"})
		doc := map[string]any{"extra": map[string]any{}}
		if err == nil {
			err = p.Apply(doc)
		}
		got, _ := json.Marshal(doc)
		return string(got), err
	}
	for _, c := range []struct {
		v          Version
		path, want string // want "" is an error
	}{
		{97, "/extra/a~1b", ""}, {97, "/extra/a.b", ""}, {97, "/extra/grün", `{"extra":{"grün":1}}`},
		{98, "/extra/a~1b~0c", `{"extra":{"a/b~c":1}}`}, {98, "/extra/~01", `{"extra":{"~1":1}}`},
		{98, "/extra/a.b", `{"extra":{"a.b":1}}`}, {98, "/extra/a~2", ""}, {98, "/extra/a~", ""}, {98, "/extra//a", ""},
		{98, "extra/a", ""}, {98, "/other~1extra", ""}, {98, "", ""},
	} {
		if got, err := patch(c.v, c.path); err == nil && got != c.want || err != nil && c.want != "" {
			t.Errorf("%s: add %s = %s, %v, want %s", c.v, c.path, got, err, c.want)
		}
	}
	if _, err := patch(97, "/extra/a~1b"); err == nil ||
		!strings.Contains(err.Message, `does not match '^(/[\\w-]+)+$'`) {
		t.Errorf("a bad path: %v", err)
	}
}

func FuzzPatch(f *testing.F) {
	f.Add(`[{"op":"add","path":"/extra/a/0","value":[1]}]`)
	f.Add(`[{"op":"remove","path":"/extra/l/-"}]`)
	f.Add(`[{"op":"remove","path":"/extra/none/x"}]`)
	f.Add(`[{"op":"add","path":"/extra/a/1/x","value":1}]`)
	f.Add(`[{"op":"replace","path":"/extra","value":null},{"op":"add","path":"/extra/x","value":1}]`)
	f.Fuzz(func(t *testing.T, text string) {
		var body any
		if json.Unmarshal([]byte(text), &body) != nil {
			return
		}
		for _, v := range []Version{MinVersion, NewestVersion} {
			p, err := ParsePatch(body, v, []string{"extra"})
			if err != nil {
				continue
			}
			p.Roots()
			p.Removes("extra")
			doc := map[string]any{"extra": map[string]any{"a": []any{1.0, "canary"}, "l": []any{}, "canary": "canary"}}
			if err := p.Apply(doc); err != nil && !strings.Contains(text, "canary") &&
				strings.Contains(err.Message, "canary") {
				t.Errorf("%s: the error holds what is stored: %s", text, err.Message)
			}
		}
	})
}

func TestErrorsShowNoSecrets(t *testing.T) {
	secret := &Schema{Types: []string{"object"}, Hidden: true,
		Props: map[string]*Schema{"a": {Types: []string{"integer"}}}}
	s := &Schema{Types: []string{"object"},
		Props: map[string]*Schema{"driver_info": secret, "rescue_password": {Types: []string{"integer"}},
			"name": {MaxLen: 3}}}
	for _, c := range []struct {
		body any
		want string
	}{
		{map[string]any{"driver_info": "canary"}, "****** is not of type 'object'"},
		{map[string]any{"driver_info": map[string]any{"a": "canary"}}, "****** is not of type 'integer'"},
		{map[string]any{"rescue_password": "canary"}, "****** is not of type 'integer'"},
		{[]any{map[string]any{"password": "canary"}}, "[...] is not of type 'object'"},
		{map[string]any{"name": map[string]any{"password": "canary"}}, ""},
		{"text", "'text' is not of type 'object'"},
		{map[string]any{"name": "long"}, "'long' is too long"},
	} {
		if got := s.Check(c.body); got != c.want {
			t.Errorf("Check(%v) = %q, want %q", c.body, got, c.want)
		}
	}
	if got := Shown(
		map[string]any{"a": "canary", "b": []any{"canary"},
			"c": map[string]any{}}); got != "{'a': ..., 'b': [...], 'c': {}}" {
		t.Errorf("Shown = %s", got)
	}
	if got := string(BadRequest("get %s", "http://u:canary@h/a?token=canary").Body()); strings.Contains(got, "canary") {
		t.Errorf("Body = %s", got)
	}
}

func TestDecodeError(t *testing.T) {
	for _, c := range []struct {
		name, body, want string
	}{
		{"fault", string(BadRequest("no %s", "way").Body()), "no way"},
		{"routing", string(Routing(404, "nothing here").Body()), "nothing here"},
		{"routing without text", string(Routing(404, "").Body()), "Not Found"},
		{"encoded once", `{"error_message": {"faultstring": "once", "faultcode": "Client"}}`, "once"},
		{"basic authentication", `{"error": {"message": "Authorization required", "code": 401}}`,
			"Authorization required"},
		{"a proxy's page", `gateway down`, "gateway down"},
		{"text in the envelope", `{"error_message": "plain"}`, "plain"},
		{"nothing", ``, "Not Found"},
	} {
		if got := DecodeError(404, []byte(c.body)); got.Message != c.want || got.Status != 404 {
			t.Errorf("%s: DecodeError = %v, want %q", c.name, got, c.want)
		}
	}
}

func TestNegotiate(t *testing.T) {
	for _, c := range []struct {
		name       string
		own, whole []string
		want       Version
		ranged     bool
	}{
		{"none", nil, nil, 1, true},
		{"own", []string{"1.50"}, nil, 50, true},
		{"newest", []string{"latest"}, nil, 115, true},
		{"newest in capitals", nil, []string{"baremetal Latest"}, 115, true},
		{"all of OpenStack", nil, []string{"baremetal 1.33"}, 33, true},
		{"all of OpenStack goes first", []string{"1.50"}, []string{"baremetal 1.33"}, 33, true},
		{"among others", []string{"1.50"}, []string{"compute 2.1, baremetal 1.44", "volume 3.0"}, 44, true},
		{"another service", []string{"1.50"}, []string{"compute 2.1"}, 50, true},
		{"too new", []string{"1.116"}, nil, 0, true},
		{"zero", []string{"1.0"}, nil, 0, true},
		{"another major", []string{"2.1"}, nil, 0, true},
		{"nonsense", []string{"one"}, nil, 0, false},
		{"nonsense for all", nil, []string{"baremetal"}, 1, true},
		{"long", []string{"1.99999999999999999999"}, nil, 0, true},
		{"long major", []string{"99999999999999999999.1"}, nil, 0, true},
		{"negative", []string{"1.-1"}, nil, 0, true},
		{"zeros", []string{"01.05"}, nil, 5, true},
		{"blanks", []string{"1. 5"}, nil, 5, true},
		{"empty", []string{""}, nil, 1, true},
		{"three numbers", []string{"1.2.3"}, nil, 0, false},
	} {
		h := http.Header{}
		for _, v := range c.own {
			h.Add(VersionHeader, v)
		}
		for _, v := range c.whole {
			h.Add(ServiceHeader, v)
		}
		v, ranged, err := Negotiate(h, NewestVersion)
		if v != c.want || ranged != c.ranged || (err != nil) != (c.want == 0) {
			t.Errorf("%s: Negotiate = %v, %v, %v, want %v, %v", c.name, v, ranged, err, c.want, c.ranged)
		}
		if err != nil && (!err.IsRouting || err.Status != http.StatusNotAcceptable) {
			t.Errorf("%s: error %v is not 406 of routing", c.name, err)
		}
	}
}
