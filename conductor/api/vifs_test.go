package api

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

func TestVIFsChooseTheirPort(t *testing.T) {
	const id = "1ef6a2f6-4f76-4e73-9c2f-fbb5eab89770"
	f := newFixture(t, Config{}, node.Node{UUID: id, Name: "n", Interfaces: map[string]string{"network": "flat"}})
	group := &node.Portgroup{Head: node.Head{NodeUUID: id, Name: "bond"}}
	if err := f.st.Portgroups().Create(t.Context(), group); err != nil {
		t.Fatal(err)
	}
	ports := map[string]*node.Port{
		"member": {Address: "52:54:00:00:00:01", PortgroupUUID: group.UUID, PXEEnabled: true},
		"other":  {Address: "52:54:00:00:00:02"}, "boots": {Address: "52:54:00:00:00:03", PXEEnabled: true},
	}
	for _, name := range []string{"member", "other", "boots"} {
		ports[name].NodeUUID = id
		if err := f.st.CreatePort(t.Context(), ports[name]); err != nil {
			t.Fatal(err)
		}
	}
	attach := func(status int, body string) {
		t.Helper()
		f.want(status, "POST", "/v1/nodes/n/vifs", body)
	}
	attach(400, `{"id":"a","port_uuid":"x"}`)
	attach(400, `{"id":"a","port_uuid":"`+id+`","portgroup_uuid":"`+id+`"}`)
	attach(400, `{"id":"a","port_uuid":"`+ports["member"].UUID+`"}`) // it is in a group, which stands for it
	attach(204, `{"id":"a"}`)
	if g, _ := f.st.Portgroups().Get(t.Context(), group.UUID); g.InternalInfo["tenant_vif_port_id"] != "a" {
		t.Errorf("the group carries %v, want a: groups go first", g.InternalInfo)
	}
	attach(409, `{"id":"a","port_uuid":"`+ports["other"].UUID+`"}`)
	attach(204, `{"id":"b"}`)
	if p, _ := f.st.Port(t.Context(), ports["boots"].UUID); p.InternalInfo["tenant_vif_port_id"] != "b" {
		t.Errorf("the port that boots carries %v, want b", p.InternalInfo)
	}
	attach(400, `{"id":"c","portgroup_uuid":"`+group.UUID+`"}`) // taken
	attach(204, `{"id":"c","port_uuid":"`+ports["other"].UUID+`"}`)
	f.text(400, "POST", "/v1/nodes/n/vifs", `{"id":"d"}`, "not enough free physical ports")
	if got := f.want(200, "GET", "/v1/nodes/n/vifs", "")["vifs"].([]any); len(got) != 3 {
		t.Errorf("vifs = %v", got)
	}
	f.want(204, "DELETE", "/v1/nodes/n/vifs/a", "")
	f.version = 66 // which port is not a client's to say
	attach(204, `{"id":"d","port_uuid":"x","portgroup_uuid":"y"}`)
}

func TestOneVIFOneport(t *testing.T) {
	const id = "1ef6a2f6-4f76-4e73-9c2f-fbb5eab89770"
	f := newFixture(t, Config{}, node.Node{UUID: id, Name: "n", Interfaces: map[string]string{"network": "flat"}})
	for i := range 4 {
		if err := f.st.CreatePort(t.Context(),
			&node.Port{NodeUUID: id, Address: fmt.Sprintf("52:54:00:00:00:%02d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	codes := make([]int, 8)
	for i := range codes {
		wg.Go(func() {
			r := httptest.NewRequest("POST", "/v1/nodes/n/vifs", strings.NewReader(`{"id":"vif"}`))
			r.Header.Set(rest.VersionHeader, "1.82")
			w := httptest.NewRecorder()
			f.srv.ServeHTTP(w, r)
			codes[i] = w.Code
		})
	}
	wg.Wait()
	won := 0
	for _, c := range codes {
		if c == 204 {
			won++
		}
	}
	if got := f.want(200, "GET", "/v1/nodes/n/vifs", "")["vifs"].([]any); won != 1 || len(got) != 1 {
		t.Errorf("%d requests won (%v), vifs = %v", won, codes, got)
	}
}

func TestAnyFieldSorts(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "a", LastError: "z", ConsoleEnabled: true},
		node.Node{Name: "b", LastError: "x"}, node.Node{Name: "c", LastError: "y"})
	for query, want := range map[string]string{
		"sort_key=last_error": "b c a", "sort_key=last_error&sort_dir=desc": "a c b",
		"sort_key=console_enabled": "b c a", "sort_key=power_interface": "a b c",
	} {
		if got := f.names("/v1/nodes?" + query); got != want {
			t.Errorf("%s = %s, want %s", query, got, want)
		}
	}
	var got []string
	path := "/v1/nodes?limit=1&sort_key=last_error&fields=name"
	for path != "" {
		out := f.want(200, "GET", path, "")
		for _, n := range out["nodes"].([]any) {
			got = append(got, n.(map[string]any)["name"].(string))
		}
		path, _ = out["next"].(string)
	}
	if strings.Join(got, " ") != "b c a" {
		t.Errorf("pages = %v", got)
	}
	f.want(404, "GET", "/v1/nodes?sort_key=last_error&marker=00000000-0000-4000-8000-000000000000", "")
	f.want(400, "GET", "/v1/nodes?sort_key=extra", "")
	f.want(400, "GET", "/v1/nodes?sort_key=nothing", "")
}
