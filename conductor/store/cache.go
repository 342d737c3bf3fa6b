package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/node"
)

// A cache saves decoding and decrypting nodes that were read before. Every read asks the database whether a node exists
// and which version is the present one; an entry is found by exactly that version. So it can't be stale, even if other
// processes write to the database, and needs no invalidation. A node that is deleted and created again with the same
// UUID differs in its creation time.
//
// A store that has its files to itself (Options.Alone) need not ask for the present version. An entry is present from
// when it was written, or read while no commit was under way, until the commit of its next change begins: settling
// marks all nodes of that transaction before any reader can see it in the database, and they are present again once its
// outcome is known. So a present entry was the database's only answer during that time, and no reader sees a change
// that another one does not see later.
//
// Entries are never handed out, and arguments are not kept: both ways go through node.Clone. Config drives are not
// kept.
type cache struct {
	mu    sync.RWMutex
	nodes map[string]cached // by UUID
	max   int               // nodes; zero: none are kept
	size  int               // bytes of their documents
	alone bool              // no other process writes to the database
	era   uint64            // commits that began or ended; odd while one is under way
}

// cached is one version of a node as it is in the database.
type cached struct {
	n     *node.Node // its config drive, if it has one, is HiddenConfigDrive
	drive bool       // it has a config drive
	size  int

	present bool         // the database holds this version
	used    *atomic.Bool // since the last sweep
}

const (
	defaultCacheNodes = 16384
	maxCachedNode     = 64 << 10 // bytes; who needs more is read from the database each time
	maxCacheSize      = 64 << 20 // bytes of documents; decoded they take about twice that
)

func newCache(max int, alone bool) *cache {
	switch {
	case max == 0:
		max = defaultCacheNodes
	case max < 0:
		max = 0
	}
	return &cache{nodes: map[string]cached{}, max: max, alone: alone}
}

// stamp says which version of which node.
type stamp struct {
	uuid    string
	version uint64
	created int64 // microseconds
}

// get returns a copy of a version of a node, or nil.
func (c *cache) get(s stamp) (n *node.Node, drive bool) {
	c.mu.RLock()
	e, ok := c.nodes[s.uuid]
	c.mu.RUnlock()
	if !ok || !e.is(s) {
		return nil, false
	}
	if !e.used.Load() {
		e.used.Store(true)
	}
	return e.n.Clone(), e.drive
}

// sweepEvery is how often unused nodes are forgotten. Clients that list all nodes do so every minute.
const sweepEvery = 90 * time.Second

// sweep forgets the nodes that were neither read nor written since the last one. Of several conductors each has its
// own nodes to work on; those of the others are read at times.
func (c *cache) sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, e := range c.nodes {
		if !e.used.Swap(false) {
			c.forget(id)
		}
	}
}

// sweeping sweeps until the store is closed.
func (s *Store) sweeping() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.cache.sweep()
		case <-s.stop:
			return
		}
	}
}

// latest returns a copy of a node if its present version is known, or nil. It may lack its config drive, if it has one.
func (c *cache) latest(uuid string) (n *node.Node, drive bool) {
	if !c.alone {
		return nil, false
	}
	c.mu.RLock()
	e := c.nodes[uuid]
	c.mu.RUnlock()
	if !e.present {
		return nil, false
	}
	return e.n.Clone(), e.drive
}

// has reports whether a version of a node is kept, be it the present one or not.
func (c *cache) has(uuid string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	_, ok := c.nodes[uuid]
	return ok
}

// now must be called before the database is read for a later put.
func (c *cache) now() (era uint64) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.era
}

// put keeps a copy of a node that was read since era. size is that of its documents.
func (c *cache) put(n *node.Node, size int, era uint64) {
	e, ok := c.entry(n, size)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e.present = c.undisturbed(era)
	c.keep(n.UUID, e)
}

// confirm records that the database was asked since era and holds this version.
func (c *cache) confirm(s stamp, era uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.nodes[s.uuid]; ok && e.is(s) && !e.present && c.undisturbed(era) {
		e.present = true
		c.nodes[s.uuid] = e
	}
}

// undisturbed reports whether no commit was under way since era, with mu held.
func (c *cache) undisturbed(era uint64) bool { return c.alone && c.era == era && era%2 == 0 }

// settling is called before a transaction is committed, with its writes: from now on these nodes are not present.
func (c *cache) settling(ws []written) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.era++
	for _, w := range ws {
		if e, ok := c.nodes[w.uuid]; ok {
			e.present = false
			c.nodes[w.uuid] = e
		}
	}
}

// settled is called after the transaction is committed, with its writes, or has failed, with none.
func (c *cache) settled(ws []written) {
	entries := make([]cached, len(ws))
	for i, w := range ws {
		if w.n != nil {
			entries[i], _ = c.entry(w.n, w.size)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.era++
	for i, w := range ws { // in order: the last word on a node counts
		if entries[i].n == nil {
			c.forget(w.uuid)
			continue
		}
		entries[i].present = c.alone
		c.keep(w.uuid, entries[i])
	}
}

// entry makes the cached copy of a node, if it is to be cached.
func (c *cache) entry(n *node.Node, size int) (e cached, ok bool) {
	if c.max == 0 || size > maxCachedNode {
		return e, false
	}
	e = cached{n: listed(n), size: size, used: &atomic.Bool{}}
	e.used.Store(true)
	_, e.drive = e.n.InstanceInfo["configdrive"]
	return e, true
}

// is reports whether it is the version that a stamp names.
func (e cached) is(s stamp) bool {
	return e.n.Version == s.version && micros(e.n.CreatedAt) == s.created
}

// keep keeps an entry, with mu held, unless a newer one is there already.
func (c *cache) keep(uuid string, e cached) {
	old, ok := c.nodes[uuid]
	if ok && old.n.CreatedAt.Equal(e.n.CreatedAt) &&
		(old.n.Version > e.n.Version || old.n.Version == e.n.Version && !e.present) {
		return // a reader that was overtaken
	}
	if !ok && len(c.nodes) >= c.max {
		c.drop()
	}
	c.size += e.size - old.size
	c.nodes[uuid] = e
	for c.size > maxCacheSize {
		c.drop()
	}
}

// drop forgets some node, whichever comes first: maps are walked in random order.
func (c *cache) drop() {
	for id, e := range c.nodes {
		c.size -= e.size
		delete(c.nodes, id)
		return
	}
}

// forget drops a node, with mu held.
func (c *cache) forget(id string) {
	c.size -= c.nodes[id].size
	delete(c.nodes, id)
}

// listed returns the copy of a node for a list, as a database would return it, without the config drive.
func listed(n *node.Node) *node.Node {
	if d, ok := n.InstanceInfo["configdrive"]; ok && d != nil {
		shallow := *n
		shallow.InstanceInfo = maps.Clone(n.InstanceInfo)
		shallow.InstanceInfo["configdrive"] = HiddenConfigDrive
		n = &shallow
	}
	c := n.Clone()
	if len(c.DriverInfo) == 0 {
		c.DriverInfo = nil
	}
	if len(c.InstanceInfo) == 0 {
		c.InstanceInfo = nil
	}
	return c
}

// written is the result for one node in the transaction under way.
type written struct {
	uuid string
	n    *node.Node // nil: it was deleted
	size int
}

// readNode returns the one node with this UUID, with its config drive. q is a transaction or the readers.
func (s *Store) readNode(ctx context.Context, q queryer, uuid string) (*node.Node, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	_, inside := q.(*txn)
	if !inside || !slices.ContainsFunc(s.fresh, func(w written) bool { return w.uuid == uuid }) {
		if n, drive := s.cache.latest(uuid); n != nil && !drive {
			return n, nil
		}
	}
	if !s.cache.has(uuid) {
		return s.scanFound(ctx, q, `n.uuid = ?`, uuid, s.cache.now())
	}
	return s.findNode(ctx, q, `n.uuid = ?`, uuid)
}

// findNode is readNode for whatever condition on n (nodes) describes one node.
func (s *Store) findNode(ctx context.Context, q queryer, where string, arg any) (*node.Node, error) {
	era := s.cache.now()
	if s.cache.max > 0 {
		// The query is over in no time; watching a context for it would cost as much as the query.
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var at stamp
		err := q.QueryRowContext(context.WithoutCancel(ctx),
			`SELECT n.uuid, n.version, n.created_at FROM nodes n WHERE `+where, arg).Scan(&at.uuid, &at.version,
			&at.created)
		if err != nil {
			return nil, notFound(err)
		}
		if n, drive := s.cache.get(at); n != nil && !drive {
			if _, inside := q.(*txn); !inside {
				s.cache.confirm(at, era)
			}
			return n, nil
		}
	}
	return s.scanFound(ctx, q, where, arg, era)
}

// scanFound is findNode from the database alone.
func (s *Store) scanFound(ctx context.Context, q queryer, where string, arg any, era uint64) (*node.Node, error) {
	n, size, err := s.scanSized(q.QueryRowContext(ctx, fullNode+`WHERE `+where, arg).Scan)
	if err != nil {
		return nil, notFound(err)
	}
	if _, inside := q.(*txn); !inside { // a transaction's reads may yet be rolled back
		s.cache.put(n, size, era)
	}
	return n, nil
}

// nodeByIdent finds a node by UUID or, if there is none, by name.
func (s *Store) nodeByIdent(ctx context.Context, q queryer, ident string) (*node.Node, error) {
	if ident == "" {
		return nil, ErrNotFound
	}
	if uuid.Validate(ident) == nil {
		n, err := s.readNode(ctx, q, strings.ToLower(ident))
		if !errors.Is(err, ErrNotFound) {
			return n, err
		}
	}
	return s.findNode(ctx, q, `n.name = ?`, ident)
}

// listNodes returns the nodes that the tail of a statement on n (nodes) describes, without their config drives.
func (s *Store) listNodes(ctx context.Context, tail string, args []any) ([]*node.Node, error) {
	if s.cache.max == 0 {
		return list(ctx, s.r, "list nodes", s.scanNode, listedNode+tail, args...)
	}
	era := s.cache.now()
	// One snapshot of the database for all of it: otherwise a filter would let nodes through that changed between two
	// queries.
	tx, err := s.r.BeginTx(ctx, s.d.snapshot)
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	defer tx.Rollback()
	stamps, err := list(ctx, tx, "list nodes", into(func(at *stamp) []any {
		return []any{&at.uuid, &at.version, &at.created}
	}), `SELECT n.uuid, n.version, n.created_at FROM nodes n`+tail, args...)
	if err != nil {
		return nil, err
	}
	nodes := make([]*node.Node, len(stamps))
	var missing []string
	for i, at := range stamps {
		if nodes[i], _ = s.cache.get(at); nodes[i] == nil {
			missing = append(missing, at.uuid)
		}
	}
	const atOnce = 500 // parameters of one statement
	found := make(map[string]*node.Node, len(missing))
	for part := range slices.Chunk(missing, atOnce) {
		var w where
		in(&w, "n.uuid", part)
		_, err := list(ctx, tx, "list nodes", func(scan scanner) (struct{}, error) {
			n, size, err := s.scanSized(scan)
			if err == nil {
				s.cache.put(n, size, era)
				found[n.UUID] = n
			}
			return struct{}{}, err
		}, listedNode+w.sql(), w.args...)
		if err != nil {
			return nil, err
		}
	}
	for i, n := range nodes {
		if n == nil {
			nodes[i] = found[stamps[i].uuid]
		}
	}
	return nodes, nil
}

// scanSized is scanNode that also returns the size of the node's documents.
func (s *Store) scanSized(scan scanner) (n *node.Node, size int, err error) {
	n, err = s.scanNode(func(into ...any) error {
		if err := scan(into...); err != nil {
			return err
		}
		for _, v := range into {
			if doc, ok := v.(*[]byte); ok {
				size += len(*doc)
			}
		}
		return nil
	})
	return n, size, err
}
