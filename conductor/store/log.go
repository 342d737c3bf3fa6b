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

// Log returns lines of the histories of all nodes, those deleted included. A missing marker returns ErrNotFound.
func (s *Store) Log(ctx context.Context, q node.LogQuery) ([]node.LogLine, error) {
	var w where
	if q.NodeUUID != "" {
		q.NodeName = ""
	}
	w.is("node_uuid", strings.ToLower(q.NodeUUID))
	w.is("node_name", q.NodeName)
	w.is("user_name", q.User)
	w.is("type", q.Type)
	w.is("severity", strings.ToUpper(q.Severity))
	if q.Project != "" {
		w.add("(project = ? OR owner = ? OR lessee = ?)", q.Project, q.Project, q.Project)
	}
	if q.Visible != "" {
		// A lessee may not see a node's history, which describes the site's insides, but may see its own requests,
		// without their results.
		w.add("(owner = ? OR lessee = ? AND project = ? AND asked = 1)", q.Visible, q.Visible, q.Visible)
		if q.Text != "" { // nor find out by searching what an error says
			w.add("(owner = ? OR severity <> 'ERROR')", q.Visible)
		}
	}
	if q.Text != "" {
		w.add(`LOWER(event) LIKE ? ESCAPE '\'`, containing(strings.ToLower(q.Text)))
	}
	if !q.Since.IsZero() {
		w.add("asked IN (0, 1) AND at >= ?", micros(q.Since)) // all of them, in the words of the index
	}
	if !q.Until.IsZero() {
		w.add("asked IN (0, 1) AND at < ?", micros(q.Until))
	}
	order, after := "DESC", "<"
	if q.Oldest {
		order, after = "ASC", ">"
	}
	if q.Marker != "" {
		var seq int64
		err := s.r.QueryRowContext(ctx, `SELECT seq FROM history WHERE uuid = ?`, strings.ToLower(q.Marker)).Scan(&seq)
		if err != nil {
			return nil, fmt.Errorf("log line %s: %w", q.Marker, notFound(err))
		}
		w.add("seq "+after+" ?", seq)
	}
	return list(ctx, s.r, "read log", into(func(l *node.LogLine) []any {
		return []any{&l.UUID, &l.NodeUUID, &l.NodeName, timeColumn{&l.At}, &l.Type, &l.Severity, &l.Event, &l.Conductor,
			&l.User, &l.Project, &l.Owner, &l.Lessee, &l.Gone}
	}), `SELECT uuid, node_uuid, node_name, at, type, severity, event, conductor, user_name, project, owner, lessee, gone
		FROM history`+w.sql()+` ORDER BY seq `+order+` LIMIT ?`, append(w.args, max(1, q.Limit))...)
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
	var asked, other, event sql.NullInt64 // each is the end of an index
	err := db.QueryRowContext(ctx, `SELECT (SELECT MAX(at) FROM history WHERE asked = 1), (SELECT MAX(at) FROM history WHERE asked = 0),
		(SELECT at FROM events ORDER BY id DESC LIMIT 1)`).Scan(&asked, &other, &event)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the newest time on record: %w", err)
	}
	return fromMicros(max(asked.Int64, other.Int64, event.Int64)), nil
}
