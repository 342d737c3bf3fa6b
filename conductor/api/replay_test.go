package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/schedule/alloc"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/storetest"
)

// pair is a request and the answer that Ironic 21.4 gave, as it was recorded.
type pair struct {
	ID  string
	Req struct {
		Method, Path string
		Version      *string
		Body         json.RawMessage
		Headers      map[string]string
	}
	Resp struct {
		Status  int
		Headers map[string]string
		Body    any
	}
	Note string // "not recorded: ..." is a request in between that the next ones need
}

func (p pair) recorded() bool { return !strings.HasPrefix(p.Note, "not recorded") }

// recordings is how many pairs were recorded: none may get lost.
const recordings = 551

// differs names the recorded answers that this server gives otherwise on purpose: with which status, and why.
var differs = map[string]struct {
	status int
	why    string
}{
	"nodes-crud-036":       {405, "the header Allow names the methods that there are, and PUT is none of them"},
	"microversion-021":     {200, "the header of all of OpenStack is understood, as by newer Ironic"},
	"microversion-022":     {200, "the header of all of OpenStack is understood, as by newer Ironic"},
	"microversion-023":     {200, "the header of all of OpenStack is understood, as by newer Ironic"},
	"agent-015":            {200, "an issued token is never shown again, in any version"},
	"agent-025":            {400, "a stock agent is not driven here; the answer says so"},
	"agent-026":            {200, "a stock agent is not called, so nothing is said of it"},
	"agent-027":            {200, "the history holds other events"},
	"agent-028":            {200, "the history holds other events"},
	"agent-029":            {200, "the history holds other events"},
	"power-management-028": {404, "Ironic has a fault here: the name of an indicator is one word"},
	"power-management-029": {404, "Ironic has a fault here: the name of an indicator is one word"},
	"nodes-crud-004":       {201, "the agent inspects; the recording server had ironic-inspector for that"},
	"nodes-crud-054":       {200, "the agent inspects; the recording server had ironic-inspector for that"},
	"provision-067":        {200, "retired is false again, not null"},
	"nodes-crud-021":       {400, "a body that is not JSON is the client's fault, not the server's"},
	"nodes-crud-024":       {405, "the address of a node takes no POST"},
	"nodes-crud-053":       {200, "only interfaces that were chosen are kept, so defaults follow the driver"},
	"nodes-list-018":       {400, "a field that does not exist is the client's fault"},
	"chassis-015":          {200, "Ironic has a fault here: a list of nodes can show chassis_uuid"},
	"ports-043":            {200, "Ironic has a fault here: a node's ports are listed"},
	"ports-044":            {200, "Ironic has a fault here: a node's port groups are listed"},
	"ports-023": {
		406, "a field that is newer than the version is not acceptable; the recording server did not know it at all"},
	"ports-045":              {200, "Ironic has a fault here: the port group is found by its name as elsewhere"},
	"volumes-004":            {200, "Ironic has a fault here: the node is found by its name as elsewhere"},
	"power-management-052":   {404, "the record is named by UUID, not by a number of the database"},
	"power-management-053":   {404, "an endpoint that is newer than the version is not found"},
	"power-management-054":   {404, "an endpoint that is newer than the version is not found"},
	"provision-068":          {200, "the history holds other events"},
	"provision-069":          {200, "the history holds other events"},
	"vifs-traits-017":        {400, "the node is named by UUID, not by a number of the database"},
	"drivers-conductors-012": {200, "what driver_info may hold is this server's"},
	"drivers-conductors-013": {200, "what driver_info may hold is this server's"},
	"root-012":               {405, "the body has the shape that 405 has everywhere else"},
}

// later is a time at which a fixture had changed since it was made.
var later = time.Now().Add(time.Hour)

// fixtures are the nodes that were there before a recording, beside those it makes itself.
var fixtures = map[string][]node.Node{
	"microversion": {{UUID: "0d9ba6d6-c29a-4f8e-a4b9-a2598bca9ae8", Name: "mv-node", ResourceClass: "mv"}},
	"volumes":      {{UUID: "29810f0f-7166-491a-aca9-24955c39181b", Name: "vol", Provision: node.Available}},
	"nodes-crud":   {{UUID: "a6cf53c1-b99b-44c2-99c3-1b51bd74fc3f", Name: "to-delete"}},
	"nodes-list": {
		{UUID: "1227658d-f75e-4edd-9eda-efd75df3a399", Name: "n1", ResourceClass: "rc1",
			DriverInfo: map[string]any{"ipmi_address": "192.0.2.1", "ipmi_username": "admin", "ipmi_password": "secret",
				"ipmi_port": "623"},
			Extra: map[string]any{"rack": "r1"}, Properties: map[string]any{"cpus": 2},
			NetworkData: map[string]any{"links": []any{}, "networks": []any{}, "services": []any{}}},
		{UUID: "23cbc610-81ad-4ae3-aa57-f17b80ee58ae", Provision: node.Available},
		{UUID: "101355cf-f2ed-41c6-93b6-e8e415fea7d6", Driver: "ipmi"},
		{UUID: "376f0128-2ab3-41ab-8836-ef06749794f0", InstanceUUID: "06710a5d-ae1a-4fd5-8574-48264a9dbe48"},
		{UUID: "355279dc-3b6f-4724-8677-141de4448cc5", Name: "list-0", Description: "node number 0"},
		{UUID: "dc0b4eab-aa0d-47f8-ada9-2514bea8555b", Name: "list-1", Description: "node number 1",
			ResourceClass: "lst", Owner: "own1"},
		{UUID: "909206a9-1c3d-4bc1-bf34-166d34ee38c6", Name: "list-2", Description: "node number 2"},
		{UUID: "4849174f-e38a-446e-8c12-1276b56bdbd5", Name: "list-3", Description: "node number 3",
			ResourceClass: "lst", Owner: "own1"},
		{UUID: "90011856-288e-4f33-b842-c90e373c8d4e", Name: "list-4", Description: "node number 4"},
	},
	"ports": {
		{UUID: "6ea466e7-6e6a-4ef5-8506-4d8e700f6b02", Name: "pm", Provision: node.Available,
			ProvisionUpdatedAt: later}},
	"power-management": {
		{UUID: "6ea466e7-6e6a-4ef5-8506-4d8e700f6b02", Name: "pm", Provision: node.Available,
			ProvisionUpdatedAt: later}},
	"vifs-traits": {
		{UUID: "6ea466e7-6e6a-4ef5-8506-4d8e700f6b02", Name: "pm", Provision: node.Available,
			ProvisionUpdatedAt: later}},
	"provision": {{UUID: "1ef6a2f6-4f76-4e73-9c2f-fbb5eab89770", Name: "prov", ResourceClass: "prov"}},
	"chassis":   {{UUID: "b3a66a87-fe97-4186-b79c-b3eb4b717470", Name: "in-chassis"}},
	"drivers-conductors": append([]node.Node{{UUID: "1227658d-f75e-4edd-9eda-efd75df3a399", Name: "n1"}},
		make([]node.Node, 10)...),
	"locks": {
		{UUID: "6ea466e7-6e6a-4ef5-8506-4d8e700f6b02", Name: "pm", Provision: node.Available, Power: "power off",
			ProvisionUpdatedAt: later}},
	"agent": {
		{UUID: "7cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1c", Name: "hb", ResourceClass: "hb",
			Interfaces: map[string]string{"deploy": "direct"}}},
	"allocations": {
		{UUID: "9ee90027-b882-488d-84b4-f2338612c2c6", Name: "al1", ResourceClass: "alloc",
			Traits: []string{"CUSTOM_FAST"}, Provision: node.Available, Power: "power on"},
		{UUID: "167062b6-ffa0-4591-ae9b-4bd7148c5917", Name: "bf1", ResourceClass: "bf", Provision: node.Active,
			Power: "power on", InstanceUUID: "0a0a0a0a-1111-4222-8333-444444444444"},
	},
}

// before holds the events outside of a recording that preceded one of its requests.
var before = map[string]func(ctx context.Context, r *replay) error{
	"nodes-list-048": func(ctx context.Context, r *replay) error { return r.touch(ctx, "n1") },
	"nodes-list-054": func(ctx context.Context, r *replay) error { return r.touch(ctx, "list-1") },
	"locks-005":      letGo, "locks-007": letGo, "locks-009": letGo,
	"agent-001": func(ctx context.Context, r *replay) error {
		return r.st.CreatePort(ctx,
			&node.Port{NodeUUID: "7cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1c", Address: "52:54:00:aa:00:14"})
	},
	"agent-011": func(ctx context.Context, r *replay) error { return r.changeNode(ctx, "hb", cleaning) },
	// cleaned anew
	"agent-025": func(ctx context.Context, r *replay) error { return r.changeNode(ctx, "hb", lookedUp) },
	"agent-026": func(ctx context.Context, r *replay) error { // which failed
		return r.changeNode(ctx, "hb", func(n *node.Node) { n.Provision, n.Power = node.CleanFailed, "power off" })
	},
	"volumes-022": func(ctx context.Context, r *replay) error {
		_, err := r.st.UpdateNode(ctx, "29810f0f-7166-491a-aca9-24955c39181b", func(n *node.Node) error {
			n.Power = "power off"
			return nil
		})
		return err
	},
	"chassis-014": func(ctx context.Context, r *replay) error {
		_, err := r.st.UpdateNode(ctx, "b3a66a87-fe97-4186-b79c-b3eb4b717470", func(n *node.Node) error {
			n.ChassisUUID = r.ours("8d5e1efb-b2fc-4fe8-b580-45b2ea7a3abc")
			return nil
		})
		return err
	},
	"allocations-031": func(ctx context.Context, r *replay) error { // the allocated node was deployed
		return r.changeNode(ctx, "al1", func(n *node.Node) { n.Provision = node.Active })
	},
	"allocations-033": func(ctx context.Context, r *replay) error { // and torn down
		return r.changeNode(ctx, "al1", func(n *node.Node) { n.Provision, n.InstanceUUID = node.Available, "" })
	},
}

// touch changes a node and changes it back: it was updated since it was made.
func (r *replay) touch(ctx context.Context, name string) error {
	was := ""
	if err := r.changeNode(ctx, name, func(n *node.Node) {
		was, n.Description = n.Description, "touched"
	}); err != nil {
		return err
	}
	return r.changeNode(ctx, name, func(n *node.Node) { n.Description = was })
}

func (r *replay) changeNode(ctx context.Context, name string, change func(*node.Node)) error {
	n, err := r.st.Node(ctx, name)
	if err != nil {
		return err
	}
	_, err = r.st.UpdateNode(ctx, n.UUID, func(n *node.Node) error {
		change(n)
		return nil
	})
	return err
}

func TestRecordedAnswers(t *testing.T) {
	files, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("recordings: %v, %v", files, err)
	}
	same, all := 0, 0
	for _, file := range files {
		topic := strings.TrimSuffix(filepath.Base(file), ".jsonl")
		t.Run(topic, func(t *testing.T) {
			st := openStore(t)
			if err := stored(st, fixtures[topic]...); err != nil {
				t.Fatal(err)
			}
			gate, hw := make(chan struct{}), fakeHardware()
			if topic == "locks" {
				hw = gatedHardware(gate)
			}
			allocate := func(uuid string) { alloc.New(st, nil).Process(t.Context(), uuid) }
			srv := newServer(t, st, instant{st},
				Config{Hostname: "conductor-1", MaxVersion: 82, Allocate: allocate, Hardware: hw}, nil)
			r := &replay{srv: srv, st: st, known: map[string]string{}, gate: gate}
			for _, p := range readPairs(t, file) {
				if t.Run(p.ID, func(t *testing.T) { r.run(t, p) }) && differs[p.ID].status == 0 && p.recorded() {
					same++
				}
				if p.recorded() {
					all++
				}
			}
		})
	}
	share := fmt.Sprintf("%d of %d recorded answers (%.1f %%) are as they were recorded; %d differ on purpose", same,
		all, 100*float64(same)/float64(all), len(differs))
	t.Log(share)
	if len(files) != 15 || all != recordings {
		t.Errorf("%d recordings in %d files were compared, want %d in 15", all, len(files), recordings)
	}
	compatibility(t, share)
}

// compatibility keeps the share and the differences in docs/reference/ironic-differences.md true.
func compatibility(t *testing.T, share string) {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s:\n\n| recording | Ingot answers | because |\n|---|---|---|\n", share)
	for _, id := range slices.Sorted(maps.Keys(differs)) {
		fmt.Fprintf(&b, "| %s | %d | %s |\n", id, differs[id].status, differs[id].why)
	}
	documented(t, "reference/ironic-differences.md", map[string]string{"recordings": b.String() + "\n"})
}

func openStore(t testing.TB) *store.Store {
	t.Helper()
	st, err := store.Open(t.Context(), store.Options{Dir: storetest.Fresh(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

func readPairs(t *testing.T, file string) []pair {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var pairs []pair
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var p pair
		if err := json.Unmarshal(sc.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		pairs = append(pairs, p)
	}
	return pairs
}

// replay sends recorded requests in order. known maps the UUIDs of the recording to those of this server.
type replay struct {
	srv   *watched
	st    *store.Store
	known map[string]string
	gate  chan struct{} // lets a vendor's method of topic "locks" end
}

var uuidText = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// ours puts this server's UUIDs where the recording has its own.
func (r *replay) ours(s string) string {
	for theirs, ours := range r.known {
		if !document.IsUUID(theirs) { // the token of an agent
			s = strings.ReplaceAll(s, theirs, ours)
		}
	}
	return uuidText.ReplaceAllStringFunc(s, func(u string) string {
		if o, ok := r.known[u]; ok {
			return o
		}
		return u
	})
}

func (r *replay) run(t *testing.T, p pair) {
	if do := before[p.ID]; do != nil {
		if err := do(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	body := []byte(r.ours(string(p.Req.Body)))
	var raw struct {
		Raw *string `json:"_raw"`
	}
	if json.Unmarshal(body, &raw) == nil && raw.Raw != nil {
		body = []byte(*raw.Raw)
	}
	req := httptest.NewRequest(p.Req.Method, r.ours(p.Req.Path), bytes.NewReader(body))
	req.Host = "127.0.0.1:6385"
	if p.Req.Version != nil {
		req.Header.Set("X-OpenStack-Ironic-API-Version", *p.Req.Version)
	}
	for k, v := range p.Req.Headers {
		req.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	r.srv.ServeHTTP(w, req)
	resp := w.Result()
	got, _ := io.ReadAll(resp.Body)

	want := p.Resp.Status
	other, differ := differs[p.ID]
	if differ {
		want = other.status
	}
	if resp.StatusCode != want {
		t.Fatalf("%s %s = %d %s, want %d (recorded: %v)", p.Req.Method, p.Req.Path, resp.StatusCode, got, want,
			p.Resp.Body)
	}
	for k, v := range p.Resp.Headers {
		if !differ && k != "location" && resp.Header.Get(k) != v {
			t.Errorf("header %s = %q, want %q", k, resp.Header.Get(k), v)
		}
	}
	var gotBody any
	if len(got) > 0 {
		if err := json.Unmarshal(got, &gotBody); err != nil {
			t.Fatalf("answer %s: %v", got, err)
		}
	}
	if differ {
		if resp.StatusCode == p.Resp.Status && r.compare("", p.Resp.Body, gotBody) == "" && sameHeaders(p, resp) {
			t.Errorf("the answer is as it was recorded: it need not be in differs")
		}
		return
	}
	if diff := r.compare("", p.Resp.Body, gotBody); diff != "" {
		t.Errorf("%s %s: %s", p.Req.Method, p.Req.Path, diff)
	}
	if loc := p.Resp.Headers["location"]; r.ours(loc) != resp.Header.Get("Location") {
		t.Errorf("Location = %q, want %q", resp.Header.Get("Location"), r.ours(loc))
	}
}

// sameHeaders reports whether an answer has the recorded headers.
func sameHeaders(p pair, resp *http.Response) bool {
	for k, v := range p.Resp.Headers {
		if k != "location" && resp.Header.Get(k) != v {
			return false
		}
	}
	return true
}

// notCompared are members whose values are a matter of this server and not of the API's shape.
var notCompared = []string{"driver_internal_info", "reservation"}

// compare returns how got differs from what was recorded, with times, UUIDs of objects made here and paging links put
// aside.
func (r *replay) compare(path string, want, got any) string {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return fmt.Sprintf("%s = %v, want an object", path, got)
		}
		if e, ok := w["error_message"].(string); ok {
			return compareErrors(r.ours(e), g["error_message"])
		}
		for _, k := range uuidFirst(w) {
			v := w[k]
			gv, ok := g[k]
			if !ok {
				return fmt.Sprintf("%s/%s is missing", path, k)
			}
			if slices.Contains(notCompared, k) || k == "description" && path == "" && w["versions"] != nil {
				continue
			}
			if strings.HasPrefix(k, "enabled_") || strings.HasPrefix(k, "default_") &&
				strings.HasSuffix(k, "_interface") {
				continue // which interfaces there are is this server's; that each kind is named is compared
			}
			if diff := r.compare(path+"/"+k, v, gv); diff != "" {
				return diff
			}
		}
		for k := range g {
			if _, ok := w[k]; !ok {
				return fmt.Sprintf("%s/%s = %v should not be there", path, k, g[k])
			}
		}
		return ""
	case []any:
		g, ok := got.([]any)
		if !ok {
			return fmt.Sprintf("%s = %v, want a list", path, got)
		}
		if strings.HasSuffix(path, "/drivers") {
			g = slices.DeleteFunc(slices.Clone(g), isUnrecorded)
		}
		if len(w) != len(g) {
			return fmt.Sprintf("%s has %d items %v, want %d %v", path, len(g), g, len(w), w)
		}
		for i := range w {
			if diff := r.compare(path, w[i], g[i]); diff != "" {
				return fmt.Sprintf("[%d]%s", i, diff)
			}
		}
		return ""
	case string:
		g, ok := got.(string)
		if !ok {
			return fmt.Sprintf("%s = %v, want %q", path, got, w)
		}
		if isTime(w) && isTime(g) {
			return ""
		}
		if strings.HasSuffix(path, "/next") {
			return compareNext(r.ours(w), g)
		}
		if (document.IsUUID(w) && document.IsUUID(g) || strings.HasSuffix(path, "/agent_token") && w != rest.Masked &&
			len(w) == len(g)) && r.known[w] == "" {
			r.known[w] = g
		}
		if g != r.ours(w) && g != strings.ReplaceAll(r.ours(w), "/nodes/prov/", "/nodes/"+r.known["prov"]+"/") {
			return fmt.Sprintf("%s = %q, want %q", path, g, r.ours(w))
		}
		return ""
	}
	if !reflect.DeepEqual(want, got) {
		return fmt.Sprintf("%s = %v, want %v", path, got, want)
	}
	return ""
}

// uuidFirst sorts names so that the UUIDs are learned before what contains them.
func uuidFirst(m map[string]any) []string {
	return slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		if (a == "uuid") != (b == "uuid") {
			return map[bool]int{true: -1, false: 1}[a == "uuid"]
		}
		return strings.Compare(a, b)
	})
}

// isUnrecorded finds the hardware types that the recording server had not enabled.
func isUnrecorded(d any) bool {
	if m, ok := d.(map[string]any); ok {
		d = m["name"]
	}
	return d == "manual-management" || d == "redfish" || d == "idrac" || d == "openstack"
}

func isTime(s string) bool {
	_, err := time.Parse("2006-01-02T15:04:05-07:00", s)
	return err == nil
}

// compareErrors wants the same shape and text. Texts with a dump of Python's schema behind them are compared up to it.
func compareErrors(want string, got any) string {
	text, ok := got.(string)
	if !ok {
		return fmt.Sprintf("error_message = %v, want a string", got)
	}
	for _, name := range []string{"http", "http-ipxe", "redfish-https", "redfish-virtual-media",
		"idrac-redfish-virtual-media", "iscsi"} {
		text = strings.ReplaceAll(text, ", '"+name+"'", "") // not enabled where it was recorded
	}
	text = strings.ReplaceAll(text, "'custom-agent', ", "") // nor this, the first of its kind
	var w, g map[string]any
	if json.Unmarshal([]byte(want), &w) != nil {
		return ""
	}
	if err := json.Unmarshal([]byte(text), &g); err != nil {
		return fmt.Sprintf("error_message %q is not JSON: %v", text, err)
	}
	for k, v := range w {
		gv, ok := g[k]
		if !ok {
			return fmt.Sprintf("error_message has no %s: %s", k, text)
		}
		if s, ok := v.(string); ok {
			s, _, _ = strings.Cut(s, "\n")
			v = s
		}
		if !reflect.DeepEqual(v, gv) {
			return fmt.Sprintf("error %s = %v, want %v", k, gv, v)
		}
	}
	return ""
}

// compareNext wants a link to the same place: arguments that only repeat defaults may be there or not.
func compareNext(want, got string) string {
	w, err1 := url.Parse(want)
	g, err2 := url.Parse(got)
	if err1 != nil || err2 != nil || w.Path != g.Path || w.Host != g.Host {
		return fmt.Sprintf("next = %s, want %s", got, want)
	}
	for _, k := range []string{"limit", "marker"} {
		if w.Query().Get(k) != g.Query().Get(k) {
			return fmt.Sprintf("next = %s, want %s", got, want)
		}
	}
	return ""
}

var _ http.Handler = (*watched)(nil)
