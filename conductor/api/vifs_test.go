package api

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/conductor/engine"
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

// service is a network service, as the API sees it.
type service struct {
	physical []string
	fault    error
	did      []string
}

func (s *service) Serves(n *node.Node) bool { return n.Interfaces["network"] == "neutron" }

func (s *service) Physical(context.Context, string) ([]string, error) { return s.physical, s.fault }

func (s *service) do(words ...string) error {
	if s.fault == nil {
		s.did = append(s.did, strings.Join(words, " "))
	}
	return s.fault
}

func (s *service) Address(_ context.Context, vif, mac string) error { return s.do("address", vif, mac) }

func (s *service) Plug(_ context.Context, _ *node.Node, vif string) error { return s.do("plug", vif) }

func (s *service) Unplug(_ context.Context, _ *node.Node, vif string) error {
	return s.do("unplug", vif)
}

// TestVIFsOfAService: a port of the network service's is attached to a card on its physical network, whose address it
// gets; with an instance it is bound at once. What the service refuses is not attached.
func TestVIFsOfAService(t *testing.T) {
	const id = "1ef6a2f6-4f76-4e73-9c2f-fbb5eab89770"
	s := &service{physical: []string{"physnet2"}}
	f := newFixture(t, Config{VIFs: s}, node.Node{UUID: id, Name: "n", Provision: node.Available,
		Interfaces: map[string]string{"network": "neutron"}}, node.Node{Name: "flat",
		Interfaces: map[string]string{"network": "flat"}})
	for i, physical := range []string{"physnet1", "", "physnet2"} {
		p := &node.Port{NodeUUID: id, Address: fmt.Sprintf("52:54:00:00:00:0%d", i+1), PhysicalNetwork: physical}
		if err := f.st.CreatePort(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	did := func(want ...string) {
		t.Helper()
		if !slices.Equal(s.did, want) {
			t.Errorf("the service did %q, want %q", s.did, want)
		}
		s.did = nil
	}
	f.want(204, "POST", "/v1/nodes/n/vifs", `{"id":"a"}`)
	did("address a 52:54:00:00:00:03") // known to be on the network
	f.want(204, "POST", "/v1/nodes/n/vifs", `{"id":"b"}`)
	did("address b 52:54:00:00:00:02") // perhaps on it
	f.text(400, "POST", "/v1/nodes/n/vifs", `{"id":"c"}`, "not enough free physical ports")
	f.want(204, "DELETE", "/v1/nodes/n/vifs/a", "")
	did() // nothing is bound before there is an instance

	for status, fault := range map[int]error{400: node.Invalidf("Neutron has no port c"),
		503: &engine.ServiceError{Err: errors.New("Neutron can't be asked")}} {
		s.fault = fault
		f.text(status, "POST", "/v1/nodes/n/vifs", `{"id":"c"}`,
			map[int]string{400: "no port c", 503: "Try again"}[status])
		s.fault = nil
	}
	s.physical = []string{"physnet9"}
	f.text(400, "POST", "/v1/nodes/n/vifs", `{"id":"c"}`, "not enough free physical ports")

	s.physical = nil
	if _, err := f.st.UpdateNode(t.Context(), id, func(n *node.Node) error {
		n.Provision = node.Active
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	f.want(204, "POST", "/v1/nodes/n/vifs", `{"id":"c"}`)
	did("address c 52:54:00:00:00:01", "plug c")
	s.fault = &engine.ServiceError{Err: errors.New("Neutron can't be asked")}
	f.text(503, "DELETE", "/v1/nodes/n/vifs/c", "", "that this needs") // it would stay bound
	s.fault = nil
	if got := f.want(200, "GET", "/v1/nodes/n/vifs", "")["vifs"].([]any); len(got) != 2 {
		t.Errorf("vifs = %v", got)
	}
	f.want(204, "DELETE", "/v1/nodes/n/vifs/c", "")
	did("unplug c")
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
