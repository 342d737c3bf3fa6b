package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// Reservable holds the fields of a node by which a reservation chooses: all nodes of its resource class are looked at.
type Reservable struct {
	UUID, Name           string
	State, Target        node.State
	InstanceUUID         string
	Owner, Lessee        string
	Maintenance, Retired bool
	Fault                string
	Traits               []string
	Promises             []Promised // in the order of their times
}

// Promised is a promise with what its reservation says of its end.
type Promised struct {
	node.Promise
	TearDown bool
}

// PromisedError says that a node is promised to another reservation at that time.
type PromisedError struct{ Promise node.Promise }

func (e *PromisedError) Error() string {
	return fmt.Sprintf("node %s is promised to reservation %s from %s until %s", e.Promise.NodeUUID,
		e.Promise.ReservationUUID, e.Promise.From.Format(time.RFC3339), e.Promise.Until.Format(time.RFC3339))
}

// notPromised refuses to begin a use of a node while that is promised to a reservation.
func (s *Store) notPromised(ctx context.Context, tx *txn, nodeUUID string) error {
	now := micros(s.now())
	standing, err := promises(ctx, tx, `WHERE node_uuid = ? AND from_at <= ? AND until_at > ?`, nodeUUID, now, now)
	if err == nil && len(standing) > 0 {
		err = &PromisedError{standing[0]}
	}
	return err
}

// Reservations keeps reservations. New ones are made with Reserve, and deleted with DeleteReservation.
func (s *Store) Reservations() *Table[node.Reservation] {
	return &Table[node.Reservation]{s: s, kind: "reservation"}
}

// chooser picks the nodes for a reservation, or says why there are too few. It must be quick and not use the store.
type chooser = func(r *node.Reservation, from []Reservable) ([]string, error)

// Reserve stores a reservation and promises it the nodes that choose picks, one for each slot, in one transaction: a
// node that another reservation has at that time is refused with a *PromisedError whatever choose says. An error of
// choose comes back as it is, and nothing is stored. One more than most allows is a *FullError.
func (s *Store) Reserve(ctx context.Context, r *node.Reservation, most MostReservations, choose chooser) error {
	stored, err := writing(ctx, s, func(tx *txn) (*node.Reservation, error) {
		c := *r
		c.State = node.ReservationPlanned
		if err := s.roomFor(ctx, tx, &c, most); err != nil {
			return nil, err
		}
		from, err := s.reservable(ctx, tx, c.ResourceClass)
		if err != nil {
			return nil, err
		}
		nodes, err := choose(&c, from)
		if err != nil {
			return nil, err
		}
		if err := s.Reservations().create(tx, &c); err != nil {
			return nil, err
		}
		for slot, id := range nodes {
			p := node.Promise{ReservationUUID: c.UUID, Slot: slot, NodeUUID: id, From: c.From, Until: c.End}
			if err := promise(ctx, tx, p); err != nil {
				return nil, err
			}
		}
		return &c, nil
	})
	if err == nil {
		*r = *stored
	}
	return err
}

// MostReservations is how many reservations there may be that have not ended: in all, and of those that a project asked
// for.
type MostReservations struct{ All, OfProject int }

func (s *Store) roomFor(ctx context.Context, tx *txn, r *node.Reservation, most MostReservations) error {
	present, err := s.Reservations().list(ctx, tx, "")
	if err != nil {
		return err
	}
	all, own := 0, 0
	for _, other := range present {
		if other.State == node.ReservationEnded {
			continue
		}
		all++
		if other.OwnOnly && other.Owner == r.Owner {
			own++
		}
	}
	if all >= most.All {
		return &FullError{Kind: "reservation", Most: most.All}
	}
	if r.OwnOnly && own >= most.OfProject {
		return &FullError{Kind: "reservation", Most: most.OfProject}
	}
	return nil
}

// FullError says that there are as many resources of a kind as there may be.
type FullError struct {
	Kind string
	Most int
}

func (e *FullError) Error() string {
	return fmt.Sprintf("there are %d %ss already, which is the limit", e.Most, e.Kind)
}

// promise writes a promise. No two of a node ever meet: all writes wait for each other, in all conductors of a
// database.
func promise(ctx context.Context, tx *txn, p node.Promise) error {
	others, err := promises(ctx, tx, `WHERE node_uuid = ? AND from_at < ? AND until_at > ? AND NOT (reservation_uuid = ? AND slot = ?)`,
		p.NodeUUID, micros(p.Until), micros(p.From), p.ReservationUUID, p.Slot)
	if err != nil {
		return err
	}
	if len(others) > 0 {
		return &PromisedError{others[0]}
	}
	return tx.exec("write promise", `INSERT INTO promises (reservation_uuid, slot, node_uuid, from_at, until_at, given) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (reservation_uuid, slot) DO UPDATE SET node_uuid = excluded.node_uuid, from_at = excluded.from_at,
			until_at = excluded.until_at, given = excluded.given`,
		p.ReservationUUID, p.Slot, p.NodeUUID, micros(p.From), micros(p.Until), bit(p.Given))
}

// Promises are those of all reservations that have not ended, by reservation and slot.
func (s *Store) Promises(ctx context.Context) ([]node.Promise, error) { return promises(ctx, s.r, "") }

func promises(ctx context.Context, q queryer, where string, args ...any) ([]node.Promise, error) {
	return list(ctx, q, "list promises", into(func(p *node.Promise) []any {
		return []any{&p.ReservationUUID, &p.Slot, &p.NodeUUID, timeColumn{&p.From}, timeColumn{&p.Until},
			&p.Given}
	}), `SELECT reservation_uuid, slot, node_uuid, from_at, until_at, given FROM promises `+where+
		` ORDER BY from_at, reservation_uuid, slot`, args...)
}

// Reservable returns the nodes of a resource class as they are now, for those who only look.
func (s *Store) Reservable(ctx context.Context, class string) ([]Reservable, error) {
	return s.reservable(ctx, s.r, class)
}

func (s *Store) reservable(ctx context.Context, q queryer, class string) ([]Reservable, error) {
	all, err := promises(ctx, q, "")
	if err != nil {
		return nil, err
	}
	of := map[string][]Promised{}
	if len(all) > 0 {
		reservations, err := s.Reservations().list(ctx, q, "")
		if err != nil {
			return nil, err
		}
		tearDown := map[string]bool{}
		for _, r := range reservations {
			tearDown[r.UUID] = r.TearDown
		}
		for _, p := range all {
			of[p.NodeUUID] = append(of[p.NodeUUID], Promised{p, tearDown[p.ReservationUUID]})
		}
	}
	return list(ctx, q, "find nodes to reserve", func(scan scanner) (c Reservable, err error) {
		var content []byte
		var also struct{ Traits []string }
		if err := scan(&c.UUID, &c.Name, &c.State, &c.Target, &c.InstanceUUID, &c.Owner, &c.Lessee, &c.Maintenance,
			&c.Retired, &c.Fault, &content); err != nil {
			return c, err
		}
		if err := exact.Unmarshal(content, &also); err != nil {
			return c, fmt.Errorf("decode node %s: %w", c.UUID, err)
		}
		c.Traits, c.Promises = also.Traits, of[c.UUID]
		return c, nil
	}, `SELECT uuid, COALESCE(name, ''), provision_state, target_provision_state, COALESCE(instance_uuid, ''), owner, lessee,
		maintenance, retired, fault, doc FROM nodes WHERE resource_class = ? ORDER BY seq`, class)
}

// ExtendReservation lets change modify a reservation and moves the end of its promises to the new one. A promise of
// another reservation that begins before moves to another machine, which choose picks; if there is none, a
// *PromisedError names that reservation, and nothing is changed.
func (s *Store) ExtendReservation(ctx context.Context, uuid string, change func(*node.Reservation) error,
	choose chooser) (*node.Reservation, error) {
	return writing(ctx, s, func(tx *txn) (*node.Reservation, error) {
		r, err := s.Reservations().update(ctx, tx, uuid, change)
		if err != nil {
			return nil, err
		}
		all, err := promises(ctx, tx, `WHERE reservation_uuid = ?`, r.UUID)
		if err != nil {
			return nil, err
		}
		for _, p := range all {
			p.Until = r.End
			var taken *PromisedError
			for err = promise(ctx, tx, p); errors.As(err, &taken); err = promise(ctx, tx, p) {
				if err := s.giveWay(ctx, tx, taken, all, choose); err != nil {
					return nil, err
				}
			}
			if err != nil {
				return nil, err
			}
		}
		return r, nil
	})
}

// giveWay promises another machine in place of one that a reservation keeps for longer, and none of that reservation's.
func (s *Store) giveWay(ctx context.Context, tx *txn, taken *PromisedError, keeps []node.Promise,
	choose chooser) error {
	p := taken.Promise
	if p.Given { // it is the other's that begins first
		return taken
	}
	r, err := s.Reservations().byUUID(ctx, tx, p.ReservationUUID)
	if err != nil {
		return fmt.Errorf("reservation %s: %w", p.ReservationUUID, err)
	}
	var none error
	id, err := s.chooseOne(ctx, tx, r, p.From, func(r *node.Reservation, from []Reservable) ([]string, error) {
		var nodes []string
		nodes, none = choose(r, from)
		return nodes, none
	}, func(c Reservable) bool {
		return slices.ContainsFunc(keeps, func(k node.Promise) bool { return k.NodeUUID == c.UUID })
	})
	switch {
	case none != nil:
		return fmt.Errorf("%w, and that can't get another: %s", taken, none.Error())
	case err != nil:
		return err
	}
	p.NodeUUID = id
	return s.promiseInstead(ctx, tx, p, "another reservation has that for longer")
}

// chooseOne picks a machine for a reservation from a time until its end, but none that is excepted.
func (s *Store) chooseOne(ctx context.Context, tx *txn, r *node.Reservation, since time.Time, choose chooser,
	except func(Reservable) bool) (string, error) {
	one := *r
	one.Count, one.From = 1, since
	from, err := s.reservable(ctx, tx, r.ResourceClass)
	if err != nil {
		return "", err
	}
	nodes, err := choose(&one, slices.DeleteFunc(from, except))
	if err != nil {
		return "", err
	}
	return nodes[0], nil
}

// promiseInstead writes a promise of another machine than before, which is noted in that one's history.
func (s *Store) promiseInstead(ctx context.Context, tx *txn, p node.Promise, why string) error {
	if err := promise(ctx, tx, p); err != nil {
		return err
	}
	_, err := s.changeNode(tx, p.NodeUUID, func(_ *node.Node, effects *node.SideEffects) error {
		effects.History = append(effects.History, node.HistoryEntry{Type: "reservation",
			Event: "the node was promised to reservation " + p.ReservationUUID + ", in place of another: " + why})
		return nil
	})
	return err
}

// DeleteReservation removes a reservation and its promises, of which no machine may have been given; allowed can refuse
// it.
func (s *Store) DeleteReservation(ctx context.Context, uuid string, allowed func(*node.Reservation) error) error {
	return s.write(ctx, func(tx *txn) error {
		r, err := s.Reservations().get(ctx, tx, uuid)
		if err != nil {
			return err
		}
		if err := allowed(r); err != nil {
			return err
		}
		if err := tx.exec("delete promises", `DELETE FROM promises WHERE reservation_uuid = ?`, r.UUID); err != nil {
			return err
		}
		return s.Reservations().delete(ctx, tx, r.UUID)
	})
}

// ErrInUse means that a promised node can't be given now: it is not available, or has an instance.
var ErrInUse = errors.New("the node is not free")

// KeepPromise gives the node of a promise to its reservation: allocation a, which it stores, and the lessee are the
// node's from then on, in one transaction. ErrInUse or another error leaves all as it was; ErrNotFound if the promise
// is another's by now.
func (s *Store) KeepPromise(ctx context.Context, p node.Promise, a *node.Allocation) error {
	return s.write(ctx, func(tx *txn) error {
		if err := promiseStands(tx, p); err != nil {
			return err
		}
		c := *a
		c.State = node.AllocationAllocating
		if err := s.Allocations().create(tx, &c); err != nil {
			return err
		}
		_, err := s.Allocations().update(ctx, tx, c.UUID, func(a *node.Allocation) error {
			return s.give(tx, a, p.NodeUUID, func(n *node.Node) error {
				if n.Provision != node.Available || n.InstanceUUID != "" || n.Maintenance || n.Fault != "" ||
					n.Retired {
					return fmt.Errorf("node %s: %w", n.UUID, ErrInUse)
				}
				if a.Owner != "" {
					n.Lessee = a.Owner
				}
				n.InstanceInfo = withTraits(n.InstanceInfo, a.Traits)
				return nil
			})
		})
		if err != nil {
			return err
		}
		p.Given = true
		return promise(ctx, tx, p)
	})
}

func promiseStands(tx *txn, p node.Promise) error {
	found, err := tx.find([]any{new(int)},
		`SELECT 1 FROM promises WHERE reservation_uuid = ? AND slot = ? AND node_uuid = ?`, p.ReservationUUID, p.Slot,
		p.NodeUUID)
	if err == nil && !found {
		err = fmt.Errorf("promise %d of reservation %s: %w", p.Slot, p.ReservationUUID, ErrNotFound)
	}
	return err
}

// EndPromise takes a node back: its allocation ends, and lessee is no more. An instance that is on it stays there, with
// its UUID; why is for the node's history. The promise stays until it is dropped.
func (s *Store) EndPromise(ctx context.Context, p node.Promise, allocation, lessee, why string) error {
	return s.write(ctx, func(tx *txn) error {
		if err := promiseStands(tx, p); err != nil {
			return err
		}
		return s.takeBack(ctx, tx, p, taking{allocation, lessee, why, false})
	})
}

// taking names the allocation and the lessee that a node loses, and why. bare: the UUID of its instance, too.
type taking struct {
	allocation, lessee, why string
	bare                    bool
}

// takeBack ends what KeepPromise began.
func (s *Store) takeBack(ctx context.Context, tx *txn, p node.Promise, t taking) error {
	allocation, lessee := t.allocation, t.lessee
	a, err := s.Allocations().byUUID(ctx, tx, allocation)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	_, err = s.changeNode(tx, p.NodeUUID, func(n *node.Node, effects *node.SideEffects) error {
		had := n.AllocationUUID == allocation || lessee != "" && n.Lessee == lessee
		if n.AllocationUUID == allocation {
			n.AllocationUUID = ""
			if a != nil {
				if err := s.Allocations().delete(ctx, tx, allocation); err != nil {
					return err
				}
			}
		}
		if lessee != "" && n.Lessee == lessee {
			n.Lessee = ""
		}
		if n.InstanceUUID == allocation && (t.bare || n.Provision == node.Available) {
			n.InstanceUUID = ""
			if a != nil && sameTraits(n.InstanceInfo["traits"], a.Traits) {
				n.InstanceInfo = maps.Clone(n.InstanceInfo)
				delete(n.InstanceInfo, "traits")
			}
		}
		if had {
			effects.History = append(effects.History, node.HistoryEntry{Type: "reservation",
				Event: "the node was taken from reservation " + p.ReservationUUID + ": " + t.why})
		}
		return nil
	})
	return err
}

// DropPromise forgets a promise: the node may be given to others.
func (s *Store) DropPromise(ctx context.Context, p node.Promise) error {
	return s.write(ctx, func(tx *txn) error {
		return tx.exec("delete promise", `DELETE FROM promises WHERE reservation_uuid = ? AND slot = ? AND node_uuid = ?`,
			p.ReservationUUID, p.Slot, p.NodeUUID)
	})
}

// ReplacePromise promises another node, which choose picks, in a slot of a reservation, from now on. The node that had
// the slot is taken back as with EndPromise, with the UUID of its instance, as the new one gets that; p's NodeUUID is
// empty if it was deleted.
func (s *Store) ReplacePromise(ctx context.Context, p node.Promise, allocation, lessee, why string,
	choose chooser) (node.Promise, error) {
	return writing(ctx, s, func(tx *txn) (node.Promise, error) {
		r, err := s.Reservations().byUUID(ctx, tx, p.ReservationUUID)
		if err != nil {
			return p, fmt.Errorf("reservation %s: %w", p.ReservationUUID, err)
		}
		present, err := promises(ctx, tx, `WHERE reservation_uuid = ? AND slot = ?`, p.ReservationUUID, p.Slot)
		if err != nil {
			return p, err
		}
		if len(present) > 0 && present[0].NodeUUID != p.NodeUUID {
			return p, fmt.Errorf("promise %d of reservation %s: %w", p.Slot, p.ReservationUUID, ErrNotFound)
		}
		if len(present) > 0 {
			p = present[0]
		}
		now := s.now()
		id, err := s.chooseOne(ctx, tx, r, now, choose, func(c Reservable) bool { return c.UUID == p.NodeUUID })
		if err != nil {
			return p, err
		}
		if p.NodeUUID != "" && p.Given {
			if err := s.takeBack(ctx, tx, p, taking{allocation, lessee, why, true}); err != nil {
				return p, err
			}
		}
		p.NodeUUID, p.From, p.Until, p.Given = id, now, r.End, false
		return p, s.promiseInstead(ctx, tx, p, why)
	})
}
