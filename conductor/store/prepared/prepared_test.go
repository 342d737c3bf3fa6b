package prepared

import (
	"context"
	"database/sql"
	"slices"
	"testing"

	"modernc.org/sqlite"
)

// A statement is prepared once; one that is still being read is not disturbed when it is run again on the same
// connection.
func TestConnector(t *testing.T) {
	c, err := sqlite.NewConnector(":memory:")
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(Connector{Connector: c})
	defer db.Close()
	ctx := context.Background()
	conn, err := db.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, `CREATE TABLE t (n INTEGER)`); err != nil {
		t.Fatal(err)
	}
	const insert, query = `INSERT INTO t (n) VALUES (?)`, `SELECT n FROM t ORDER BY n`
	for i := range 3 {
		if _, err := conn.ExecContext(ctx, insert, i); err != nil {
			t.Fatal(err)
		}
	}
	var pairs [][2]int
	outer, err := conn.QueryContext(ctx, query)
	if err != nil {
		t.Fatal(err)
	}
	defer outer.Close()
	for outer.Next() {
		var p [2]int
		if err := outer.Scan(&p[0]); err != nil {
			t.Fatal(err)
		}
		inner, err := conn.QueryContext(ctx, query)
		if err != nil {
			t.Fatal(err)
		}
		for inner.Next() {
			if err := inner.Scan(&p[1]); err != nil {
				t.Fatal(err)
			}
			pairs = append(pairs, p)
		}
		if err := inner.Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := outer.Err(); err != nil || len(pairs) != 9 ||
		!slices.IsSortedFunc(pairs, func(a, b [2]int) int { return slices.Compare(a[:], b[:]) }) {
		t.Errorf("pairs = %v, %v", pairs, err)
	}
	err = conn.Raw(func(c any) error {
		if got, want := c.(*Conn).Statements(), []string{insert, query}; !slices.Equal(got, want) {
			t.Errorf("statements = %q, want %q: a table is made once", got, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
