package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// Log returns lines of the histories of all nodes, those deleted included. A marker that is not there gives
// ErrNotFound.
func (s *Store) Log(ctx context.Context, q node.LogQuery) ([]node.LogLine, error) {
	var where []string
	var args []any
	add := func(cond string, a ...any) { where, args = append(where, cond), append(args, a...) }
	equal := func(column, v string) {
		if v != "" {
			add(column+" = ?", v)
		}
	}
	switch {
	case q.NodeUUID != "":
		add("node_uuid = ?", strings.ToLower(q.NodeUUID))
	case q.NodeName != "":
		add("node_name = ?", q.NodeName)
	}
	equal("user_name", q.User)
	equal("type", q.Type)
	equal("severity", strings.ToUpper(q.Severity))
	if q.Project != "" {
		add("(project = ? OR owner = ? OR lessee = ?)", q.Project, q.Project, q.Project)
	}
	if q.Visible != "" {
		// A lessee may not look at a node's history, which tells of the site's insides, but at what it asked for
		// itself, though not at what became of it.
		add("(owner = ? OR lessee = ? AND project = ? AND asked = 1)", q.Visible, q.Visible, q.Visible)
		if q.Text != "" { // nor find out by searching what an error says
			add("(owner = ? OR severity <> 'ERROR')", q.Visible)
		}
	}
	if q.Text != "" {
		add(`LOWER(event) LIKE ? ESCAPE '\'`,
			"%"+strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(strings.ToLower(q.Text))+"%")
	}
	if !q.Since.IsZero() {
		add("asked IN (0, 1) AND at >= ?", micros(q.Since)) // all of them, in the words of the index
	}
	if !q.Until.IsZero() {
		add("asked IN (0, 1) AND at < ?", micros(q.Until))
	}
	order, after := "DESC", "<"
	if q.Oldest {
		order, after = "ASC", ">"
	}
	if q.Marker != "" {
		var seq int64
		err := s.r.QueryRowContext(ctx, `SELECT seq FROM history WHERE uuid = ?`, strings.ToLower(q.Marker)).Scan(&seq)
		if errors.Is(err, sql.ErrNoRows) {
			return nil, fmt.Errorf("log line %s: %w", q.Marker, ErrNotFound)
		}
		if err != nil {
			return nil, fmt.Errorf("read log: %w", err)
		}
		add("seq "+after+" ?", seq)
	}
	cond := ""
	if len(where) > 0 {
		cond = " WHERE " + strings.Join(where, " AND ")
	}
	rows, err := s.r.QueryContext(ctx, `SELECT uuid, node_uuid, node_name, at, type, severity, event, conductor, user_name, project, owner, lessee, gone
		FROM history`+cond+` ORDER BY seq `+order+` LIMIT ?`, append(args, max(1, q.Limit))...)
	if err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	return collect(rows, func(scan func(...any) error) (node.LogLine, error) {
		var (
			l  node.LogLine
			at int64
		)
		err := scan(&l.UUID, &l.NodeUUID, &l.NodeName, &at, &l.Type, &l.Severity, &l.Event, &l.Conductor, &l.User,
			&l.Project, &l.Owner, &l.Lessee, &l.Gone)
		l.At = fromMicros(at)
		return l, err
	})
}

// Newest is the latest time in the history and among the events; zero when there are none.
func (s *Store) Newest(ctx context.Context) (time.Time, error) { return newest(ctx, s.r) }

// NewestIn is Newest of the database in dir, which an ingotd may be using.
func NewestIn(ctx context.Context, dir string) (at time.Time, err error) {
	path := filepath.Join(dir, DatabaseFile)
	if !hasData(path) {
		return time.Time{}, ErrNotFound
	}
	db, err := openReading(path)
	if err != nil {
		return time.Time{}, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return newest(ctx, db)
}

func newest(ctx context.Context, db queryer) (time.Time, error) {
	var asked, told, event sql.NullInt64 // each is the end of an index
	err := db.QueryRowContext(ctx, `SELECT (SELECT MAX(at) FROM history WHERE asked = 1), (SELECT MAX(at) FROM history WHERE asked = 0),
		(SELECT at FROM events ORDER BY id DESC LIMIT 1)`).Scan(&asked, &told, &event)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the newest time on record: %w", err)
	}
	return fromMicros(max(asked.Int64, told.Int64, event.Int64)), nil
}
