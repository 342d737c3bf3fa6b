package store_test

import (
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
