package store

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// notes are the events of a transaction under way. They are the leader's alone, apart from hook.
type notes struct {
	pending []node.Event // of the transaction
	by      node.Requester
	asked   bool // by them, right now
	first   int  // in pending, of the write under way
	lost    bool // the fate of the last transaction's events must be read
}

// Announce makes the store call f with every event, in order, after it is on disk. f is called by a writer, while
// others wait, and must not wait for anything. It must be set before the store is used; Announce returns the ID of the
// last existing event.
func (s *Store) Announce(f func([]node.Event)) (last int64) {
	s.hook.Store(&f)
	return s.lastEvent.Load()
}

// openEvents reads where the IDs of events go on.
func (s *Store) openEvents(ctx context.Context) error {
	var last sql.NullInt64
	if err := s.w.QueryRowContext(ctx, `SELECT MAX(id) FROM events`).Scan(&last); err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	s.lastEvent.Store(last.Int64)
	return nil
}

// beginNotes is called before each write of a group.
func (s *Store) beginNotes(by node.Requester, asked bool) {
	s.notes.by, s.notes.asked, s.notes.first = by, asked, len(s.notes.pending)
}

// dropNotes drops the notes of the present write: it is rolled back.
func (s *Store) dropNotes() { s.notes.pending = s.notes.pending[:s.notes.first] }

// storeNotes writes the notes of the group's writes, at the end of their transaction.
func (s *Store) storeNotes(tx *txn) error {
	const rowsAtOnce = 100
	if len(s.notes.pending) == 0 {
		return nil
	}
	last := s.lastEvent.Load()
	if !s.cache.alone || s.notes.lost { // else only this store has written any
		var before sql.NullInt64
		if err := tx.QueryRow(`SELECT MAX(id) FROM events`).Scan(&before); err != nil {
			return fmt.Errorf("write events: %w", err)
		}
		last = before.Int64
	}
	id := last
	for chunk := range slices.Chunk(s.notes.pending, rowsAtOnce) {
		args := make([]any, 0, 4*len(chunk))
		for i := range chunk {
			id++
			chunk[i].ID, chunk[i].At = id, s.now()
			stored := chunk[i]
			stored.ID, stored.At = 0, time.Time{} // they have columns
			doc, err := json.Marshal(&stored)
			if err != nil {
				return fmt.Errorf("encode event: %w", err)
			}
			args = append(args, id, micros(chunk[i].At), chunk[i].Type, string(doc))
		}
		if err := tx.exec("write events", `INSERT INTO events (id, at, type, doc) VALUES (?, ?, ?, ?)`+
			strings.Repeat(", (?, ?, ?, ?)", len(chunk)-1), args...); err != nil {
			return err
		}
	}
	every := s.room.every
	if id/every == last/every {
		return nil
	}
	if err := tx.exec("trim events", `DELETE FROM events WHERE id <= ?`, id-s.room.events); err != nil {
		return err
	}
	if err := s.trimErasures(tx); err != nil {
		return err
	}
	return s.trimLog(tx, id/(64*every) != last/(64*every))
}

// endNotes is called after the transaction was committed, or not.
func (s *Store) endNotes(committed bool) {
	pending := s.notes.pending
	s.notes.pending, s.notes.lost = nil, s.notes.lost && len(pending) == 0 || !committed
	if committed && len(pending) > 0 {
		s.announce(pending)
	}
}

// announce hands new events to the hook. Where other conductors have written some before, all are read in order.
func (s *Store) announce(events []node.Event) {
	s.tail.mu.Lock()
	defer s.tail.mu.Unlock()
	if s.tail.shared && events[0].ID != s.lastEvent.Load()+1 {
		s.tail.look()
		return
	}
	s.publish(events)
}

// publish hands events to the hook, with tail.mu held.
func (s *Store) publish(events []node.Event) {
	s.lastEvent.Store(events[len(events)-1].ID)
	if f := s.hook.Load(); f != nil {
		(*f)(events)
	}
}

func (s *Store) note(e node.Event) {
	if e.User == "" {
		e.Requester = s.notes.by
	}
	s.notes.pending = append(s.notes.pending, e)
}

// noteUser fills in the requester of a change that the conductor made for a user, from its lines in the history.
func (s *Store) noteUser(effects node.SideEffects) {
	for _, h := range effects.History {
		if h.User == "" {
			continue
		}
		for i := s.notes.first; i < len(s.notes.pending); i++ {
			s.notes.pending[i].User = cmp.Or(s.notes.pending[i].User, h.User)
		}
		return
	}
}

// Events returns up to limit events after an ID, oldest first. Where the first of them is not the next ID, those
// between are no longer kept.
func (s *Store) Events(ctx context.Context, after int64, limit int) ([]node.Event, error) {
	return list(ctx, s.r, "read events", func(scan scanner) (node.Event, error) {
		var (
			e   node.Event
			doc []byte
		)
		if err := scan(&e.ID, timeColumn{&e.At}, &doc); err != nil {
			return e, err
		}
		if err := json.Unmarshal(doc, &e); err != nil { // which has neither ID nor time
			return e, fmt.Errorf("decode event %d: %w", e.ID, err)
		}
		return e, nil
	}, `SELECT id, at, doc FROM events WHERE id > ? ORDER BY id LIMIT ?`, after, limit)
}

// LastEvent is the ID of the newest event; zero when there has been none.
func (s *Store) LastEvent() int64 { return s.lastEvent.Load() }

// Places of columns in row.columns.
var (
	colProvision   = slices.Index(nodeColumns, "provision_state")
	colPower       = slices.Index(nodeColumns, "power_state")
	colTargetPower = slices.Index(nodeColumns, "target_power_state")
	colMaintenance = slices.Index(nodeColumns, "maintenance")
	colBusy        = slices.Index(nodeColumns, "busy")
	colLessee      = slices.Index(nodeColumns, "lessee")
	colFault       = slices.Index(nodeColumns, "fault")
)

// shownFields are the attributes of a node whose changes are reported by name: the documents' names and the API's.
var shownFields = map[string]string{
	"Name": "name", "Driver": "driver", "Properties": "properties", "Extra": "extra", "InstanceUUID": "instance_uuid",
	"LastError": "last_error", "MaintenanceReason": "maintenance_reason", "ConsoleEnabled": "console_enabled",
	"InspectionFinishedAt": "inspection_finished_at", "ResourceClass": "resource_class",
	"ConductorGroup": "conductor_group", "Owner": "owner", "Lessee": "lessee", "Description": "description",
	"Protected": "protected", "ProtectedReason": "protected_reason", "Retired": "retired",
	"RetiredReason": "retired_reason", "AutomatedClean": "automated_clean", "DisablePowerOff": "disable_power_off",
	"ChassisUUID": "chassis_uuid", "ParentNode": "parent_node", "Shard": "shard", "AllocationUUID": "allocation_uuid",
	"NetworkData": "network_data", "Traits": "traits", "RAIDConfig": "raid_config", "TargetRAID": "target_raid_config",
	"Interfaces": "interfaces", "BootMode": "boot_mode", "SecureBoot": "secure_boot", "Health": "health",
	"BIOS": "bios", "Firmware": "firmware", "Quarantine": "quarantine", "driver_info": "driver_info",
	"instance_info": "instance_info",
}

// changedFields names what differs between two documents of the same kind. Every write asks, so it does not decode
// them.
func changedFields(before, after []byte) []string {
	var names []string
	add := func(key []byte) {
		if name, ok := shownFields[string(key)]; ok {
			names = append(names, name)
		}
	}
	for {
		ka, va, restA := nextMember(before)
		kb, vb, restB := nextMember(after)
		switch {
		case ka == nil && kb == nil:
			return names
		case bytes.Equal(ka, kb):
			if !bytes.Equal(va, vb) {
				add(ka)
			}
			before, after = restA, restB
		case ka != nil && !hasMember(after, ka): // left out in the one that has nothing there
			add(ka)
			before = restA
		case kb != nil && !hasMember(before, kb):
			add(kb)
			after = restB
		default: // in another order, which documents of one kind are not
			return names
		}
	}
}

// nextMember splits the next member off the rest of a JSON object, as encoding/json writes it. The key is nil at the
// end.
func nextMember(b []byte) (key, value, rest []byte) {
	if len(b) < 2 || b[0] != '{' && b[0] != ',' || b[1] != '"' {
		return nil, nil, nil
	}
	end := 2
	for end < len(b) && b[end] != '"' {
		end++
	}
	if end+2 > len(b) {
		return nil, nil, nil
	}
	key, b = b[2:end], b[end+2:]
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			for i++; i < len(b) && b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
		case '}', ']', ',':
			if depth == 0 {
				return key, b[:i], b[i:]
			}
			if b[i] != ',' {
				depth--
			}
		}
	}
	return nil, nil, nil
}

func hasMember(b, key []byte) bool {
	for {
		k, _, rest := nextMember(b)
		if k == nil {
			return false
		}
		if bytes.Equal(k, key) {
			return true
		}
		b = rest
	}
}

func nodeEvent(n *node.Node) node.Event {
	return node.Event{Kind: "node", UUID: n.UUID, Name: n.Name, NodeUUID: n.UUID, NodeName: n.Name, Owner: n.Owner,
		Lessee: n.Lessee}
}

// noteNode notes the changes of a write of a node; before is nil for a new node.
func (s *Store) noteNode(n *node.Node, r row, before *row) {
	e := nodeEvent(n)
	if before == nil {
		e.Type = "baremetal.node.create.end"
		s.note(e)
		return
	}
	if n.Job != nil {
		e.User = n.Job.Requester
	}
	text := func(i int) (from, to string) {
		from, _ = before.columns[i].(string)
		to, _ = r.columns[i].(string)
		return from, to
	}
	changed := func(at int, names ...string) (m map[string]node.FromTo) {
		for i, name := range names {
			if from, to := text(at + i); from != to {
				if m == nil {
					m = map[string]node.FromTo{}
				}
				m[name] = node.FromTo{From: null(from), To: null(to)}
			}
		}
		return m
	}
	tell := func(e node.Event, typ string, what map[string]node.FromTo) {
		e.Type, e.Changed = typ, what
		s.note(e)
	}
	e.Error = ""
	if from, to := text(colProvision); from != to {
		typ := "baremetal.node.provision_set."
		was, is := node.State(from).IsStable(), node.State(to).IsStable()
		ev := e
		switch {
		case node.State(to).IsFailure():
			typ += "error"
			ev.Error = n.LastError
		case was && !is:
			typ += "start"
		case !was && is:
			typ += "end"
		default:
			typ += "success"
		}
		tell(ev, typ, changed(colProvision, "provision_state", "target_provision_state"))
	}
	if m := changed(colPower, "power_state", "target_power_state"); m != nil {
		typ := "baremetal.node.power_set.end"
		ev := e
		wasTarget, isTarget := text(colTargetPower)
		switch {
		case wasTarget == "" && isTarget != "":
			typ = "baremetal.node.power_set.start"
		case wasTarget != "" && isTarget == "" && n.LastError != "":
			typ, ev.Error = "baremetal.node.power_set.error", n.LastError
		// nor did work end with this
		case wasTarget == "" && isTarget == "" && n.Job == nil && before.columns[colBusy] == any(bit(false)):
			typ = "baremetal.node.power_state_corrected.success"
		case wasTarget == isTarget && isTarget != "":
			typ = "baremetal.node.power_set.success" // on its way
		}
		tell(ev, typ, m)
	}
	if before.columns[colMaintenance] != r.columns[colMaintenance] {
		tell(e, "baremetal.node.maintenance_set.end",
			map[string]node.FromTo{"maintenance": {From: !n.Maintenance, To: n.Maintenance}})
	}
	if m := changed(colFault, "fault"); m != nil {
		tell(e, "ingot.node.fault_set.end", m)
	}
	var fields []string
	if string(before.doc) != string(r.doc) {
		fields = changedFields(before.doc, r.doc)
	}
	if string(before.secret) != string(r.secret) {
		fields = append(fields, changedFields(before.secret, r.secret)...)
	}
	if string(before.drive) != string(r.drive) && !slices.Contains(fields, "instance_info") {
		fields = append(fields, "instance_info")
	}
	if i := slices.Index(fields, "console_enabled"); i >= 0 {
		fields = slices.Delete(fields, i, i+1)
		tell(e, "baremetal.node.console_set.end",
			map[string]node.FromTo{"console_enabled": {From: !n.ConsoleEnabled, To: n.ConsoleEnabled}})
	}
	if len(fields) > 0 {
		slices.Sort(fields)
		e.Type, e.Fields = "baremetal.node.update.end", fields
		s.note(e)
	}
}

// noteDeleted notes that a node is about to be deleted, and keeps its lines in the log.
func (s *Store) noteDeleted(tx *txn, id string) error {
	n := node.Node{UUID: id}
	var name sql.NullString
	err := tx.QueryRow(`SELECT name, owner, lessee FROM nodes WHERE uuid = ?`, id).Scan(&name, &n.Owner, &n.Lessee)
	if err != nil {
		return notFound(err)
	}
	n.Name = name.String
	e := nodeEvent(&n)
	e.Type = "baremetal.node.delete.end"
	s.note(e)
	return tx.exec("keep the log", `UPDATE history SET gone = 1 WHERE node_uuid = ? AND gone = 0`, id)
}

// notePart notes a change of an object that may belong to a node. what is "create", "update" or "delete".
func (s *Store) notePart(tx *txn, kind, what string, h node.Head, fields []string) error {
	kind = strings.ReplaceAll(kind, " ", "")
	prefix := "baremetal."
	if kind == "pool" || kind == "reservation" { // which Ironic has not
		prefix = "ingot."
	}
	e := node.Event{Type: prefix + kind + "." + what + ".end", Kind: kind, UUID: h.UUID, Name: h.Name,
		NodeUUID: h.NodeUUID, Owner: h.Owner, Fields: fields}
	if h.NodeUUID != "" {
		var name sql.NullString
		var owner string
		err := tx.QueryRow(`SELECT name, owner, lessee FROM nodes WHERE uuid = ?`, h.NodeUUID).Scan(&name, &owner,
			&e.Lessee)
		if err != nil {
			return fmt.Errorf("node %s: %w", h.NodeUUID, notFound(err))
		}
		e.NodeName = name.String
		e.Owner = cmp.Or(e.Owner, owner)
	}
	s.note(e)
	return nil
}

// partFields are the names of the members that differ between two documents of a resource, as the API writes names.
func partFields(before, after []byte) []string {
	var a, b map[string]json.RawMessage
	if json.Unmarshal(before, &a) != nil || json.Unmarshal(after, &b) != nil {
		return nil
	}
	for k := range a {
		if _, ok := b[k]; !ok {
			b[k] = nil
		}
	}
	var names []string
	for _, k := range slices.Sorted(maps.Keys(b)) {
		if string(a[k]) != string(b[k]) && k != "UpdatedAt" && k != "CreatedAt" && k != "Revision" {
			names = append(names, snake(k))
		}
	}
	return names
}

// snake writes a Go name as the API does: NodeUUID is node_uuid.
func snake(s string) string {
	var b strings.Builder
	for i, r := range s {
		upper := r >= 'A' && r <= 'Z'
		if upper && i > 0 {
			before := s[i-1] >= 'a' && s[i-1] <= 'z'
			after := i+1 < len(s) && s[i+1] >= 'a' && s[i+1] <= 'z'
			if before || after {
				b.WriteByte('_')
			}
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}
