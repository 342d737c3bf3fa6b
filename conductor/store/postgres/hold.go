package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"
)

// ErrAway means that the server can't be reached, and nothing was written. Writes are taken again when it is back.
var ErrAway = errors.New("PostgreSQL can't be reached, nothing is written until it is back")

// ErrTaken means that other conductors have taken this one for dead, or that another ingotd has taken over the
// database. This one never writes again.
var ErrTaken = errors.New("another ingotd has taken over: this one was not heard of for too long")

// Numbers of advisory locks, of this program alone. An ingotd that shares the database has the first shared, and one
// that wants it alone has it exclusively, each for its life; the second is held by each transaction that writes, so
// that there is one of them at a time; the third by who changes the schema; the fourth, with a hash of its name, by
// each conductor, for its life.
const (
	workLock    = 0x696e676f7401
	writeLock   = 0x696e676f7402
	migrateLock = 0x696e676f7403
	nameLock    = 0x696e67
)

// Options of a Hold. Taken is called once when this process has lost the database to others, Heard with each wake-up,
// and with "" when some may have been missed; neither may wait.
//
// By the lease the conductors of a database know that one of them has died. Each writes a beat into its row, and may
// act for the time of the lease from when it began to write the last one that was stored. The others watch the row:
// when it has not changed for one and a half of that, while their own beats were stored, that conductor is fenced. All
// of it is measured by each one's own monotonic clock, so no clock that is set can break it. The half is how long a
// packet that was sent in time may travel.
type Options struct {
	Name  string        // of this conductor; "": it needs the database alone
	Lease time.Duration // zero: 10 s
	Log   *slog.Logger
	Taken func(error)
	Heard func(payload string)
}

const (
	defaultLease = 10 * time.Second
	askFor       = 5 * time.Second // that an answer may take
	retry        = 500 * time.Millisecond
)

// States of a conductor.
const (
	Up       = "up"
	Draining = "draining"
	Gone     = "gone"
)

// SQLSTATEs lock_not_available, query_canceled, which a statement time-out is too, and invalid_parameter_value.
const (
	lockTimeout  = "55P03"
	canceled     = "57014"
	invalidValue = "22023"
)

// channel of wake-ups.
const channel = "ingot"

// changedWord is the wake-up that says that a conductor has joined, has another state or description, or is gone. Until
// the others have read that, they do not agree whose a node is to be that no conductor owns.
const changedWord = "conductors"

// Member is a conductor of the database as it was seen last.
type Member struct {
	Name             string
	Epoch            int64
	State            string
	Joined, LastBeat time.Time // by the database's clock
	Doc              string
}

// Hold makes this process a writer of a database: the only one, or one of several. Its lock and its row end with it;
// a process that has not yet noticed is kept from writing by its row, which each transaction reads.
type Hold struct {
	Options
	server *Server
	away   atomic.Pointer[error]
	lost   atomic.Int64 // when it began to be away, since began
	epoch  atomic.Int64
	until  atomic.Int64 // end of the lease, by uptime
	began  time.Time    // monotonic
	back   atomic.Bool

	mu      sync.Mutex
	members []Member // those with a name
	changed int64    // as of members
	moved   func()   // called when members have changed

	conn    *pgx.Conn // watch's alone, once that runs
	seen    map[string]sight
	stop    context.CancelFunc
	watcher sync.WaitGroup
}

// sight is the last beat that was seen of another conductor, and since when.
type sight struct {
	epoch, beat int64
	since       time.Time
}

// lockTime is how long a start waits for a lock: that of an ingotd that was killed is given up at once.
const lockTime = 3 * time.Second

// Hold connects, and takes the lock of the only one, or, with a name, that of one of several. Close gives it up.
func (s *Server) Hold(ctx context.Context, o Options) (*Hold, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	o.Lease = cmp.Or(o.Lease, defaultLease)
	h := &Hold{Options: o, server: s, conn: conn, began: time.Now(), seen: map[string]sight{}}
	for end := time.Now().Add(lockTime); ; {
		refusal, err := h.lock(ctx, conn)
		if err != nil {
			return nil, errors.Join(s.refusal(err), conn.Close(ctx))
		}
		if refusal == nil {
			return h, nil
		}
		if time.Now().After(end) {
			return nil, errors.Join(refusal, conn.Close(ctx))
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), conn.Close(context.WithoutCancel(ctx)))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// lock takes the locks of this process on a connection. refusal says who has them.
func (h *Hold) lock(ctx context.Context, c *pgx.Conn) (refusal, err error) {
	var got bool
	if h.Name == "" {
		err = c.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, int64(workLock)).Scan(&got)
		if err != nil || got {
			return nil, err
		}
		return fmt.Errorf(
			"another ingotd works with %s, and this one needs it alone: stop it first, or give this one a database of its own in store.url",
			h.server), nil
	}
	err = c.QueryRow(ctx, `SELECT pg_try_advisory_lock($1, hashtext($2))`, int32(nameLock), h.Name).Scan(&got)
	if err != nil {
		return nil, err
	}
	if !got {
		return fmt.Errorf(
			"another ingotd with the name %s works with %s: stop it first, or give this one a name of its own in hostname",
			h.Name, h.server), nil
	}
	if err = c.QueryRow(ctx, `SELECT pg_try_advisory_lock_shared($1)`, int64(workLock)).Scan(&got); err != nil || got {
		return nil, err
	}
	_, err = c.Exec(ctx, `SELECT pg_advisory_unlock($1, hashtext($2))`, int32(nameLock), h.Name)
	return fmt.Errorf("a command of ingotd works with %s and needs it alone: start this one when it has ended",
		h.server), err
}

// Migrating calls f, which may change the schema, while no other ingotd does.
func (h *Hold) Migrating(ctx context.Context, f func() error) error {
	if _, err := h.conn.Exec(ctx, `SET lock_timeout = 0; SET statement_timeout = 0`); err != nil {
		return h.server.refusal(err)
	}
	if _, err := h.conn.Exec(ctx, `SELECT pg_advisory_lock($1)`, int64(migrateLock)); err != nil {
		return h.server.refusal(err)
	}
	err := f()
	if _, uerr := h.conn.Exec(ctx, `SELECT pg_advisory_unlock($1)`, int64(migrateLock)); uerr != nil {
		return errors.Join(err, h.server.refusal(uerr))
	}
	if serr := settings(time.Minute)(ctx, h.conn); serr != nil {
		return errors.Join(err, h.server.refusal(serr))
	}
	return err
}

// Join begins this process's life as a writer: from the return on, no transaction is committed of an earlier one of its
// name, nor, where one needs the database alone, of any other. The table "conductors" must exist.
func (h *Hold) Join(ctx context.Context) error {
	sent := uptime()
	if err := h.join(ctx); err != nil {
		return fmt.Errorf("join the conductors of the database: %w", err)
	}
	h.extend(sent)
	if _, err := h.conn.Exec(ctx, `LISTEN `+channel); err != nil {
		return fmt.Errorf("join the conductors of the database: %w", err)
	}
	ctx, h.stop = context.WithCancel(context.WithoutCancel(ctx))
	h.watcher.Go(func() { h.watch(ctx) })
	return nil
}

const now = `(extract(epoch FROM clock_timestamp()) * 1000000)::bigint`

func (h *Hold) join(ctx context.Context) (err error) {
	tx, err := h.conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
		}
	}()
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(writeLock)); err != nil {
		return err
	}
	// One that needs the database alone can have lost its lock without knowing it, and so can those beside it.
	if _, err := tx.Exec(ctx, `UPDATE conductors SET state = '`+Gone+`', changed = (SELECT MAX(changed) + 1 FROM conductors)
		WHERE (name = '' OR $1 = '') AND state <> '`+Gone+`'`, h.Name); err != nil {
		return err
	}
	var epoch int64
	if err := tx.QueryRow(ctx, `INSERT INTO conductors (name, epoch, state, beat, changed, joined_at, seen_at, doc)
		SELECT $1, COALESCE(MAX(epoch), 0) + 1, '`+Up+`', 0, COALESCE(MAX(changed), 0) + 1, `+now+`, `+now+`, '{}'
		FROM conductors
		ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, state = excluded.state, beat = 0,
			changed = excluded.changed, joined_at = excluded.joined_at, seen_at = excluded.seen_at, doc = excluded.doc
		RETURNING epoch`, h.Name).Scan(&epoch); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `SELECT pg_notify($1, $2)`, channel, changedWord); err != nil {
		return err
	}
	rows, err := readRows(ctx, tx)
	if err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	h.epoch.Store(epoch)
	h.keep(rows)
	return nil
}

// queryer is a connection or a transaction of pgx.
type queryer interface {
	Query(ctx context.Context, query string, args ...any) (pgx.Rows, error)
}

// row is a Member with what shows that it lives.
type row struct {
	Member
	beat, changed int64
}

func readRows(ctx context.Context, q queryer) ([]row, error) {
	rows, err := q.Query(ctx,
		`SELECT name, epoch, state, beat, changed, joined_at, seen_at, doc FROM conductors ORDER BY name`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (row, error) {
		var (
			m            row
			joined, seen int64
		)
		err := r.Scan(&m.Name, &m.Epoch, &m.State, &m.beat, &m.changed, &joined, &seen, &m.Doc)
		m.Joined, m.LastBeat = time.UnixMicro(joined).UTC(), time.UnixMicro(seen).UTC()
		return m, err
	})
}

// keep keeps the rows as they were read.
func (h *Hold) keep(rows []row) {
	var members []Member
	var changed int64
	for _, r := range rows {
		if changed = max(changed, r.changed); r.Name != "" {
			members = append(members, r.Member)
		}
	}
	h.mu.Lock()
	var moved func()
	if changed >= h.changed {
		if changed > h.changed {
			moved = h.moved
		}
		h.members, h.changed = members, changed
	}
	h.mu.Unlock()
	if moved != nil {
		moved()
	}
}

// Moved makes f be called whenever a conductor has joined, begun to drain, or is gone. f must not wait.
func (h *Hold) Moved(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.moved = f
}

// Members returns the conductors by name, those that are gone among them. Within a transaction of Begin it is exact.
func (h *Hold) Members() []Member {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.members)
}

// Lives reports whether a conductor may write.
func (h *Hold) Lives(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.members, func(m Member) bool { return m.Name == name && m.State != Gone })
}

// Others reports whether another conductor may live.
func (h *Hold) Others() bool {
	if h.Name == "" {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.members, func(m Member) bool { return m.Name != h.Name && m.State != Gone })
}

// Err is why nothing can be written now, an error that is ErrAway; or nil.
func (h *Hold) Err() error {
	if err := h.away.Load(); err != nil {
		return fmt.Errorf("%w: %w", ErrAway, *err)
	}
	return nil
}

// AwaySince is the time from which on nothing could be written until now; zero when it can be.
func (h *Hold) AwaySince() time.Time {
	if h.away.Load() == nil {
		return time.Time{}
	}
	return h.began.Add(time.Duration(h.lost.Load()))
}

// Check is nil while the lease lasts: no other conductor can have taken this one for dead.
func (h *Hold) Check() error {
	if left := time.Duration(h.until.Load()) - uptime(); h.Name != "" && left <= 0 {
		return fmt.Errorf("%w: the lease of this conductor ended %s ago, and others may act in its place", ErrAway,
			(-left).Round(time.Millisecond))
	}
	return nil
}

// patience is how long another conductor may not be heard of.
func (h *Hold) patience() time.Duration { return h.Lease + h.Lease/2 }

// extend makes the lease last from a beat that has been stored.
func (h *Hold) extend(sent time.Duration) { h.until.Store(int64(sent + h.Lease)) }

// uptime is the host's, which can't be set. Other than Go's monotonic clock it goes on while the host is suspended: a
// conductor that wakes up has no lease any more.
func uptime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // Linux has it since 2.6.39
	}
	return time.Duration(ts.Nano())
}

// watch keeps the lease, notices when the connection, and with it the locks, is lost, and takes them again.
func (h *Hold) watch(ctx context.Context) {
	for {
		err := h.alive(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrTaken):
			h.Taken(err)
			return
		}
		h.lost.Store(int64(time.Since(h.began)))
		h.away.Store(&err)
		h.server.reads.heard(err)
		h.Log.Error("the connection to the database is lost: writes are refused until it is back", "database",
			h.server.String(), "err", err)
		_ = h.conn.Close(ctx) // it is broken
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(retry):
			}
			back, err := h.again(ctx)
			h.server.reads.heard(err)
			if errors.Is(err, ErrTaken) {
				h.Taken(err)
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
		h.Log.Info("the database is back", "database", h.server.String())
		h.Heard("")
	}
}

// alive returns when the connection fails.
func (h *Hold) alive(ctx context.Context) error {
	clear(h.seen) // others could not write either
	for ctx.Err() == nil {
		if err := h.beat(ctx); err != nil {
			return err
		}
		idle, cancel := context.WithTimeout(ctx, h.Lease/5)
		for {
			n, err := h.conn.WaitForNotification(idle)
			if err != nil {
				waited := idle.Err() != nil
				if !waited || h.conn.IsClosed() {
					cancel()
					return err
				}
				break
			}
			if n.Payload == changedWord {
				break // the beat reads what has changed
			}
			h.hear(n)
		}
		cancel()
	}
	return ctx.Err()
}

func (h *Hold) hear(n *pgconn.Notification) {
	if n.Payload != "" {
		h.Heard(n.Payload)
	}
}

// beat shows that this conductor lives, and looks whether the others do.
func (h *Hold) beat(ctx context.Context) error {
	// A request that is cut short would end the connection, by which Close says that this conductor has gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askFor)
	defer cancel()
	sent := uptime()
	tag, err := h.conn.Exec(ctx, `UPDATE conductors SET beat = beat + 1, seen_at = `+now+` WHERE epoch = $1 AND state <> '`+
		Gone+`'`, h.epoch.Load())
	if err != nil {
		return err
	}
	if tag.RowsAffected() != 1 {
		return ErrTaken
	}
	h.extend(sent)
	if h.Name == "" {
		return nil
	}
	rows, err := readRows(ctx, h.conn)
	if err != nil {
		return err
	}
	at, fenced := time.Now(), false
	for _, r := range rows {
		was, ok := h.seen[r.Name]
		switch {
		case r.Name == h.Name || r.State == Gone:
			delete(h.seen, r.Name)
		case !ok || was.epoch != r.Epoch || was.beat != r.beat:
			h.seen[r.Name] = sight{r.Epoch, r.beat, at}
		case at.Sub(was.since) > h.patience():
			if fenced, err = true, h.fence(ctx, r); err != nil {
				return err
			}
		}
	}
	if fenced {
		if rows, err = readRows(ctx, h.conn); err != nil {
			return err
		}
	}
	h.keep(rows)
	return nil
}

// fence ends the life of a conductor that has not been heard of, unless it is heard of now.
func (h *Hold) fence(ctx context.Context, r row) error {
	n, err := h.set(ctx, h.conn, Gone, r.Epoch, &r.beat, nil)
	if Code(err) == lockTimeout { // the next beat tries again
		return nil
	}
	if err != nil {
		return err
	}
	delete(h.seen, r.Name)
	if n > 0 {
		h.Log.Warn("a conductor has not been heard of and is taken for dead: its nodes are taken over", "conductor",
			r.Name, "after", h.patience())
	}
	return nil
}

// set changes the state of a conductor, if it lives and, unless beat is nil, its beat is still that. It waits for the
// transaction that writes, which may be that conductor's, but not so long that this one's own beat is late.
func (h *Hold) set(ctx context.Context, c *pgx.Conn, state string, epoch int64, beat *int64,
	doc *string) (changed int64, err error) {
	err = pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		wait := fmt.Sprintf(`SET LOCAL lock_timeout = %d`, (h.Lease / 5).Milliseconds())
		if _, err := tx.Exec(ctx, wait); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(writeLock)); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `UPDATE conductors SET state = $1, doc = COALESCE($4, doc),
				changed = (SELECT MAX(changed) + 1 FROM conductors)
			WHERE epoch = $2 AND (beat = $3 OR $3 IS NULL) AND state <> '`+Gone+`'`, state, epoch, beat, doc)
		if changed = tag.RowsAffected(); err != nil || changed == 0 {
			return err
		}
		_, err = tx.Exec(ctx, `SELECT pg_notify($1, $2)`, channel, changedWord)
		return err
	})
	return changed, err
}

// Describe makes this conductor known to the others: its state, Up or Draining, and its description.
func (h *Hold) Describe(ctx context.Context, state, doc string) error {
	ctx, cancel := context.WithTimeout(ctx, describeTime)
	defer cancel()
	c, err := h.server.connect(ctx)
	if err != nil {
		return err
	}
	for range 10 {
		if _, err = h.set(ctx, c, state, h.epoch.Load(), nil, &doc); Code(err) != lockTimeout {
			break
		}
	}
	// Known here at once, too: the next beat would be late for the first request.
	if err == nil && h.Name != "" {
		var rows []row
		if rows, err = readRows(ctx, c); err == nil {
			h.keep(rows)
		}
	}
	return errors.Join(err, c.Close(context.WithoutCancel(ctx)))
}

// describeTime is longer than all tries of Describe at a server that answers.
const describeTime = 25 * time.Second

// again takes the locks on a new connection, if this process's row is as it left it.
func (h *Hold) again(ctx context.Context) (back bool, err error) {
	asking, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	conn, err := h.server.connect(asking)
	if err != nil {
		return false, err
	}
	var lives bool
	err = conn.QueryRow(asking, `SELECT EXISTS (SELECT FROM conductors WHERE epoch = $1 AND state <> '`+Gone+`')`,
		h.epoch.Load()).Scan(&lives)
	if err == nil && !lives {
		err = ErrTaken
	}
	if err == nil {
		refusal, lerr := h.lock(asking, conn)
		err = errors.Join(refusal, lerr)
	}
	if err == nil {
		_, err = conn.Exec(asking, `LISTEN `+channel)
	}
	if err != nil {
		return false, errors.Join(err, conn.Close(asking))
	}
	h.conn = conn
	return true, nil
}

const begin = `BEGIN; SELECT pg_advisory_xact_lock(%d);
	SELECT pg_current_xact_id()::text, (SELECT MAX(changed) FROM conductors)::text FROM conductors WHERE epoch = %d AND state <> '` +
	Gone + `'`

// Begin begins a transaction that writes, on a connection of Open, and returns its ID for Committed. It waits for
// those of other conductors. It asks once: another round to the server would cost as much as a small write. With an
// error no transaction is left open, for which the others would wait.
func (h *Hold) Begin(ctx context.Context, c *sql.Conn) (id string, err error) {
	if err := h.Err(); err != nil {
		return "", err
	}
	err = c.Raw(func(c any) (err error) {
		conn, ok := c.(*Conn)
		if !ok {
			return fmt.Errorf("a connection is %T", c)
		}
		defer func() {
			if err != nil {
				conn.undo(ctx)
			}
		}()
		res, err := conn.PGX().PgConn().Exec(ctx, fmt.Sprintf(begin, int64(writeLock), h.epoch.Load())).ReadAll()
		if Code(err) == canceled { // it waited for a writer that stands still, until that one is taken for dead
			return fmt.Errorf("%w: another writer keeps it: %w", ErrAway, err)
		}
		if err != nil {
			return conn.tell(err)
		}
		last := res[len(res)-1].Rows
		if len(last) != 1 {
			return ErrTaken
		}
		id = string(last[0][0])
		if string(last[0][1]) == h.version() {
			return nil
		}
		rows, err := readRows(ctx, conn.PGX())
		if err != nil {
			return conn.tell(err)
		}
		h.keep(rows)
		return nil
	})
	if errors.Is(err, ErrTaken) {
		h.Taken(err)
	}
	return id, err
}

func (h *Hold) version() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprint(h.changed)
}

// Wake is the statement, with one argument, that wakes the other conductors when the transaction is committed. They
// hear the argument, of at most MaxWake bytes; so does this one.
const Wake = `SELECT pg_notify('` + channel + `', ?)`

// MaxWake is how long the argument of Wake may be.
const MaxWake = 7900

// Committed finds out what became of a transaction whose end was not confirmed. Its number says no more than that a
// transaction of that number was committed: one that the server forgot in a crash is not, and another may have got its
// number.
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
		if Code(err) == invalidValue { // no transaction has had that number yet; a standby may still hear of it
			var standby bool
			if err = db.QueryRowContext(ctx, `SELECT pg_is_in_recovery()`).Scan(&standby); err == nil && !standby {
				return false, nil
			}
		}
		select { // it is in progress, or the server can't be reached
		case <-ctx.Done():
			return false, errors.Join(ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// ComesBack has Close not say that this conductor has gone: the others wait for its lease.
func (h *Hold) ComesBack() { h.back.Store(true) }

// Close gives the locks up, and says that this conductor has gone, so that the others need not wait for its lease.
func (h *Hold) Close(ctx context.Context) error {
	joined := h.stop != nil
	if joined {
		h.stop()
		h.watcher.Wait()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if h.Err() != nil {
		_ = h.conn.Close(ctx) // it is broken
		return nil
	}
	var err error
	if joined && !h.conn.IsClosed() && !h.back.Load() {
		_, err = h.set(ctx, h.conn, Gone, h.epoch.Load(), nil, nil)
	}
	if err = errors.Join(err, h.conn.Close(ctx)); err != nil {
		return fmt.Errorf("give up the database: %w", err)
	}
	return nil
}
