package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// EndSession keeps that a session of the dashboard has ended, until its cookie would have been too old anyway. Of whose
// sessions at most the newest are kept: who signs out more often than that pushes out only what is their own.
func (s *Store) EndSession(ctx context.Context, id, whose string, until time.Time, most int) error {
	return s.write(ctx, func(tx *txn) error {
		if err := tx.exec("forget ended sessions", `DELETE FROM ended_sessions WHERE until < ?`,
			s.now().Unix()); err != nil {
			return err
		}
		if err := tx.exec("keep an ended session",
			`INSERT INTO ended_sessions (id, whose, until) VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING`, id, whose,
			until.Unix()); err != nil {
			return err
		}
		return tx.exec("bound ended sessions", `DELETE FROM ended_sessions WHERE whose = ? AND id NOT IN
			(SELECT id FROM ended_sessions WHERE whose = ? ORDER BY until DESC, id LIMIT ?)`, whose, whose, most)
	})
}

// SessionEnded reports whether a session of the dashboard has ended.
func (s *Store) SessionEnded(ctx context.Context, id string) (bool, error) {
	var one int
	err := s.r.QueryRowContext(ctx, `SELECT 1 FROM ended_sessions WHERE id = ?`, id).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read ended sessions: %w", err)
	}
	return true, nil
}
