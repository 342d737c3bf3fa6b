package store

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/node"
)

// A cache spares the decoding and decrypting of nodes that were read before. It is never asked whether a node exists or which
// version is the present one: every read asks the database for that, and what is kept is found by exactly that version. So
// it can't be stale, whoever else writes to the database, and nothing has to be told to forget. A node that is deleted and made
// anew with the same UUID differs in when it was made.
//
// What is kept is never handed out, and what was handed in is not kept: both ways go through node.Clone. Config drives are not kept.
type cache struct {
	mu    sync.RWMutex
	nodes map[string]cached // by UUID
	max   int               // nodes; zero: none are kept
	size  int               // bytes of documents that stand behind them
}

// cached is one version of a node as it is in the database.
type cached struct {
	n     *node.Node // its config drive, if it has one, is HiddenConfigDrive
	drive bool       // it has a config drive
	size  int
}

const (
	defaultCacheNodes = 16384
	maxCachedNode     = 64 << 10 // bytes; who needs more is read from the database each time
	maxCacheSize      = 64 << 20 // bytes of documents; decoded they take about twice that
)

func newCache(max int) *cache {
	switch {
	case max == 0:
		max = defaultCacheNodes
	case max < 0:
		max = 0
	}
	return &cache{nodes: map[string]cached{}, max: max}
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
	if !ok || e.n.Version != s.version || micros(e.n.CreatedAt) != s.created {
		return nil, false
	}
	return e.n.Clone(), e.drive
}

// put keeps a copy of a node that is in the database: committed, and read or written as it is. size is that of its documents.
func (c *cache) put(n *node.Node, size int) {
	if c.max == 0 || size > maxCachedNode {
		return
	}
	e := cached{n: listed(n), size: size}
	_, e.drive = e.n.InstanceInfo["configdrive"]
	c.mu.Lock()
	defer c.mu.Unlock()
	old, ok := c.nodes[n.UUID]
	if ok && old.n.CreatedAt.Equal(n.CreatedAt) && old.n.Version >= n.Version {
		return // a reader that was overtaken
	}
	if !ok && len(c.nodes) >= c.max {
		c.drop()
	}
	c.size += size - old.size
	c.nodes[n.UUID] = e
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

// forget drops a node that was deleted, which would never be asked for again.
func (c *cache) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.size -= c.nodes[id].size
	delete(c.nodes, id)
}

// listed makes of a node what a list shows: a copy, as a database would return it, without the config drive.
func listed(n *node.Node) *node.Node {
	if d, ok := n.InstanceInfo["configdrive"]; ok && d != nil {
		shallow := *n
		shallow.InstanceInfo = make(map[string]any, len(n.InstanceInfo))
		for k, v := range n.InstanceInfo {
			shallow.InstanceInfo[k] = v
		}
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

// written is a node of the transaction under way.
type written struct {
	n    *node.Node
	size int
}

// readNode returns the one node that a condition on n (nodes) describes, with its config drive. q is a transaction or the readers.
func (s *Store) readNode(ctx context.Context, q queryer, where string, arg any) (*node.Node, error) {
	if s.cache.max > 0 {
		// The query is over in no time; watching a context for it would cost as much as the query.
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var at stamp
		err := q.QueryRowContext(context.WithoutCancel(ctx), `SELECT n.uuid, n.version, n.created_at FROM nodes n WHERE `+where, arg).Scan(&at.uuid, &at.version, &at.created)
		if err != nil {
			return nil, notFound(err)
		}
		if n, drive := s.cache.get(at); n != nil && !drive {
			return n, nil
		}
	}
	n, size, err := s.scanSized(q.QueryRowContext(ctx, fullNode+`WHERE `+where, arg).Scan)
	if err != nil {
		return nil, err
	}
	if _, inside := q.(*sql.Tx); !inside { // what a transaction reads may yet be rolled back
		s.cache.put(n, size)
	}
	return n, nil
}

// nodeByIdent finds a node by UUID or, if there is none, by name.
func (s *Store) nodeByIdent(ctx context.Context, q queryer, ident string) (*node.Node, error) {
	if ident == "" {
		return nil, ErrNotFound
	}
	if uuid.Validate(ident) == nil {
		n, err := s.readNode(ctx, q, `n.uuid = ?`, strings.ToLower(ident))
		if !errors.Is(err, ErrNotFound) {
			return n, err
		}
	}
	return s.readNode(ctx, q, `n.name = ?`, ident)
}

// listNodes returns the nodes that the tail of a statement on n (nodes) describes, without their config drives.
func (s *Store) listNodes(ctx context.Context, tail string, args []any) ([]*node.Node, error) {
	if s.cache.max == 0 {
		rows, err := s.r.QueryContext(ctx, listedNode+tail, args...)
		if err != nil {
			return nil, err
		}
		return collect(rows, s.scanNode)
	}
	// One look at the database for all of it: a filter would else let through what has changed between two looks.
	tx, err := s.r.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	rows, err := tx.QueryContext(ctx, `SELECT n.uuid, n.version, n.created_at FROM nodes n`+tail, args...)
	if err != nil {
		return nil, err
	}
	stamps, err := collect(rows, func(scan func(...any) error) (at stamp, err error) {
		return at, scan(&at.uuid, &at.version, &at.created)
	})
	if err != nil {
		return nil, err
	}
	nodes := make([]*node.Node, len(stamps))
	var missing []any
	for i, at := range stamps {
		if nodes[i], _ = s.cache.get(at); nodes[i] == nil {
			missing = append(missing, at.uuid)
		}
	}
	if len(missing) == 0 {
		return nodes, nil
	}
	const atOnce = 500 // parameters of one statement
	found := make(map[string]*node.Node, len(missing))
	for len(missing) > 0 {
		var w where
		part := missing[:min(atOnce, len(missing))]
		missing = missing[len(part):]
		w.in("n.uuid", part)
		rows, err := tx.QueryContext(ctx, listedNode+w.sql(), w.args...)
		if err != nil {
			return nil, err
		}
		_, err = collect(rows, func(scan func(...any) error) (struct{}, error) {
			n, size, err := s.scanSized(scan)
			if err == nil {
				s.cache.put(n, size)
				found[n.UUID] = n
			}
			return struct{}{}, err
		})
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

// scanSized is scanNode that also tells how large the node's documents are.
func (s *Store) scanSized(scan func(...any) error) (n *node.Node, size int, err error) {
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
