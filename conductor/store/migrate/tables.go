package migrate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// kind is a column's type, whatever either database calls it.
type kind string

const (
	number kind = "a number"
	text   kind = "a text"
	blob   kind = "bytes"
)

// kinds are the types that the two schemas use. Truth is a number in both, and documents are texts.
var kinds = map[string]kind{
	"INTEGER": number, "BIGINT": number, "TEXT": text, "BLOB": blob,
	"integer": number, "bigint": number, "text": text, "bytea": blob,
}

// column is a column of a table. A counted one gets the next number where a new row has none.
type column struct {
	name    string
	kind    kind
	counted bool
}

// table has its columns sorted by their names.
type table struct {
	name    string
	columns []column
}

// What the two databases say of themselves.
const (
	sqliteColumns = `SELECT t.name, c.name, c.type, c.pk = 1 AND t.sql LIKE '%AUTOINCREMENT%'
		FROM sqlite_master t, pragma_table_info(t.name) c
		WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite\_%' ESCAPE '\'`
	serverColumns = `SELECT t.table_name, c.column_name, c.data_type, c.is_identity = 'YES'
		FROM information_schema.tables t
		JOIN information_schema.columns c ON c.table_schema = t.table_schema AND c.table_name = t.table_name
		WHERE t.table_schema = current_schema() AND t.table_type = 'BASE TABLE'`
	serverReferences = `SELECT f.relname, t.relname FROM pg_constraint c
		JOIN pg_class f ON f.oid = c.conrelid JOIN pg_class t ON t.oid = c.confrelid
		WHERE c.contype = 'f' AND c.connamespace = current_schema()::regnamespace`
)

// all returns all tables of the database, sorted by their names.
func (s *side) all(ctx context.Context) ([]table, error) {
	query := sqliteColumns
	if s.server != nil {
		query = serverColumns
	}
	found := map[string]*table{}
	err := s.list(ctx, query, func(scan func(...any) error) error {
		var name, kindOf string
		var c column
		if err := scan(&name, &c.name, &kindOf, &c.counted); err != nil {
			return err
		}
		if found[name] == nil {
			found[name] = &table{name: name}
		}
		c.kind = cmp.Or(kinds[kindOf], kind("type "+kindOf))
		found[name].columns = append(found[name].columns, c)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the tables of %s: %w", s.name, err)
	}
	var out []table
	for _, t := range found {
		slices.SortFunc(t.columns, func(a, b column) int { return cmp.Compare(a.name, b.name) })
		out = append(out, *t)
	}
	slices.SortFunc(out, func(a, b table) int { return cmp.Compare(a.name, b.name) })
	return out, nil
}

// list calls f for each row that a query finds.
func (s *side) list(ctx context.Context, query string, f func(scan func(...any) error) error) error {
	rows, err := s.tx.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// tables returns those that are copied.
func (s *side) tables(ctx context.Context) ([]table, error) {
	all, err := s.all(ctx)
	return slices.DeleteFunc(all, func(t table) bool { return slices.Contains(own, t.name) }), err
}

// references says to which tables those of PostgreSQL refer.
func (s *side) references(ctx context.Context) (map[string][]string, error) {
	refs := map[string][]string{}
	err := s.list(ctx, serverReferences, func(scan func(...any) error) error {
		var from, to string
		err := scan(&from, &to)
		refs[from] = append(refs[from], to)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the references of %s: %w", s.name, err)
	}
	return refs, nil
}

// lastNumber is the last number that a table has given a row in this column, though that may have been deleted since.
func (s *side) lastNumber(ctx context.Context, table, column string) (last int64, err error) {
	var highest int64
	if err := s.tx.QueryRowContext(ctx, `SELECT COALESCE(MAX(`+quoted(column)+`), 0) FROM `+quoted(table)).Scan(
		&highest); err != nil {
		return 0, err
	}
	query, args := `SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = ?`, []any{table}
	if s.server != nil {
		query = `SELECT COALESCE(pg_sequence_last_value(pg_get_serial_sequence(?, ?)::regclass), 0)`
		args = []any{quoted(table), column}
	}
	err = s.tx.QueryRowContext(ctx, query, args...).Scan(&last)
	return max(last, highest), err
}

// setLastNumber has the table go on after this number.
func (s *side) setLastNumber(ctx context.Context, table, column string, last int64) error {
	if s.server != nil {
		_, err := s.tx.ExecContext(ctx, `SELECT setval(pg_get_serial_sequence(?, ?)::regclass, ?)`, quoted(table), column,
			last)
		return err
	}
	if _, err := s.tx.ExecContext(ctx, `DELETE FROM sqlite_sequence WHERE name = ?`, table); err != nil {
		return err
	}
	_, err := s.tx.ExecContext(ctx, `INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)`, table, last)
	return err
}
