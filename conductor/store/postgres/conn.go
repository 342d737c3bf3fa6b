package postgres

import (
	"cmp"
	"context"
	"crypto/tls"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// ErrText means that a text has the character U+0000, which PostgreSQL can't keep.
var ErrText = errors.New("a text holds the character U+0000, which PostgreSQL can't keep: leave it out")

// ErrCut means that the connection to the server was cut while a statement was under way.
var ErrCut = errors.New("the connection to PostgreSQL was cut")

// ErrBusy means that the server did not carry out a statement for a reason that passes, which is not ingotd's: it
// waited too long for another client of the database or was ended by its administrator, or the database may only be
// read now. The transaction of a write has changed nothing.
var ErrBusy = errors.New("PostgreSQL did not do what it was asked now")

// connector makes connections that read the store's SQL.
type connector struct {
	driver.Connector
	failed func(error)
	ran    func(query string, took time.Duration)
	reads  *reads // nil: not among them
}

// Connect implements driver.Connector.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	if err := c.reads.err(); err != nil {
		return nil, err
	}
	made, err := c.Connector.Connect(ctx)
	if err != nil {
		c.failed(err)
		return nil, unable{err}
	}
	sc, ok := made.(*stdlib.Conn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("a connection is %T", made), made.Close())
	}
	conn := &Conn{inner: sc, texts: map[string]string{}, failed: c.failed, ran: c.ran, reads: c.reads}
	if err := c.reads.add(conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// reads are the connections for reading. They are cut while the server says nothing. All methods can be called of nil.
type reads struct {
	mu     sync.Mutex
	open   map[*Conn]bool
	silent error
}

// err is why none is opened now.
func (r *reads) err() error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.silent
}

func (r *reads) add(c *Conn) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		r.open = map[*Conn]bool{}
	}
	r.open[c] = true
	return r.silent
}

func (r *reads) remove(c *Conn) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, c)
}

// heard takes what became of an attempt to reach the server: with a time-out all connections are cut, and none is
// opened until it has answered, if only by a refusal.
func (r *reads) heard(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !silent(err) {
		r.silent = nil
		return
	}
	r.silent = unable{err}
	for c := range r.open {
		c.cut()
	}
}

// unable is an ErrCut in the words of its cause: to a reader, a connection that can't be opened is the same as one that
// was cut.
type unable struct{ error }

func (e unable) Is(target error) bool { return target == ErrCut }

func (e unable) Unwrap() error { return e.error }

// Conn is a connection of a Server. It is used by one goroutine at a time, as database/sql promises. Arguments are
// those of database/sql's own conversion, so that both engines get the same.
type Conn struct {
	inner  *stdlib.Conn
	texts  map[string]string // statements as PostgreSQL reads them
	failed func(error)
	ran    func(query string, took time.Duration)
	reads  *reads
}

// maxTexts is how many statements are remembered; lists with filters make ever more of them.
const maxTexts = 1000

// PGX is the connection below.
func (c *Conn) PGX() *pgx.Conn { return c.inner.Conn() }

// tell reports an error to the connection's owner, and returns it: as an ErrCut or ErrBusy where it says so.
func (c *Conn) tell(err error) error {
	if err == nil || errors.Is(err, driver.ErrBadConn) {
		return err
	}
	c.failed(err)
	switch {
	case Cut(err):
		return fmt.Errorf("%w: %w", ErrCut, err)
	case passing(err):
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}

// undo ends a transaction in which nothing was done, if there is one. A connection on which that fails is closed.
func (c *Conn) undo(ctx context.Context) {
	conn := c.PGX().PgConn()
	if conn.IsClosed() || conn.TxStatus() == 'I' {
		return
	}
	if _, err := conn.Exec(ctx, `ROLLBACK`).ReadAll(); err != nil {
		_ = conn.Close(ctx)
	}
}

func (c *Conn) text(query string) string {
	text, ok := c.texts[query]
	if !ok {
		if len(c.texts) >= maxTexts {
			clear(c.texts)
		}
		text = numbered(query)
		c.texts[query] = text
	}
	return text
}

// numbered writes "$1", "$2" for each "?" that is not in quotes. In a standard text a backslash is nothing special.
func numbered(query string) string {
	if !strings.Contains(query, "?") {
		return query
	}
	var b strings.Builder
	n, quote := 0, rune(0)
	for _, r := range query {
		switch {
		case quote != 0:
			if r == quote { // a doubled one ends the text and begins it again
				quote = 0
			}
		case r == '\'' || r == '"':
			quote = r
		case r == '?':
			n++
			b.WriteString("$" + strconv.Itoa(n))
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

func checkArgs(args []driver.NamedValue) error {
	for _, a := range args {
		if err := checkValue(a.Value); err != nil {
			return err
		}
	}
	return nil
}

func checkValue(v any) error {
	if s, ok := v.(string); ok && strings.ContainsRune(s, 0) {
		return ErrText
	}
	return nil
}

// ExecContext implements driver.ExecerContext.
func (c *Conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := checkArgs(args); err != nil {
		return nil, err
	}
	began := time.Now()
	res, err := c.inner.ExecContext(ctx, c.text(query), args)
	c.ran(query, time.Since(began))
	return res, c.tell(err)
}

// QueryContext implements driver.QueryerContext.
func (c *Conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := checkArgs(args); err != nil {
		return nil, err
	}
	began := time.Now()
	r, err := c.inner.QueryContext(ctx, c.text(query), args)
	c.ran(query, time.Since(began))
	if err != nil {
		return nil, c.tell(err)
	}
	return &rows{r, c}, nil
}

// rows tell of their errors.
type rows struct {
	driver.Rows
	conn *Conn
}

// Next implements driver.Rows.
func (r *rows) Next(dest []driver.Value) error {
	err := r.Rows.Next(dest)
	if err != nil && err != io.EOF { // the value that drivers return
		return r.conn.tell(err)
	}
	return err
}

// BeginTx implements driver.ConnBeginTx.
func (c *Conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := c.inner.BeginTx(ctx, opts)
	return tx, c.tell(err)
}

// PrepareContext implements driver.ConnPrepareContext.
func (c *Conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	return c.inner.PrepareContext(ctx, c.text(query))
}

// Prepare implements driver.Conn.
func (c *Conn) Prepare(query string) (driver.Stmt, error) { return c.inner.Prepare(c.text(query)) }

// Begin implements driver.Conn.
func (c *Conn) Begin() (driver.Tx, error) { return c.BeginTx(context.Background(), driver.TxOptions{}) }

// ResetSession implements driver.SessionResetter.
func (c *Conn) ResetSession(ctx context.Context) error { return c.inner.ResetSession(ctx) }

// IsValid implements driver.Validator.
func (c *Conn) IsValid() bool { return !c.inner.Conn().IsClosed() }

// Ping implements driver.Pinger.
func (c *Conn) Ping(ctx context.Context) error { return c.inner.Ping(ctx) }

// Close implements driver.Conn.
func (c *Conn) Close() error {
	c.reads.remove(c)
	return c.inner.Close()
}

// cut ends whatever the connection waits for. It can be called while the connection is used.
func (c *Conn) cut() {
	below := c.PGX().PgConn().Conn()
	if t, ok := below.(*tls.Conn); ok { // whose Close would send something
		below = t.NetConn()
	}
	_ = below.Close()
}

// Statement is one without a result. What begins its error.
type Statement struct {
	What, Query string
	Args        []any
}

// Together runs statements on a connection below database/sql, a *Conn, and waits once, for the answers of all. None is
// run after one that fails.
func Together(ctx context.Context, c any, all []Statement) (err error) {
	conn, ok := c.(*Conn)
	if !ok {
		return fmt.Errorf("a connection is %T", c)
	}
	var batch pgx.Batch
	for _, st := range all {
		args := make([]any, len(st.Args))
		for i, a := range st.Args {
			if args[i], err = driver.DefaultParameterConverter.ConvertValue(a); err == nil {
				err = checkValue(args[i])
			}
			if err != nil {
				return fmt.Errorf("%s: %w", st.What, err)
			}
		}
		batch.Queue(conn.text(st.Query), args...)
	}
	began := time.Now()
	answers := conn.PGX().SendBatch(ctx, &batch)
	defer func() { err = cmp.Or(err, answers.Close()) }()
	for _, st := range all {
		_, err := answers.Exec()
		conn.ran(st.Query, time.Since(began))
		if err != nil {
			return fmt.Errorf("%s: %w", st.What, conn.tell(err))
		}
		began = time.Now()
	}
	return nil
}
