package migrate

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// sum is the number of a table's rows and a digest of their contents that does not depend on their order: the sum of
// the rows' SHA-256, in four parts.
type sum struct {
	rows   int64
	digest [4]uint64
}

func (s *sum) add(row []any) {
	h := sha256.New()
	for _, v := range row {
		var b []byte
		kind := byte('0')
		switch v := v.(type) {
		case int64:
			kind, b = 'i', binary.BigEndian.AppendUint64(nil, uint64(v))
		case string:
			kind, b = 's', []byte(v)
		case []byte:
			kind, b = 'b', v
		}
		h.Write(binary.BigEndian.AppendUint64([]byte{kind}, uint64(len(b))))
		h.Write(b)
	}
	d := h.Sum(nil)
	for i := range s.digest {
		s.digest[i] += binary.BigEndian.Uint64(d[8*i:])
	}
	s.rows++
}

// each calls f with each row of a table, whose values are int64, string, []byte or nil, as the columns' kinds say.
func (s *side) each(ctx context.Context, t table, f func(row []any) error) (err error) {
	names := make([]string, len(t.columns))
	for i, c := range t.columns {
		names[i] = quoted(c.name)
	}
	rows, err := s.tx.QueryContext(ctx, `SELECT `+strings.Join(names, ", ")+` FROM `+quoted(t.name))
	if err != nil {
		return fmt.Errorf("read table %s of %s: %w", t.name, s.name, err)
	}
	defer rows.Close()
	for rows.Next() {
		row, into := make([]any, len(names)), make([]any, len(names))
		for i := range row {
			into[i] = &row[i]
		}
		if err := rows.Scan(into...); err != nil {
			return fmt.Errorf("read table %s of %s: %w", t.name, s.name, err)
		}
		for i, c := range t.columns {
			var ok bool
			if row[i], ok = c.kind.value(row[i]); !ok {
				return fmt.Errorf("read table %s of %s: column %s, %s, holds a %T", t.name, s.name, c.name, c.kind, row[i])
			}
		}
		if err := f(row); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read table %s of %s: %w", t.name, s.name, err)
	}
	return nil
}

// sum reads a whole table.
func (s *side) sum(ctx context.Context, t table) (sum, error) {
	var all sum
	err := s.each(ctx, t, func(row []any) error {
		all.add(row)
		return nil
	})
	return all, err
}

// A batch is one statement: with 32 columns that is a tenth of the parameters that either database takes.
const (
	batchRows  = 100
	batchBytes = 1 << 20
)

// move is the copy of one table.
type move struct {
	from, to *side
	table    table
	o        Options
}

// copy reads the table's rows and, unless this is a dry run, writes them.
func (m *move) copy(ctx context.Context) (sum, error) {
	var (
		all   sum
		batch []any
		bytes int
	)
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		if !m.o.DryRun {
			if err := m.insert(ctx, batch); err != nil {
				return err
			}
		}
		batch, bytes = batch[:0], 0
		if m.o.Progress != nil {
			m.o.Progress(m.table.name, all.rows)
		}
		return nil
	}
	err := m.from.each(ctx, m.table, func(row []any) error {
		if m.to.server != nil {
			if err := m.keepable(row); err != nil {
				return err
			}
		}
		all.add(row)
		batch = append(batch, row...)
		for _, v := range row {
			switch v := v.(type) {
			case string:
				bytes += len(v)
			case []byte:
				bytes += len(v)
			}
		}
		if len(batch) >= batchRows*len(row) || bytes >= batchBytes {
			return flush()
		}
		return nil
	})
	if err != nil {
		return all, err
	}
	return all, flush()
}

func (m *move) insert(ctx context.Context, values []any) error {
	names := make([]string, len(m.table.columns))
	for i, c := range m.table.columns {
		names[i] = quoted(c.name)
	}
	one := "(?" + strings.Repeat(", ?", len(names)-1) + ")"
	_, err := m.to.tx.ExecContext(ctx, `INSERT INTO `+quoted(m.table.name)+` (`+strings.Join(names, ", ")+`) VALUES `+
		one+strings.Repeat(", "+one, len(values)/len(names)-1), values...)
	if err != nil {
		return fmt.Errorf("write table %s of %s: %w", m.table.name, m.to.name, err)
	}
	return nil
}

// keepable makes sure that PostgreSQL can keep the texts of a row.
func (m *move) keepable(row []any) error {
	for i, v := range row {
		text, ok := v.(string)
		if !ok || utf8.ValidString(text) && strings.IndexByte(text, 0) < 0 {
			continue
		}
		if m.o.ReplaceBad {
			row[i] = strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\x00", "\ufffd")
			continue
		}
		return fmt.Errorf(
			"%s in table %s of %s has a text in column %s with U+0000 or bytes that are no UTF-8, which PostgreSQL can't keep: change it while ingotd works with SQLite, or have it replaced by U+FFFD (--replace-bad-text)",
			m.owner(row), m.table.name, m.from.name, m.table.columns[i].name)
	}
	return nil
}

// owner names the node that a row is of, or the row.
func (m *move) owner(row []any) string {
	column := func(name string) (any, bool) {
		i := slices.IndexFunc(m.table.columns, func(c column) bool { return c.name == name })
		if i < 0 {
			return nil, false
		}
		return row[i], true
	}
	if m.table.name == "nodes" {
		id, _ := column("uuid")
		name, _ := column("name")
		return fmt.Sprintf("node %v (%q)", id, name)
	}
	if id, ok := column("node_uuid"); ok && id != nil {
		return fmt.Sprintf("node %q", id)
	}
	for _, key := range []string{"uuid", "id", "seq", "name"} {
		if v, ok := column(key); ok && v != nil {
			return fmt.Sprintf("the entry %q", fmt.Sprint(v))
		}
	}
	return "an entry"
}

// value converts what a driver returns for a column of this kind. ok is false for what does not fit the kind.
func (k kind) value(v any) (_ any, ok bool) {
	switch v := v.(type) {
	case nil:
		return nil, true
	case int64:
		return v, k == number
	case string:
		if k == blob { // SQLite keeps what it gets, whatever the column's type
			return []byte(v), true
		}
		return v, k == text
	case []byte:
		if k == text {
			return string(v), true
		}
		if v == nil {
			v = []byte{} // an empty one, which must not be taken for none
		}
		return v, k == blob
	}
	return v, false
}
