package api

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/node"
)

// stoker notes what it was asked for.
type stoker struct {
	calls []string
	err   error
}

func (s *stoker) note(what, ident, user string) error {
	s.calls = append(s.calls, what+" "+ident[:4]+" by "+user)
	return s.err
}
func (s *stoker) Warm(_ context.Context, ident, user string) error {
	return s.note("warm", ident, user)
}
func (s *stoker) Cool(_ context.Context, ident, user string) error {
	return s.note("cool", ident, user)
}
func (s *stoker) Stage(_ context.Context, ident string, image map[string]any, user string) error {
	return s.note(fmt.Sprint("stage ", image["image_source"]), ident, user)
}

func TestPools(t *testing.T) {
	warm := node.Boot{Kept: true, Connected: true, Staged: &node.Staged{Digest: "sha256:ab"}}
	f := newFixture(t, Config{},
		node.Node{Name: "a", ResourceClass: "large", Provision: node.Available, Power: "power on", Boot: &warm},
		node.Node{Name: "b", ResourceClass: "large", Provision: node.Available, Power: "power off"},
		node.Node{Name: "c", ResourceClass: "large", Provision: node.Available, Power: "power off", Maintenance: true,
			MaintenanceReason: "new disks"},
		node.Node{Name: "d", ResourceClass: "large", Provision: node.Active, Power: "power on"},
		node.Node{Name: "e", ResourceClass: "small", Provision: node.Available, Power: "power off"})
	const path = "/ingot/v1/pools/web"
	f.want(404, "GET", path, "")
	f.want(404, "DELETE", path, "")
	if out := f.want(200, "GET", "/ingot/v1/pools", ""); len(out["pools"].([]any)) != 0 {
		t.Errorf("pools at first: %v", out)
	}
	for body, part := range map[string]string{
		`{"count":-1}`:                              "count is -1",
		`{"count":1,"percent":5}`:                   "both count and percent",
		`{"count":"3"}`:                             "is not of type 'integer'",
		`{"coutn":3}`:                               "coutn",
		`{"max_watts":500}`:                         "watts_per_node",
		`{"image":{"image_source":"x"}}`:            "image_os_hash_value",
		`{"image":{"image_checksum":"x"}}`:          "image_source",
		`[]`:                                        "is not of type 'object'",
		`{"conductor_group":3}`:                     "is not of type",
		`{"resource_class":"` + long(81) + `"}`:     "is too long",
		`{"count":1.5}`:                             "integer",
		`{"percent":1000}`:                          "percent is 1000",
		`{"count":1,"image":[]}`:                    "is not of type",
		`{"watts_per_node":900,"max_watts":500}`:    "not one machine",
		`{"max_on":-1}`:                             "max_on",
		`{"image":{"image_source":"x","root":"/"}}`: "image",
	} {
		code, out := f.call("PUT", path, body)
		if text := fmt.Sprint(out["error_message"]); code != 400 || !strings.Contains(text, part) {
			t.Errorf("PUT %s = %d %s, want 400 with %q", body, code, text, part)
		}
	}
	f.want(400, "PUT", "/ingot/v1/pools/no%20name", `{}`)
	f.want(400, "PUT", "/ingot/v1/pools/00000000-0000-4000-8000-000000000000", `{}`)

	const policy = `"resource_class":"large","count":3,"max_on":2,"watts_per_node":250`
	out := f.want(201, "PUT", path, `{`+policy+`,"description":"fast ones"}`)
	if out["wanted"] != 3.0 || out["warm"] != 1.0 || out["on"] != 1.0 || out["watts"] != 250.0 ||
		out["matching"] != 4.0 || out["warming"] != 1.0 {
		t.Errorf("PUT answers %v", out)
	}
	if short := fmt.Sprint(out["short"]); !strings.Contains(short, "no other machine") {
		t.Errorf("short is %q", short)
	}
	why := map[string]string{}
	for _, n := range out["nodes"].([]any) {
		n := n.(map[string]any)
		why[fmt.Sprint(n["name"])] = fmt.Sprint(n["state"], " ", n["reason"], " ", n["staged"])
	}
	for name, want := range map[string]string{"a": "warm <nil> sha256:ab", "b": "cold <nil> <nil>",
		"c": "cold it is in maintenance: new disks <nil>", "d": "out it is active <nil>"} {
		if why[name] != want {
			t.Errorf("node %s is %q, want %q", name, why[name], want)
		}
	}
	if out := f.want(200, "PUT", path, `{`+policy+`,"conductor_group":""}`); out["description"] != nil ||
		out["conductor_group"] != "" || out["updated_at"] == nil {
		t.Errorf("changed: %v", out)
	}
	if out := f.want(409, "PUT", "/ingot/v1/pools/other",
		`{"resource_class":"large","conductor_group":"","count":1}`); !strings.Contains(fmt.Sprint(out), "already") {
		t.Errorf("a second pool for the same nodes: %v", out)
	}
	f.want(201, "PUT", "/ingot/v1/pools/all", `{"percent":50}`)
	list := f.want(200, "GET", "/ingot/v1/pools", "")["pools"].([]any)
	if len(list) != 2 || list[0].(map[string]any)["name"] != "all" || list[0].(map[string]any)["matching"] != 1.0 {
		t.Errorf("list %v", list)
	}
	f.want(400, "GET", "/ingot/v1/pools?sort=name", "")
	f.want(204, "DELETE", path, "")
	f.want(404, "GET", path, "")
}

func long(n int) string { return strings.Repeat("x", n) }

func TestWarm(t *testing.T) {
	s := &stoker{}
	f := newFixture(t, Config{Warmth: s},
		node.Node{UUID: "aaaa0000-0000-4000-8000-000000000000", Name: "a", Provision: node.Available,
			Power: "power off", Warmth: &node.Warmth{Failure: "no DHCP"}},
		node.Node{UUID: "bbbb0000-0000-4000-8000-000000000000", Name: "b", Provision: node.Available, Power: "power on",
			Boot: &node.Boot{Kept: true, Connected: true, Staged: &node.Staged{Digest: "sha256:ab"}}},
		node.Node{UUID: "cccc0000-0000-4000-8000-000000000000", Name: "c", Provision: node.Active, Power: "power on"})
	if out := f.want(200, "GET", "/ingot/v1/nodes/a/warm", ""); out["state"] != "cold" ||
		out["last_failure"] != "no DHCP" || out["pool"] != nil {
		t.Errorf("a cold one: %v", out)
	}
	if out := f.want(200, "GET", "/ingot/v1/nodes/b/warm", ""); out["state"] != "warm" ||
		out["staged"] != "sha256:ab" || out["on"] != true {
		t.Errorf("a warm one: %v", out)
	}
	if out := f.want(200, "GET", "/ingot/v1/nodes/c/warm", ""); out["state"] != "out" ||
		out["reason"] != "it is active" {
		t.Errorf("one in use: %v", out)
	}
	f.want(404, "GET", "/ingot/v1/nodes/missing/warm", "")
	f.want(404, "POST", "/ingot/v1/nodes/missing/warm", "")
	f.want(202, "POST", "/ingot/v1/nodes/a/warm", "")
	f.want(202, "POST", "/ingot/v1/nodes/a/warm", `{"image":{"image_source":"http://h/i","image_checksum":"ab"}}`)
	f.want(202, "DELETE", "/ingot/v1/nodes/b/warm", "")
	f.want(400, "POST", "/ingot/v1/nodes/a/warm", `{"image":"http://h/i"}`)
	f.want(400, "POST", "/ingot/v1/nodes/a/warm", `{"image":{"image_source":"http://h/i"}}`)
	f.want(400, "POST", "/ingot/v1/nodes/a/warm", `{"more":1}`)
	if got := strings.Join(s.calls, ", "); got != "warm aaaa by , stage http://h/i aaaa by , cool bbbb by " {
		t.Errorf("calls %q", got)
	}
	s.err = &engine.InvalidError{Reason: "it has no agent"}
	if out := f.want(400, "POST", "/ingot/v1/nodes/a/warm", ""); !strings.Contains(fmt.Sprint(out), "it has no agent") {
		t.Errorf("refused: %v", out)
	}
	s.err = &engine.LockedError{NodeUUID: "a", Holder: "c1", Doing: "something"}
	f.want(409, "POST", "/ingot/v1/nodes/a/warm", "")
	f.want(201, "PUT", "/ingot/v1/pools/all", `{"count":1}`)
	if out := f.want(200, "GET", "/ingot/v1/nodes/b/warm", ""); out["pool"] != "all" || out["state"] != "warm" {
		t.Errorf("in a pool: %v", out)
	}
	without := newFixture(t, Config{}, node.Node{Name: "a", Provision: node.Available})
	without.want(400, "POST", "/ingot/v1/nodes/a/warm", "")
}
