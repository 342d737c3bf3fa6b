package store

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pressly/goose/v3"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store/prepared"
)

// earlier makes a database with the schema of an earlier version and these rows.
func earlier(t *testing.T, dir string, version int64, rows ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", dsn(filepath.Join(dir, DatabaseFile), true))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	sub, err := fs.Sub(migrations, "migrations")
	if err != nil {
		t.Fatal(err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, sub)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.UpTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
	for _, q := range rows {
		if _, err := db.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
}

// earlierNode is the statement for a node of an earlier version.
func earlierNode(uuid, name, instance string) string {
	return `INSERT INTO nodes (uuid, version, name, instance_uuid, instance_name, driver, provision_state, target_provision_state, provision_updated_at, power_state,
		target_power_state, reservation, maintenance, fault, retired, protected, resource_class, conductor_group, conductor, owner, lessee, shard, parent_node, chassis_uuid,
		description, busy, created_at, updated_at, doc, sealed)
		VALUES ('` + uuid + `', 1, '` + name + `', ` + instance + `, '', '', 'enroll', '', 0, '', '', '', 0, '', 0, 0, '', '', '', 'me', '', '', '', '', '', 0, 0, 0, '{}', x'00')`
}

// Tables that are made anew keep their rows, what refers to them, their order and what they promise.
func TestTablesMadeAnew(t *testing.T) {
	const a, b = "7cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1c", "0cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1d"
	dir, ctx := t.TempDir(), t.Context()
	earlier(t, dir, 3, earlierNode(a, "a", "'i1'"), earlierNode(b, "b", "NULL"),
		`INSERT INTO ports (uuid, node_uuid, address, pxe_enabled, physical_network, portgroup_uuid, created_at, updated_at, doc) VALUES ('p1', '`+a+`', '52:54:00:00:00:01', 1, '', '', 0, 0, '{}')`,
		`INSERT INTO marks (node_uuid, job_id, name, at, detail) VALUES ('`+a+`', 'j', 'm', 1, '')`,
		`INSERT INTO config_drives (node_uuid, sealed) VALUES ('`+a+`', x'00')`,
		`INSERT INTO node_guids (guid, node_uuid) VALUES ('g', '`+a+`')`,
		`INSERT INTO inventories (node_uuid, at, doc) VALUES ('`+a+`', 1, '{}')`,
		`INSERT INTO resources (kind, uuid, node_uuid, created_at, updated_at, doc) VALUES ('portgroup', 'r1', '`+a+
			`', 0, 0, '{}')`,
		`INSERT INTO history (uuid, node_uuid, node_name, at, type, severity, event, conductor, user_name, project, owner, lessee, gone)
			VALUES ('h1', '`+a+`', 'a', 5, 'power', 'INFO', 'power on requested', 'c', 'ann', '', 'me', '', 0)`)
	s := openTemp(t, dir)
	if ids, err := s.UUIDs(ctx, false); err != nil || !slices.Equal(ids, []string{a, b}) {
		t.Errorf("nodes = %v, %v", ids, err)
	}
	tables := []string{"ports", "marks", "config_drives", "node_guids", "inventories", "resources"}
	count := func(table string) (n int) {
		t.Helper()
		if err := s.r.QueryRow(`SELECT COUNT(*) FROM ` + table + ` WHERE node_uuid = '` + a + `'`).Scan(
			&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, table := range append(tables, "history") {
		if n := count(table); n != 1 {
			t.Errorf("%s has %d rows of the node, want 1", table, n)
		}
	}
	if _, err := s.w.Exec(`UPDATE nodes SET instance_uuid = 'i1' WHERE uuid = ?`, b); err == nil {
		t.Error("two nodes could have one instance")
	}
	if _, err := s.w.Exec(
		`INSERT INTO marks (node_uuid, job_id, name, at, detail) VALUES ('unknown', '', '', 0, '')`); err == nil {
		t.Error("a mark of a node that is not there was taken")
	}
	if err := s.DeleteNode(ctx, a); err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		if n := count(table); n != 0 {
			t.Errorf("%s has %d rows of a node that was deleted", table, n)
		}
	}
	if l, err := s.Log(ctx, node.LogQuery{Limit: 10}); err != nil || len(l) != 1 || !l[0].Gone {
		t.Errorf("log = %+v, %v", l, err)
	}
}

// No write and no lookup of a few rows reads a whole table of nodes, ports or history: the statements are those that
// were prepared for a walk through them, and the database says how it would run them.
func TestLookupsUseIndexes(t *testing.T) {
	s, ctx := openTemp(t, t.TempDir()), t.Context()
	s.r.SetMaxOpenConns(1) // all statements in one place
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ch := &node.Chassis{}
	must(s.Chassis().Create(ctx, ch))
	parent := &node.Node{Driver: "x", Name: "parent", ChassisUUID: ch.UUID, SystemGUIDs: []string{"g"}}
	must(s.CreateNode(ctx, parent))
	child := &node.Node{Driver: "x", ParentNode: parent.UUID}
	must(s.CreateNode(ctx, child))
	g := &node.Portgroup{Head: node.Head{NodeUUID: parent.UUID}}
	must(s.Portgroups().Create(ctx, g))
	must(s.CreatePort(ctx,
		&node.Port{NodeUUID: parent.UUID, Address: "52:54:00:00:00:01", PortgroupUUID: g.UUID, PXEEnabled: true}))
	_, err := s.UpdatePortgroup(ctx, g.UUID, func(g *node.Portgroup) error { g.PhysicalNetwork = "p"; return nil })
	must(err)
	for _, change := range []func(*node.Node){
		func(n *node.Node) { n.Name = "other" },
		func(n *node.Node) { n.InstanceUUID = "7cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1c" },
	} {
		_, err := s.Change(ctx, parent.UUID, func(n *node.Node, effects *node.SideEffects) error {
			change(n)
			effects.History = []node.HistoryEntry{{Event: "x"}}
			effects.Marks = []node.Mark{{Name: "m"}}
			return nil
		})
		must(err)
	}
	if err := s.DeleteNode(ctx, parent.UUID); err == nil {
		t.Error("a parent was deleted")
	}
	if err := s.Chassis().Delete(ctx, ch.UUID); err == nil {
		t.Error("a chassis with a node was deleted")
	}
	if err := s.Portgroups().Delete(ctx, g.UUID); err == nil {
		t.Error("a port group with a port was deleted")
	}
	must(s.DeleteNode(ctx, child.UUID))

	state := node.Enroll
	for _, q := range []Query{
		{ParentNode: &parent.UUID}, {ChassisUUID: &ch.UUID}, {Name: &parent.Name}, {InstanceUUID: &parent.UUID},
		{Provision: &state}, {ParentNode: &parent.UUID, Limit: 10},
	} {
		_, err := s.Nodes(ctx, q)
		must(err)
	}
	if _, err := s.Node(ctx, "other"); err != nil {
		t.Error(err)
	}
	_, err = s.NodeByGUID(ctx, "g")
	must(err)
	_, err = s.Ports(ctx, PortQuery{PortgroupUUID: &g.UUID})
	must(err)
	_, err = s.History(ctx, parent.UUID, 10)
	must(err)

	seen := 0
	for _, db := range []*sql.DB{s.w, s.r} {
		for _, query := range statements(t, db) {
			plan, err := plan(ctx, db, query)
			if err != nil {
				t.Fatalf("%s: %v", query, err)
			}
			seen++
			for _, step := range plan {
				if f := strings.Fields(step); f[0] == "SCAN" &&
					slices.Contains([]string{"nodes", "n", "ports", "p", "history", "marks"}, f[1]) {
					t.Errorf("%s reads a whole table:\n%s", query, strings.Join(plan, "\n"))
				}
			}
		}
	}
	if seen < 30 {
		t.Errorf("%d statements were looked at, which can't be all of them", seen)
	}
}

// statements are those that a database's connection has kept.
func statements(t *testing.T, db *sql.DB) (all []string) {
	t.Helper()
	c, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	err = c.Raw(func(c any) error {
		p, ok := c.(*prepared.Conn)
		if !ok {
			return fmt.Errorf("a connection is %T", c)
		}
		for _, query := range p.Statements() {
			if strings.HasPrefix(query, "SELECT") || strings.HasPrefix(query, "UPDATE") ||
				strings.HasPrefix(query, "DELETE") {
				all = append(all, query)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// plan is how the database would run a statement.
func plan(ctx context.Context, db queryer, query string) ([]string, error) {
	args := make([]any, strings.Count(query, "?"))
	for i := range args {
		args[i] = 1
	}
	return list(ctx, db, "explain", into(func(detail *string) []any {
		return []any{new(int), new(int), new(int), detail}
	}), "EXPLAIN QUERY PLAN "+query, args...)
}
