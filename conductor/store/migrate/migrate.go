// Package migrate moves all that a store keeps from SQLite to PostgreSQL, or back, while no ingotd uses either.
//
// Rows are copied as they are: what is sealed stays sealed, so no key is needed, and the key of the data directory fits
// the copy. The tables and columns are read from the databases, and have to be the same in both. The source is read as
// of one moment and never written to, except that one of an older version is first migrated as a start of ingotd would
// do it. The target has to be without tables. All of it, tables included, is made in one transaction: in PostgreSQL by
// the server, in SQLite in a file that gets its name at the end. So a move that is cut short at any moment leaves a
// target without tables, on which no ingotd begins anew by mistake. Before the end all rows are read back, and their
// number and a digest of their contents compared for each table.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/store"
)

// Options say what is moved. One of From and To is SQLite, with the database in Dir; the other is PostgreSQL (URL).
type Options struct {
	From, To store.Options
	// DryRun has everything done but the writing: rows are read, but the target is not changed.
	DryRun bool
	// ReplaceBad puts U+FFFD in place of U+0000, and of bytes that are no UTF-8, in texts for PostgreSQL, which can't
	// keep them.
	ReplaceBad bool
	// Progress, unless nil, is called after each batch with the number of the table's rows that are copied.
	Progress func(table string, rows int64)
}

// Table counts the rows of a table that were copied.
type Table struct {
	Name string
	Rows int64
}

// Report describes a move, or a dry run of it.
type Report struct {
	From, To string // names of the databases
	Tables   []Table
}

// Run moves the data. An error leaves both databases as they were, unless it says otherwise.
func Run(ctx context.Context, o Options) (rep Report, err error) {
	if (o.From.URL == "") == (o.To.URL == "") {
		return rep, errors.New(
			"one of the two databases has to be SQLite and the other PostgreSQL: copy within PostgreSQL with pg_dump, and a data directory with ingotd backup and restore")
	}
	to, err := openTarget(ctx, o.To, o.DryRun)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, to.close()) }()
	from, err := openSource(ctx, o.From, o.DryRun)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, from.close()) }()
	rep.From, rep.To = from.name, to.name
	if o.To.URL == "" {
		if err := o.To.Fits(ctx, from.tx, from.name); err != nil {
			return rep, err
		}
	}
	if err := to.makeSchema(ctx); err != nil {
		return rep, err
	}
	tables, err := common(ctx, from, to)
	if err != nil {
		return rep, err
	}
	sums := make([]sum, len(tables))
	for i, t := range tables {
		m := move{from, to, t, o}
		if sums[i], err = m.copy(ctx); err != nil {
			return rep, err
		}
		rep.Tables = append(rep.Tables, Table{t.name, sums[i].rows})
	}
	if o.DryRun {
		return rep, nil
	}
	for i, t := range tables {
		got, err := to.sum(ctx, t)
		if err != nil {
			return rep, err
		}
		if got != sums[i] {
			return rep, fmt.Errorf(
				"table %s of %s differs from that of %s after the copy (%d rows, and %d there): nothing was kept, please report this",
				t.name, to.name, from.name, got.rows, sums[i].rows)
		}
	}
	if err := moveCounters(ctx, from, to, tables); err != nil {
		return rep, err
	}
	return rep, to.finish(ctx)
}

// common returns the tables to copy, those first that others refer to. Both databases have to have the same.
func common(ctx context.Context, from, to *side) ([]table, error) {
	there, err := from.tables(ctx)
	if err != nil {
		return nil, err
	}
	here, err := to.tables(ctx)
	if err != nil {
		return nil, err
	}
	if diff := difference(there, here); diff != "" {
		return nil, fmt.Errorf("%s and %s have different tables, which should not be: %s; please report this", from.name,
			to.name, diff)
	}
	server := from
	if to.server != nil {
		server = to
	}
	refs, err := server.references(ctx)
	if err != nil {
		return nil, err
	}
	return sorted(here, refs), nil
}

// difference says what the first difference is between the tables of two databases, or "".
func difference(a, b []table) string {
	describe := func(all []table) (lines []string) {
		for _, t := range all {
			for _, c := range t.columns {
				lines = append(lines, fmt.Sprintf("column %q of table %q, %s", c.name, t.name, c.kind))
			}
		}
		return lines
	}
	x, y := describe(a), describe(b)
	for _, line := range append(slices.Clone(x), y...) {
		if slices.Contains(x, line) != slices.Contains(y, line) {
			return line + ", is in one of them alone"
		}
	}
	return ""
}

// sorted puts each table after those that it refers to.
func sorted(all []table, refs map[string][]string) (out []table) {
	placed := map[string]bool{}
	for len(out) < len(all) {
		before := len(out)
		for _, t := range all {
			missing := func(to string) bool { return !placed[to] && to != t.name }
			if !placed[t.name] && !slices.ContainsFunc(refs[t.name], missing) {
				out, placed[t.name] = append(out, t), true
			}
		}
		if len(out) == before { // a circle: the server will say what it does not like
			for _, t := range all {
				if !placed[t.name] {
					out, placed[t.name] = append(out, t), true
				}
			}
		}
	}
	return out
}

// moveCounters hands on the last number that each table has given its rows: one that was deleted does not come back.
func moveCounters(ctx context.Context, from, to *side, tables []table) error {
	for _, t := range tables {
		for _, c := range t.columns {
			if !c.counted {
				continue
			}
			last, err := from.lastNumber(ctx, t.name, c.name)
			if err == nil && last > 0 {
				err = to.setLastNumber(ctx, t.name, c.name, last)
			}
			if err != nil {
				return fmt.Errorf("hand on the last number of table %s: %w", t.name, err)
			}
		}
	}
	return nil
}

// quoted is a name as SQL has it.
func quoted(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
