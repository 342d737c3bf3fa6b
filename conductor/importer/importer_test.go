package importer_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/importer"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/storetest"
)

// recorded is an Ironic that holds what a real one was recorded to show, and answers lists of it in the same way.
type recorded struct {
	t      *testing.T
	things map[string][]map[string]any // by collection, in the order they were first shown
	check  func(r *http.Request) bool  // who may call; nil: everybody
	page   int                         // longest page
	newest string                      // version of the API; "": 1.82
}

// collections are where things are listed, and a field by which each kind is known.
var collections = map[string]struct{ member, field string }{
	"/v1/nodes/detail": {"nodes", "driver_internal_info"}, "/v1/ports/detail": {"ports", "pxe_enabled"},
	"/v1/portgroups/detail": {"portgroups", "standalone_ports_supported"},
	"/v1/volume/connectors": {"connectors", "connector_id"}, "/v1/volume/targets": {"targets", "volume_id"},
	"/v1/allocations": {"allocations", "candidate_nodes"}, "/v1/chassis/detail": {"chassis", "nodes"},
	"/v1/deploy_templates": {"deploy_templates", "steps"}, "/v1/inspection_rules": {"inspection_rules", "phase"},
}

// record reads the recordings: the last full look at each thing counts.
func record(t *testing.T) *recorded {
	t.Helper()
	files, err := filepath.Glob("../api/testdata/*.jsonl")
	if err != nil || len(files) < 5 {
		t.Fatalf("recordings: %v, %v", files, err)
	}
	files = append(files, "testdata/shown.jsonl") // some of what the API is not held against
	rec := &recorded{t: t, things: map[string][]map[string]any{}, page: 3}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 16<<20)
		for lines.Scan() {
			var pair struct {
				Req struct {
					Version string `json:"version"`
				} `json:"req"`
				Resp struct {
					Body any `json:"body"`
				} `json:"resp"`
			}
			if err := json.Unmarshal(lines.Bytes(), &pair); err != nil || pair.Req.Version != "1.82" {
				continue
			}
			rec.look(pair.Resp.Body)
		}
		if err := lines.Err(); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	return rec
}

func (rec *recorded) look(v any) {
	switch x := v.(type) {
	case []any:
		for _, item := range x {
			rec.look(item)
		}
	case map[string]any:
		id, _ := x["uuid"].(string)
		for path, c := range collections {
			if _, ok := x[c.field]; !ok || id == "" || path == "/v1/chassis/detail" && x["description"] == nil &&
				x["extra"] == nil {
				continue
			}
			if _, ok := x["reservation"]; ok {
				x["reservation"] = nil // two were looked at while a lock was held; TestWhatIsTaken has that case
			}
			if i := slices.IndexFunc(rec.things[path], func(o map[string]any) bool { return o["uuid"] == id }); i >= 0 {
				rec.things[path][i] = x
			} else {
				rec.things[path] = append(rec.things[path], x)
			}
			return
		}
		for _, inner := range x {
			rec.look(inner)
		}
	}
}

func (rec *recorded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		rec.t.Errorf("the import sent %s %s", r.Method, r.URL)
	}
	if rec.check != nil && !rec.check(r) {
		http.Error(w, `{"error":{"message":"Authorization required","code":401}}`, http.StatusUnauthorized)
		return
	}
	version := rec.newest
	if version == "" {
		version = "1.82"
	}
	w.Header().Set("X-OpenStack-Ironic-API-Maximum-Version", version)
	w.Header().Set("X-OpenStack-Ironic-API-Minimum-Version", "1.1")
	if r.URL.Path == "/v1/" {
		fmt.Fprint(w, `{"id":"v1"}`)
		return
	}
	c, ok := collections[r.URL.Path]
	if strings.HasSuffix(r.URL.Path, "/history") {
		c.member, ok = "history", true
	}
	if v := r.Header.Get("X-OpenStack-Ironic-API-Version"); v != version {
		rec.t.Errorf("%s was asked for in version %q", r.URL, v)
	}
	if !ok {
		http.NotFound(w, r)
		return
	}
	all := rec.things[r.URL.Path]
	if rec.newest != "" && r.URL.Path == "/v1/nodes/detail" && r.URL.Query().Get("include_children") != "true" {
		all = slices.DeleteFunc(slices.Clone(all), func(o map[string]any) bool { return o["parent_node"] != nil })
	}
	if m := r.URL.Query().Get("marker"); m != "" {
		all = all[slices.IndexFunc(all, func(o map[string]any) bool { return o["uuid"] == m })+1:]
	}
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil {
		rec.t.Errorf("%s has no limit", r.URL)
	}
	answer := map[string]any{}
	if n := min(limit, rec.page); len(all) > n {
		all = all[:n]
		answer["next"] = "http://127.0.0.1:1/unreachable?marker=" + all[n-1]["uuid"].(string) // as behind a proxy
	}
	answer[c.member] = append([]map[string]any{}, all...)
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		rec.t.Error(err)
	}
}

func (rec *recorded) serve() string {
	s := httptest.NewServer(rec)
	rec.t.Cleanup(s.Close)
	return s.URL
}

func open(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: storetest.Fresh(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// content is all that a store holds of what imports make.
func content(t *testing.T, s *store.Store) map[string]any {
	t.Helper()
	out := map[string]any{}
	keep := func(what string, v any, err error) {
		if err != nil {
			t.Fatal(err)
		}
		out[what] = v
	}
	nodes, err := s.Nodes(t.Context(), store.Query{})
	keep("nodes", nodes, err)
	ports, err := s.Ports(t.Context(), store.PortQuery{})
	keep("ports", ports, err)
	groups, err := s.Portgroups().List(t.Context(), "")
	keep("groups", groups, err)
	allocations, err := s.Allocations().List(t.Context(), "")
	keep("allocations", allocations, err)
	targets, err := s.VolumeTargets().List(t.Context(), "")
	keep("targets", targets, err)
	return out
}

func TestRecordedIronic(t *testing.T) {
	rec := record(t)
	shown := rec.things["/v1/nodes/detail"]
	if len(shown) < 8 || len(rec.things["/v1/ports/detail"]) == 0 || len(rec.things["/v1/portgroups/detail"]) == 0 ||
		len(rec.things["/v1/allocations"]) == 0 {
		t.Fatalf("the recordings hold %d nodes", len(shown))
	}
	url, st := rec.serve(), open(t)
	rep, err := importer.Run(t.Context(), &importer.API{URL: url}, st, importer.Options{Types: driver.All()})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d nodes: made %v, notes %d, refused %q", len(shown), rep.Made, len(rep.Notes), rep.Refused)
	taken := 0
	for _, o := range shown {
		id := o["uuid"].(string)
		n, err := st.Node(t.Context(), id)
		if err != nil {
			if !slices.ContainsFunc(rep.Refused, func(line string) bool { return strings.Contains(line, id) }) {
				t.Errorf("node %s was neither taken over nor refused", id)
			}
			continue
		}
		taken++
		text := func(s string) any {
			if s == "" {
				return nil
			}
			return s
		}
		got := map[string]any{
			"name": text(n.Name), "driver": n.Driver, "provision_state": string(n.Provision),
			"target_provision_state": text(string(n.TargetProvision)), "power_state": text(n.Power),
			"instance_uuid": text(n.InstanceUUID), "resource_class": text(n.ResourceClass), "owner": text(n.Owner),
			"properties": n.Properties, "extra": n.Extra, "protected": n.Protected, "retired": n.Retired,
			"description": text(n.Description),
		}
		for name, v := range got {
			if o[name] == nil && v == false { // a look at some fields only
				continue
			}
			if d := cmp.Diff(o[name], v); d != "" {
				t.Errorf("node %s: %s differs:\n%s", id, name, d)
			}
		}
		for _, v := range n.DriverInfo {
			if v == "******" {
				t.Errorf("node %s: the mask was taken for a password", id)
			}
		}
	}
	if taken < 7 || rep.Made["nodes"] != taken || rep.Made["ports"] == 0 || rep.Made["port groups"] == 0 ||
		rep.Made["deploy templates"] == 0 {
		t.Errorf("%d nodes were taken over, the report says %v", taken, rep.Made)
	}

	before := content(t, st)
	again, err := importer.Run(t.Context(), &importer.API{URL: url + "/v1"}, st, importer.Options{Types: driver.All()})
	if err != nil {
		t.Fatal(err)
	}
	if len(again.Made) != 0 || len(again.Changed) != 0 || again.Kept["nodes"] != taken {
		t.Errorf("a second run: made %v, changed %v, kept %v", again.Made, again.Changed, again.Kept)
	}
	if d := cmp.Diff(before, content(t, st)); d != "" {
		t.Errorf("a second run changed something:\n%s", d)
	}
}

// small is an Ironic with nodes of all sorts.
func small(t *testing.T) *recorded {
	n := func(i int, more map[string]any) map[string]any {
		o := map[string]any{"uuid": id(i), "name": fmt.Sprint("n", i), "driver": "ipmi", "provision_state": "active",
			"target_provision_state": nil, "power_state": "power on", "reservation": nil, "target_power_state": nil,
			"driver_info":   map[string]any{"ipmi_address": "192.0.2.1", "ipmi_password": "******"},
			"instance_info": map[string]any{"image_source": "http://x", "configdrive": "******"}, "maintenance": false}
		maps.Copy(o, more)
		return o
	}
	return &recorded{t: t, page: 2, things: map[string][]map[string]any{
		"/v1/nodes/detail": {
			n(1, map[string]any{"parent_node": id(2), "boot_interface": "pxe", "console_interface": "ipmitool-socat",
				"console_enabled": true}),
			n(2, nil),
			n(3, map[string]any{"provision_state": "deploying", "target_provision_state": "active"}),
			n(4, map[string]any{"reservation": "conductor-7"}),
			n(5, map[string]any{"driver": "irmc"}),
			n(6, map[string]any{"provision_state": "clean failed", "target_provision_state": "available",
				"maintenance": true, "maintenance_reason": "theirs", "instance_uuid": id(60), "name": nil}),
			n(7, map[string]any{"provision_state": "no such state"}),
			n(8, map[string]any{"name": "n2"}),
		},
		"/v1/ports/detail": {
			{"uuid": id(21), "node_uuid": id(1), "address": "52:54:00:00:00:01", "pxe_enabled": false,
				"portgroup_uuid": id(31), "available_for_dynamic_portgroup": false}, {"uuid": id(23),
				"node_uuid": id(3), "address": "52:54:00:00:00:03"}},
		"/v1/portgroups/detail": {
			{"uuid": id(31), "node_uuid": id(1), "name": "bond0", "mode": "802.3ad", "standalone_ports_supported": true,
				"dynamic_portgroup": true, "internal_info": map[string]any{"tenant_vif_port_id": "vif"}}},
		"/v1/volume/targets": {
			{"uuid": id(41), "node_uuid": id(1), "volume_type": "iscsi", "volume_id": "v", "boot_index": 0,
				"properties": map[string]any{"auth_password": "******", "target_lun": 1}}},
		"/v1/allocations": {
			{"uuid": id(60), "name": "a", "node_uuid": id(6), "state": "active", "resource_class": "x",
				"candidate_nodes": []any{}},
			{"uuid": id(61), "state": "allocating", "resource_class": "x"}},
	}}
}

func id(i int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", i) }

func TestWhatIsTaken(t *testing.T) {
	url, st := small(t).serve(), open(t)
	rep, err := importer.Run(t.Context(), &importer.API{URL: url}, st, importer.Options{Types: driver.All()})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		i   int
		why string
	}{{3, "wait until"}, {4, "locked by conductor-7"}, {5, `hardware type "irmc"`}, {7, "does not know"},
		{8, "already used"}, {61, "still looks"}} {
		if !slices.ContainsFunc(rep.Refused,
			func(l string) bool { return strings.Contains(l, id(c.i)) && strings.Contains(l, c.why) }) {
			t.Errorf("%s is not refused because it %q: %q", id(c.i), c.why, rep.Refused)
		}
	}
	if len(rep.Refused) != 6 {
		t.Errorf("refused: %q", rep.Refused)
	}
	n, err := st.Node(t.Context(), id(1))
	if err != nil {
		t.Fatal(err)
	}
	want := &node.Node{UUID: id(1), Name: "n1", Driver: "ipmi", DriverInfo: map[string]any{"ipmi_address": "192.0.2.1"},
		InstanceInfo: map[string]any{"image_source": "http://x"}, Provision: node.Active, Power: "power on",
		ParentNode: id(2), Maintenance: true, MaintenanceReason: "imported without ipmi_password",
		Interfaces: map[string]string{"boot": "pxe"}, Version: 1, CreatedAt: n.CreatedAt, UpdatedAt: n.UpdatedAt,
		ProvisionUpdatedAt: n.ProvisionUpdatedAt}
	if d := cmp.Diff(want, n); d != "" {
		t.Errorf("node 1:\n%s", d)
	}
	notes := strings.Join(rep.Notes, "\n")
	for _, part := range []string{"no console interface ipmitool-socat", "its console was on",
		"configdrive of instance_info", "does not tell ipmi_password", "does not tell auth_password"} {
		if !strings.Contains(notes, part) {
			t.Errorf("the notes don't say %q:\n%s", part, notes)
		}
	}
	six, err := st.Node(t.Context(), id(6))
	if err != nil || six.Provision != node.CleanFailed || six.TargetProvision != node.Available ||
		six.MaintenanceReason != "theirs" || six.AllocationUUID != id(60) {
		t.Errorf("node 6: %+v, %v", six, err)
	}
	if p, err := st.Port(t.Context(), id(21)); err != nil || p.PXEEnabled || p.PortgroupUUID != id(31) ||
		!p.NoDynamicPortgroup {
		t.Errorf("port: %+v, %v", p, err)
	}
	if g, err := st.Portgroups().Get(t.Context(), id(31)); err != nil || !g.DynamicPortgroup ||
		g.InternalInfo["tenant_vif_port_id"] != "vif" {
		t.Errorf("port group: %+v, %v", g, err)
	}
	if _, err := st.Port(t.Context(), id(23)); err == nil {
		t.Error("the port of a node that was refused was taken over")
	}
}

// TestSecretsComeLater: nodes without their secrets are in maintenance until another run brings them.
func TestSecretsComeLater(t *testing.T) {
	url, st := small(t).serve(), open(t)
	run := func(s importer.Secrets) *importer.Report {
		t.Helper()
		rep, err := importer.Run(t.Context(), &importer.API{URL: url}, st,
			importer.Options{Types: driver.All(), Secrets: s})
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	run(nil)
	rep := run(importer.Secrets{"n1": {"ipmi_password": "one"}, "n2": {"other": "x"}})
	if len(rep.Changed) != 1 || !strings.Contains(rep.Changed[0], id(1)) ||
		strings.Contains(strings.Join(rep.Changed, ""), "one,") {
		t.Errorf("changed: %q", rep.Changed)
	}
	n, err := st.Node(t.Context(), id(1))
	if err != nil || n.DriverInfo["ipmi_password"] != "one" || n.Maintenance || n.MaintenanceReason != "" {
		t.Errorf("node 1 with its secret: %+v, %v", n, err)
	}
	rep = run(importer.Secrets{"*": {"ipmi_password": "all"}})
	if len(rep.Changed) != 1 || !strings.Contains(rep.Changed[0], id(2)) {
		t.Errorf("changed: %q", rep.Changed)
	}
	if n, err := st.Node(t.Context(), id(1)); err != nil || n.DriverInfo["ipmi_password"] != "one" {
		t.Errorf("a secret that is there was replaced: %v, %v", n.DriverInfo, err)
	}
	if rep = run(importer.Secrets{"*": {"ipmi_password": "all"}}); len(rep.Changed) != 0 {
		t.Errorf("and again: %q", rep.Changed)
	}
	// A password goes only where the other Ironic sends it: somebody who edits the node here meanwhile does not get it.
	st = open(t)
	run(nil)
	if _, err := st.Change(t.Context(), id(1), func(n *node.Node, _ *node.SideEffects) error {
		n.DriverInfo["ipmi_address"] = "198.51.100.1"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	rep = run(importer.Secrets{"n1": {"ipmi_password": "one"}})
	if n, err := st.Node(t.Context(), id(1)); err != nil || n.DriverInfo["ipmi_password"] == "one" || !n.Maintenance ||
		!strings.Contains(strings.Join(rep.Notes, ""), "sends it elsewhere") {
		t.Errorf("a password followed a changed address: %v, maintenance %v, notes %q, %v", n.DriverInfo, n.Maintenance,
			rep.Notes, err)
	}

	fresh := open(t)
	if _, err := importer.Run(t.Context(), &importer.API{URL: url}, fresh, importer.Options{Types: driver.All(),
		Secrets: importer.Secrets{"*": {"ipmi_password": "all"}, id(2): {"ipmi_password": "two"}}}); err != nil {
		t.Fatal(err)
	}
	for i, want := range map[int]string{1: "all", 2: "two"} {
		if n, err := fresh.Node(t.Context(), id(i)); err != nil || n.DriverInfo["ipmi_password"] != want ||
			n.Maintenance {
			t.Errorf("node %d with its secret from the start: %+v, %v", i, n, err)
		}
	}
}

func TestWhoAsks(t *testing.T) {
	rec := small(t)
	url := rec.serve()
	for _, c := range []struct {
		name  string
		check func(r *http.Request) bool
		src   importer.API
		want  string
	}{
		{"basic", func(r *http.Request) bool { u, p, ok := r.BasicAuth(); return ok && u == "u" && p == "p" },
			importer.API{URL: url, User: "u", Password: "p"}, ""},
		{"basic in the address", func(r *http.Request) bool {
			u, p, ok := r.BasicAuth()
			return ok && u == "u" && p == "p"
		}, importer.API{URL: strings.Replace(url, "//", "//u:p@", 1)}, ""},
		{"token", func(r *http.Request) bool { return r.Header.Get("X-Auth-Token") == "t" },
			importer.API{URL: url, Token: "t"}, ""},
		{"without login", func(r *http.Request) bool { return false }, importer.API{URL: url}, "OS_TOKEN"},
		{"no API", nil, importer.API{URL: "ironic"}, "not the address"},
		{"nothing there", nil, importer.API{URL: "http://127.0.0.1:1"}, "refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rec.check = c.check
			rep, err := importer.Run(t.Context(), &c.src, open(t), importer.Options{Types: driver.All()})
			switch {
			case c.want == "" && (err != nil || rep.Made["nodes"] != 3):
				t.Errorf("Run = %v, made %v", err, rep.Made)
			case c.want != "" &&
				(err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), ":p@")):
				t.Errorf("Run = %v, want an error with %q", err, c.want)
			}
		})
	}
}

func TestNotIronic(t *testing.T) {
	web := httptest.NewServer(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }))
	defer web.Close()
	if _, err := importer.Run(t.Context(), &importer.API{URL: web.URL}, open(t),
		importer.Options{Types: driver.All()}); err == nil ||
		!strings.Contains(err.Error(), "not a Bare Metal API") {
		t.Errorf("Run on a web page = %v", err)
	}
	loop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-OpenStack-Ironic-API-Maximum-Version", "1.82")
		if strings.HasPrefix(r.URL.Path, "/v1/nodes") {
			fmt.Fprintf(w, `{"nodes":[{"uuid":%q,"provision_state":"enroll","driver":"ipmi"}],"next":"more"}`, id(1))
			return
		}
		if r.URL.Path != "/v1/" {
			http.NotFound(w, r)
		}
	}))
	defer loop.Close()
	if _, err := importer.Run(t.Context(), &importer.API{URL: loop.URL}, open(t),
		importer.Options{Types: driver.All()}); err == nil ||
		!strings.Contains(err.Error(), "circle") {
		t.Errorf("Run on pages without end = %v", err)
	}
}
