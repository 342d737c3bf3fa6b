package moving

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/importer"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/test/compat/bench"
	"github.com/ingot-metal/ingot/test/conformance/ironic"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/mariadb"
	"github.com/ingot-metal/ingot/test/kit/openstack"
)

// What a node of Ironic 21.4 can be seen in: states that it stays in, with what becomes of them on the way back, and
// those of work.
var (
	stays = map[string]string{"enroll": "enroll", "manageable": "manageable", "available": "available",
		"active": "active", "rescue": "active", "rescue failed": "active", "unrescue failed": "active",
		"error": "manageable", "deploy failed": "manageable", "clean failed": "manageable",
		"inspect failed": "manageable", "adopt failed": "manageable"}
	works = strings.Split("verifying,inspecting,inspect wait,adopting,cleaning,clean wait,deploying,wait call-back,"+
		"deleting,rescuing,rescue wait,unrescuing", ",")
)

const nodes = 200

// states of the nodes, by their numbers.
func states() (all []string) {
	for state := range stays {
		all = append(all, state)
	}
	all = append(all, works...)
	slices.Sort(all)
	for i := range nodes - len(all) {
		all = append(all, all[i])
	}
	return all
}

// site is an Ironic with its database.
type site struct {
	t *testing.T
	*ironic.Pair
	db  *sql.DB
	dsn string // as Ironic has it
}

func start(t *testing.T) *site {
	t.Helper()
	dir := short(t)
	ctx := context.WithoutCancel(t.Context()) // its logs are read when the test is over
	pair, err := ironic.Start(ctx, ironic.Options{Dir: dir, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range []string{"ironic-api.log", "ironic-conductor.log"} {
				b, err := os.ReadFile(filepath.Join(dir, name))
				t.Logf("%s ended with (%v):\n%s", name, err, b[max(0, len(b)-4000):])
			}
		}
		if err := pair.Stop(); err != nil {
			t.Error(err)
		}
	})
	s := &site{t: t, Pair: pair, dsn: mariadb.URL(dir, "ironic")}
	s.db = connect(t, dir, "ironic")
	return s
}

func (s *site) sql(text string, args ...any) {
	s.t.Helper()
	if _, err := s.db.ExecContext(s.t.Context(), text, args...); err != nil {
		s.t.Fatalf("%s: %v", text, err)
	}
}

// post creates an object and returns its UUID.
func (s *site) post(path string, body map[string]any) string {
	s.t.Helper()
	status, o := kit.Request(s.t, http.MethodPost, s.Ironic+path, "1.82", body)
	id, _ := o["uuid"].(string)
	if status != http.StatusCreated || id == "" {
		s.t.Fatalf("POST %s: %d, %v", path, status, o)
	}
	return id
}

// fill makes nodes in all states, with what belongs to them: the first by requests, the others as its copies.
func (s *site) fill() {
	s.t.Helper()
	chassis := s.post("/v1/chassis", map[string]any{"description": "a rack", "extra": map[string]any{"row": 1}})
	s.post("/v1/deploy_templates", map[string]any{"name": "CUSTOM_TEMPLATE", "steps": []any{map[string]any{
		"interface": "deploy", "step": "x", "priority": 10, "args": map[string]any{"a": 1}}}})
	id := s.post("/v1/nodes", map[string]any{"driver": "fake-hardware", "name": "node-0", "resource_class": "large",
		"driver_info":  map[string]any{"some_password": "secret-0", "address": "192.0.2.1"},
		"properties":   map[string]any{"cpus": 4, "capabilities": "boot_mode:uefi"},
		"extra":        map[string]any{"i": 0, "text": "ü \" ' $(x)"},
		"chassis_uuid": chassis, "lessee": "lessee", "description": "d'oh"})
	group := s.post("/v1/portgroups", map[string]any{"node_uuid": id, "mode": "802.3ad", "name": "bond-0"})
	for j, of := range []any{nil, group} {
		s.post("/v1/ports", map[string]any{"node_uuid": id, "portgroup_uuid": of, "pxe_enabled": j == 0,
			"address":               fmt.Sprintf("52:54:00:00:00:%02x", j),
			"local_link_connection": map[string]any{"switch_id": "00:00:00:00:00:01", "port_id": "e1"}})
	}
	s.post("/v1/volume/connectors", map[string]any{"node_uuid": id, "type": "iqn", "connector_id": "iqn.0"})
	s.post("/v1/volume/targets", map[string]any{"node_uuid": id, "volume_type": "iscsi", "volume_id": "v",
		"boot_index": 0, "properties": map[string]any{"lun": 7}})
	const first = "(SELECT id FROM nodes WHERE name = 'node-0')"
	for i := 1; i < nodes; i++ {
		of := fmt.Sprintf("node_id = %d", s.copies("nodes", "id = "+first, fmt.Sprintf(`name = 'node-%d',
			driver_info = '{"some_password": "secret-%[1]d", "address": "192.0.2.1"}'`, i)))
		group := s.copies("portgroups", "node_id = "+first, of+fmt.Sprintf(", name = 'bond-%d'", i))
		for j, kind := range []string{"", "NOT "} {
			s.copies("ports", "node_id = "+first+" AND portgroup_id IS "+kind+"NULL", of+fmt.Sprintf(
				`, address = '52:54:00:00:%02x:%02x', portgroup_id = IF(portgroup_id IS NULL, NULL, %d)`, i, j, group))
		}
		s.copies("volume_connectors", "node_id = "+first, of+fmt.Sprintf(", connector_id = 'iqn.%d'", i))
		s.copies("volume_targets", "node_id = "+first, of)
	}
	for i, state := range states() {
		target := any(nil)
		switch {
		case strings.HasPrefix(state, "clean") || state == "deleting" || state == "error":
			target = "available"
		case strings.HasSuffix(state, "ing"), strings.HasSuffix(state, "failed"), strings.HasPrefix(state, "wait"),
			strings.HasSuffix(state, "wait"):
			target = "active"
		}
		// Verbs can't bring a node into all of them and keep it there.
		name := fmt.Sprintf("node-%d", i)
		s.sql(`UPDATE nodes SET provision_state = ?, target_provision_state = ?, power_state = 'power on', owner = ?,
			provision_updated_at = '2023-05-01 09:00:00',
			maintenance = ?, maintenance_reason = ?, automated_clean = ?, instance_info = ? WHERE name = ?`, state,
			target, fmt.Sprintf("owner-%d", i%7), i%11 == 0, map[bool]any{true: "a `reason`"}[i%11 == 0],
			[]any{nil, false, true}[i%3], `{"image_source": "http://192.0.2.1/x", "root_gb": 10}`, name)
		s.sql(`INSERT INTO node_traits (node_id, trait, version)
			SELECT id, 'CUSTOM_TEMPLATE', '1.0' FROM nodes WHERE name = ?`, name)
		s.sql(`INSERT INTO node_history (created_at, version, uuid, event_type, severity, event, node_id)
			SELECT '2023-05-01 10:00:00', '1.0', uuid(), 'provisioning', 'ERROR', 'it happened', id FROM nodes
			WHERE name = ?`, name)
	}
}

// copies adds a copy of a row with some columns set, and returns its number.
func (s *site) copies(table, where, set string) int64 {
	s.t.Helper()
	s.sql("CREATE TEMPORARY TABLE copied AS SELECT * FROM " + table + " WHERE " + where)
	s.sql("UPDATE copied SET id = 0, uuid = uuid(), " + set)
	done, err := s.db.ExecContext(s.t.Context(), "INSERT INTO "+table+" SELECT * FROM copied")
	if err != nil {
		s.t.Fatal(err)
	}
	id, err := done.LastInsertId()
	if err != nil {
		s.t.Fatal(err)
	}
	s.sql("DROP TEMPORARY TABLE copied")
	return id
}

// TestMoving needs INGOT_FULL.
func TestMoving(t *testing.T) {
	if os.Getenv("INGOT_FULL") == "" {
		return
	}
	kit.NeedPrograms(t, "curl", "openstack")
	theirs := start(t)
	theirs.fill()
	stable := 0
	for _, state := range states() {
		if stays[state] != "" {
			stable++
		}
	}
	bin := openstack.Start(t).Install([]string{"OS_AUTH_TYPE=none", "OS_ENDPOINT=" + theirs.Ironic})
	shell := func(commands, dir string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", commands)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", commands, err, out[max(0, len(out)-4000):])
		}
		return string(out)
	}
	_, lists, _ := strings.Cut(sqlFile(t, howto), "with Ironic before the move, and with Ingot after it:\n\n```sh\n")
	lists, _, _ = strings.Cut(lists, "```")
	out := shell(lists, t.TempDir())
	busy := 0
	for line := range strings.Lines(out) {
		if slices.Contains(works, strings.TrimSpace(line)) {
			busy++
		}
	}
	if busy != nodes-stable || strings.Count(out, "| node-") != nodes ||
		strings.Contains(out, "nothing is being worked on") {
		t.Errorf("the how-to's lists have %d nodes that are being worked on, want %d:\n%s", busy, nodes-stable, out)
	}

	// A lock is work, too: that of the first node that is active.
	locked := fmt.Sprintf("node-%d", slices.Index(states(), "active"))
	theirs.sql(`UPDATE nodes SET reservation = 'conductor-7' WHERE name = ?`, locked)
	a, b := open(t), open(t)
	secrets := importer.Secrets{}
	for i := range nodes {
		secrets[fmt.Sprintf("node-%d", i)] = map[string]any{"some_password": fmt.Sprintf("secret-%d", i)}
	}
	api, database := &importer.API{URL: theirs.Ironic}, &importer.Database{URL: theirs.dsn}
	for name, rep := range map[string]*importer.Report{"API": run(t, api, a, secrets),
		"database": run(t, database, b, nil)} {
		free := stable - 1
		want := map[string]int{"chassis": 1, "deploy templates": 1, "nodes": free, "ports": 2 * free,
			"port groups": free, "volume connectors": free, "volume targets": free, "lines of history": free}
		if d := cmp.Diff(want, rep.Made); d != "" {
			t.Errorf("by %s (-want +got):\n%s\nnotes %q", name, d, rep.Notes)
		}
		left := strings.Join(rep.Refused, "\n")
		for i, state := range states() {
			busy := fmt.Sprintf("(node-%d): it is in state %q: wait until that is over", i, state)
			if stays[state] == "" && !strings.Contains(left, busy) {
				t.Errorf("by %s: node-%d, which is %s, is not left for later:\n%s", name, i, state, left)
			}
		}
		if len(rep.Refused) != nodes-free || !strings.Contains(left, "("+locked+"): it is locked by conductor-7: wait until") {
			t.Errorf("by %s, %d are left for later:\n%s", name, len(rep.Refused), left)
		}
	}
	if d := cmp.Diff(content(t, a), content(t, b), imports); d != "" {
		t.Errorf("the API and the database give different nodes (-API +database):\n%s", d)
	}

	// The work is over, so another run takes the node; and once more there is nothing to do.
	theirs.sql(`UPDATE nodes SET reservation = NULL`)
	for st, src := range map[*store.Store]importer.Source{a: api, b: database} {
		if rep := run(t, src, st, secrets); rep.Made["nodes"] != 1 || rep.Made["ports"] != 2 || len(rep.Changed) > 0 {
			t.Errorf("from %T, when the lock is gone: made %v, changed %q", src, rep.Made, rep.Changed)
		}
		before := content(t, st)
		if rep := run(t, src, st, secrets); len(rep.Made)+len(rep.Changed) > 0 {
			t.Errorf("from %T, another run: made %v, changed %q", src, rep.Made, rep.Changed)
		}
		if d := cmp.Diff(before, content(t, st)); d != "" {
			t.Errorf("from %T, another run changed something:\n%s", src, d)
		}
	}

	// And back, into an Ironic that has nothing.
	ours := bench.Start(t, nil)
	run(t, database, ours.Store, nil)
	dir := t.TempDir()
	back := filepath.Join(dir, "back")
	var yaml strings.Builder
	for name, s := range secrets {
		fmt.Fprintf(&yaml, "%s: {some_password: %v}\n", name, s["some_password"])
	}
	file := filepath.Join(dir, "secrets.yaml")
	if err := os.WriteFile(file, []byte(yaml.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(back, 0o700); err != nil {
		t.Fatal(err)
	}
	exported, err := exec.CommandContext(t.Context(), made.Program(t, "ingot"), "export", "ironic", "--dir", back,
		"--secrets", file, "--endpoint", ours.URL, "--api-version", "1.78").CombinedOutput()
	if err != nil || !strings.Contains(string(exported), fmt.Sprint(stable, " nodes are in")) {
		t.Fatalf("export: %v\n%s", err, exported)
	}
	if err := theirs.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	shell(openstack.Commands(t, howto), dir)
	c := open(t)
	if rep := run(t, database, c, nil); rep.Made["nodes"] != stable {
		t.Errorf("after the way back: %v, %q", rep.Made, rep.Refused)
	}
	if d := cmp.Diff(returned(t, a, stays), returned(t, c, nil)); d != "" {
		t.Errorf("after the way back (-before +after):\n%s", d)
	}
}

// returned has all of nodes that the way back keeps. Their states become others, if such are given.
func returned(t *testing.T, st *store.Store, become map[string]string) map[string]any {
	t.Helper()
	all, err := st.Nodes(t.Context(), store.Query{})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	for _, n := range all {
		ports, err := st.Ports(t.Context(), store.PortQuery{NodeUUID: &n.UUID})
		if err != nil {
			t.Fatal(err)
		}
		addresses := map[string]bool{}
		for _, p := range ports {
			addresses[p.UUID+" "+p.Address] = p.PortgroupUUID != ""
		}
		state := string(n.Provision)
		if become != nil {
			state = become[state]
		}
		delete(n.InstanceInfo, "image_type") // Ironic adds it to a node that it adopts
		cleans := n.AutomatedClean == nil || *n.AutomatedClean
		out[n.UUID] = []any{n.Name, state, n.DriverInfo, n.Properties, n.Extra, n.Owner, n.Lessee,
			n.Description, n.ResourceClass, n.ChassisUUID, n.Traits, n.InstanceInfo, n.Maintenance,
			n.MaintenanceReason, cleans, addresses}
	}
	return out
}
