package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/store/postgres"
)

// queryer is a transaction or the pool of readers.
type queryer interface {
	QueryContext(ctx context.Context, q string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, q string, args ...any) *sql.Row
}

// scanner reads the current row into the places that it gets, as sql.Rows.Scan does.
type scanner = func(into ...any) error

// into makes a reader of rows of the places in a T that the columns go to.
func into[T any](places func(*T) []any) func(scanner) (T, error) {
	return func(scan scanner) (T, error) {
		var v T
		err := scan(places(&v)...)
		return v, notFound(err)
	}
}

// text reads rows of one column.
func text(v *string) []any { return []any{v} }

// timeColumn is where a time goes that a table holds as microseconds.
type timeColumn struct{ at *time.Time }

// Scan implements sql.Scanner.
func (c timeColumn) Scan(v any) error {
	us, ok := v.(int64)
	if !ok {
		return fmt.Errorf("a time is %T in the database", v)
	}
	*c.at = fromMicros(us)
	return nil
}

// list reads all rows that a query finds. what begins an error.
func list[T any](ctx context.Context, q queryer, what string, read func(scanner) (T, error), query string,
	args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	defer rows.Close()
	var out []T
	for rows.Next() {
		v, err := read(rows.Scan)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		out = append(out, v)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return out, nil
}

// writing is write for what returns something, which is nothing when the write failed.
func writing[T any](ctx context.Context, s *Store, f func(tx *txn) (T, error)) (out T, err error) {
	var written T
	err = s.write(ctx, func(tx *txn) (err error) {
		written, err = f(tx)
		return err
	})
	if err == nil {
		out = written
	}
	return out, err
}

// exec runs a statement, or keeps it back. what begins an error.
func (t *txn) exec(what, query string, args ...any) error {
	if t.server {
		t.later = append(t.later, postgres.Statement{What: what, Query: query, Args: args})
		return t.failed
	}
	if _, err := t.Exec(query, args...); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// changed runs a statement and returns whether it changed any row.
func (t *txn) changed(query string, args ...any) (bool, error) {
	res, err := t.Exec(query, args...)
	if err != nil {
		return false, err
	}
	k, err := res.RowsAffected()
	return k > 0, err
}

// find reads the first row of a query into places, and returns whether there is one.
func (t *txn) find(into []any, query string, args ...any) (bool, error) {
	err := t.QueryRow(query, args...).Scan(into...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// refuse returns refusal if a query finds anything.
func (t *txn) refuse(refusal error, query string, args ...any) error {
	if found, err := t.find([]any{new(any)}, query, args...); err != nil || !found {
		return err
	}
	return refusal
}

// unique returns a DuplicateError if a query finds a node: that has the value already.
func (t *txn) unique(taken DuplicateError, query string, args ...any) error {
	if found, err := t.find([]any{&taken.NodeUUID}, query, args...); err != nil || !found {
		return err
	}
	return &taken
}

// fillUUID makes sure that a resource has a UUID, in lower case.
func fillUUID(id *string) error {
	*id = strings.ToLower(cmp.Or(*id, uuid.NewString()))
	if _, err := uuid.Parse(*id); err != nil {
		return fmt.Errorf("uuid %q: %w", *id, err)
	}
	return nil
}

// notFound translates the SQL package's word for it.
func notFound(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNotFound
	}
	return err
}
