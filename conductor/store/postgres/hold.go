package postgres

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrAway means that the server can't be reached, and nothing was written. Writes are taken again when it is back.
var ErrAway = errors.New("PostgreSQL can't be reached, nothing is written until it is back")

// ErrTaken means that another ingotd has taken the database over. This one never writes again.
var ErrTaken = errors.New("another ingotd has taken over the database in PostgreSQL")

// Numbers of advisory locks, of this program alone: the first is held by the ingotd at work, the second shared by each
// of its transactions that write.
const (
	workLock  = 0x696e676f7401
	writeLock = 0x696e676f7402
)

// Hold makes this process the only one that writes to a database. A session lock keeps a second ingotd from starting.
// It ends with its connection, so that writes are refused from then on; when the server is back the lock is taken
// again, and if no other ingotd has had it meanwhile, which the token in the database shows, all goes on. A process
// that has not yet noticed is kept from writing by that token, which each transaction reads: the next owner replaces
// it, and waits for the transactions that have read the old one.
type Hold struct {
	server *Server
	token  string
	log    *slog.Logger
	taken  func(error)
	away   atomic.Pointer[error]

	conn    *pgx.Conn // watch's alone, once that runs
	stop    context.CancelFunc
	watcher sync.WaitGroup
}

// patience is how long a start waits for the lock: that of an ingotd that was killed is given up at once.
const patience = 3 * time.Second

// Hold takes the lock. taken is called once when another ingotd has taken the database. Close gives it up.
func (s *Server) Hold(ctx context.Context, log *slog.Logger, taken func(error)) (*Hold, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	h := &Hold{server: s, token: rand.Text(), log: log, taken: taken, conn: conn}
	for end := time.Now().Add(patience); ; {
		got, err := lock(ctx, conn)
		if err != nil {
			return nil, errors.Join(s.refusal(err), conn.Close(ctx))
		}
		if got {
			return h, nil
		}
		if time.Now().After(end) {
			return nil, errors.Join(fmt.Errorf(
				"another ingotd works with %s, and there can be only one: stop it first, or give this one a database of its own in store.url", s),
				conn.Close(ctx))
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), conn.Close(context.WithoutCancel(ctx)))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func lock(ctx context.Context, c *pgx.Conn) (got bool, err error) {
	err = c.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, int64(workLock)).Scan(&got)
	return got, err
}

// Claim makes this process the only writer: from the return on, no transaction of an earlier owner is committed. The
// table "holder" must exist. It watches the connection from now on.
func (h *Hold) Claim(ctx context.Context) error {
	_, err := h.conn.Exec(ctx,
		`INSERT INTO holder (id, token) VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET token = excluded.token`, h.token)
	if err == nil { // waits for the transactions that have read the token before
		_, err = h.conn.Exec(ctx, `SELECT pg_advisory_lock($1), pg_advisory_unlock($1)`, int64(writeLock))
	}
	if err != nil {
		return fmt.Errorf("take over the database: %w", err)
	}
	ctx, h.stop = context.WithCancel(context.WithoutCancel(ctx))
	h.watcher.Go(func() { h.watch(ctx) })
	return nil
}

// Err is why nothing can be written now, an error that is ErrAway; or nil.
func (h *Hold) Err() error {
	if err := h.away.Load(); err != nil {
		return fmt.Errorf("%w: %w", ErrAway, *err)
	}
	return nil
}

// Times of the watch on the connection.
const (
	askEvery = 5 * time.Second
	askFor   = 10 * time.Second
	retry    = 500 * time.Millisecond
)

// watch notices when the connection, and with it the lock, is lost, and takes the lock again.
func (h *Hold) watch(ctx context.Context) {
	for {
		err := h.alive(ctx)
		if ctx.Err() != nil {
			return
		}
		h.away.Store(&err)
		h.log.Error("the connection to the database is lost: writes are refused until it is back", "database",
			h.server.String(), "err", err)
		_ = h.conn.Close(ctx) // it is broken
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(retry):
			}
			back, err := h.again(ctx)
			if errors.Is(err, ErrTaken) {
				h.taken(err)
				return
			}
			if back {
				break
			}
			if err != nil {
				h.away.Store(&err)
			}
		}
		h.away.Store(nil)
		h.log.Info("the database is back", "database", h.server.String())
	}
}

// alive returns when the connection fails.
func (h *Hold) alive(ctx context.Context) error {
	for {
		idle, cancel := context.WithTimeout(ctx, askEvery)
		_, err := h.conn.WaitForNotification(idle)
		waited := idle.Err() != nil
		cancel()
		if err != nil && (!waited || h.conn.IsClosed()) {
			return err
		}
		asking, cancel := context.WithTimeout(ctx, askFor)
		err = h.conn.Ping(asking)
		cancel()
		if err != nil {
			return err
		}
	}
}

// again takes the lock on a new connection.
func (h *Hold) again(ctx context.Context) (back bool, err error) {
	asking, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	conn, err := h.server.connect(asking)
	if err != nil {
		return false, err
	}
	got, err := lock(asking, conn)
	var token string
	if err == nil {
		err = conn.QueryRow(asking, `SELECT token FROM holder WHERE id = 1`).Scan(&token)
	}
	switch {
	case err != nil:
	case token != h.token:
		err = ErrTaken
	case got:
		h.conn = conn
		return true, nil
	default:
		err = errors.New("another ingotd holds the lock")
	}
	return false, errors.Join(err, conn.Close(asking))
}

const begin = `BEGIN; SELECT pg_advisory_xact_lock_shared(%d); SELECT pg_current_xact_id()::text, token FROM holder WHERE id = 1`

// Begin begins a transaction that writes, on a connection of Open, and returns its ID for Committed. It asks once:
// another round to the server would cost as much as a small write.
func (h *Hold) Begin(ctx context.Context, c *sql.Conn) (id string, err error) {
	if err := h.Err(); err != nil {
		return "", err
	}
	err = c.Raw(func(c any) error {
		conn, ok := c.(*Conn)
		if !ok {
			return fmt.Errorf("a connection is %T", c)
		}
		res, err := conn.PGX().PgConn().Exec(ctx, fmt.Sprintf(begin, int64(writeLock))).ReadAll()
		if err != nil {
			return conn.tell(err)
		}
		last := res[len(res)-1].Rows
		if len(last) != 1 || string(last[0][1]) != h.token {
			return ErrTaken
		}
		id = string(last[0][0])
		return nil
	})
	if errors.Is(err, ErrTaken) {
		h.taken(err)
	}
	return id, err
}

// Committed finds out what became of a transaction whose end was not confirmed.
func (h *Hold) Committed(ctx context.Context, db *sql.DB, id string) (bool, error) {
	for {
		var status sql.NullString
		err := db.QueryRowContext(ctx, `SELECT pg_xact_status(CAST(CAST(? AS text) AS xid8))`, id).Scan(&status)
		if err == nil && status.String == "committed" {
			return true, nil
		}
		if err == nil && status.String == "aborted" {
			return false, nil
		}
		select { // it is in progress, or the server can't be reached
		case <-ctx.Done():
			return false, errors.Join(ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Close gives the lock up.
func (h *Hold) Close(ctx context.Context) error {
	if h.stop != nil {
		h.stop()
		h.watcher.Wait()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := h.conn.Close(ctx); err != nil && h.Err() == nil {
		return fmt.Errorf("give up the database: %w", err)
	}
	return nil
}
