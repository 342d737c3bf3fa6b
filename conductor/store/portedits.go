package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// PortsOf returns a node's ports in the order they were made.
func (s *Store) PortsOf(ctx context.Context, nodeUUID string) ([]*node.Port, error) {
	return s.Ports(ctx, PortQuery{NodeUUID: &nodeUUID})
}

// Rules returns all inspection rules in the order they were made.
func (s *Store) Rules(ctx context.Context) ([]*node.InspectionRule, error) {
	return s.InspectionRules().List(ctx, "")
}

// editPorts changes and removes ports together with their node.
func (s *Store) editPorts(tx *txn, id string, effects node.SideEffects) error {
	for _, e := range effects.PortEdits {
		p, err := s.ownPort(tx, id, e.Is.UUID)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		err = s.editPort(tx, p, e)
		var dup *DuplicateError
		var ref *ReferenceError
		if errors.As(err, &dup) || errors.As(err, &ref) {
			err = s.addHistory(tx, node.HistoryEntry{NodeUUID: id, Type: "monitoring", Severity: "WARNING",
				Event: fmt.Sprintf("port %s is not changed as the inspection has it: %v", p.Address, err)}, nil)
		}
		if err != nil {
			return fmt.Errorf("change port %s: %w", e.Is.UUID, err)
		}
	}
	for _, gone := range effects.GonePorts {
		p, err := s.ownPort(tx, id, gone)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err == nil {
			err = s.removePort(tx, p)
		}
		if err != nil {
			return fmt.Errorf("remove port %s: %w", gone, err)
		}
	}
	return nil
}

// ownPort reads a port of a node inside a transaction.
func (s *Store) ownPort(tx *txn, id, uuid string) (*node.Port, error) {
	return scanPort(tx.QueryRow(`SELECT doc FROM ports WHERE uuid = ? AND node_uuid = ?`, strings.ToLower(uuid),
		id).Scan)
}

// editPort puts what an edit changes into a port and stores it.
func (s *Store) editPort(tx *txn, p *node.Port, e node.PortEdit) error {
	var was, is, now map[string]json.RawMessage
	for _, d := range []struct {
		from any
		to   *map[string]json.RawMessage
	}{{e.Was, &was}, {e.Is, &is}, {p, &now}} {
		b, err := json.Marshal(d.from)
		if err == nil {
			err = json.Unmarshal(b, d.to)
		}
		if err != nil {
			return fmt.Errorf("encode port: %w", err)
		}
	}
	for k, v := range is {
		own := slices.Contains([]string{"UUID", "NodeUUID", "Address", "CreatedAt", "UpdatedAt"}, k)
		if !own && !bytes.Equal(v, was[k]) {
			now[k] = v
		}
	}
	before, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode port: %w", err)
	}
	b, err := json.Marshal(now)
	if err != nil {
		return fmt.Errorf("encode port: %w", err)
	}
	out := new(node.Port)
	if err := exact.Unmarshal(b, out); err != nil {
		return fmt.Errorf("decode port: %w", err)
	}
	after, err := json.Marshal(out)
	if err != nil {
		return fmt.Errorf("encode port: %w", err)
	}
	fields := partFields(before, after)
	if len(fields) == 0 {
		return nil
	}
	out.UpdatedAt = s.now()
	if err := oneNetwork(tx, out); err != nil {
		return err
	}
	if err := s.putPort(tx, out); err != nil {
		return err
	}
	return s.notePart(tx, "port", "update", portHead(out), fields)
}
