package store_test

import (
	"bytes"
	"testing"

	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/storetest"
)

// TestPostgreSQL is the suite on PostgreSQL, as ingotd uses it but for the cache, which holds two nodes: so both ways
// of reading are taken.
func TestPostgreSQL(t *testing.T) {
	storetest.Run(t, func(t *testing.T) *store.Store {
		o := store.ServerOptions(t)
		o.Alone, o.CacheNodes = true, 2
		return openOptions(t, o)
	})
}

// TestAddressesOfTwoConductors: two conductors that lease addresses of one range at once give each to one machine.
func TestAddressesOfTwoConductors(t *testing.T) {
	both := twoConductors(t)
	storetest.LeaseOnce(t, t.Context(), both[0], both[1])
}

// TestPromisesOfTwoConductors: two conductors that reserve the same machines at once promise none twice.
func TestPromisesOfTwoConductors(t *testing.T) {
	both := twoConductors(t)
	storetest.PromiseOnce(t, t.Context(), both[0], both[1])
}

// twoConductors opens one database twice.
func twoConductors(t *testing.T) []*store.Store {
	t.Helper()
	o := store.ServerOptions(t)
	o.Key, o.Alone = bytes.Repeat([]byte{7}, 32), true
	var both []*store.Store
	for _, name := range []string{"c1", "c2"} {
		o.Dir, o.Name = t.TempDir(), name
		both = append(both, openOptions(t, o))
	}
	return both
}
