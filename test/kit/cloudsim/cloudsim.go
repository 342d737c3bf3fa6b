// Package cloudsim is an OpenStack in memory: what Keystone, Nova, Neutron and Glance answer to those who make servers
// and turn them on and off. It follows their API references: microversions, task states that take a time, the states
// in which Nova takes an action, quotas, and errors in the services' words. What a server boots is recorded; no guest
// runs.
package cloudsim

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

type object = map[string]any

// Password and User are those of the clouds file, and Project is the ID of its project.
const (
	User     = "tester"
	Password = "a secret of the cloud"
	Project  = "0123456789abcdef0123456789abcdef"
)

// Cloud is the services, below one address.
type Cloud struct {
	URL string

	mu       sync.Mutex
	newest   int // microversion of Nova, 2.x
	password string
	task     time.Duration
	quota    map[string]int // instances, ports
	servers  []*Server
	net      map[string][]object // networks, subnets, ports
	images   map[string]string   // names by ID
	tokens   map[string]bool
	requests []string
	fail     func(method, path string) int
	lose     func(method, path string) bool
	noSafe   bool // Neutron has no extension port-security
	watch    func(ports []map[string]any)
}

// Server is a server of Nova's. Its fields are read with Cloud.Server.
type Server struct {
	ID, Name string
	Status   string
	Task     string
	Power    int
	Image    string // "" boots from a volume
	Locked   bool
	Fault    string
	Metadata map[string]string
	Tags     []string
	Boots    []string // what it booted, in order: disk IMAGE, rescue IMAGE, network

	stages []stage
	ports  []string
}

// stage is a change of a server that comes at its time.
type stage struct {
	due time.Time
	do  func(s *Server)
}

// Image is that of New, and Flavor its flavour.
const (
	Image  = "11111111-1111-4111-8111-111111111111"
	IPXE   = "22222222-2222-4222-8222-222222222222"
	Flavor = "33333333-3333-4333-8333-333333333333"
)

// New starts a cloud. It ends with the test.
func New(t testing.TB) *Cloud { return NewAt(t, nil) }

// NewAt is New at a listener, such as one of a network namespace; nil: at loopback.
func NewAt(t testing.TB, l net.Listener) *Cloud {
	c := &Cloud{newest: 95, password: Password, task: 20 * time.Millisecond, quota: map[string]int{"instances": 1000,
		"ports": 1000}, net: map[string][]object{}, images: map[string]string{Image: "debian", IPXE: "ipxe"},
		tokens: map[string]bool{}}
	s := httptest.NewUnstartedServer(c)
	if l != nil {
		_ = s.Listener.Close()
		s.Listener = l
	}
	s.Start()
	t.Cleanup(s.Close)
	c.URL = s.URL
	return c
}

// Write changes what the cloud is: its settings and its state.
func (c *Cloud) write(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// Newest sets Nova's newest microversion, 2.minor.
func (c *Cloud) Newest(minor int) { c.write(func() { c.newest = minor }) }

// TaskTime sets how long each task of Nova's takes.
func (c *Cloud) TaskTime(d time.Duration) { c.write(func() { c.task = d }) }

// Quota limits "instances" or "ports"; "late" limits servers as a Nova that is busy does: it takes more, and they fail.
func (c *Cloud) Quota(of string, most int) { c.write(func() { c.quota[of] = most }) }

// SetPassword changes the password in Keystone, and revokes all tokens.
func (c *Cloud) SetPassword(p string) {
	c.write(func() { c.password, c.tokens = p, map[string]bool{} })
}

// Revoke makes all tokens void.
func (c *Cloud) Revoke() { c.write(func() { c.tokens = map[string]bool{} }) }

// Fail has requests answered with the status that f returns; 0 lets a request through. f is called for one at a time.
func (c *Cloud) Fail(f func(method, path string) int) { c.write(func() { c.fail = f }) }

// Lose has the answers to the requests for which f returns true lost: they are carried out, and the connection breaks.
func (c *Cloud) Lose(f func(method, path string) bool) { c.write(func() { c.lose = f }) }

// Watch has f called with Neutron's ports after each change of them, as its DHCP agent is, for one at a time.
func (c *Cloud) Watch(f func(ports []map[string]any)) { c.write(func() { c.watch = f }) }

// Token is one of an administrator of the system.
func (c *Cloud) Token() (token string) {
	c.write(func() { token = c.token() })
	return token
}

func (c *Cloud) token() string {
	t := uuid.NewString()
	c.tokens[t] = true
	return t
}

// NoPortSecurity takes that extension from Neutron.
func (c *Cloud) NoPortSecurity() { c.write(func() { c.noSafe = true }) }

// Requests returns all since the last call, as METHOD PATH.
func (c *Cloud) Requests() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.requests
	c.requests = nil
	return r
}

// Add makes a server that is off.
func (c *Cloud) Add(edit func(s *Server)) string {
	s := &Server{ID: uuid.NewString(), Name: "machine", Status: "SHUTOFF", Power: 4, Image: Image,
		Metadata: map[string]string{}}
	if edit != nil {
		edit(s)
	}
	c.write(func() { c.servers = append(c.servers, s) })
	return s.ID
}

// Edit changes a server.
func (c *Cloud) Edit(id string, f func(s *Server)) {
	c.write(func() { f(c.find(id)) })
}

// Remove deletes a server at once.
func (c *Cloud) Remove(id string) {
	c.write(func() { c.servers = slices.DeleteFunc(c.servers, func(s *Server) bool { return s.ID == id }) })
}

// Server returns a copy of a server; a zero one if it is not there.
func (c *Cloud) Server(id string) (s Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found := c.find(id); found != nil {
		s = *found
		s.Boots = slices.Clone(s.Boots)
	}
	return s
}

// Servers are copies of all.
func (c *Cloud) Servers() (all []Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pass()
	for _, s := range c.servers {
		all = append(all, *s)
	}
	return all
}

// Net are Neutron's networks, subnets or ports.
func (c *Cloud) Net(kind string) []object {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.net[kind])
}

// AddNet makes one of them.
func (c *Cloud) AddNet(kind string, o object) string {
	o["id"] = uuid.NewString()
	c.write(func() { c.net[kind] = append(c.net[kind], o) })
	return o["id"].(string)
}

// File writes a clouds file with the cloud under a name, and returns its path.
func (c *Cloud) File(t testing.TB, name string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "clouds.yaml")
	c.WriteFile(t, file, name, Password)
	return file
}

// WriteFile is File to a path, with another password.
func (c *Cloud) WriteFile(t testing.TB, file, name, password string) {
	t.Helper()
	text := fmt.Sprintf(`clouds:
  %s:
    region_name: one
    auth:
      auth_url: %s
      username: %s
      password: %s
      user_domain_name: Default
      project_name: lab
      project_domain_name: Default
`, name, c.URL+"/identity", User, password)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (c *Cloud) find(id string) *Server {
	c.pass()
	i := slices.IndexFunc(c.servers, func(s *Server) bool { return s.ID == id })
	if i < 0 {
		return nil
	}
	return c.servers[i]
}

// pass lets everything happen that is due.
func (c *Cloud) pass() {
	for _, s := range slices.Clone(c.servers) {
		for len(s.stages) > 0 && !time.Now().Before(s.stages[0].due) {
			do := s.stages[0].do
			s.stages = s.stages[1:]
			do(s)
		}
	}
}

// then begins a task, at whose end do runs.
func (c *Cloud) then(s *Server, task string, do func(s *Server)) {
	s.Task = task
	s.stages = append(s.stages, stage{time.Now().Add(c.task), func(s *Server) { s.Task = ""; do(s) }})
}

func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = append(c.requests, r.Method+" "+r.URL.Path)
	w.Header().Set("Content-Type", "application/json")
	if c.fail != nil {
		if status := c.fail(r.Method, r.URL.Path); status != 0 {
			w.WriteHeader(status)
			return
		}
	}
	c.pass()
	if c.lose != nil && c.lose(r.Method, r.URL.Path) {
		c.serve(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	}
	c.serve(w, r)
}

// serve carries out a request.
func (c *Cloud) serve(w http.ResponseWriter, r *http.Request) {
	service, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	a := &answer{w: w, r: r}
	if r.Body != nil {
		_ = json.NewDecoder(r.Body).Decode(&a.in) // nil for none
	}
	if service == "identity" {
		c.keystone(a, path)
		return
	}
	if !c.tokens[r.Header.Get("X-Auth-Token")] {
		a.fail(http.StatusUnauthorized, "error", "The request you have made requires authentication.")
		return
	}
	switch service {
	case "compute":
		c.nova(a, strings.TrimPrefix(path, "v2.1/"))
	case "network":
		c.neutron(a, strings.TrimPrefix(path, "v2.0/"))
	case "image":
		var found []object
		for id, name := range c.images {
			if q := r.URL.Query(); q.Get("name") == name || q.Get("id") == "in:"+id {
				found = append(found, object{"id": id, "name": name, "status": "active"})
			}
		}
		a.reply(http.StatusOK, object{"images": found})
	}
}

type answer struct {
	w  http.ResponseWriter
	r  *http.Request
	in map[string]any
}

func (a *answer) reply(status int, v any) {
	a.w.WriteHeader(status)
	if v != nil {
		_ = json.NewEncoder(a.w).Encode(v) // the client has gone
	}
}

func (a *answer) fail(status int, kind, text string) {
	a.reply(status, object{kind: object{"code": status, "message": text}})
}

// keystone issues and validates tokens.
func (c *Cloud) keystone(a *answer, path string) {
	ends := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	if a.r.Method == http.MethodGet && path == "v3/auth/tokens" {
		if !c.tokens[a.r.Header.Get("X-Auth-Token")] {
			a.fail(http.StatusUnauthorized, "error", "The request you have made requires authentication.")
		} else if !c.tokens[a.r.Header.Get("X-Subject-Token")] {
			a.fail(http.StatusNotFound, "error", "Could not find token.")
		} else {
			a.reply(http.StatusOK, object{"token": object{"expires_at": ends, "system": object{"all": true},
				"user":  object{"id": User, "name": User, "domain": object{"id": "default", "name": "Default"}},
				"roles": []object{{"id": "admin", "name": "admin"}}}})
		}
		return
	}
	if a.r.Method != http.MethodPost || path != "v3/auth/tokens" {
		a.fail(http.StatusNotFound, "error", "Could not find it.")
		return
	}
	b, _ := json.Marshal(a.in) // it was JSON
	var in struct {
		Auth struct {
			Identity struct {
				Password struct {
					User struct{ Name, Password string }
				}
			}
		}
	}
	if err := json.Unmarshal(b, &in); err != nil || in.Auth.Identity.Password.User.Name != User ||
		in.Auth.Identity.Password.User.Password != c.password {
		a.fail(http.StatusUnauthorized, "error", "The request you have made requires authentication.")
		return
	}
	var catalog []object
	for kind, path := range map[string]string{"compute": "/compute/v2.1", "network": "/network", "image": "/image"} {
		catalog = append(catalog, object{"type": kind, "endpoints": []object{
			{"interface": "public", "region": "one", "url": c.URL + path},
			{"interface": "public", "region": "two", "url": "http://192.0.2.1/" + kind}}})
	}
	a.w.Header().Set("X-Subject-Token", c.token())
	a.reply(http.StatusCreated, object{"token": object{"catalog": catalog, "project": object{"id": Project},
		"expires_at": ends}})
}

// nova serves the compute API.
func (c *Cloud) nova(a *answer, path string) {
	minor := 1
	if v := a.r.Header.Get("X-OpenStack-Nova-API-Version"); v != "" {
		minor, _ = strconv.Atoi(strings.TrimPrefix(v, "2."))
		if minor < 1 || minor > c.newest {
			a.fail(http.StatusNotAcceptable, "computeFault", fmt.Sprintf(
				"Version %s is not supported by the API. Minimum is 2.1 and maximum is 2.%d.", v, c.newest))
			return
		}
	}
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case parts[0] == "" || parts[0] == "v2.1":
		a.reply(http.StatusOK, object{"version": object{"id": "v2.1", "status": "CURRENT", "min_version": "2.1",
			"version": fmt.Sprintf("2.%d", c.newest)}})
	case parts[0] == "flavors":
		f := object{"id": Flavor, "name": "bm", "vcpus": 4, "ram": 8192, "disk": 20}
		if len(parts) == 2 && parts[1] == Flavor {
			a.reply(http.StatusOK, object{"flavor": f})
		} else {
			a.reply(http.StatusOK, object{"flavors": []object{f}})
		}
	case path == "servers" && a.r.Method == http.MethodPost:
		c.create(a, minor)
	case path == "servers/detail":
		c.list(a, minor)
	case parts[0] == "servers" && len(parts) >= 2:
		s := c.find(parts[1])
		if s == nil {
			a.fail(http.StatusNotFound, "itemNotFound", "Instance "+parts[1]+" could not be found.")
			return
		}
		c.server(a, s, strings.Join(parts[2:], "/"), minor)
	default:
		a.fail(http.StatusNotFound, "itemNotFound", "The resource could not be found.")
	}
}

func (s *Server) shown(minor int) object {
	flavor := object{"id": Flavor}
	if minor >= 47 {
		flavor = object{"original_name": "bm", "vcpus": 4, "ram": 8192, "disk": 20, "ephemeral": 0, "swap": 0}
	}
	var image, task any = "", nil
	if s.Image != "" {
		image = object{"id": s.Image}
	}
	if s.Task != "" {
		task = s.Task
	}
	o := object{"id": s.ID, "name": s.Name, "status": s.Status, "OS-EXT-STS:task_state": task,
		"OS-EXT-STS:power_state": s.Power, "image": image, "flavor": flavor, "metadata": s.Metadata,
		"created": "2026-01-02T03:04:05Z", "updated": "2026-01-02T03:04:05Z"}
	if s.Fault != "" {
		o["fault"] = object{"code": 500, "message": s.Fault, "created": "2026-01-02T03:04:05Z"}
	}
	if minor >= 9 {
		o["locked"] = s.Locked
	}
	if minor >= 26 {
		o["tags"] = append([]string{}, s.Tags...)
	}
	return o
}

func (c *Cloud) list(a *answer, minor int) {
	q := a.r.URL.Query()
	limit, err := strconv.Atoi(q.Get("limit"))
	if err != nil {
		limit = 1000
	}
	from := 0
	if m := q.Get("marker"); m != "" {
		from = 1 + slices.IndexFunc(c.servers, func(s *Server) bool { return s.ID == m })
		if from == 0 {
			a.fail(http.StatusBadRequest, "badRequest", "marker ["+m+"] not found")
			return
		}
	}
	found := []object{}
	for _, s := range c.servers[from:] {
		if tag := q.Get("tags"); tag != "" && minor >= 26 && !slices.Contains(s.Tags, tag) {
			continue
		}
		found = append(found, s.shown(minor))
	}
	out := object{}
	if len(found) >= limit {
		found = found[:limit]
		out["servers_links"] = []object{{"rel": "next", // Nova behind a proxy does not know its address
			"href": fmt.Sprint("http://nova.internal:8774/v2.1/servers/detail?marker=", found[limit-1]["id"])}}
	}
	out["servers"] = found
	a.reply(http.StatusOK, out)
}

func (c *Cloud) create(a *answer, minor int) {
	in, _ := a.in["server"].(object)
	tags, _ := in["tags"].([]any)
	nets, _ := in["networks"].([]any)
	switch {
	case len(c.servers) >= c.quota["instances"]:
		a.fail(http.StatusForbidden, "forbidden", fmt.Sprintf(
			"Quota exceeded for instances: Requested 1, but already used %d of %d instances", len(c.servers),
			c.quota["instances"]))
		return
	case len(tags) > 0 && minor < 52:
		a.fail(http.StatusBadRequest, "badRequest", "Additional properties are not allowed ('tags' was unexpected)")
		return
	case in["flavorRef"] != Flavor || c.images[fmt.Sprint(in["imageRef"])] == "":
		a.fail(http.StatusBadRequest, "badRequest", "Invalid image or flavor.")
		return
	case in["networks"] == nil && minor >= 37:
		a.fail(http.StatusBadRequest, "badRequest", "'networks' is a required property")
		return
	}
	s := &Server{ID: uuid.NewString(), Name: fmt.Sprint(in["name"]), Status: "BUILD", Image: fmt.Sprint(in["imageRef"]),
		Metadata: map[string]string{}}
	for _, t := range tags {
		s.Tags = append(s.Tags, fmt.Sprint(t))
	}
	if m, ok := in["metadata"].(object); ok {
		for k, v := range m {
			s.Metadata[k] = fmt.Sprint(v)
		}
	}
	for _, n := range nets {
		for _, p := range c.net["ports"] {
			if want := n.(object)["port"]; p["id"] == want {
				if p["device_id"] != "" && p["device_id"] != nil {
					a.fail(http.StatusConflict, "conflictingRequest", fmt.Sprintf("Port %v is still in use.", want))
					return
				}
				p["device_id"] = s.ID
				s.ports = append(s.ports, fmt.Sprint(want))
			}
		}
	}
	c.servers = append(c.servers, s)
	most, late := c.quota["late"]
	late = late && len(c.servers) > most
	c.then(s, "spawning", func(s *Server) {
		if late {
			s.Status, s.Fault = "ERROR", fmt.Sprintf("Quota exceeded for instances: Requested 1, but already used %d of %d instances",
				most, most)
			return
		}
		s.run("disk " + s.Image)
	})
	a.reply(http.StatusAccepted, object{"server": object{"id": s.ID, "adminPass": "x"}})
}

// run has the server run what it booted.
func (s *Server) run(what string) {
	s.Status, s.Power = "ACTIVE", 1
	s.Boots = append(s.Boots, what)
}

// disk names the thing that a start of the server boots: its disk, or the network where Nova is patched.
func (s *Server) disk() string {
	if s.Metadata["libvirt:pxe-first"] != "" {
		return "network"
	}
	return "disk " + s.Image
}

func (c *Cloud) server(a *answer, s *Server, path string, minor int) {
	conflict := func(what string) {
		state := "vm_state " + strings.ToLower(s.Status)
		if s.Task != "" {
			state = "task_state " + s.Task
		}
		a.fail(http.StatusConflict, "conflictingRequest", fmt.Sprintf(
			"Cannot '%s' instance %s while it is in %s", what, s.ID, state))
	}
	free := func(what string, in ...string) bool {
		if s.Locked {
			a.fail(http.StatusConflict, "conflictingRequest", "Instance "+s.ID+" is locked")
			return false
		}
		if s.Task != "" || !slices.Contains(in, s.Status) {
			conflict(what)
			return false
		}
		return true
	}
	switch {
	case path == "" && a.r.Method == http.MethodGet:
		a.reply(http.StatusOK, object{"server": s.shown(minor)})
	case path == "" && a.r.Method == http.MethodDelete:
		if s.Locked {
			free("delete")
			return
		}
		s.stages = nil
		c.then(s, "deleting", func(s *Server) {
			for _, p := range c.net["ports"] {
				if p["device_id"] == s.ID {
					p["device_id"] = ""
				}
			}
			c.servers = slices.DeleteFunc(c.servers, func(o *Server) bool { return o == s })
		})
		a.reply(http.StatusNoContent, nil)
	case path == "metadata" && a.r.Method == http.MethodPost:
		if free("update metadata", "ACTIVE", "PAUSED", "SUSPENDED", "SHUTOFF") {
			for k, v := range a.in["metadata"].(object) {
				s.Metadata[k] = fmt.Sprint(v)
			}
			a.reply(http.StatusOK, object{"metadata": s.Metadata})
		}
	case strings.HasPrefix(path, "metadata/") && a.r.Method == http.MethodDelete:
		if free("delete metadata", "ACTIVE", "PAUSED", "SUSPENDED", "SHUTOFF") {
			delete(s.Metadata, strings.TrimPrefix(path, "metadata/"))
			a.reply(http.StatusNoContent, nil)
		}
	case path == "action":
		c.action(a, s, minor, free)
	default:
		a.fail(http.StatusNotFound, "itemNotFound", "The resource could not be found.")
	}
}

func (c *Cloud) action(a *answer, s *Server, minor int, free func(string, ...string) bool) {
	image := func(name, key, missing string) (string, bool) {
		in, _ := a.in[name].(object)
		id := fmt.Sprint(in[key])
		if c.images[id] == "" {
			a.fail(http.StatusBadRequest, "badRequest", strings.ReplaceAll(missing, "ID", id))
		}
		return id, c.images[id] != ""
	}
	has := func(name string) bool { _, ok := a.in[name]; return ok }
	off := func(s *Server) { s.Status, s.Power = "SHUTOFF", 4 }
	switch {
	case has("os-start") && free("start", "SHUTOFF"):
		c.then(s, "powering-on", func(s *Server) { s.run(s.disk()) })
		a.reply(http.StatusAccepted, nil)
	case has("os-stop") && free("stop", "ACTIVE", "ERROR"):
		c.then(s, "powering-off", off)
		a.reply(http.StatusAccepted, nil)
	case has("reboot") && free("reboot", "ACTIVE", "SHUTOFF", "PAUSED", "SUSPENDED", "ERROR"):
		c.then(s, "rebooting_hard", func(s *Server) { s.run(s.disk()) })
		a.reply(http.StatusAccepted, nil)
	case has("rescue") && free("rescue", "ACTIVE", "SHUTOFF", "ERROR"):
		id, ok := image("rescue", "rescue_image_ref", "Requested rescue image 'ID' is not supported")
		if !ok {
			return
		}
		if s.Image == "" && minor < 87 {
			a.fail(http.StatusBadRequest, "badRequest", "Cannot rescue a volume-backed instance")
			return
		}
		c.then(s, "rescuing", func(s *Server) { s.run("rescue " + id); s.Status = "RESCUE" })
		a.reply(http.StatusOK, object{"adminPass": "x"})
	case has("unrescue") && free("unrescue", "RESCUE"):
		c.then(s, "unrescuing", func(s *Server) { s.run(s.disk()) })
		a.reply(http.StatusAccepted, nil)
	case has("rebuild") && free("rebuild", "ACTIVE", "SHUTOFF", "ERROR"):
		id, ok := image("rebuild", "imageRef", "Cannot find image for rebuild")
		if !ok {
			return
		}
		if s.Image == "" && minor < 93 {
			a.fail(http.StatusBadRequest, "badRequest",
				"Unable to rebuild instance with a different image. Boot from volume")
			return
		}
		if m, ok := a.in["rebuild"].(object)["metadata"].(object); ok {
			s.Metadata = map[string]string{}
			for k, v := range m {
				s.Metadata[k] = fmt.Sprint(v)
			}
		}
		was := s.Status
		if s.Image != "" {
			s.Image = id
		}
		s.Status = "REBUILD"
		c.then(s, "rebuilding", func(s *Server) { s.run("disk " + id) })
		if was == "SHUTOFF" { // Nova starts it, and then brings it back to the state that it had
			at := s.stages[len(s.stages)-1].due
			s.stages = append(s.stages,
				stage{at.Add(c.task), func(s *Server) { s.Task = "powering-off" }},
				stage{at.Add(2 * c.task), func(s *Server) { s.Task = ""; off(s) }})
		}
		a.reply(http.StatusAccepted, object{"server": s.shown(minor)})
	}
}

// neutron serves networks, subnets and ports.
func (c *Cloud) neutron(a *answer, path string) {
	kind, id, _ := strings.Cut(path, "/")
	one := strings.TrimSuffix(kind, "s")
	refuse := func(status int, text string) {
		a.reply(status, object{"NeutronError": object{"message": text, "type": "x", "detail": ""}})
	}
	if kind == "extensions" {
		if c.noSafe {
			refuse(http.StatusNotFound, "Extension with alias port-security does not exist")
			return
		}
		a.reply(http.StatusOK, object{"extension": object{"alias": "port-security"}})
		return
	}
	at := slices.IndexFunc(c.net[kind], func(o object) bool { return o["id"] == id })
	if id != "" && at < 0 {
		refuse(http.StatusNotFound, one+" "+id+" could not be found.")
		return
	}
	switch a.r.Method {
	case http.MethodGet:
		if id != "" {
			a.reply(http.StatusOK, object{one: c.net[kind][at]})
			return
		}
		found := []object{}
		for _, o := range c.net[kind] {
			fits := true
			for k, v := range a.r.URL.Query() {
				fits = fits && (k == "limit" || fmt.Sprint(o[k]) == v[0])
			}
			if fits {
				found = append(found, o)
			}
		}
		a.reply(http.StatusOK, object{kind: found})
	case http.MethodPost:
		o, _ := a.in[one].(object)
		if most, ok := c.quota[kind]; ok && len(c.net[kind]) >= most {
			refuse(http.StatusConflict, "Quota exceeded for resources: ['"+one+"'].")
			return
		}
		if _, has := o["port_security_enabled"]; has && c.noSafe {
			refuse(http.StatusBadRequest, "Unrecognized attribute(s) 'port_security_enabled'")
			return
		}
		o["id"], o["project_id"] = uuid.NewString(), Project
		if kind == "ports" {
			o["status"] = "DOWN"
			if o["mac_address"] == nil {
				n := len(c.requests)
				o["mac_address"] = fmt.Sprintf("fa:16:3e:%02x:%02x:%02x", n>>16&0xff, n>>8&0xff, n&0xff)
			}
			c.address(o)
			bind(o)
		}
		c.net[kind] = append(c.net[kind], o)
		a.reply(http.StatusCreated, object{one: o})
	case http.MethodPut:
		changes, _ := a.in[one].(object)
		maps.Copy(c.net[kind][at], changes)
		bind(c.net[kind][at])
		a.reply(http.StatusOK, object{one: c.net[kind][at]})
	case http.MethodDelete:
		for _, other := range slices.Concat(c.net["ports"], c.net["subnets"]) {
			if kind == "networks" && other["network_id"] == id {
				refuse(http.StatusConflict, "Unable to complete operation on network "+id+
					". There are one or more ports still in use on the network.")
				return
			}
		}
		c.net[kind] = slices.Delete(c.net[kind], at, at+1)
		a.reply(http.StatusNoContent, nil)
	}
	if kind == "ports" && c.watch != nil && a.r.Method != http.MethodGet {
		c.watch(c.net["ports"])
	}
}

// address gives a port one of the subnet of its network, if that has one.
func (c *Cloud) address(port object) {
	at := slices.IndexFunc(c.net["subnets"], func(s object) bool { return s["network_id"] == port["network_id"] })
	if at < 0 || port["fixed_ips"] != nil {
		return
	}
	subnet := c.net["subnets"][at]
	cidr, _ := subnet["cidr"].(string)
	p, err := netip.ParsePrefix(cidr)
	if err != nil || !p.Addr().Is4() {
		return
	}
	ip := p.Addr()
	taken := func(p object) bool {
		return strings.Contains(fmt.Sprint(p["fixed_ips"]), "ip_address:"+ip.String()+" ")
	}
	for range 100 {
		ip = ip.Next()
	}
	for slices.ContainsFunc(c.net["ports"], taken) {
		ip = ip.Next()
	}
	port["fixed_ips"] = []any{object{"ip_address": ip.String(), "subnet_id": subnet["id"]}}
}

// bind has a mechanism driver take a port that has a host.
func bind(port object) {
	port["binding:vif_type"] = "unbound"
	if host, _ := port["binding:host_id"].(string); host != "" {
		port["binding:vif_type"] = "other"
	}
}
