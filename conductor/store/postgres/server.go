// Package postgres connects the store to a PostgreSQL server: which servers are taken, connections that read the
// store's SQL ("?" for parameters), and the hold of each ingotd on it.
//
// Errors are one sentence and never hold a password.
package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
)

// oldest is the first release of PostgreSQL that is taken: the one that the tests run on.
const oldest = 15

// Server is one database of a PostgreSQL server.
type Server struct {
	config *pgx.ConnConfig
	name   string
	reads  reads
}

// Parse reads the address of a database, postgres://USER@HOST:PORT/DATABASE, with the parameters of libpq after a "?".
// A password in it is refused, since addresses are shown. An empty password leaves it to the environment (PGPASSWORD)
// and PGPASSFILE.
func Parse(address, password string) (*Server, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" { // whose error would hold the address
		return nil, errors.New(
			"store.url is not the address of a PostgreSQL database: it has to be postgres://USER@HOST:PORT/DATABASE, with %XX for special characters")
	}
	q, err := url.ParseQuery(u.RawQuery)
	_, inside := u.User.Password()
	if err != nil || inside || q.Has("password") {
		return nil, errors.New(
			"store.url holds a password, or parameters that can't be read: give the password by store.password_file or the environment (PGPASSWORD)")
	}
	c, err := pgx.ParseConfig(address)
	if err != nil {
		if cause := errors.Unwrap(err); cause != nil {
			err = cause
		}
		return nil, fmt.Errorf("store.url can't be used, see its parameters: %s", clean.Line(err.Error(), 200))
	}
	c.Password = cmp.Or(password, c.Password)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, 10*time.Second)
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "ingotd"
	}
	// a vanished server is noticed within half a minute
	alive := net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}
	c.DialFunc = (&net.Dialer{KeepAliveConfig: alive}).DialContext
	c.OnNotice = func(*pgconn.PgConn, *pgconn.Notice) {}
	at := net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
	if strings.HasPrefix(c.Host, "/") {
		at = filepath.Join(c.Host, fmt.Sprintf(".s.PGSQL.%d", c.Port))
	}
	return &Server{config: c, name: fmt.Sprintf("PostgreSQL at %s, database %s", at, cmp.Or(c.Database, c.User))}, nil
}

// ReadPassword reads a password file: one line. An empty path is no password.
func ReadPassword(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read store.password_file: %w", err)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}

// String names the database without its user: for errors and logs.
func (s *Server) String() string { return s.name }

// Address is the server's HOST:PORT; "" for a socket of this host.
func (s *Server) Address() string {
	if strings.HasPrefix(s.config.Host, "/") {
		return ""
	}
	return net.JoinHostPort(s.config.Host, strconv.Itoa(int(s.config.Port)))
}

// Database is the name of the database on its server.
func (s *Server) Database() string { return s.config.Database }

// session makes the settings of every connection. The server forgets a conductor that vanished within half a minute,
// and one that froze in a transaction, for which the others wait, in a few seconds. A confirmed change is on its disk,
// and a transaction that has waited for its turn sees what was written until then, whatever its administrator has set.
const session = `SET statement_timeout = '%s'; SET lock_timeout = '20s'; SET idle_in_transaction_session_timeout = '6s';
	SET default_transaction_isolation = 'read committed';
	SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3;
	SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'`

func settings(timeout time.Duration) func(ctx context.Context, c *pgx.Conn) error {
	text := fmt.Sprintf(session, fmt.Sprintf("%dms", timeout.Milliseconds()))
	return func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.PgConn().Exec(ctx, text).ReadAll()
		return err
	}
}

// Open returns connections to the database. A statement may take timeout, zero is any time. failed, unless nil, is
// called with every error of a statement, and ran, unless nil, after each with its text.
func (s *Server) Open(timeout time.Duration, failed func(error), ran func(string, time.Duration)) *sql.DB {
	return s.open(timeout, failed, ran, nil)
}

// OpenReaders is Open for connections that are cut when the Hold hears nothing from the server any more: a statement
// that has no end of its own would wait for as long as the kernel sends its packets again, or without end.
func (s *Server) OpenReaders(timeout time.Duration, failed func(error), ran func(string, time.Duration)) *sql.DB {
	return s.open(timeout, failed, ran, &s.reads)
}

func (s *Server) open(timeout time.Duration, failed func(error), ran func(string, time.Duration), r *reads) *sql.DB {
	if failed == nil {
		failed = func(error) {}
	}
	if ran == nil {
		ran = func(string, time.Duration) {}
	}
	c := stdlib.GetConnector(*s.config, stdlib.OptionAfterConnect(settings(timeout)))
	return sql.OpenDB(connector{c, failed, ran, r})
}

// connect makes a connection of its own, and refuses a server that can't be used.
func (s *Server) connect(ctx context.Context) (*pgx.Conn, error) {
	c, err := pgx.ConnectConfig(ctx, s.config)
	if err != nil {
		return nil, s.refusal(err)
	}
	if err := s.usable(ctx, c); err != nil {
		return nil, errors.Join(err, c.Close(ctx))
	}
	return c, nil
}

// Check connects to the server and refuses one that can't be used; an ingotd may be at work on the database.
func (s *Server) Check(ctx context.Context) error {
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	return c.Close(ctx)
}

// usable checks the kind of server.
func (s *Server) usable(ctx context.Context, c *pgx.Conn) error {
	version := c.PgConn().ParameterStatus("server_version")
	if n := leading(version); n < oldest {
		return fmt.Errorf("%s is version %s, and ingotd needs %d or later: upgrade the server", s, version, oldest)
	}
	var standby, readOnly bool
	var encoding string
	if err := c.QueryRow(ctx, `SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::bool,
		current_setting('server_encoding')`).Scan(&standby, &readOnly, &encoding); err != nil {
		return s.refusal(err)
	}
	if standby {
		return fmt.Errorf(
			"%s is a standby, which can't be written to: name the primary in store.url, or several hosts with target_session_attrs=read-write", s)
	}
	if readOnly {
		return fmt.Errorf(
			"%s may only be read (default_transaction_read_only is on): switch that off for the database and for user %s", s,
			s.config.User)
	}
	if encoding != "UTF8" {
		return fmt.Errorf("%s has encoding %s, and ingotd needs UTF8: create the database with ENCODING 'UTF8'", s,
			encoding)
	}
	if err := settings(time.Minute)(ctx, c); err != nil {
		return s.refusal(err)
	}
	return s.unpooled(ctx, c)
}

// errPooled is the refusal of connections that are another client's between two transactions.
const errPooled = "%s is behind a pool that gives a connection to another client after each transaction, and ingotd needs its own, for locks and wake-ups: pool by session (pool_mode = session), or leave the pool out"

// unpooled refuses a connection whose session is not its own. While another connection has a transaction open, which
// would have the session that was free last, each statement of this one must find its session.
func (s *Server) unpooled(ctx context.Context, c *pgx.Conn) (err error) {
	const who = `SELECT pg_backend_pid()::text`
	pid := func(c *pgx.Conn) (string, error) {
		res, err := c.PgConn().Exec(ctx, who).ReadAll()
		if err != nil || len(res) != 1 || len(res[0].Rows) != 1 {
			return "", errors.Join(errors.New("ask for the number of a session"), err)
		}
		return string(res[0].Rows[0][0]), nil
	}
	before, err := pid(c)
	if err != nil {
		return err
	}
	other, err := pgx.ConnectConfig(ctx, s.config)
	if err != nil {
		return s.refusal(err)
	}
	defer func() { err = errors.Join(err, other.Close(ctx)) }()
	if _, err := other.PgConn().Exec(ctx, `BEGIN; `+who).ReadAll(); err != nil {
		return s.refusal(err)
	}
	now, err := pid(c)
	if err != nil {
		return s.refusal(err)
	}
	if now != before {
		return fmt.Errorf(errPooled, s)
	}
	return nil
}

var errSilent = errors.New("does not answer")

// silent reports whether an error says that nothing came from the server in time.
func silent(err error) bool {
	var e net.Error
	return errors.Is(err, errSilent) || errors.As(err, &e) && e.Timeout()
}

// refusal says why the server can't be used.
func (s *Server) refusal(err error) error {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		why := clean.Line(e.Message, 200)
		switch e.Code {
		case "28P01", "28000":
			return fmt.Errorf(
				"%s refuses user %s (%s): see store.password_file, PGPASSWORD and the server's pg_hba.conf", s,
				s.config.User, why)
		case "3D000":
			return fmt.Errorf("%s does not exist: make it with createdb, or correct store.url", s)
		case "57P03":
			return fmt.Errorf("%s does not take connections now (%s): start ingotd again when it does", s, why)
		}
		return fmt.Errorf("%s refuses the connection: %s (SQLSTATE %s)", s, why, e.Code)
	}
	var name *net.DNSError // before OpError, which it can hold
	if errors.As(err, &name) {
		return fmt.Errorf("%s can't be reached, its host has no address (%s): see store.url and the name servers", s,
			clean.Line(name.Err, 200))
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return fmt.Errorf("%s can't be reached (%w): see whether it runs, and store.url", s, op.Err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s %w: see whether it runs, and store.url", s, errSilent)
	}
	cause := err // the outer errors hold the user's name and the address, which s says already
	for next := errors.Unwrap(cause); next != nil; next = errors.Unwrap(cause) {
		cause = next
	}
	return fmt.Errorf("%s can't be used: %s", s, clean.Line(cause.Error(), 200))
}

// Code is the SQLSTATE of an error, or "".
func Code(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// Full reports whether an error says that the server's disk is full.
func Full(err error) bool { return Code(err) == "53100" }

// Collided reports whether an error says that the transaction met another one, and may succeed when it is run again.
// Conductors' own can't: they take turns. Other clients of the database can meet them.
func Collided(err error) bool {
	code := Code(err)
	return code == "40001" || code == "40P01" // serialization_failure, deadlock_detected
}

// passing reports whether an error is an ErrBusy: that of a statement that was not carried out in time, or because of
// another client, or because the server lacks what it needs for it, other than room on its disk.
func passing(err error) bool {
	code := Code(err)
	return Collided(err) || code == lockTimeout || code == canceled || code == "25006" || // read_only_sql_transaction
		strings.HasPrefix(code, "53") && !Full(err)
}

// Locked reports whether an error says that a lock was not had in time.
func Locked(err error) bool { return Code(err) == lockTimeout }

// Damaged reports whether an error says that the server has found damage in its files.
func Damaged(err error) bool {
	switch Code(err) {
	case "XX001", "XX002": // data_corrupted, index_corrupted
		return true
	}
	return false
}

// Cut reports whether an error, which may be another program's, certainly says that the connection was cut.
func Cut(err error) bool {
	var op *net.OpError
	return err != nil && (Code(err) != "" && Away(err) || errors.As(err, &op) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, io.EOF) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone))
}

// Away reports whether an error says that the connection, and not the statement, has failed.
func Away(err error) bool {
	if err == nil {
		return false
	}
	code := Code(err)
	// 57P: an administrator or a restart ended the connection. 25P03: it was idle for too long.
	return code == "" || strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P") || code == "25P03"
}

// leading is the number that a text begins with.
func leading(s string) (n int) {
	for _, r := range s {
		if r < '0' || r > '9' || n > 1000 {
			break
		}
		n = 10*n + int(r-'0')
	}
	return n
}
