package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// Candidate holds the fields of a possible node by which an allocation chooses: the node is available and has the
// resource class, it has no instance and is promised to no reservation, its power is known, it is neither retired nor
// in maintenance nor faulty, and it belongs to or is lent to the owner of the allocation.
type Candidate struct {
	UUID, Name string
	Locked     bool           // something is under way on it
	Warm       bool           // its agent is up, so that a deployment needs no firmware
	Staged     string         // digest of the image that was written to it ahead; empty: none was
	Traits     []string       // read only when the allocation requires traits
	Properties map[string]any // read only when it requires properties
}

// Allocate finds a node for an allocation that waits for one. choose picks one of the candidates, or says why it takes
// none. The choice and the claim are one transaction, so that no node is given twice and none is half given. An
// allocation that waits no longer is returned as it is; ErrNotFound if it was deleted meanwhile. choose must be quick
// and not use the store.
func (s *Store) Allocate(ctx context.Context, uuid string,
	choose func(a *node.Allocation, from []Candidate) (nodeUUID, why string)) (*node.Allocation, error) {
	return writing(ctx, s, func(tx *txn) (*node.Allocation, error) {
		a, err := s.Allocations().update(ctx, tx, uuid, func(a *node.Allocation) error {
			if a.State != node.AllocationAllocating {
				return nil
			}
			from, err := candidates(ctx, tx, a, s.now())
			if err != nil {
				return err
			}
			id, why := choose(a, from)
			if id == "" {
				a.State = node.AllocationError
				a.LastError, err = alsoReserved(ctx, tx, a, why, s.now())
				return err
			}
			if !slices.ContainsFunc(from, func(c Candidate) bool { return c.UUID == id }) {
				return fmt.Errorf("allocation %s: node %s is no candidate", a.UUID, id)
			}
			err = s.give(tx, a, id, func(n *node.Node) error {
				n.InstanceInfo = withTraits(n.InstanceInfo, a.Traits)
				return nil
			})
			var taken *DuplicateError
			if errors.As(err, &taken) { // another node has an instance of this UUID; nothing was written
				a.State, a.LastError, a.NodeUUID = node.AllocationError, "Failed to process allocation "+a.UUID+": "+
					taken.Error()+".", ""
				return nil
			}
			return err
		})
		if err == nil && a.State == node.AllocationError {
			err = s.trimAllocations(ctx, tx)
		}
		return a, err
	})
}

// alsoReserved adds to the reason for which an allocation gets none of the nodes that it named which of them are
// promised to reservations.
func alsoReserved(ctx context.Context, tx *txn, a *node.Allocation, why string, now time.Time) (string, error) {
	if len(a.CandidateNodes) == 0 {
		return why, nil
	}
	var w where
	w.add("until_at > ?", micros(now))
	in(&w, "node_uuid", lowered(a.CandidateNodes))
	standing, err := promises(ctx, tx, w.sql(), w.args...)
	if err != nil || len(standing) == 0 {
		return why, err
	}
	p := standing[0]
	return fmt.Sprintf("%s Node %s is promised to a reservation from %s until %s.", why, p.NodeUUID,
		p.From.Format(time.RFC3339), p.Until.Format(time.RFC3339)), nil
}

func lowered(ids []string) []string {
	ids = slices.Clone(ids)
	for i, id := range ids {
		ids[i] = strings.ToLower(id)
	}
	return ids
}

// give assigns a node to an allocation. The caller stores the allocation.
func (s *Store) give(tx *txn, a *node.Allocation, nodeUUID string, change func(*node.Node) error) error {
	n, err := s.changeNode(tx, nodeUUID, func(n *node.Node, effects *node.SideEffects) error {
		if err := change(n); err != nil {
			return err
		}
		n.InstanceUUID, n.AllocationUUID = a.UUID, a.UUID
		effects.History = append(effects.History,
			node.HistoryEntry{Type: "allocation", Event: "the node was given to allocation " + called(a),
				Conductor: a.Conductor, User: a.Requester})
		return nil
	})
	if err != nil {
		return err
	}
	a.State, a.LastError, a.NodeUUID = node.AllocationActive, "", n.UUID
	return nil
}

func called(a *node.Allocation) string {
	if a.Name == "" {
		return a.UUID
	}
	return a.UUID + " (" + a.Name + ")"
}

// withTraits returns instance_info with the traits of the allocation: they choose the deploy templates.
func withTraits(info map[string]any, traits []string) map[string]any {
	list := make([]any, len(traits))
	for i, t := range traits {
		list[i] = t
	}
	return node.With(info, "traits", any(list))
}

// candidates are the nodes that an allocation could get, in the order they were made.
func candidates(ctx context.Context, tx *txn, a *node.Allocation, now time.Time) ([]Candidate, error) {
	var w where
	w.add("provision_state = ? AND instance_uuid IS NULL AND power_state <> '' AND maintenance = 0 AND retired = 0 AND fault = '' AND resource_class = ?",
		string(node.Available), a.ResourceClass)
	// An allocation has no end, so it would run into every promise to come.
	w.add("NOT EXISTS (SELECT 1 FROM promises WHERE promises.node_uuid = nodes.uuid AND promises.until_at > ?)",
		micros(now))
	if a.Owner != "" {
		w.add("(owner = ? OR lessee = ?)", a.Owner, a.Owner)
	}
	in(&w, "uuid", lowered(a.CandidateNodes))
	doc := "CASE WHEN kept = 1 THEN doc ELSE '' END"
	if len(a.Traits) > 0 || len(a.Properties) > 0 {
		doc = "doc"
	}
	return list(ctx, tx, "find nodes for allocation "+a.UUID, func(scan scanner) (Candidate, error) {
		var (
			c       Candidate
			holder  string
			content []byte
			wanted  struct {
				Traits     []string
				Properties map[string]any
				Boot       *node.Boot
			}
		)
		if err := scan(&c.UUID, &c.Name, &holder, &content); err != nil {
			return c, err
		}
		if len(content) > 0 {
			if err := exact.Unmarshal(content, &wanted); err != nil {
				return c, fmt.Errorf("decode node %s: %w", c.UUID, err)
			}
		}
		c.Locked, c.Traits, c.Properties = holder != "", wanted.Traits, wanted.Properties
		if n := (&node.Node{Boot: wanted.Boot}); n.IsWarm() {
			c.Warm = true
			if n.Boot.Staged != nil {
				c.Staged = n.Boot.Staged.Digest
			}
		}
		return c, nil
	}, `SELECT uuid, COALESCE(name, ''), reservation, `+doc+` FROM nodes`+w.sql()+` ORDER BY seq`, w.args...)
}

// Backfill stores a new allocation for a node that has its instance already, in one transaction. fits refuses a node
// that does not fit; it gets the present node. An empty UUID means that of the node's instance.
func (s *Store) Backfill(ctx context.Context, a *node.Allocation, nodeUUID string,
	fits func(a *node.Allocation, n *node.Node) error) error {
	stored, err := writing(ctx, s, func(tx *txn) (*node.Allocation, error) {
		c := *a
		n, err := s.scanNode(tx.QueryRow(fullNode+`WHERE n.uuid = ?`, strings.ToLower(nodeUUID)).Scan)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", nodeUUID, err)
		}
		c.UUID = cmp.Or(c.UUID, n.InstanceUUID)
		c.ResourceClass = cmp.Or(c.ResourceClass, n.ResourceClass)
		table := s.Allocations()
		c.State = node.AllocationAllocating
		if err := table.create(tx, &c); err != nil {
			return nil, err
		}
		return table.update(ctx, tx, c.UUID, func(a *node.Allocation) error {
			return s.give(tx, a, n.UUID, func(n *node.Node) error {
				if err := fits(a, n); err != nil {
					return err
				}
				if len(a.Traits) > 0 {
					n.InstanceInfo = withTraits(n.InstanceInfo, a.Traits)
				}
				return nil
			})
		})
	})
	if err != nil {
		return err
	}
	*a = *stored
	return nil
}

// DeleteAllocation removes an allocation and its node's instance. removable can refuse that, given the present node; it
// is not called without a node. user is for the node's history.
func (s *Store) DeleteAllocation(ctx context.Context, uuid, user string,
	removable func(a *node.Allocation, n *node.Node) error) error {
	return s.write(ctx, func(tx *txn) error {
		table := s.Allocations()
		a, err := table.get(ctx, tx, uuid)
		if err != nil {
			return err
		}
		if a.NodeUUID == "" {
			return table.delete(ctx, tx, a.UUID)
		}
		_, err = s.changeNode(tx, a.NodeUUID, func(n *node.Node, effects *node.SideEffects) error {
			if err := removable(a, n); err != nil {
				return err
			}
			if n.AllocationUUID != a.UUID {
				return table.delete(ctx, tx, a.UUID) // the node has nothing of it
			}
			n.InstanceUUID = "" // changeNode removes the allocation
			if sameTraits(n.InstanceInfo["traits"], a.Traits) {
				n.InstanceInfo = maps.Clone(n.InstanceInfo)
				delete(n.InstanceInfo, "traits")
			}
			effects.History = append(effects.History,
				node.HistoryEntry{Type: "allocation", Event: "the node was taken from allocation " + called(a),
					Conductor: a.Conductor, User: user})
			return nil
		})
		return err
	})
}

// sameTraits reports whether instance_info's traits are those that the allocation brought.
func sameTraits(v any, traits []string) bool {
	list, ok := v.([]any)
	return ok && slices.EqualFunc(list, traits, func(a any, b string) bool { return a == b })
}

// withoutNode finds the allocations that wait for a node or got none.
const withoutNode = resourceColumns + `WHERE kind = ? AND node_uuid IS NULL ORDER BY seq`

// Allocating returns the UUIDs of the allocations that wait for a node, in the order they were made.
func (s *Store) Allocating(ctx context.Context) ([]string, error) {
	table := s.Allocations()
	all, err := list(ctx, s.r, "list allocations", table.scan,
		withoutNode, table.kind)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, a := range all {
		if a.State == node.AllocationAllocating {
			ids = append(ids, a.UUID)
		}
	}
	return ids, nil
}
