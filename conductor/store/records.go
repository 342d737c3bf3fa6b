package store

import (
	"cmp"
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
	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/node"
)

// AddHistory adds a line to a node's history; UUID and time are filled in when empty.
func (s *Store) AddHistory(ctx context.Context, h node.HistoryEntry) error {
	return s.write(ctx, func(tx *txn) error { return s.addHistory(tx, h, nil) })
}

// maxSentence is how long a sentence of a record may be, in bytes; maxEvent is how long one of the history may be, of
// which head and tail stay.
const (
	maxSentence = 8 << 10
	maxEvent    = 64 << 10
)

// sentence is a text of a record without secrets, and without characters that affect the reader's terminal. Parts of it
// may come from machines.
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

// addHistory adds a line to the history of a node, which is n as this transaction has stored it; nil: it is read.
func (s *Store) addHistory(tx *txn, h node.HistoryEntry, n *node.Node) error {
	h.UUID, h.Severity = cmp.Or(h.UUID, uuid.NewString()), cmp.Or(h.Severity, "INFO")
	if h.At.IsZero() {
		h.At = s.now()
	}
	id := strings.ToLower(h.NodeUUID)
	if h.User != "" && h.User == s.notes.by.User {
		h.Project = s.notes.by.Project
	}
	if h.State == "" && !h.Foreign {
		var since time.Time
		if n != nil {
			h.State, h.Target = n.Provision, n.TargetProvision
			since = fromMicros(micros(n.ProvisionUpdatedAt))
		} else if err := tx.QueryRow(
			`SELECT provision_state, target_provision_state, provision_updated_at FROM nodes WHERE uuid = ?`,
			id).Scan(&h.State, &h.Target, timeColumn{&since}); err != nil {
			return fmt.Errorf("write history: node %s: %w", h.NodeUUID, notFound(err))
		}
		h.Seconds = node.WholeSeconds(since, h.At)
	}
	asked := s.notes.asked && h.User == s.notes.by.User
	const insert = `INSERT INTO history (uuid, node_uuid, node_name, at, type, severity, event, conductor, user_name, project, owner, lessee, gone, asked, state, target, seconds)
		SELECT ?, uuid, COALESCE(name, ''), ?, ?, ?, ?, ?, ?, ?, owner, lessee, 0, ?, ?, ?, ? FROM nodes WHERE uuid = ?`
	args := []any{h.UUID, micros(h.At), h.Type, h.Severity, event(h.Event), h.Conductor, h.User, h.Project, bit(asked),
		h.State, h.Target, h.Seconds, id}
	if n != nil {
		if err := tx.exec("write history", insert, args...); err != nil {
			return err
		}
		return s.trimHistory(tx, id, asked)
	}
	written, err := tx.changed(insert, args...)
	if err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	if !written {
		return fmt.Errorf("write history: node %s: %w", h.NodeUUID, ErrNotFound)
	}
	return s.trimHistory(tx, id, asked)
}

// trim removes a node's oldest rows beyond keep.
func trim(tx *txn, table, nodeUUID string, keep int) error {
	return tx.exec("trim "+table, `DELETE FROM `+table+` WHERE node_uuid = ? AND seq <=
		(SELECT seq FROM `+table+` WHERE node_uuid = ? ORDER BY seq DESC LIMIT 1 OFFSET ?)`, nodeUUID, nodeUUID, keep)
}

func nodeExists(tx *txn, uuid string) (string, error) {
	id := strings.ToLower(uuid)
	if err := tx.QueryRow(`SELECT 1 FROM nodes WHERE uuid = ?`, id).Scan(new(int)); err != nil {
		return "", fmt.Errorf("node %s: %w", uuid, notFound(err))
	}
	return id, nil
}

// History returns the newest lines of a node's history, newest first; all that are kept if limit is 0.
func (s *Store) History(ctx context.Context, nodeUUID string, limit int) ([]node.HistoryEntry, error) {
	if limit <= 0 {
		limit = math.MaxInt32
	}
	return list(ctx, s.r, "history of node "+nodeUUID, into(func(h *node.HistoryEntry) []any {
		return []any{&h.UUID, &h.NodeUUID, timeColumn{&h.At}, &h.Type, &h.Severity, &h.Event, &h.Conductor, &h.User,
			&h.Project, &h.State, &h.Target, &h.Seconds}
	}), `SELECT uuid, node_uuid, at, type, severity, event, conductor, user_name, project, state, target, seconds
		FROM history WHERE node_uuid = ? AND gone = 0 ORDER BY seq DESC LIMIT ?`, strings.ToLower(nodeUUID), limit)
}

// AddMark adds a point to a node's time line; the time is filled in when empty.
func (s *Store) AddMark(ctx context.Context, m node.Mark) error {
	return s.write(ctx, func(tx *txn) error {
		id, err := nodeExists(tx, m.NodeUUID)
		if err != nil {
			return fmt.Errorf("write mark: %w", err)
		}
		return s.addMarks(tx, id, []node.Mark{m})
	})
}

// addMarks adds points to the time line of a node that exists, in one statement: each costs an answer, for which
// all other writers wait.
func (s *Store) addMarks(tx *txn, id string, marks []node.Mark) error {
	if len(marks) == 0 {
		return nil
	}
	const row = "(?, ?, ?, ?, ?)"
	var args []any
	for _, m := range marks {
		if m.At.IsZero() {
			m.At = s.now()
		}
		args = append(args, id, m.JobID, m.Name, micros(m.At), sentence(m.Detail))
	}
	err := tx.exec("write marks", `INSERT INTO marks (node_uuid, job_id, name, at, detail) VALUES `+row+
		strings.Repeat(", "+row, len(marks)-1), args...)
	if err != nil || rand.N(64) >= len(marks) { // counting them costs more than the writing
		return err
	}
	return trim(tx, "marks", id, s.room.marks)
}

// Marks returns a node's time line in the order in which it was recorded, whatever the clock showed: of one job, or all
// that is kept if jobID is empty.
func (s *Store) Marks(ctx context.Context, nodeUUID, jobID string) ([]node.Mark, error) {
	q, args := `SELECT node_uuid, job_id, name, at, detail FROM marks WHERE node_uuid = ?`,
		[]any{strings.ToLower(nodeUUID)}
	if jobID != "" {
		q, args = q+` AND job_id = ?`, append(args, jobID)
	}
	return list(ctx, s.r, "marks of node "+nodeUUID, into(func(m *node.Mark) []any {
		return []any{&m.NodeUUID, &m.JobID, &m.Name, timeColumn{&m.At}, &m.Detail}
	}), q+` ORDER BY seq`, args...)
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
	return tx.exec("write inventory", `INSERT INTO inventories (node_uuid, at, doc) VALUES (?, ?, ?)
		ON CONFLICT (node_uuid) DO UPDATE SET at = excluded.at, doc = excluded.doc`, id, micros(s.now()), string(json))
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
	if err := tx.exec("write the result of a step", `INSERT INTO results (node_uuid, ref, sealed) VALUES (?, ?, ?)`, id,
		r.Ref, s.sealer.Seal("result "+r.Ref, r.Doc)); err != nil {
		return err
	}
	return trim(tx, "results", id, keptResults) // unlike rows of other tables these are large
}

// Results returns the results of steps that are stored apart from a node, by their references: the newest ones.
func (s *Store) Results(ctx context.Context, nodeUUID string) (map[string]json.RawMessage, error) {
	out := map[string]json.RawMessage{}
	_, err := list(ctx, s.r, "results of node "+nodeUUID, func(scan scanner) (ref string, err error) {
		var sealed []byte
		if err := scan(&ref, &sealed); err != nil {
			return ref, err
		}
		out[ref], err = s.sealer.Open("result "+ref, sealed)
		return ref, err
	}, `SELECT ref, sealed FROM results WHERE node_uuid = ?`, strings.ToLower(nodeUUID))
	return out, err
}

const leaseColumns = `SELECT mac, ip, node_uuid, expires_at FROM leases `

var scanLease = into(func(l *node.Lease) []any { return []any{&l.MAC, &l.IP, &l.NodeUUID, timeColumn{&l.ExpiresAt}} })

// Lease returns the lease of a MAC, expired or not, or ErrNotFound.
func (s *Store) Lease(ctx context.Context, mac string) (node.Lease, error) {
	return s.leaseOf(ctx, "mac", strings.ToLower(mac))
}

// LeaseByIP returns the lease of an address, expired or not, or ErrNotFound.
func (s *Store) LeaseByIP(ctx context.Context, ip string) (node.Lease, error) {
	return s.leaseOf(ctx, "ip", ip)
}

func (s *Store) leaseOf(ctx context.Context, column, value string) (node.Lease, error) {
	l, err := scanLease(s.r.QueryRowContext(ctx, leaseColumns+`WHERE `+column+` = ?`, value).Scan)
	if err != nil {
		return l, fmt.Errorf("lease of %s: %w", value, err)
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

// PutLease stores a lease in place of the MAC's older one. An address whose lease has expired is taken over; one that
// is still leased to another MAC returns a *LeaseHeldError.
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
			if err := tx.exec("write lease", `DELETE FROM leases WHERE mac = ?`, held.MAC); err != nil {
				return err
			}
		}
		return tx.exec("write lease", `INSERT INTO leases (mac, ip, node_uuid, expires_at) VALUES (?, ?, ?, ?)
			ON CONFLICT (mac) DO UPDATE SET ip = excluded.ip, node_uuid = excluded.node_uuid, expires_at = excluded.expires_at`,
			l.MAC, l.IP, strings.ToLower(l.NodeUUID), micros(l.ExpiresAt))
	})
}

// Leases returns all leases, expired ones included, by address.
func (s *Store) Leases(ctx context.Context) ([]node.Lease, error) {
	return list(ctx, s.r, "list leases", scanLease, leaseColumns+`ORDER BY ip`)
}

// DeleteLease removes a MAC's lease; a missing one is no error.
func (s *Store) DeleteLease(ctx context.Context, mac string) error {
	return s.write(ctx, func(tx *txn) error {
		return tx.exec("delete lease of "+mac, `DELETE FROM leases WHERE mac = ?`, strings.ToLower(mac))
	})
}
