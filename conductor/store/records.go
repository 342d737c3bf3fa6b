package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/node"
)

// AddHistory adds a line to a node's history; UUID and time are filled in when empty.
func (s *Store) AddHistory(ctx context.Context, h node.HistoryEntry) error {
	return s.write(ctx, func(tx *txn) error { return s.addHistory(tx, h) })
}

// maxSentence is how long a sentence of a record may be, in bytes; maxEvent is how long one of the history may be, of
// which head and tail stay.
const (
	maxSentence = 8 << 10
	maxEvent    = 64 << 10
)

// sentence is a text of a record without what nobody is to read there: secrets, and what does something to the terminal
// of whoever reads it. Parts of it may be of machines.
func sentence(s string) string { return redact.Text(clean.Line(s, maxSentence)) }

// event is the sentence of a line of the history. Its end says how the list that it holds went on, and is kept like its
// beginning.
func event(s string) string {
	const gap = " ... "
	s = redact.Text(clean.Line(s, math.MaxInt))
	if len(s) <= maxEvent {
		return s
	}
	half := (maxEvent - len(gap)) / 2
	return strings.ToValidUTF8(s[:half], "") + gap + strings.ToValidUTF8(s[len(s)-half:], "")
}

func (s *Store) addHistory(tx *txn, h node.HistoryEntry) error {
	if h.UUID == "" {
		h.UUID = uuid.NewString()
	}
	if h.At.IsZero() {
		h.At = s.now()
	}
	if h.Severity == "" {
		h.Severity = "INFO"
	}
	id := strings.ToLower(h.NodeUUID)
	if h.User != "" && h.User == s.notes.by.User {
		h.Project = s.notes.by.Project
	}
	if h.State == "" {
		var since int64
		err := tx.QueryRow(
			`SELECT provision_state, target_provision_state, provision_updated_at FROM nodes WHERE uuid = ?`,
			id).Scan(&h.State, &h.Target, &since)
		if err != nil {
			return fmt.Errorf("write history: node %s: %w", h.NodeUUID, notFound(err))
		}
		h.Seconds = node.WholeSeconds(fromMicros(since), h.At)
	}
	asked := s.notes.asked && h.User == s.notes.by.User
	res, err := tx.Exec(`INSERT INTO history (uuid, node_uuid, node_name, at, type, severity, event, conductor, user_name, project, owner, lessee, gone, asked, state, target, seconds)
		SELECT ?, uuid, COALESCE(name, ''), ?, ?, ?, ?, ?, ?, ?, owner, lessee, 0, ?, ?, ?, ? FROM nodes WHERE uuid = ?`,
		h.UUID, micros(h.At), h.Type, h.Severity, event(h.Event), h.Conductor, h.User, h.Project, bit(asked), h.State,
		h.Target, h.Seconds, id)
	if err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	if k, err := res.RowsAffected(); err != nil || k == 0 {
		return fmt.Errorf("write history: node %s: %w", h.NodeUUID, errors.Join(err, ErrNotFound))
	}
	return s.trimHistory(tx, id, asked)
}

// trim removes a node's oldest rows beyond keep: now and then, since counting them costs more than the writing.
func trim(tx *txn, table, nodeUUID string, keep int) error {
	if rand.N(64) != 0 {
		return nil
	}
	_, err := tx.Exec(`DELETE FROM `+table+` WHERE node_uuid = ? AND seq <=
		(SELECT seq FROM `+table+` WHERE node_uuid = ? ORDER BY seq DESC LIMIT 1 OFFSET ?)`, nodeUUID, nodeUUID, keep)
	if err != nil {
		return fmt.Errorf("trim %s: %w", table, err)
	}
	return nil
}

func nodeExists(tx *txn, uuid string) (string, error) {
	id := strings.ToLower(uuid)
	var one int
	if err := tx.QueryRow(`SELECT 1 FROM nodes WHERE uuid = ?`, id).Scan(&one); err != nil {
		return "", fmt.Errorf("node %s: %w", uuid, notFound(err))
	}
	return id, nil
}

// History returns the newest lines of a node's history, newest first; all that are kept if limit is 0.
func (s *Store) History(ctx context.Context, nodeUUID string, limit int) ([]node.HistoryEntry, error) {
	if limit <= 0 {
		limit = math.MaxInt32
	}
	rows, err := s.r.QueryContext(ctx, `SELECT uuid, node_uuid, at, type, severity, event, conductor, user_name, project, state, target, seconds
		FROM history WHERE node_uuid = ? AND gone = 0 ORDER BY seq DESC LIMIT ?`, strings.ToLower(nodeUUID), limit)
	if err != nil {
		return nil, fmt.Errorf("history of node %s: %w", nodeUUID, err)
	}
	return collect(rows, func(scan func(...any) error) (node.HistoryEntry, error) {
		var (
			h  node.HistoryEntry
			at int64
		)
		err := scan(&h.UUID, &h.NodeUUID, &at, &h.Type, &h.Severity, &h.Event, &h.Conductor, &h.User, &h.Project,
			&h.State, &h.Target, &h.Seconds)
		h.At = fromMicros(at)
		return h, err
	})
}

// AddMark adds a point to a node's time line; the time is filled in when empty.
func (s *Store) AddMark(ctx context.Context, m node.Mark) error {
	return s.write(ctx, func(tx *txn) error { return s.addMark(tx, m) })
}

func (s *Store) addMark(tx *txn, m node.Mark) error {
	if m.At.IsZero() {
		m.At = s.now()
	}
	id, err := nodeExists(tx, m.NodeUUID)
	if err != nil {
		return fmt.Errorf("write mark: %w", err)
	}
	_, err = tx.Exec(`INSERT INTO marks (node_uuid, job_id, name, at, detail) VALUES (?, ?, ?, ?, ?)`, id, m.JobID,
		m.Name, micros(m.At), sentence(m.Detail))
	if err != nil {
		return fmt.Errorf("write mark: %w", err)
	}
	return trim(tx, "marks", id, limit.KeptMarks)
}

// Marks returns a node's time line in the order in which it was recorded, whatever the clock showed: of one job, or all
// that is kept if jobID is empty.
func (s *Store) Marks(ctx context.Context, nodeUUID, jobID string) ([]node.Mark, error) {
	q, args := `SELECT node_uuid, job_id, name, at, detail FROM marks WHERE node_uuid = ?`,
		[]any{strings.ToLower(nodeUUID)}
	if jobID != "" {
		q, args = q+` AND job_id = ?`, append(args, jobID)
	}
	rows, err := s.r.QueryContext(ctx, q+` ORDER BY seq`, args...)
	if err != nil {
		return nil, fmt.Errorf("marks of node %s: %w", nodeUUID, err)
	}
	return collect(rows, func(scan func(...any) error) (node.Mark, error) {
		var (
			m  node.Mark
			at int64
		)
		err := scan(&m.NodeUUID, &m.JobID, &m.Name, &at, &m.Detail)
		m.At = fromMicros(at)
		return m, err
	})
}

// SetInventory replaces a node's inventory, a JSON document.
func (s *Store) SetInventory(ctx context.Context, nodeUUID string, json []byte) error {
	return s.write(ctx, func(tx *txn) error { return s.setInventory(tx, nodeUUID, json) })
}

func (s *Store) setInventory(tx *txn, nodeUUID string, json []byte) error {
	id, err := nodeExists(tx, nodeUUID)
	if err != nil {
		return fmt.Errorf("write inventory: %w", err)
	}
	_, err = tx.Exec(`INSERT INTO inventories (node_uuid, at, doc) VALUES (?, ?, ?)
		ON CONFLICT (node_uuid) DO UPDATE SET at = excluded.at, doc = excluded.doc`, id, micros(s.now()), string(json))
	if err != nil {
		return fmt.Errorf("write inventory: %w", err)
	}
	return nil
}

// Inventory returns a node's inventory, or ErrNotFound before the first inspection.
func (s *Store) Inventory(ctx context.Context, nodeUUID string) ([]byte, error) {
	var doc []byte
	err := s.r.QueryRowContext(ctx, `SELECT doc FROM inventories WHERE node_uuid = ?`, strings.ToLower(nodeUUID)).Scan(
		&doc)
	if err != nil {
		return nil, fmt.Errorf("inventory of node %s: %w", nodeUUID, notFound(err))
	}
	return doc, nil
}

// keptResults is how many results of steps are kept apart for each node.
const keptResults = 8

func (s *Store) addResult(tx *txn, id string, r node.LargeResult) error {
	sealed, err := s.sealer.Seal("result "+r.Ref, r.Doc)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(`INSERT INTO results (node_uuid, ref, sealed) VALUES (?, ?, ?)`, id, r.Ref,
		sealed); err != nil {
		return fmt.Errorf("write the result of a step: %w", err)
	}
	// Unlike rows of other tables these are large: none is more than needed.
	_, err = tx.Exec(`DELETE FROM results WHERE node_uuid = ? AND seq <=
		(SELECT seq FROM results WHERE node_uuid = ? ORDER BY seq DESC LIMIT 1 OFFSET ?)`, id, id, keptResults)
	if err != nil {
		return fmt.Errorf("trim results: %w", err)
	}
	return nil
}

// Results returns the results of steps that are stored apart from a node, by their references: the newest ones.
func (s *Store) Results(ctx context.Context, nodeUUID string) (map[string]json.RawMessage, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT ref, sealed FROM results WHERE node_uuid = ?`, strings.ToLower(nodeUUID))
	if err != nil {
		return nil, fmt.Errorf("results of node %s: %w", nodeUUID, err)
	}
	all, err := collect(rows, func(scan func(...any) error) (r node.LargeResult, err error) {
		var sealed []byte
		if err := scan(&r.Ref, &sealed); err != nil {
			return r, err
		}
		r.Doc, err = s.sealer.Open("result "+r.Ref, sealed)
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("results of node %s: %w", nodeUUID, err)
	}
	out := make(map[string]json.RawMessage, len(all))
	for _, r := range all {
		out[r.Ref] = r.Doc
	}
	return out, nil
}

const leaseColumns = `SELECT mac, ip, node_uuid, expires_at FROM leases `

func scanLease(scan func(...any) error) (node.Lease, error) {
	var (
		l  node.Lease
		at int64
	)
	err := scan(&l.MAC, &l.IP, &l.NodeUUID, &at)
	l.ExpiresAt = fromMicros(at)
	return l, notFound(err)
}

// Lease returns the lease of a MAC, expired or not, or ErrNotFound.
func (s *Store) Lease(ctx context.Context, mac string) (node.Lease, error) {
	l, err := scanLease(s.r.QueryRowContext(ctx, leaseColumns+`WHERE mac = ?`, strings.ToLower(mac)).Scan)
	if err != nil {
		return l, fmt.Errorf("lease of %s: %w", mac, err)
	}
	return l, nil
}

// LeaseByIP returns the lease of an address, expired or not, or ErrNotFound.
func (s *Store) LeaseByIP(ctx context.Context, ip string) (node.Lease, error) {
	l, err := scanLease(s.r.QueryRowContext(ctx, leaseColumns+`WHERE ip = ?`, ip).Scan)
	if err != nil {
		return l, fmt.Errorf("lease of %s: %w", ip, err)
	}
	return l, nil
}

// LeaseHeldError says that an address is leased to another MAC, and until when.
type LeaseHeldError struct {
	IP, MAC string
	Until   time.Time
}

func (e *LeaseHeldError) Error() string {
	return fmt.Sprintf("address %s is leased to %s until %s", e.IP, e.MAC, e.Until.Format(time.RFC3339))
}

// PutLease stores a lease in place of the MAC's older one. An address whose lease has expired is taken over from
// whoever had it; one that is still leased to another MAC gives a *LeaseHeldError.
func (s *Store) PutLease(ctx context.Context, l node.Lease) error {
	l.MAC = strings.ToLower(l.MAC)
	return s.write(ctx, func(tx *txn) error {
		held, err := scanLease(tx.QueryRow(leaseColumns+`WHERE ip = ? AND mac <> ?`, l.IP, l.MAC).Scan)
		switch {
		case errors.Is(err, ErrNotFound):
		case err != nil:
			return fmt.Errorf("write lease: %w", err)
		case held.ExpiresAt.After(s.now()):
			return &LeaseHeldError{l.IP, held.MAC, held.ExpiresAt}
		default:
			if _, err := tx.Exec(`DELETE FROM leases WHERE mac = ?`, held.MAC); err != nil {
				return fmt.Errorf("write lease: %w", err)
			}
		}
		_, err = tx.Exec(`INSERT INTO leases (mac, ip, node_uuid, expires_at) VALUES (?, ?, ?, ?)
			ON CONFLICT (mac) DO UPDATE SET ip = excluded.ip, node_uuid = excluded.node_uuid, expires_at = excluded.expires_at`,
			l.MAC, l.IP, strings.ToLower(l.NodeUUID), micros(l.ExpiresAt))
		if err != nil {
			return fmt.Errorf("write lease: %w", err)
		}
		return nil
	})
}

// Leases returns all leases, expired ones included, by address.
func (s *Store) Leases(ctx context.Context) ([]node.Lease, error) {
	rows, err := s.r.QueryContext(ctx, leaseColumns+`ORDER BY ip`)
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	return collect(rows, scanLease)
}

// DeleteLease removes a MAC's lease; one that is not there is no error.
func (s *Store) DeleteLease(ctx context.Context, mac string) error {
	return s.write(ctx, func(tx *txn) error {
		if _, err := tx.Exec(`DELETE FROM leases WHERE mac = ?`, strings.ToLower(mac)); err != nil {
			return fmt.Errorf("delete lease of %s: %w", mac, err)
		}
		return nil
	})
}
