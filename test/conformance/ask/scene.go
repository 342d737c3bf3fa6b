package ask

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
)

// perScene is how many cards a scene plays.
const perScene = 70

// States are those to which scenes bring their node.
var States = []string{"enroll", "manageable", "inspected", "available", "active", "protected", "rescue", "maintenance"}

// ways are the verbs that lead to a state.
var ways = map[string][]string{"manageable": {"manage"}, "inspected": {"manage", "inspect"},
	"available": {"manage", "provide"}, "active": {"manage", "provide", "active"},
	"protected": {"manage", "provide", "active"}, "rescue": {"manage", "provide", "active", "rescue"},
	"maintenance": {"manage", "provide"}}

// maker makes a scene.
type maker struct {
	*rand.Rand
	seed  uint64
	part  int
	scene int
	auth  string
	state string
	count int
	asks  []Ask

	node, name string
	ids        map[string]string // of what the scene made, by the {name} in routes
	names      map[string]string // what has a name, too
	mac        int
}

// Scenes returns the scenes of a part of the deck in the order of a seed: a part of all cards where there is no
// authentication (auth is ""), else a part of all routes by all roles.
func Scenes(routes []Route, auth string, seed uint64, part int) (scenes [][]Ask) {
	cards := deal(routes, part)
	if auth != "" {
		cards = dealRoles(routes, auth, part)
	}
	for _, state := range States {
		here := slices.DeleteFunc(slices.Clone(cards), func(c Card) bool { return c.state != state })
		several := (len(here) + perScene - 1) / perScene
		for k := range several { // each has something of all routes
			var hand []Card
			for i := k; i < len(here); i += several {
				hand = append(hand, here[i])
			}
			scene := len(scenes)
			m := &maker{Rand: rand.New(rand.NewPCG(seed, uint64(scene))), seed: seed, part: part, scene: scene,
				auth: auth, state: state, ids: map[string]string{}, names: map[string]string{}}
			m.set()
			// What removes something comes last, and in the same order for all seeds.
			slices.SortStableFunc(hand, func(a, b Card) int { return removes(a) - removes(b) })
			last := slices.IndexFunc(hand, func(c Card) bool { return removes(c) > 0 })
			if last < 0 {
				last = len(hand)
			}
			m.Shuffle(last, func(i, j int) { hand[i], hand[j] = hand[j], hand[i] })
			for _, c := range hand {
				m.play(c)
			}
			m.end()
			scenes = append(scenes, m.asks)
		}
	}
	return scenes
}

// removes ranks what takes a scene's objects away, or may: it comes last.
func removes(c Card) int {
	switch {
	case c.Route.Method != "DELETE" && (c.Class != "header" || c.Value != "method"):
		return 0
	case c.Route.Path == "/v1/nodes/{node}":
		return 2
	case strings.HasSuffix(c.Route.Path, "}") && !strings.Contains(c.Route.Path, "/{node}"):
		return 1
	}
	return 0
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
	a.Scene, a.Auth, a.State = m.scene, m.auth, m.state
	m.asks = append(m.asks, a)
}

// newest asks as the administrator, in the newest version.
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

// set makes the node and what belongs to it, and a second one of most things, so that lists have an order.
func (m *maker) set() {
	add := func(kind string, body object) string {
		body["uuid"] = m.uuid()
		m.newest("POST "+collections[kind], collections[kind], body, m.node)
		return body["uuid"].(string)
	}
	m.ids["chassis"] = add("chassis", object{"description": "a row", "extra": object{"a": 1}})
	add("chassis", object{})
	m.node, m.name = m.uuid(), fmt.Sprintf("node-%d-%d", m.seed&0xffff, m.scene)
	m.ids["node"], m.names["node"] = m.node, m.name
	class := "class-" + m.name
	n := object{"uuid": m.node, "name": m.name, "driver": "fake-hardware", "chassis_uuid": m.ids["chassis"],
		"resource_class": class}
	for _, f := range nodeFields {
		// Ironic without authentication takes the owner of a new node for another project than that of the client.
		if _, has := n[f.name]; !has && f.name != "instance_uuid" && f.name != "owner" && f.valid != nil &&
			m.chance(25) {
			n[f.name] = one(m, f.valid...)
		}
	}
	if m.auth == Keystone {
		n["owner"], n["lessee"] = "{owner}", "{lessee}"
	}
	m.newest("POST /v1/nodes", "/v1/nodes", n, m.node)
	second := object{"uuid": m.uuid(), "name": "a-" + m.name, "driver": "fake-hardware", "lessee": "them",
		"description": "another machine"}
	m.newest("POST /v1/nodes", "/v1/nodes", second, m.node)

	m.bringTo(class)

	m.names["portgroup"] = m.name + "-bond"
	m.ids["portgroup"] = add("portgroup", object{"node_uuid": m.node, "name": m.names["portgroup"],
		"address": m.address()})
	add("portgroup", object{"node_uuid": m.node})
	p := object{"node_uuid": m.node, "portgroup_uuid": m.ids["portgroup"], "address": m.address(),
		"extra": object{"vif_port_id": "x"}}
	m.ids["port"] = add("port", p)
	add("port", object{"node_uuid": second["uuid"], "address": m.address(), "physical_network": "net2"})
	m.names["template"] = fmt.Sprintf("CUSTOM_T%d_%d", m.seed&0xffff, m.scene)
	m.ids["template"] = add("template", template(m.names["template"]))
	add("template", template("CUSTOM_A"+m.names["template"][6:]))
	m.ids["connector"] = add("connector", object{"node_uuid": m.node, "type": "iqn", "connector_id": "iqn." + m.name})
	add("connector", object{"node_uuid": m.node, "type": "ip", "connector_id": m.name})
	m.ids["target"] = add("target", object{"node_uuid": m.node, "volume_type": "iscsi", "boot_index": 0,
		"volume_id": "a"})
	add("target", object{"node_uuid": m.node, "volume_type": "fibre_channel", "boot_index": 1, "volume_id": "0"})
	m.newest("GET /v1/nodes/{node}", "/v1/nodes/"+m.node, nil, "")
}

// bringTo brings the node to the state of the scene. An allocation takes it where that is possible, else it fails.
func (m *maker) bringTo(class string) {
	states, wanted := "/v1/nodes/"+m.node+"/states/", one(m, "power on", "power off")
	power := func() {
		m.newest("PUT /v1/nodes/{node}/states/power", states+"power", object{"target": wanted}, m.node)
	}
	power() // nothing is allocated without
	allocate := func() {
		m.ids["allocation"], m.names["allocation"] = m.uuid(), m.name+"-taken"
		m.newest("POST /v1/allocations", "/v1/allocations", object{"uuid": m.ids["allocation"],
			"name": m.names["allocation"], "resource_class": class}, m.node)
	}
	early := m.chance(50)
	for _, verb := range ways[m.state] {
		if verb == "active" && early {
			allocate()
		}
		b := object{"target": verb}
		if verb == "rescue" {
			b["rescue_password"] = "secret"
		}
		m.newest("PUT /v1/nodes/{node}/states/provision", states+"provision", b, m.node)
	}
	if m.ids["allocation"] == "" {
		allocate()
	}
	power() // again, for no deployment of Ironic's fake machine changes it
	switch m.state {
	case "maintenance":
		m.newest("PUT /v1/nodes/{node}/maintenance", "/v1/nodes/"+m.node+"/maintenance", object{"reason": "broken"},
			m.node)
	case "protected":
		m.newest("PATCH /v1/nodes/{node}", "/v1/nodes/"+m.node,
			[]any{object{"op": "add", "path": "/protected", "value": true}}, m.node)
	}
	if m.chance(50) {
		m.newest("PUT /v1/nodes/{node}/traits", "/v1/nodes/"+m.node+"/traits",
			object{"traits": []any{"CUSTOM_A", "HW_CPU_X86_VMX"}}, m.node)
	}
	m.ids["vif"] = "5eed0000-0000-4000-8000-00000000000f"
}

func template(name string) object {
	return object{"name": name,
		"steps": []any{object{"interface": "deploy", "step": "deploy", "args": object{}, "priority": 10}}}
}

// end requests all objects: a change of one may have changed others.
func (m *maker) end() {
	for _, path := range []string{"/v1/nodes/detail", "/v1/ports/detail", "/v1/portgroups/detail", "/v1/chassis/detail",
		"/v1/allocations", "/v1/deploy_templates?detail=true", "/v1/volume/connectors?detail=true",
		"/v1/volume/targets?detail=true"} {
		route, _, _ := strings.Cut(path, "?")
		m.newest("GET "+route, path, nil, "")
	}
}

// draft is a request that is being made.
type draft struct {
	Ask
	route  Route
	idents map[string]string
	query  []string // name=value, encoded
	body   any
	raw    *string // instead of body
	reform func(path string) string
}

// right is a request that nothing is wrong with.
func (m *maker) right(r Route) *draft {
	d := &draft{route: r, idents: map[string]string{}, reform: func(path string) string { return path }}
	d.Route, d.Method, d.Version, d.Header = r.String(), r.Method, fmt.Sprint("1.", Newest), map[string]string{}
	for _, name := range r.Names() {
		d.idents[name] = m.ident(name, "uuid")
	}
	switch r.Method {
	case "GET", "DELETE":
	default:
		d.body = m.body(r)
		d.Header["Content-Type"] = "application/json"
	}
	m.required(d)
	return d
}

// required gives a request the arguments without which it says nothing.
func (m *maker) required(d *draft) {
	switch {
	case d.route.Path == "/v1/nodes/validate":
		d.query = append(d.query, "node="+m.name)
	case strings.HasSuffix(d.route.Path, "/vendor_passthru") && d.Method == "GET":
		d.query = append(d.query, "method=third_method_sync")
	case strings.HasSuffix(d.route.Path, "/vendor_passthru"):
		d.query = append(d.query, "method="+m.ident("method", "uuid"))
	case d.route.Path == "/v1/lookup":
		d.query = append(d.query, "node_uuid="+m.node)
	}
}

// play makes the request of a card, and asks for what it may have changed. What the card leaves open, and what is odd
// beside it, is the same for every seed, so that ten parts try the same whatever is drawn; when, and on what, is not.
func (m *maker) play(c Card) {
	bySeed := m.Rand
	h := fnv.New64a()
	h.Write([]byte(c.Route.String() + c.Class + c.Value))
	m.Rand = rand.New(rand.NewPCG(h.Sum64(), uint64(m.part)))
	d := m.right(c.Route)
	d.Card = c
	m.change(d, c)
	switch { // and something else beside it
	case c.Class == "role":
	case c.Class != "version" && m.chance(10):
		m.change(d, Card{Route: c.Route, Class: "version", Value: one(m, versions...)})
	case c.Class != "query" && len(c.Route.Args) > 0 && m.chance(10):
		m.change(d, Card{Route: c.Route, Class: "argument " + one(m, c.Route.Args...), Value: "right"})
	}
	m.Rand = bySeed
	a := d.Ask
	a.Path = d.reform(d.address())
	if len(d.query) > 0 {
		a.Path += "?" + strings.Join(d.query, "&")
	}
	switch {
	case d.raw != nil:
		a.Body = *d.raw
	case d.body != nil:
		a.Body = text(d.body)
	}
	if len(a.Header) == 0 {
		a.Header = nil
	}
	if a.Method != "GET" && a.Method != "HEAD" && a.Method != "OPTIONS" {
		a.Wait = m.node
	}
	m.send(a)
	if a.Wait != "" {
		m.after(c.Route, a)
	}
}

// address is the path with its identifiers.
func (d *draft) address() string {
	segments := strings.Split(d.route.Path, "/")
	for i, s := range segments {
		if strings.HasPrefix(s, "{") {
			segments[i] = d.idents[strings.Trim(s, "{}")]
		}
	}
	return strings.Join(segments, "/")
}

// change does with a request what a card says.
func (m *maker) change(d *draft, c Card) {
	kind, name, _ := strings.Cut(c.Class, " ")
	switch kind {
	case "version":
		d.Version = m.version(c.Route, c.Value)
	case "identifier":
		d.idents[name] = m.ident(name, c.Value)
	case "argument":
		m.argue(d, name, c.Value)
	case "query":
		m.ask(d, c.Value)
	case "header":
		m.head(d, c.Value)
	case "value":
		m.spoil(d, "", c.Value)
	case "field":
		if d.Method == "PATCH" {
			m.patch(d, name, c.Value)
		} else {
			m.spoil(d, name, c.Value)
		}
	case "patch":
		m.patch(d, "", c.Value)
	case "role":
		d.Role = c.Value
	}
}

func (m *maker) version(r Route, value string) string {
	since := max(r.Since, 1)
	switch value {
	case "since":
		return fmt.Sprint("1.", since)
	case "before":
		return fmt.Sprint("1.", max(since-1, 1))
	case "random":
		return fmt.Sprint("1.", 1+m.IntN(Newest))
	case "oldest":
		return "1.1"
	case "none":
		return ""
	case "odd":
		return one(m, "1.0", "2.0", "1.9999", "abc", "1", "1.x", "0.9", "1.99999999999999999999", "1.-1", "01.5",
			" 1.9 ")
	}
	return fmt.Sprint("1.", Newest)
}

// absent are UUIDs and names of nothing.
const absent = UUIDPrefix + "ffff-0000-4000-8000-000000000000"

// ident is an identifier for an address.
func (m *maker) ident(what, value string) string {
	id, name := m.known(what)
	switch value {
	case "name":
		return name
	case "absent":
		if id == m.ids[what] && id != "" {
			return one(m, absent, "nobody")
		}
		return one(m, "nobody", "NO_SUCH", "no@chassis")
	case "malformed":
		return one(m, "a%20b", "x%21", "%C3%BC", strings.Repeat("x", 256), "1", "%22")
	case "encoded":
		return fmt.Sprintf("%%%02x", id[0]) + id[1:]
	case "capitals":
		return strings.ToUpper(id)
	}
	return id
}

// known are the usual identifier and another one of what a {name} in routes stands for.
func (m *maker) known(what string) (id, name string) {
	switch what {
	case "driver":
		return "fake-hardware", one(m, "ipmi", "manual-management", "fake-hardware.json")
	case "conductor":
		return "localhost", "localhost.json"
	case "trait":
		return one(m, "CUSTOM_A", "HW_CPU_X86_VMX"), one(m, "CUSTOM_NEW", "HW_CPU_X86_AVX",
			"CUSTOM_"+strings.Repeat("A", 250))
	case "vif":
		return m.ids["vif"], "vif-1"
	case "method":
		return one(m, "first_method", "second_method"), one(m, "third_method_sync", "fourth_method_shared_lock",
			"bmc_reset")
	case "indicator":
		return "power@system", one(m, "led@system", "led", "system")
	case "setting":
		return "virtualization", "bios"
	case "event":
		return absent, "nobody"
	}
	id, name = m.ids[what], m.names[what]
	if id == "" {
		id = absent
	}
	if name == "" {
		name = "nobody"
	}
	return id, name
}

// argue gives a request an argument.
func (m *maker) argue(d *draft, name, value string) {
	v := m.wrongArgument(name)
	if value == "right" {
		v = m.argument(name)
	}
	d.query = slices.DeleteFunc(d.query, func(q string) bool { return strings.HasPrefix(q, name+"=") })
	if strings.Contains(d.route.Path, "/ports") { // they have names in versions that 21.4 does not know
		v = strings.NewReplacer("name", "address", "description", "address").Replace(v)
	}
	d.query = append(d.query, url.QueryEscape(name)+"="+url.QueryEscape(v))
	if b, ok := d.body.(object); ok && m.chance(80) { // a member of the body may be in either place
		delete(b, name)
	}
}

// ask gives a request arguments.
func (m *maker) ask(d *draft, value string) {
	args := d.route.Args
	if len(args) == 0 {
		args = []string{"limit", "fields"}
	}
	some := func(n int) {
		for range n {
			m.argue(d, one(m, args...), "right")
		}
	}
	switch value {
	case "combination":
		some(2)
	case "many":
		some(4)
		m.argue(d, one(m, args...), "wrong")
	case "unknown":
		d.query = append(d.query, one(m, "bogus=1", "id=1", "node_id=1", "bogus"))
	case "duplicate":
		name := one(m, args...)
		d.query = append(d.query, name+"="+url.QueryEscape(m.argument(name)),
			name+"="+url.QueryEscape(m.argument(name)))
	case "wrong case":
		d.query = append(d.query, strings.ToUpper(one(m, args...))+"=1")
	case "encoded":
		name := one(m, args...)
		d.query = append(d.query, fmt.Sprintf("%%%02x%s=", name[0], name[1:])+
			strings.ReplaceAll(url.QueryEscape(m.argument(name)), "e", "%65"))
	case "empty":
		d.query = append(d.query, one(m, args...)+"=")
	case "none":
		d.query = nil
	}
}

// OtherAddress ends the route of a request whose address is written in another way than the table has it.
const OtherAddress = " another address"

// head changes what is around a request.
func (m *maker) head(d *draft, value string) {
	switch value {
	case "HEAD", "OPTIONS":
		d.Method, d.Route, d.body, d.raw, d.Header = value, value+" "+d.route.Path, nil, nil, map[string]string{}
	case "slash":
		d.reform = func(path string) string { return path + "/" }
	case "json":
		d.reform = func(path string) string { return path + ".json" }
	case "encoded slash":
		d.reform = func(path string) string {
			if i := strings.LastIndex(path, "/"); i > 0 {
				return path[:i] + "%2f" + path[i+1:]
			}
			return path + "%2f"
		}
		d.Route += OtherAddress
	case "method":
		others := slices.DeleteFunc([]string{"GET", "PUT", "POST", "DELETE", "PATCH"},
			func(method string) bool { return method == d.route.Method })
		d.Method = one(m, others...)
		d.Route = d.Method + " " + d.route.Path
		if d.body == nil {
			d.body, d.Header["Content-Type"] = object{}, "application/json"
		}
	case "no content type":
		delete(d.Header, "Content-Type")
	case "odd content type":
		d.Header["Content-Type"] = one(m, "text/plain", "application/json; charset=utf-8", "application/xml",
			"nonsense",
			"application/json-patch+json", "APPLICATION/JSON")
	case "form":
		d.Header["Content-Type"] = "application/x-www-form-urlencoded"
		if b, ok := d.body.(object); ok && m.chance(70) {
			form := url.Values{}
			for k, v := range b {
				form.Set(k, fmt.Sprint(v))
			}
			raw := form.Encode()
			d.raw = &raw
		}
	case "accept":
		d.Header["Accept"] = one(m, "application/json", "*/*", "application/*", "text/html, application/json;q=0.9")
	case "error of old":
		d.Version = one(m, "", "1.1", "1.5", "1.10")
		d.query = append(d.query, "bogus=1")
	case "address":
		to := one(m, "/V1/", "/v2/", "/")
		d.reform = func(path string) string { return strings.Replace(path, "/v1/", to, 1) }
		d.Route += OtherAddress
	}
}

var collections = map[string]string{"node": "/v1/nodes", "port": "/v1/ports", "portgroup": "/v1/portgroups",
	"chassis": "/v1/chassis", "allocation": "/v1/allocations", "template": "/v1/deploy_templates",
	"connector": "/v1/volume/connectors", "target": "/v1/volume/targets"}

// after requests the objects that a request may have changed.
func (m *maker) after(r Route, a Ask) {
	for _, name := range slices.Sorted(maps.Keys(collections)) {
		id, c := m.ids[name], collections[name]
		if strings.HasPrefix(r.Path, c+"/{") {
			m.newest("GET "+c+"/{"+name+"}", c+"/"+id, nil, "")
		}
		if r.Path == c && r.Method == "POST" {
			var b struct{ UUID string }
			if json.Unmarshal([]byte(a.Body), &b) == nil && strings.HasPrefix(b.UUID, UUIDPrefix) {
				m.newest("GET "+c+"/{"+name+"}", c+"/"+b.UUID, nil, "")
			}
		}
	}
	for _, part := range []string{"vifs", "allocation", "management/boot_device", "states/console"} {
		if strings.HasPrefix(r.Path, "/v1/nodes/{node}/"+part) {
			m.newest("GET /v1/nodes/{node}/"+part, "/v1/nodes/"+m.node+"/"+part, nil, "")
		}
	}
}
