package neutron

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/conductor/guard/oscloud"
	"github.com/ingot-metal/ingot/conductor/node"
)

type object = map[string]any

// fake is a Neutron in memory: it keeps ports and networks, has quotas and unique addresses, binds, and dies.
type fake struct {
	mu       sync.Mutex
	networks []object
	subnets  []object
	ports    map[string]object
	made     int
	quota    int
	bindable func(port object) bool // nil: all

	left     int  // requests until it dies; negative: it lives
	before   bool // it dies before it does what was asked, else after
	requests int
	dead     bool
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests++
	if f.left == 0 && !f.dead {
		f.dead = true
		if !f.before {
			f.do(httptest.NewRecorder(), r)
		}
	}
	if f.left--; f.dead {
		panic(http.ErrAbortHandler)
	}
	f.do(w, r)
}

// counted is how many requests there were.
func (f *fake) counted() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests
}

func (f *fake) died() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dead
}

func (f *fake) do(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	kind, id, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2.0/"), "/")
	var in map[string]object
	if r.Body != nil {
		_ = json.NewDecoder(r.Body).Decode(&in)
	}
	fail := func(status int, text string) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(object{"NeutronError": object{"message": text, "type": "x"}})
	}
	reply := func(status int, v any) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	all := map[string][]object{"networks": f.networks, "subnets": f.subnets}
	for _, uuid := range slices.Sorted(maps.Keys(f.ports)) {
		all["ports"] = append(all["ports"], f.ports[uuid])
	}
	one := strings.TrimSuffix(kind, "s")
	switch {
	case r.Method == http.MethodGet && id == "":
		found := []object{}
		for _, o := range all[kind] {
			fits := true
			for k, v := range r.URL.Query() {
				fits = fits && fmt.Sprint(o[k]) == v[0]
			}
			if fits {
				found = append(found, o)
			}
		}
		reply(http.StatusOK, object{kind: found})
	case r.Method == http.MethodGet:
		i := slices.IndexFunc(all[kind], func(o object) bool { return o["id"] == id })
		if i < 0 {
			fail(http.StatusNotFound, one+" "+id+" could not be found.")
			return
		}
		reply(http.StatusOK, object{one: all[kind][i]})
	case r.Method == http.MethodPost:
		p := in["port"]
		if f.quota > 0 && len(f.ports) >= f.quota {
			fail(http.StatusConflict, "Quota exceeded for resources: ['port'].")
			return
		}
		for _, other := range f.ports {
			if other["network_id"] == p["network_id"] && other["mac_address"] == p["mac_address"] {
				fail(http.StatusConflict, "Unable to complete operation: the mac address is in use.")
				return
			}
		}
		f.made++
		p["id"] = fmt.Sprintf("port-%d", f.made)
		f.ports[p["id"].(string)] = p
		f.bind(p)
		reply(http.StatusCreated, object{"port": p})
	case r.Method == http.MethodPut:
		p := f.ports[id]
		if p == nil {
			fail(http.StatusNotFound, "Port "+id+" could not be found.")
			return
		}
		if mac, ok := in["port"]["mac_address"]; ok && mac != p["mac_address"] && p["binding:vif_type"] == "other" {
			fail(http.StatusConflict, "the port is bound")
			return
		}
		maps.Copy(p, in["port"])
		f.bind(p)
		reply(http.StatusOK, object{"port": p})
	case r.Method == http.MethodDelete && f.ports[id] == nil:
		fail(http.StatusNotFound, "Port "+id+" could not be found.")
	case r.Method == http.MethodDelete:
		delete(f.ports, id)
		w.WriteHeader(http.StatusNoContent)
	}
}

func (f *fake) bind(p object) {
	switch host, _ := p["binding:host_id"].(string); {
	case host == "":
		p["binding:vif_type"] = "unbound"
	case f.bindable != nil && !f.bindable(p):
		p["binding:vif_type"] = bindingFailed
	default:
		p["binding:vif_type"] = "other"
	}
}

// world is a Neutron and a conductor that has one node.
type world struct {
	t     *testing.T
	f     *fake
	s     *Service
	n     *node.Node
	cards []*node.Port
	bonds []*node.Portgroup
	gone  bool // the node is
}

var errGone = errors.New("no such node")

const mac, mac2, vif = "52:54:00:00:00:01", "52:54:00:00:00:02", "port-of-tenant"

func link(port string) map[string]any {
	return map[string]any{"switch_id": "00:1c:73:00:00:01", "port_id": port, "switch_info": "leaf1"}
}

func begin(t *testing.T) *world {
	w := &world{t: t, n: &node.Node{UUID: "0b6c1f5e-5c5a-4a5e-9c55-000000000001", Job: &node.Job{ID: "j",
		Phase: node.PhaseDeploy}, DriverInfo: object{}}, f: &fake{left: -1, ports: map[string]object{
		vif: {"id": vif, "network_id": "net-tenant", "mac_address": "fa:16:3e:00:00:01", "device_owner": "compute:nova",
			"device_id": "instance", "binding:host_id": "", "binding:vif_type": "unbound",
			"fixed_ips": []any{object{"subnet_id": "sub4", "ip_address": "192.0.2.7"}}},
		"of-another": {"id": "of-another", "network_id": "net-prov", "mac_address": "52:54:00:00:00:99",
			"device_owner": owner, "device_id": "0b6c1f5e-5c5a-4a5e-9c55-000000000001", "description": "Ingot other"},
	}}}
	for _, name := range []string{"prov", "clean", "inspect", "tenant", "twin", "twin"} {
		w.f.networks = append(w.f.networks, object{"id": "net-" + name, "name": name, "mtu": 1500,
			"provider:physical_network": "physnet1"})
	}
	w.cards = []*node.Port{{UUID: "p1", NodeUUID: w.n.UUID, Address: mac, PXEEnabled: true,
		LocalLinkConnection: link("Ethernet1"), InternalInfo: object{vifKey: vif}},
		{UUID: "p2", NodeUUID: w.n.UUID, Address: mac2, LocalLinkConnection: link("Ethernet2")}}
	server := httptest.NewServer(w.f)
	t.Cleanup(server.Close)
	client, err := oscloud.New(oscloud.Config{Name: "Neutron", URL: server.URL, Path: "/v2.0",
		Login: func(context.Context) (string, error) { return "token", nil }, Forget: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	w.s = New(Config{Client: client, Mark: "0123", Networks: map[Purpose]Network{Provisioning: {Name: "prov",
		Groups: []string{"group-1"}}, Cleaning: {Name: "net-clean"}, Inspection: {Name: "inspect"}},
		Ports: func(context.Context, string) ([]*node.Port, []*node.Portgroup, error) { return w.cards, w.bonds, nil },
		Node: func(context.Context, string) (*node.Node, error) {
			if w.gone {
				return nil, errGone
			}
			return w.n, nil
		},
		NotFound: func(err error) bool { return errors.Is(err, errGone) },
		Mine:     func(*node.Node) bool { return true }, Here: func(*node.Node) bool { return true }}, nil)
	return w
}

// own are the ports that the service has made, by network and MAC.
func (w *world) own() (all []string) {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	for _, p := range w.f.ports {
		if p["description"] == "Ingot 0123" {
			all = append(all, fmt.Sprint(p["network_id"], " ", p["mac_address"], " ", p["binding:vif_type"]))
		}
	}
	slices.Sort(all)
	return all
}

// port reads a port of the fake's.
func (w *world) port(id string) object {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	return maps.Clone(w.f.ports[id])
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func newRecorder(r *http.Request, body string) *http.Response {
	rec := httptest.NewRecorder()
	rec.Header().Set("Content-Type", "application/json")
	rec.WriteHeader(http.StatusOK)
	rec.WriteString(body)
	resp := rec.Result()
	resp.Request = r
	return resp
}
