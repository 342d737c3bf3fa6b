package engine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/dial"
	"github.com/ingot-metal/ingot/conductor/inspect"
	"github.com/ingot-metal/ingot/conductor/node"
)

// rules stores inspection rules, written as the API takes them.
func (w *world) rules(text string) {
	w.t.Helper()
	all, err := inspect.ParseRules([]byte(text))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range all {
		r.UUID = ""
		if err := w.store.InspectionRules().Create(w.t.Context(), r); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) ports(m *machine) []*node.Port {
	w.t.Helper()
	ports, err := w.store.PortsOf(w.t.Context(), m.id)
	if err != nil {
		w.t.Fatal(err)
	}
	slices.SortFunc(ports, func(a, b *node.Port) int { return strings.Compare(a.Address, b.Address) })
	return ports
}

func (w *world) inventory(m *machine) map[string]any {
	w.t.Helper()
	b, err := w.store.Inventory(w.t.Context(), m.id)
	var doc map[string]any
	if err == nil {
		err = json.Unmarshal(b, &doc)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return doc
}

// TestInspectionWithRules: hooks and rules change node, ports and plugin data together; what an operator set is left
// alone, and said so.
func TestInspectionWithRules(t *testing.T) {
	w := newWorld(t)
	w.rules(`
- priority: 10
  conditions: [{op: gt, args: {values: ["{inventory[memory][physical_mb]}", 1024]}}]
  actions:
    - {op: add-trait, args: {name: CUSTOM_ROOMY}}
    - {op: set-capability, args: {name: memory_class, value: high}}
    - {op: set-attribute, args: {path: resource_class, value: "baremetal-{inventory[cpu][count]}"}}
    - {op: set-port-attribute, args: {port_id: "{inventory[interfaces][0][mac_address]}", path: physical_network, value: physnet1}}
    - {op: set-plugin-data, args: {path: seen.by, value: the rule}}
- priority: 5
  conditions: [{op: eq, args: {values: ["{plugin_data[seen][by]}", the rule]}}]
  actions: [{op: log, args: {msg: "rules see what others did to {node.name}", level: warning}}]
- conditions: [{op: eq, args: {values: ["{inventory[cpu][architecture]}", aarch64]}}]
  actions: [{op: fail, args: {msg: not here}}]
`)
	w.start(nil)
	m := w.add("n1")
	if _, err := w.store.UpdateNode(t.Context(), m.id, func(n *node.Node) error {
		n.Properties = map[string]any{"cpus": "2"}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	mac := "52:54:00:" + m.macTail()
	if err := w.store.CreatePort(t.Context(),
		&node.Port{NodeUUID: m.id, Address: mac, Name: "mine", Extra: map[string]any{"rack": "r1"}}); err != nil {
		t.Fatal(err)
	}
	w.must(m, node.Manage)
	w.untilState(m, node.Manageable)
	w.must(m, node.Inspect)
	n := w.until(m, "the end of the inspection",
		func(n *node.Node) bool { return n.Job == nil && !n.InspectionFinishedAt.IsZero() })
	if n.Provision != node.Manageable || n.Properties["cpus"] != "2" || n.Properties["memory_mb"] != 2048.0 ||
		n.Properties["capabilities"] != "memory_class:high" ||
		n.ResourceClass != "baremetal-4" || !slices.Equal(n.Traits, []string{"CUSTOM_ROOMY"}) {
		t.Errorf("node is %s (%s) with %v, class %s, traits %v", n.Provision, n.LastError, n.Properties,
			n.ResourceClass, n.Traits)
	}
	ports := w.ports(m)
	if len(ports) != 2 || ports[0].Name != "mine" || ports[0].PhysicalNetwork != "physnet1" ||
		ports[0].Extra["rack"] != "r1" || ports[0].PXEEnabled || ports[1].PhysicalNetwork != "" {
		t.Errorf("ports are %+v, %+v", ports[0], ports[1])
	}
	doc := w.inventory(m)
	if doc["seen"].(map[string]any)["by"] != "the rule" ||
		doc["inventory"].(map[string]any)["memory"].(map[string]any)["physical_mb"] != 2048.0 ||
		doc["valid_interfaces"] == nil {
		t.Errorf("stored is %v", doc)
	}
	history, err := w.store.History(t.Context(), m.id, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"WARNING rules see what others did to n1",
		`INFO properties/cpus stays "2" as it was set, although the inspection found 4`} {
		if !slices.ContainsFunc(history, func(h node.HistoryEntry) bool { return h.Severity+" "+h.Event == want }) {
			t.Errorf("the history lacks %q", want)
		}
	}

	// The machine has more memory now: what the inspection wrote follows.
	m.mu.Lock()
	m.behave["inspect"] = func(*agent, node.PlanStep) (node.StepResult, bool) {
		r := strings.ReplaceAll(fmt.Sprintf(simInventory, m.macTail()), `"physical_mb":2048`, `"physical_mb":4096`)
		return node.StepResult{Outcome: node.OutcomeDone, Result: json.RawMessage(r)}, true
	}
	m.mu.Unlock()
	w.must(m, node.Inspect)
	n = w.until(m, "the end of the second inspection",
		func(n *node.Node) bool { return n.Job == nil && !n.InspectionFinishedAt.IsZero() })
	if n.Properties["memory_mb"] != 4096.0 || n.Properties["cpus"] != "2" || len(w.ports(m)) != 2 {
		t.Errorf("after the second inspection: %v, %d ports", n.Properties, len(w.ports(m)))
	}
}

// TestInspectionFails: a hook or rule that fails ends the inspection in its failure state, which names it; of the
// result only the inventory is kept.
func TestInspectionFails(t *testing.T) {
	for _, c := range []struct{ name, rules, result, want, never string }{
		{"rule", `[{priority: 9, actions: [{op: set-attribute, args: {path: extra/a, value: b}}]},
			{description: no small machines, conditions: [{op: lt, args: {values: ["{inventory[cpu][count]}", 8]}}], actions: [{op: log, args: {msg: x}}, {op: fail, args: {msg: "only {inventory[cpu][count]} threads"}}]}]`,
			"", "(no small machines): action 2 (fail): only 4 threads.", ""},
		{"sensitive rule",
			`[{description: vault, sensitive: true, actions: [{op: set-attribute, args: {path: driver/x, value: hush}}]}]`, "", "(vault) failed; it is sensitive", "hush"},
		{"name that is taken", `[{actions: [{op: set-attribute, args: {path: name, value: other}}]}]`, "",
			"the name other, which is that of node", ""},
		{"hook", `[]`, `{"inventory": {"interfaces": [{"name": "lo", "mac_address": "52:54:00:00:00:01", "ipv4_address": "127.0.0.1"}], "cpu": {"architecture": "x86_64"}}}`,
			"hook validate-interfaces: no network interfaces match", ""},
		{"ramdisk", `[]`, `{"inventory": {}, "error": "no link"}`, "the ramdisk reported an error: no link", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.rules(c.rules)
			w.start(nil)
			m := w.add("n1")
			if err := w.store.CreateNode(t.Context(), &node.Node{Name: "other", Driver: "sim"}); err != nil {
				t.Fatal(err)
			}
			if c.result != "" {
				m.behave["inspect"] = func(*agent, node.PlanStep) (node.StepResult, bool) {
					return node.StepResult{Outcome: node.OutcomeDone, Result: json.RawMessage(c.result)}, true
				}
			}
			w.must(m, node.Manage)
			w.untilState(m, node.Manageable)
			w.must(m, node.Inspect)
			n := w.untilState(m, node.InspectFailed)
			if !strings.Contains(n.LastError, c.want) || c.never != "" && strings.Contains(n.LastError, c.never) {
				t.Errorf("last error %q, want %q", n.LastError, c.want)
			}
			if len(n.Properties) != 0 || len(n.Extra) != 0 || len(w.ports(m)) != 0 || n.Name != "n1" {
				t.Errorf("left behind: properties %v, extra %v, %d ports, name %s", n.Properties, n.Extra,
					len(w.ports(m)), n.Name)
			}
			if doc := w.inventory(m); doc["inventory"] == nil {
				t.Errorf("stored is %v", doc)
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.on {
				t.Error("the machine is on")
			}
		})
	}
}

// TestDieInInspection kills the conductor at each write of an inspection with rules: the rules are applied once in the
// end, whole.
func TestDieInInspection(t *testing.T) {
	w := newWorld(t)
	w.rules(`[{actions: [{op: extend-attribute, args: {path: extra/times, value: "{inventory[cpu][count]}"}},
		{op: set-port-attribute, args: {port_id: "{inventory[interfaces][1][mac_address]}", path: extra/rule, value: applied}}]}]`)
	co := w.start(nil)
	m := w.add("n1")
	w.must(m, node.Manage)
	w.untilState(m, node.Manageable)
	step := 1
	if raceOn {
		step = 5
	}
	for k := 1; ; k += step {
		if _, err := w.store.UpdateNode(t.Context(), m.id, func(n *node.Node) error {
			n.Extra, n.Properties, n.InspectionFinishedAt = nil, nil, time.Time{}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		co.crash.arm(k, k%2 == 0)
		asked := w.ask(m, node.Inspect)
		if asked == nil {
			for w.node(m).Job != nil && !co.isDead() {
				time.Sleep(time.Millisecond)
			}
		}
		died := co.crash.reached()
		if died {
			<-co.ended
			co = w.start(nil)
			// the request itself was lost: the client asks again
			if n := w.node(m); n.Job == nil && n.InspectionFinishedAt.IsZero() {
				w.must(m, node.Inspect)
			}
		}
		n := w.until(m, "the end of the inspection", func(n *node.Node) bool {
			return n.Job == nil && n.Provision == node.Manageable && !n.InspectionFinishedAt.IsZero()
		})
		ports := w.ports(m)
		if got := fmt.Sprint(n.Extra["times"]); got != "[4]" || n.Properties["cpus"] != 4.0 || len(ports) != 2 ||
			ports[1].Extra["rule"] != "applied" {
			t.Fatalf("death at write %d: extra %v, properties %v, %d ports", k, n.Extra, n.Properties, len(ports))
		}
		for _, p := range ports {
			if err := w.store.DeletePort(t.Context(), p.UUID); err != nil {
				t.Fatal(err)
			}
		}
		if !died {
			if k < 5 {
				t.Errorf("only %d writes: the count is wrong", k)
			}
			return
		}
		co.crash.arm(0, false)
	}
}

// TestRulesCallOut: requests of rules are made, again when the server is busy; one that fails fails the inspection
// without its secrets.
func TestRulesCallOut(t *testing.T) {
	var asked atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if n := asked.Add(1); r.URL.Path == "/n1" && r.Header.Get("X-Token") == "t" && n == 1 {
			rw.WriteHeader(http.StatusServiceUnavailable)
		} else if r.URL.Path != "/n1" {
			rw.WriteHeader(http.StatusNotFound)
		}
	}))
	defer srv.Close()
	w := newWorld(t)
	w.cfg.Guard = dial.New([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")})
	w.rules(`[{actions: [{op: api-call, args: {url: "` + srv.URL +
		`/{node.name}?key=hush", headers: {X-Token: t}, backoff_factor: 0}}, {op: set-attribute, args: {path: extra/called, value: "yes"}}]}]`)
	w.start(nil)
	m := w.add("n1")
	w.must(m, node.Manage)
	w.untilState(m, node.Manageable)
	w.must(m, node.Inspect)
	n := w.until(m, "the end of the inspection", func(n *node.Node) bool {
		return n.Job == nil && n.Provision != node.Manageable || !n.InspectionFinishedAt.IsZero()
	})
	if n.Extra["called"] != "yes" || asked.Load() != 2 {
		t.Errorf("extra %v after %d requests: %s", n.Extra, asked.Load(), n.LastError)
	}
	other := w.add("n2")
	w.must(other, node.Manage)
	w.untilState(other, node.Manageable)
	w.must(other, node.Inspect)
	if n := w.untilState(other, node.InspectFailed); !strings.Contains(n.LastError, "action 1 (api-call): request to "+
		srv.URL+"/n2: 404") || strings.Contains(n.LastError, "hush") {
		t.Errorf("last error %q", n.LastError)
	}
}
