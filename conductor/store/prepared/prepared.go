// Package prepared has connections to a database keep the statements that they have prepared: with SQLite, parsing one
// costs more than running it.
package prepared

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"maps"
	"slices"
	"time"
)

// maxStatements is how many prepared statements a connection keeps. There are some three hundred in the store (events
// are written in groups of one to a hundred); lists with filters make more of their own, of which those that come too
// late are prepared each time.
const maxStatements = 500

// Connector is a connector whose connections keep the statements they have prepared.
type Connector struct {
	driver.Connector
	// Failed, unless nil, is called with every error of a statement, wherever it occurs. It must not use the database.
	Failed func(error)
	// Ran, unless nil, is called after every statement, with its text. It must be quick.
	Ran func(query string, took time.Duration)
}

// Connect implements driver.Connector.
func (p Connector) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := p.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	f, ok := c.(fullConn)
	if !ok {
		return nil, errors.Join(errors.New("the SQL driver lacks what is needed to prepare statements"), c.Close())
	}
	failed := p.Failed
	if failed == nil {
		failed = func(error) {}
	}
	ran := p.Ran
	if ran == nil {
		ran = func(string, time.Duration) {}
	}
	return &Conn{fullConn: f, stmts: map[string]*keptStmt{}, failed: failed, ran: ran}, nil
}

// fullConn is the interface of the SQL driver's connections. database/sql asserts each of these by itself.
type fullConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// Conn is a connection of a Connector. It is used by one goroutine at a time, as database/sql promises.
type Conn struct {
	fullConn
	stmts  map[string]*keptStmt
	failed func(error)
	ran    func(query string, took time.Duration)
}

// tell hands an error on.
func (c *Conn) tell(err error) error {
	if err != nil {
		c.failed(err)
	}
	return err
}

// keptStmt is a prepared statement; it is busy while rows of it are being read.
type keptStmt struct {
	fullStmt
	busy bool
}

type fullStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// stmt returns the prepared statement for a query, or nil when there is to be none: it is in use further up, or there
// are too many.
func (c *Conn) stmt(ctx context.Context, query string) (*keptStmt, error) {
	if st := c.stmts[query]; st != nil {
		if st.busy {
			return nil, nil
		}
		return st, nil
	}
	if len(c.stmts) >= maxStatements || !keep(query) {
		return nil, nil
	}
	prepared, err := c.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	full, ok := prepared.(fullStmt)
	if !ok {
		return nil, prepared.Close()
	}
	st := &keptStmt{fullStmt: full}
	c.stmts[query] = st
	return st, nil
}

// Statements are the texts of the statements that are kept.
func (c *Conn) Statements() []string { return slices.Sorted(maps.Keys(c.stmts)) }

// keep reports whether a statement is used again and again. Statements that change tables are not.
func keep(query string) bool {
	switch query[:min(len(query), 6)] {
	case "SELECT", "INSERT", "UPDATE", "DELETE", "BEGIN ", "COMMIT", "SAVEPO", "RELEAS", "ROLLBA":
		return true
	}
	return false
}

// ExecContext implements driver.ExecerContext.
func (c *Conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	st, err := c.stmt(ctx, query)
	if err != nil {
		return nil, c.tell(err)
	}
	var res driver.Result
	began := time.Now()
	if st == nil {
		res, err = c.fullConn.ExecContext(ctx, query, args)
	} else {
		res, err = st.ExecContext(ctx, args)
	}
	c.ran(query, time.Since(began))
	return res, c.tell(err)
}

// QueryContext implements driver.QueryerContext.
func (c *Conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	st, err := c.stmt(ctx, query)
	if err != nil {
		return nil, c.tell(err)
	}
	began := time.Now()
	if st == nil {
		rows, err := c.fullConn.QueryContext(ctx, query, args)
		c.ran(query, time.Since(began))
		if err != nil {
			return nil, c.tell(err)
		}
		return &keptRows{rows, &keptStmt{}, c}, nil
	}
	rows, err := st.QueryContext(ctx, args)
	c.ran(query, time.Since(began))
	if err != nil {
		return nil, c.tell(err)
	}
	st.busy = true
	return &keptRows{rows, st, c}, nil
}

// Close implements driver.Conn.
func (c *Conn) Close() error {
	var errs []error
	for _, st := range c.stmts {
		errs = append(errs, st.Close())
	}
	c.stmts = nil
	return errors.Join(append(errs, c.fullConn.Close())...)
}

// keptRows returns its statement when it is closed.
type keptRows struct {
	driver.Rows
	st   *keptStmt
	conn *Conn
}

// Close implements driver.Rows.
func (r *keptRows) Close() error {
	if r.st == nil {
		return nil
	}
	err := r.Rows.Close()
	r.st.busy = false
	r.st = nil
	return err
}

// Next implements driver.Rows.
func (r *keptRows) Next(dest []driver.Value) error {
	if r.st == nil {
		return io.EOF
	}
	err := r.Rows.Next(dest)
	if err != nil && err != io.EOF { // the value that drivers return
		r.conn.failed(err)
	}
	return err
}
