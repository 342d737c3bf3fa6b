package importer

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/ingot-metal/ingot/conductor/guard/redact"
)

// Database is Ironic's own database. It is read in one transaction that can't write, so that the import sees one moment
// and leaves no trace. It has the secrets that the API masks.
type Database struct {
	URL string // as in Ironic's configuration: mysql+pymysql://user:password@host/ironic, postgresql://...

	db     *sql.DB
	tx     *sql.Tx
	tables map[string][]map[string]any // those that were read
	have   map[string]bool             // those that there are
	uuids  map[string]map[string]string
}

// IsDatabase reports whether an address is that of a database.
func IsDatabase(address string) bool {
	scheme, _, _ := strings.Cut(address, "://")
	kind, _, _ := strings.Cut(scheme, "+")
	return slices.Contains([]string{"mysql", "mariadb", "postgresql", "postgres"}, kind)
}

// revisions are those of Ironic's schema that are understood here, oldest first, from Ussuri's (2020) to that of August
// 2026: what is read from them is called the same and means the same in all.
var revisions = strings.Fields(`
	ce6c4b3cf5a2 cd2c80feb331 b2ad35726bb0 cf1a80fdb352 c0455649680c ac00b586ab95 2bbd96b6ccb9 c1846a214450 9ef41f07cb58
	0ac0f39bc5aa 4dbec778866e fe222f476baf 163040c5513f d163df1bab88 aa2384fee727 01f21d5e5195 66bd9c5604d5 6e9cf6acce0b
	21c48150dea9 1c14278d6e33 e4827561979d 3ef27505c9fb d0821744f9e2 763b2f62d215 15e9d00367b0 9f8c7d6e5b4a 9c0446cb6bc3
	c1fd28861bb9 2a3b4c5d6e7f e2d316b60d9e 16990309ad9d 772c0e7e8299 9fb44677ef15`)

// jsonColumns hold JSON as text.
var jsonColumns = strings.Fields(`driver_info properties extra instance_info raid_config target_raid_config network_data
	driver_internal_info clean_step deploy_step service_step local_link_connection internal_info candidate_nodes traits args conditions actions`)

// databaseTimeout bounds the login, and the wait for each answer.
const databaseTimeout = 2 * time.Minute

func (d *Database) open(ctx context.Context) (about string, err error) {
	if d.db, err = connect(d.URL); err != nil {
		return "", err
	}
	wrong := func(what string, err error) (string, error) {
		return "", errors.Join(fmt.Errorf("%s Ironic's database: %w", what, err), d.close())
	}
	// No transaction of the session can write. MySQL and MariaDB have this statement in common, and no variable.
	readOnly := "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"
	if d.isMySQL() {
		readOnly = "SET SESSION TRANSACTION READ ONLY"
	}
	if _, err := d.db.ExecContext(ctx, readOnly); err != nil {
		return wrong("log in to", err)
	}
	if d.tx, err = d.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}); err != nil {
		return wrong("log in to", err)
	}
	names, err := query(ctx, d.tx, `SELECT table_name AS name FROM information_schema.tables WHERE table_schema IN
		(SELECT table_schema FROM information_schema.tables WHERE table_name = 'alembic_version')`)
	if err != nil {
		return wrong("list the tables of", err)
	}
	d.have, d.tables, d.uuids = map[string]bool{}, map[string][]map[string]any{}, map[string]map[string]string{}
	for _, row := range names {
		d.have[fmt.Sprint(row["name"])] = true
	}
	if !d.have["alembic_version"] || !d.have["nodes"] || !d.have["node_traits"] {
		return wrong("read", errors.New(
			"it is none: it has no tables alembic_version, nodes and node_traits that this user may read"))
	}
	at, err := query(ctx, d.tx, `SELECT version_num FROM alembic_version`)
	if err != nil || len(at) != 1 {
		return wrong("read the version of", fmt.Errorf("%d versions, %w", len(at), err))
	}
	revision := fmt.Sprint(at[0]["version_num"])
	if !slices.Contains(revisions, revision) {
		return wrong("read", fmt.Errorf("its schema has version %q, which is not one of those that Ironic 15 (2020) to that of August 2026 have. Import through Ironic's API instead, with a file of secrets", redact.Text(revision)))
	}
	return "schema version " + revision, nil
}

func (d *Database) close() (err error) {
	if d.tx != nil {
		err = d.tx.Rollback()
	}
	if d.db != nil {
		err = errors.Join(err, d.db.Close())
	}
	return err
}

func (d *Database) isMySQL() bool {
	_, is := d.db.Driver().(*mysql.MySQLDriver)
	return is
}

func (d *Database) name() string { return redact.URL(d.URL) }

// connect takes an address as SQLAlchemy has it.
func connect(address string) (*sql.DB, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("the address of Ironic's database can't be read: special characters of a password are written as %XX, such as mysql+pymysql://ironic:p%40ss@db.example.org/ironic")
	}
	kind, _, _ := strings.Cut(u.Scheme, "+")
	if kind == "postgresql" || kind == "postgres" {
		u.Scheme = "postgres"
		db, err := sql.Open("pgx", u.String())
		if err != nil {
			return nil, errors.New("the address of Ironic's database can't be read as PostgreSQL's")
		}
		db.SetMaxOpenConns(1)
		return db, nil
	}
	q := u.Query()
	c := mysql.NewConfig()
	c.User, c.DBName, c.ParseTime = u.User.Username(), strings.TrimPrefix(u.Path, "/"), true
	c.Passwd, _ = u.User.Password()
	if c.Passwd == "" {
		c.Passwd = os.Getenv("MYSQL_PWD")
	}
	c.Timeout, c.ReadTimeout, c.WriteTimeout = databaseTimeout, databaseTimeout, databaseTimeout
	c.Logger = log.New(io.Discard, "", 0) // what it says is in its errors
	c.Net, c.Addr = "tcp", net.JoinHostPort(u.Hostname(), "3306")
	if u.Port() != "" {
		c.Addr = u.Host
	}
	if socket := q.Get("unix_socket"); socket != "" {
		c.Net, c.Addr = "unix", socket
	}
	if file := q.Get("ssl_ca"); file != "" {
		if c.TLS, err = trusting(file); err != nil {
			return nil, err
		}
		c.TLS.ServerName = u.Hostname()
	}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, fmt.Errorf("the address of Ironic's database: %w", err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(1)
	return db, nil
}

// query returns rows as the API would show their values.
func query(ctx context.Context, tx *sql.Tx, text string, args ...any) (out []map[string]any, err error) {
	rows, err := tx.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	types, err := rows.ColumnTypes()
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		values, to := make([]any, len(types)), make([]any, len(types))
		for i := range values {
			to[i] = &values[i]
		}
		if err := rows.Scan(to...); err != nil {
			return nil, err
		}
		row := map[string]any{}
		for i, v := range values {
			name := strings.ToLower(types[i].Name())
			if row[name], err = shown(name, types[i].DatabaseTypeName(), v); err != nil {
				return nil, err
			}
		}
		out = append(out, row)
	}
	return out, rows.Err()
}

// shown is a value of a column as the API shows it.
func shown(column, kind string, v any) (any, error) {
	if b, ok := v.([]byte); ok {
		v = string(b)
	}
	switch x := v.(type) {
	case string:
		if !slices.Contains(jsonColumns, column) {
			return x, nil
		}
		if x == "" {
			return nil, nil
		}
		if !json.Valid([]byte(x)) {
			return nil, fmt.Errorf("column %s is not JSON: %.40q", column, redact.Text(x))
		}
		return json.RawMessage(x), nil
	case int64:
		if kind == "TINYINT" { // MySQL's boolean
			return x != 0, nil
		}
	case time.Time:
		return x.UTC().Format(time.RFC3339Nano), nil
	}
	return v, nil
}

// table reads a table whole, in the order in which its rows were made; nothing if the schema is older.
func (d *Database) table(ctx context.Context, name, order string) ([]map[string]any, error) {
	if rows, ok := d.tables[name]; ok || !d.have[name] {
		return rows, nil
	}
	rows, err := query(ctx, d.tx, "SELECT * FROM "+name+" ORDER BY "+order) //nolint:gosec both are constants
	if err != nil {
		return nil, fmt.Errorf("read table %s of Ironic's database: %w", name, err)
	}
	d.tables[name], d.uuids[name] = rows, map[string]string{}
	for _, row := range rows {
		if id, ok := row["uuid"].(string); ok {
			d.uuids[name][fmt.Sprint(row["id"])] = id
		}
	}
	return rows, nil
}

// part is a table whose rows belong to those of another one, in their order.
type part struct {
	table, owner, order, member string
	value                       string // the column that is the value; empty: the row
}

// collections are the tables that hold what the API lists, with the references that it shows as UUIDs.
var collections = map[string]struct {
	refs map[string][2]string // column: table, field of the API
	part []part
}{
	"chassis": {},
	"nodes": {refs: map[string][2]string{"chassis_id": {"chassis", "chassis_uuid"}},
		part: []part{{"node_traits", "node_id", "trait", "traits", "trait"}}},
	"portgroups": {refs: map[string][2]string{"node_id": {"nodes", "node_uuid"}}},
	"ports": {refs: map[string][2]string{"node_id": {"nodes", "node_uuid"},
		"portgroup_id": {"portgroups", "portgroup_uuid"}}},
	"volume_connectors": {refs: map[string][2]string{"node_id": {"nodes", "node_uuid"}}},
	"volume_targets":    {refs: map[string][2]string{"node_id": {"nodes", "node_uuid"}}},
	"allocations":       {refs: map[string][2]string{"node_id": {"nodes", "node_uuid"}}},
	"deploy_templates":  {part: []part{{"deploy_template_steps", "deploy_template_id", "id", "steps", ""}}},
	"runbooks": {part: []part{{"runbook_steps", "runbook_id", "id", "steps", ""},
		{"runbook_traits", "runbook_id", "trait", "traits", "trait"}}},
	"inspection_rules": {},
}

func (d *Database) list(ctx context.Context, c collection) ([]json.RawMessage, error) {
	name := c.table
	rows, err := d.table(ctx, name, "id")
	if err != nil {
		return nil, err
	}
	for _, p := range collections[name].part {
		parts, err := d.table(ctx, p.table, p.owner+", "+p.order)
		if err != nil {
			return nil, err
		}
		if !d.have[p.table] {
			continue
		}
		of := map[string][]any{}
		for _, row := range parts {
			v := any(row)
			if p.value != "" {
				v = row[p.value]
			}
			owner := fmt.Sprint(row[p.owner])
			of[owner] = append(of[owner], v)
		}
		for _, row := range rows {
			row[p.member] = append([]any{}, of[fmt.Sprint(row["id"])]...)
		}
	}
	out := make([]json.RawMessage, len(rows))
	for i, row := range rows {
		for column, ref := range collections[name].refs {
			if row[column] != nil {
				row[ref[1]] = d.uuids[ref[0]][fmt.Sprint(row[column])]
			}
		}
		if out[i], err = json.Marshal(row); err != nil {
			return nil, fmt.Errorf("read table %s of Ironic's database: %w", name, err)
		}
	}
	return out, nil
}

func (d *Database) history(ctx context.Context, nodeUUID string) ([]json.RawMessage, error) {
	if !d.have["node_history"] {
		return nil, nil
	}
	mark := "$1"
	if d.isMySQL() {
		mark = "?"
	}
	rows, err := query(ctx, d.tx, "SELECT h.* FROM node_history h JOIN nodes n ON n.id = h.node_id WHERE n.uuid = "+
		mark+" ORDER BY h.id", nodeUUID)
	if err != nil {
		return nil, fmt.Errorf("read the history of node %s in Ironic's database: %w", nodeUUID, err)
	}
	out := make([]json.RawMessage, len(rows))
	for i, row := range rows {
		if out[i], err = json.Marshal(row); err != nil {
			return nil, err
		}
	}
	return out, nil
}
