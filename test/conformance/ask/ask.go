// Package ask makes requests to compare two servers by, from a seed: the same seed gives the same requests.
//
// They come in scenes. A scene makes a node and what belongs to it, brings the node to a state, and then asks for
// anything of the route table, rightly and wrongly. What it makes has UUIDs from the seed, so that an address needs no
// answer to be known; they begin with UUIDPrefix.
package ask

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// UUIDPrefix begins every UUID that a seed made.
const UUIDPrefix = "5eed"

// Newest is the newest version that is asked for: that of Ironic 21.4.
const Newest = 82

// Ask is a request.
type Ask struct {
	Scene   int               `json:"s"`
	Route   string            `json:"r"` // the line of the route table, or what else it is
	Method  string            `json:"m"`
	Path    string            `json:"p"` // with the query
	Version string            `json:"v,omitempty"`
	Header  map[string]string `json:"h,omitempty"`
	Body    string            `json:"b,omitempty"`
	Wait    string            `json:"w,omitempty"` // the node whose work has to end before the next request
}

// Route is a line of the route table.
type Route struct {
	Method, Path string
	Args         []string
}

// Routes reads the route table from a server's description of itself (/openapi.json). Routes and arguments that are
// newer than Newest are left out.
func Routes(description []byte) ([]Route, error) {
	var d struct {
		Paths map[string]map[string]struct {
			Since      string `json:"x-openstack-min-version"`
			Parameters []struct {
				In, Name string
				Since    string `json:"x-openstack-min-version"`
			}
		}
	}
	if err := json.Unmarshal(description, &d); err != nil {
		return nil, fmt.Errorf("read the description of the API: %w", err)
	}
	var rs []Route
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		if path != "/" && path != "/v1" && !strings.HasPrefix(path, "/v1/") ||
			slices.ContainsFunc(apart, func(p string) bool { return strings.Contains(path, p) }) {
			continue
		}
		for _, method := range slices.Sorted(maps.Keys(d.Paths[path])) {
			op := d.Paths[path][method]
			if newer(op.Since) {
				continue
			}
			r := Route{Method: strings.ToUpper(method), Path: path}
			for _, p := range op.Parameters {
				if p.In == "query" && !newer(p.Since) {
					r.Args = append(r.Args, p.Name)
				}
			}
			rs = append(rs, r)
		}
	}
	if len(rs) < 80 {
		return nil, errors.New("the description of the API has no routes that Ironic 21.4 knows")
	}
	return rs, nil
}

// apart are routes that answer otherwise by their purpose (docs/reference/ironic-differences.md), that only newer
// versions have, or for which Ironic's fake hardware has nothing.
var apart = []string{"/heartbeat", "/lookup", "continue_inspection", "/history", "/vmedia", "/firmware", "/children",
	"/runbooks", "/inspection_rules", "/inventory", "/events", "/states/boot_mode", "/states/secure_boot"}

func newer(version string) bool {
	_, minor, ok := strings.Cut(version, ".")
	n, err := strconv.Atoi(minor)
	return ok && err == nil && n > Newest
}

// maker makes a scene.
type maker struct {
	*rand.Rand
	routes []Route
	seed   uint64
	scene  int
	count  int
	asks   []Ask

	node, name string
	ids        map[string]string // of what the scene made, by the {name} in routes
	mac        int
}

// Scene gives the requests of a scene of a seed.
func Scene(routes []Route, seed uint64, scene int) []Ask {
	m := &maker{Rand: rand.New(rand.NewPCG(seed, uint64(scene))), routes: routes, seed: seed, scene: scene,
		ids: map[string]string{}}
	m.set()
	for range 16 {
		m.any()
	}
	return m.asks
}

func (m *maker) uuid() string {
	m.count++
	return fmt.Sprintf("%s%04x-%04x-4000-8000-%012x", UUIDPrefix, m.seed&0xffff, m.scene&0xffff, m.count)
}

func (m *maker) address() string {
	m.mac++
	return fmt.Sprintf("52:54:%02x:%02x:%02x:%02x", m.seed&0xff, m.scene>>8&0xff, m.scene&0xff, m.mac)
}

func one[T any](m *maker, of ...T) T { return of[m.IntN(len(of))] }

// chance is true so many times of a hundred.
func (m *maker) chance(percent int) bool { return m.IntN(100) < percent }

func (m *maker) send(a Ask) {
	a.Scene = m.scene
	m.asks = append(m.asks, a)
}

func (m *maker) newest(route, path string, body any, wait string) {
	method, _, _ := strings.Cut(route, " ")
	a := Ask{Route: route, Method: method, Path: path, Version: fmt.Sprint("1.", Newest), Wait: wait}
	if body != nil {
		a.Body, a.Header = text(body), map[string]string{"Content-Type": "application/json"}
	}
	m.send(a)
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

type object = map[string]any

// set makes the node and what belongs to it.
func (m *maker) set() {
	if m.chance(40) {
		m.ids["chassis"] = m.uuid()
		m.newest("POST /v1/chassis", "/v1/chassis",
			object{"uuid": m.ids["chassis"], "description": "a row", "extra": object{"a": 1}}, "")
	}
	m.node, m.name = m.uuid(), fmt.Sprintf("node-%d-%d", m.seed&0xffff, m.scene)
	m.ids["node"] = m.node
	n := object{"uuid": m.node, "name": m.name, "driver": "fake-hardware"}
	for _, f := range nodeFields {
		if m.chance(25) && f.valid != nil {
			n[f.name] = one(m, f.valid...)
		}
	}
	delete(n, "instance_uuid")
	delete(n, "chassis_uuid")
	if id := m.ids["chassis"]; id != "" {
		n["chassis_uuid"] = id
	}
	m.newest("POST /v1/nodes", "/v1/nodes", n, m.node)
	provision, power := "PUT /v1/nodes/{node}/states/provision", "PUT /v1/nodes/{node}/states/power"
	m.newest(power, "/v1/nodes/"+m.node+"/states/power", object{"target": one(m, "power on", "power off")}, m.node)
	for _, verb := range one(m, nil, []string{"manage"}, []string{"manage"}, []string{"manage", "provide"},
		[]string{"manage", "provide"}, []string{"manage", "provide", "active"}, []string{"manage", "provide", "active"},
		[]string{"manage", "inspect"}) {
		m.newest(provision, "/v1/nodes/"+m.node+"/states/provision", object{"target": verb}, m.node)
	}
	if m.chance(60) {
		m.ids["portgroup"] = m.uuid()
		m.newest("POST /v1/portgroups", "/v1/portgroups",
			object{"uuid": m.ids["portgroup"], "node_uuid": m.node, "name": m.name + "-bond", "address": m.address()},
			m.node)
	}
	if m.chance(80) {
		m.ids["port"] = m.uuid()
		p := object{"uuid": m.ids["port"], "node_uuid": m.node, "address": m.address(),
			"extra": object{"vif_port_id": "x"}}
		if g := m.ids["portgroup"]; g != "" && m.chance(50) {
			p["portgroup_uuid"] = g
		}
		m.newest("POST /v1/ports", "/v1/ports", p, m.node)
	}
	if m.chance(30) {
		m.ids["template"] = m.uuid()
		m.newest("POST /v1/deploy_templates", "/v1/deploy_templates", m.template(m.ids["template"]), "")
	}
	if m.chance(15) {
		m.newest("PUT /v1/nodes/{node}/maintenance", "/v1/nodes/"+m.node+"/maintenance", object{"reason": "broken"},
			m.node)
	}
	m.newest("GET /v1/nodes/{node}", "/v1/nodes/"+m.node, nil, "")
}

func (m *maker) template(id string) object {
	return object{"uuid": id, "name": fmt.Sprintf("CUSTOM_T%d_%d_%d", m.seed&0xffff, m.scene, m.count),
		"steps": []any{object{"interface": "deploy", "step": "deploy", "args": object{}, "priority": 10}}}
}

// any makes any request.
func (m *maker) any() {
	r := one(m, m.routes...)
	// they are many
	for strings.Contains(r.Path, "vendor_passthru") && m.chance(75) || strings.Contains(r.Path, "indicators") &&
		m.chance(50) {
		r = one(m, m.routes...)
	}
	if m.chance(25) { // what clients use most
		for r.Method == "GET" || !slices.Contains(frequent, r.Path) {
			r = one(m, m.routes...)
		}
	}
	a := Ask{Route: r.Method + " " + r.Path, Method: r.Method, Path: m.path(r.Path), Version: m.version(),
		Header: map[string]string{}}
	if slices.Contains([]string{"1.23", "1.24", "1.25"}, a.Version) && strings.Contains(r.Path, "portgroups") {
		a.Version = "1.26" // which brings what Ironic shows before (docs/reference/ironic-differences.md)
	}
	query := m.query(r)
	if r.Method != "GET" && r.Method != "DELETE" {
		a.Body = m.body(r)
		a.Header["Content-Type"] = "application/json"
	}
	if m.chance(8) {
		m.odd(&a, r)
	}
	if query != "" {
		a.Path += "?" + query
	}
	if len(a.Header) == 0 {
		a.Header = nil
	}
	if r.Method == "GET" {
		m.send(a)
		return
	}
	a.Wait = m.node
	m.send(a)
	m.state(r, a)
}

var frequent = []string{"/v1/nodes", "/v1/nodes/{node}", "/v1/ports", "/v1/ports/{port}", "/v1/portgroups",
	"/v1/portgroups/{portgroup}", "/v1/chassis", "/v1/chassis/{chassis}", "/v1/nodes/{node}/states/provision",
	"/v1/nodes/{node}/states/power", "/v1/allocations", "/v1/volume/connectors", "/v1/volume/targets",
	"/v1/deploy_templates"}

// state asks for what a request may have changed.
func (m *maker) state(r Route, a Ask) {
	for name, id := range m.ordered() {
		if strings.HasPrefix(r.Path, collections[name]+"/{") {
			m.newest("GET "+collections[name]+"/{"+name+"}", collections[name]+"/"+id, nil, "")
			return
		}
	}
	if r.Method == "POST" && strings.Count(r.Path, "/") <= 3 && strings.Contains(a.Body, UUIDPrefix) {
		var b struct{ UUID string }
		if json.Unmarshal([]byte(a.Body), &b) == nil && strings.HasPrefix(b.UUID, UUIDPrefix) {
			for name, c := range collections {
				if c == r.Path {
					m.newest("GET "+c+"/{"+name+"}", c+"/"+b.UUID, nil, "")
				}
			}
		}
	}
}

// ordered is ids in an order.
func (m *maker) ordered() func(yield func(string, string) bool) {
	return func(yield func(string, string) bool) {
		for _, k := range slices.Sorted(maps.Keys(m.ids)) {
			if !yield(k, m.ids[k]) {
				return
			}
		}
	}
}

var collections = map[string]string{"node": "/v1/nodes", "port": "/v1/ports", "portgroup": "/v1/portgroups",
	"chassis": "/v1/chassis", "allocation": "/v1/allocations", "template": "/v1/deploy_templates",
	"connector": "/v1/volume/connectors", "target": "/v1/volume/targets"}

func (m *maker) version() string {
	switch k := m.IntN(100); {
	case k < 60:
		return fmt.Sprint("1.", Newest)
	case k < 92:
		return fmt.Sprint("1.", 1+m.IntN(Newest))
	case k < 95:
		return "" // the oldest
	}
	return one(m, "1.0", "2.0", "1.9999", "abc", "1", "1.x", "0.9")
}

// path fills in a route's {names}.
func (m *maker) path(path string) string {
	segments := strings.Split(path, "/")
	for i, s := range segments {
		if strings.HasPrefix(s, "{") {
			segments[i] = m.ident(strings.Trim(s, "{}"))
		}
	}
	return strings.Join(segments, "/")
}

func (m *maker) ident(what string) string {
	switch what {
	case "driver":
		return one(m, "fake-hardware", "fake-hardware", "fake-hardware", "ipmi", "manual-management", "nobody",
			"Fake-Hardware")
	case "conductor":
		return one(m, "localhost", "localhost", "nobody")
	case "trait":
		return one(m, "CUSTOM_A", "CUSTOM_B", "HW_CPU_X86_VMX", "custom_a", "NO_SUCH",
			"CUSTOM_"+strings.Repeat("A", 250))
	case "vif":
		return one(m, "5eed0000-0000-4000-8000-00000000000f", "vif-1")
	case "method":
		return one(m, "first_method", "second_method", "third_method_sync", "fourth_method_shared_lock", "bmc_reset",
			"no_such")
	case "indicator":
		return one(m, "power@system", "led@system", "led", "no@chassis", "system", "chassis")
	case "setting":
		return one(m, "bios", "no_such", "virtualization")
	}
	if id := m.ids[what]; id != "" && m.chance(82) {
		if what == "node" && m.chance(30) {
			return m.name
		}
		return id
	}
	return one(m, UUIDPrefix+"ffff-0000-4000-8000-000000000000", "nobody", "a%20b", "detail", "1", m.name+".json",
		"%6eobody")
}

// query makes the query.
func (m *maker) query(r Route) string {
	if m.chance(3) {
		return one(m, "bogus=1", "BOGUS=", "limit=1&limit=2", "fields=name&bogus=x")
	}
	if r.Method != "GET" || len(r.Args) == 0 || m.chance(25) {
		return ""
	}
	q := url.Values{}
	for range 1 + m.IntN(3) {
		name := one(m, r.Args...)
		q.Set(name, m.argument(name))
	}
	return q.Encode()
}

func (m *maker) argument(name string) string {
	switch name {
	case "limit":
		return one(m, "1", "1", "2", "3", "0", "-1", "abc", "1000", "1.5")
	case "marker":
		return one(m, m.node, m.node, UUIDPrefix+"ffff-0000-4000-8000-000000000000", "x", m.name)
	case "sort_key":
		return one(m, "uuid", "name", "created_at", "updated_at", "address", "extra", "bogus", "provision_state",
			"NAME", "id", "links", "driver")
	case "sort_dir":
		return one(m, "asc", "desc", "desc", "ASC", "x", "")
	case "fields":
		return one(m, "uuid", "uuid,name", "name", "uuid,uuid", "bogus", "extra", "uuid,address", "uuid,links",
			"created_at", "UUID", "driver,traits", "hostname,alive", "uuid,description", "uuid,shard", "properties")
	case "detail", "associated", "maintenance", "retired", "sharded":
		return one(m, "true", "True", "1", "yes", "false", "0", "no", "maybe", "2", "on")
	case "node_uuid", "instance_uuid", "chassis_uuid", "port_uuid":
		return one(m, m.node, m.node, UUIDPrefix+"ffff-0000-4000-8000-000000000000", "x", m.name)
	case "node", "node_ident", "portgroup", "parent_node":
		return one(m, m.node, m.name, "nobody", UUIDPrefix+"ffff-0000-4000-8000-000000000000")
	case "provision_state":
		return one(m, "enroll", "available", "active", "manageable", "bogus", "ACTIVE")
	case "driver":
		return one(m, "fake-hardware", "ipmi", "nobody")
	case "type":
		return one(m, "dynamic", "classic", "x")
	case "fault":
		return one(m, "power failure", "clean failure", "x")
	}
	return one(m, "x", "class", "them", "s1", m.name, "true", "12")
}

// odd makes a request odd in one way.
func (m *maker) odd(a *Ask, r Route) {
	switch m.IntN(9) {
	case 0:
		a.Method, a.Route = "OPTIONS", "OPTIONS "+r.Path
		a.Body, a.Header = "", map[string]string{}
	case 1:
		if r.Method == "GET" {
			a.Method, a.Route = "HEAD", "HEAD "+r.Path
		}
	case 2:
		a.Path += "/"
	case 3:
		a.Path += ".json"
	case 4:
		a.Header["Content-Type"] = one(m, "text/plain", "application/json; charset=utf-8",
			"application/x-www-form-urlencoded", "application/xml", "nonsense")
	case 5:
		delete(a.Header, "Content-Type")
	case 6:
		a.Header["Accept"] = one(m, "application/json", "*/*", "application/*", "text/html, application/json;q=0.9")
	case 7:
		a.Path = strings.Replace(a.Path, "/v1/", one(m, "/V1/", "/v1//", "/v2/", "/v1%2f"), 1)
		a.Route = r.Method + " another address"
	case 8:
		a.Method = one(m, "PUT", "POST", "DELETE", "PATCH")
		a.Route = a.Method + " " + r.Path
	}
}
