package placement

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/guard/oscloud"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

// fake is a Placement with generations, as its API reference describes it.
type fake struct {
	mu        sync.Mutex
	providers map[string]*record
	traits    map[string]bool
	classes   map[string]bool
	used      map[string]bool // providers with allocations
	requests  []string
	down      bool
	// before is called ahead of each change of a provider, without the lock: what others do meanwhile
	before func(id, what string)
}

type record struct {
	name       string
	generation int
	inventory  map[string]map[string]any
	traits     []string
	aggregates []string
}

func newFake() *fake {
	return &fake{providers: map[string]*record{}, traits: map[string]bool{"HW_CPU_X86_VMX": true},
		classes: map[string]bool{}, used: map[string]bool{}}
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if v != nil {
		_ = json.NewEncoder(w).Encode(v)
	}
}

type object = map[string]any

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(path) == 3 && r.Method == "PUT" && f.before != nil {
		f.before(path[1], path[2])
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, r.Method+" "+r.URL.Path)
	var body object
	if r.ContentLength > 0 {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			answer(w, 400, nil)
			return
		}
	}
	switch {
	case f.down:
		answer(w, 503, nil)
	case r.Header.Get("X-Auth-Token") != "token", r.Header.Get("OpenStack-API-Version") != "placement 1.30":
		answer(w, 401, nil)
	case path[0] == "traits" && len(path) == 1:
		var names []string
		for name := range f.traits {
			names = append(names, name)
		}
		answer(w, 200, object{"traits": names})
	case path[0] == "traits" && r.Method == "PUT" && strings.HasPrefix(path[1], "CUSTOM_"):
		f.traits[path[1]] = true
		answer(w, 201, nil)
	case path[0] == "resource_classes" && r.Method == "PUT" && strings.HasPrefix(path[1], "CUSTOM_"):
		f.classes[path[1]] = true
		answer(w, 201, nil)
	case path[0] == "resource_providers":
		f.provider(w, r, path[1:], body)
	default:
		answer(w, 404, nil)
	}
}

func (f *fake) provider(w http.ResponseWriter, r *http.Request, path []string, body object) {
	if len(path) == 0 {
		if r.Method == "POST" {
			id := body["uuid"].(string)
			if f.providers[id] != nil {
				answer(w, 409, nil)
				return
			}
			f.providers[id] = &record{name: body["name"].(string)}
			answer(w, 200, object{"uuid": id, "name": body["name"], "generation": 0})
			return
		}
		required := r.URL.Query().Get("required")
		if required != "" && !f.traits[required] {
			answer(w, 400, nil)
			return
		}
		list := []object{}
		for id, p := range f.providers {
			if required == "" || slices.Contains(p.traits, required) {
				list = append(list, object{"uuid": id, "name": p.name, "generation": p.generation})
			}
		}
		answer(w, 200, object{"resource_providers": list})
		return
	}
	p := f.providers[path[0]]
	if p == nil {
		answer(w, 404, nil)
		return
	}
	if len(path) == 1 {
		if f.used[path[0]] {
			answer(w, 409, nil)
			return
		}
		delete(f.providers, path[0])
		answer(w, 204, nil)
		return
	}
	if r.Method == "PUT" {
		if body["resource_provider_generation"] != float64(p.generation) {
			answer(w, 409, nil)
			return
		}
		switch path[1] {
		case "inventories":
			p.inventory = map[string]map[string]any{}
			for class, v := range body["inventories"].(object) {
				if !f.classes[class] {
					answer(w, 400, nil)
					return
				}
				p.inventory[class] = v.(object)
			}
		case "traits":
			for _, t := range texts(body["traits"]) {
				if !f.traits[t] {
					answer(w, 400, nil)
					return
				}
			}
			p.traits = texts(body["traits"])
		case "aggregates":
			p.aggregates = texts(body["aggregates"])
		}
		p.generation++
	}
	out := object{"resource_provider_generation": p.generation}
	switch path[1] {
	case "inventories":
		out["inventories"] = p.inventory
	case "traits":
		slices.Reverse(p.traits) // their order means nothing
		out["traits"] = p.traits
	case "aggregates":
		out["aggregates"] = p.aggregates
	}
	answer(w, 200, out)
}

func texts(v any) (out []string) {
	for _, t := range v.([]any) {
		out = append(out, t.(string))
	}
	return out
}

// nodes are what the store has.
type nodes struct {
	all      []*node.Node
	promises []node.Promise
}

func (n *nodes) Nodes(context.Context, store.Query) ([]*node.Node, error) { return n.all, nil }
func (n *nodes) Promises(context.Context) ([]node.Promise, error)         { return n.promises, nil }
func (n *nodes) TakeDuty(_ context.Context, _, who string, d time.Duration) (string, time.Time, error) {
	return who, time.Now().Add(d), nil
}

func start(t *testing.T, f *fake, st *nodes, groups map[string]string) *Service {
	t.Helper()
	web := httptest.NewServer(f)
	t.Cleanup(web.Close)
	client, err := oscloud.New(oscloud.Config{Name: "Placement", URL: web.URL, Header: Header,
		Login:  func(context.Context) (string, error) { return "token", nil },
		Forget: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	return New(st, nil, Config{Client: client, Hostname: "c1", Mark: "ab12", Groups: groups, Interval: time.Hour}, nil)
}

func report(t *testing.T, s *Service) {
	t.Helper()
	if err := s.Report(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// shown writes the providers: by UUID, class, reserved, traits, aggregates.
func (f *fake) shown() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]string{}
	for id, p := range f.providers {
		text := ""
		for class, v := range p.inventory {
			text += fmt.Sprintf("%s %v-%v", class, v["total"], v["reserved"])
		}
		traits := slices.Sorted(slices.Values(p.traits))
		out[id] = strings.TrimSpace(fmt.Sprintf("%s %s %s", text, strings.Join(traits, ","),
			strings.Join(p.aggregates, ",")))
	}
	return out
}

func (f *fake) are(t *testing.T, want map[string]string) {
	t.Helper()
	if d := cmp.Diff(want, f.shown()); d != "" {
		t.Errorf("resource providers (-want +got):\n%s", d)
	}
}

const a1, a2 = "8c9a4b5e-0000-4000-8000-0000000000a1", "8c9a4b5e-0000-4000-8000-0000000000a2"

// TestNodesAreCounted: what a node is like decides on its inventory, its traits and its aggregate.
func TestNodesAreCounted(t *testing.T) {
	f, st := newFake(), &nodes{}
	free := func(id string, change ...func(*node.Node)) {
		n := &node.Node{UUID: id, ResourceClass: "bm.large", Provision: node.Available, Power: "power off"}
		for _, c := range change {
			c(n)
		}
		st.all = append(st.all, n)
	}
	free("free")
	free("warm", func(n *node.Node) { n.Power, n.Boot = "power on", &node.Boot{Kept: true, Connected: true} })
	free("traits", func(n *node.Node) { n.Traits = []string{"CUSTOM_A", "HW_CPU_X86_VMX", "HW_UNKNOWN", "bad name"} })
	free("grouped", func(n *node.Node) { n.ConductorGroup = "rack1" })
	free("active", func(n *node.Node) { n.Provision, n.InstanceUUID = node.Active, "i" })
	free("taken", func(n *node.Node) { n.InstanceUUID = "i" })
	free("maintained", func(n *node.Node) { n.Maintenance = true })
	free("faulty", func(n *node.Node) { n.Fault = "power failure" })
	free("retired", func(n *node.Node) { n.Retired = true })
	free("unknown", func(n *node.Node) { n.Power = "" })
	free("promised")
	free("without class", func(n *node.Node) { n.ResourceClass = "" })
	st.promises = []node.Promise{{NodeUUID: "promised", From: time.Now().Add(time.Hour)}}
	s := start(t, f, st, map[string]string{"rack1": a1})
	report(t, s)
	const reserved = "CUSTOM_BM_LARGE 1-1 CUSTOM_INGOT_AB12"
	f.are(t, map[string]string{
		"free":    "CUSTOM_BM_LARGE 1-0 CUSTOM_INGOT_AB12",
		"warm":    "CUSTOM_BM_LARGE 1-0 CUSTOM_INGOT_AB12,CUSTOM_INGOT_WARM",
		"traits":  "CUSTOM_BM_LARGE 1-0 CUSTOM_A,CUSTOM_INGOT_AB12,HW_CPU_X86_VMX",
		"grouped": "CUSTOM_BM_LARGE 1-0 CUSTOM_INGOT_AB12 " + a1,
		"active":  reserved, "taken": reserved, "maintained": reserved, "faulty": reserved, "retired": reserved,
		"unknown": reserved, "promised": reserved,
	})
	// A second look changes nothing, and reads nothing but the list.
	f.requests = nil
	report(t, s)
	if d := cmp.Diff([]string{"GET /resource_providers"}, f.requests); d != "" {
		t.Errorf("requests although nothing changed (-want +got):\n%s", d)
	}
	// After a restart it reads, and still changes nothing.
	f.requests = nil
	report(t, start(t, f, st, map[string]string{"rack1": a1}))
	for _, r := range f.requests {
		if !strings.HasPrefix(r, "GET ") && !strings.Contains(r, "/traits/") &&
			!strings.Contains(r, "/resource_classes/") {
			t.Errorf("after a restart: %s", r)
		}
	}
	// A warm one that is deployed, one that moves to another group and class, one that is gone.
	st.all[1].Provision, st.all[1].InstanceUUID = node.Active, "i"
	st.all[3].ConductorGroup, st.all[3].ResourceClass = "", "small"
	st.all = st.all[:4]
	report(t, s)
	f.are(t, map[string]string{
		"free":    "CUSTOM_BM_LARGE 1-0 CUSTOM_INGOT_AB12",
		"warm":    reserved,
		"traits":  "CUSTOM_BM_LARGE 1-0 CUSTOM_A,CUSTOM_INGOT_AB12,HW_CPU_X86_VMX",
		"grouped": "CUSTOM_SMALL 1-0 CUSTOM_INGOT_AB12",
	})
}

// TestAggregatesAreLeftAlone unless the configuration names some.
func TestAggregatesAreLeftAlone(t *testing.T) {
	f, st := newFake(), &nodes{all: []*node.Node{{UUID: "n", ResourceClass: "c", Power: "power off"}}}
	s := start(t, f, st, nil)
	report(t, s)
	f.providers["n"].aggregates, f.providers["n"].generation = []string{a2}, 9
	report(t, s)
	f.are(t, map[string]string{"n": "CUSTOM_C 1-1 CUSTOM_INGOT_AB12 " + a2})
}

// TestChangesOfOthers: what others change meanwhile is mended, and their changes between reading and writing are not
// overwritten unread.
func TestChangesOfOthers(t *testing.T) {
	f, st := newFake(), &nodes{all: []*node.Node{
		{UUID: "n", ResourceClass: "c", Provision: node.Available, Power: "power off"}}}
	s := start(t, f, st, map[string]string{"": a1})
	met := map[string]int{}
	f.before = func(id, what string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if met[what]++; met[what] == 1 { // each kind of change meets another once
			f.providers[id].generation++
		}
	}
	if err := s.Report(t.Context()); err == nil || !strings.Contains(err.Error(), "mark the resource provider") {
		t.Errorf("the mark of a new provider is written blindly: %v", err)
	}
	report(t, s)
	const want = "CUSTOM_C 1-0 CUSTOM_INGOT_AB12 " + a1
	f.are(t, map[string]string{"n": want})
	if met["inventories"] < 2 || met["traits"] < 2 || met["aggregates"] < 2 {
		t.Errorf("changes that met others: %v", met)
	}
	p := f.providers["n"]
	p.inventory["CUSTOM_C"]["reserved"], p.traits, p.generation = 1, append(p.traits, "HW_CPU_X86_VMX"), 99
	report(t, s)
	f.are(t, map[string]string{"n": want})
	f.before = func(id, _ string) { // all the time
		f.mu.Lock()
		defer f.mu.Unlock()
		f.providers[id].generation++
	}
	st.all[0].Maintenance = true
	if err := s.Report(t.Context()); err == nil || !strings.Contains(err.Error(), "changed by others all the time") {
		t.Errorf("with others that never rest: %v", err)
	}
}

// TestRepairs: what was missed while Placement was down, or what it has lost, is there after the next look; a provider
// that was left half made is completed.
func TestRepairs(t *testing.T) {
	f, st := newFake(), &nodes{all: []*node.Node{
		{UUID: "n", ResourceClass: "c", Provision: node.Available, Power: "power off"}}}
	s := start(t, f, st, nil)
	f.down = true
	if err := s.Report(t.Context()); err == nil || !strings.Contains(err.Error(), "Placement answered 503") {
		t.Errorf("while it is down: %v", err)
	}
	f.down = false
	f.providers["n"] = &record{name: "n"} // a conductor was stopped after it had made it
	report(t, s)
	const want = "CUSTOM_C 1-0 CUSTOM_INGOT_AB12"
	f.are(t, map[string]string{"n": want})
	st.all[0].Maintenance = true
	f.down = true
	if err := s.Report(t.Context()); err == nil {
		t.Error("no error while it is down")
	}
	f.down = false
	report(t, s)
	f.are(t, map[string]string{"n": "CUSTOM_C 1-1 CUSTOM_INGOT_AB12"})
	st.all[0].Maintenance = false
	// It was restored from nothing.
	f.providers, f.traits, f.classes = map[string]*record{}, map[string]bool{}, map[string]bool{}
	if err := s.Report(t.Context()); err == nil {
		t.Error("no error although the trait is gone")
	}
	report(t, s)
	f.are(t, map[string]string{"n": want})
}

// TestProvidersOfOthers: one that Nova reports is left alone, and said so; one of a node that is gone is removed, or
// reserved while something is allocated from it.
func TestProvidersOfOthers(t *testing.T) {
	f, st := newFake(), &nodes{all: []*node.Node{
		{UUID: "n", ResourceClass: "c", Provision: node.Available, Power: "power off"},
		{UUID: "m", ResourceClass: "c", Provision: node.Available, Power: "power off"}}}
	f.classes["CUSTOM_C"] = true
	f.providers["n"] = &record{name: "n", inventory: map[string]map[string]any{"CUSTOM_C": {"total": 1, "reserved": 0}}}
	f.providers["x"] = &record{name: "a host of virtual machines"}
	s := start(t, f, st, nil)
	err := s.Report(t.Context())
	if err == nil || !strings.Contains(err.Error(), "report node n") ||
		!strings.Contains(err.Error(), "Nova's Ironic driver reports it") {
		t.Errorf("two that report: %v", err)
	}
	if s.news(err) == nil || s.news(err) != nil || s.news(nil) != nil || s.news(err) == nil {
		t.Error("an error that stays is not said once, or not again when it comes back")
	}
	want := map[string]string{"n": "CUSTOM_C 1-0", "x": "", "m": "CUSTOM_C 1-0 CUSTOM_INGOT_AB12"}
	f.are(t, want)
	st.all, f.used["m"] = nil, true
	if err := s.Report(t.Context()); err == nil || !strings.Contains(err.Error(), "still allocated from it") {
		t.Errorf("a node that is gone, with allocations: %v", err)
	}
	want["m"] = "CUSTOM_C 1-1 CUSTOM_INGOT_AB12"
	f.are(t, want)
	report(t, s) // it was said
	f.used["m"] = false
	report(t, s)
	delete(want, "m")
	f.are(t, want)
}

// TestTokenIsRefused: the error says what to do.
func TestTokenIsRefused(t *testing.T) {
	f := newFake()
	s := start(t, f, &nodes{}, nil)
	s.cfg.Client.MoreHeaders = nil // an old Placement
	if err := s.Report(t.Context()); err == nil || !strings.Contains(err.Error(), "does not let this server's user") {
		t.Errorf("refused: %v", err)
	}
}
