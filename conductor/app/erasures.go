package app

import (
	"context"

	"github.com/ingot-metal/ingot/conductor/agents/erasure"
	"github.com/ingot-metal/ingot/conductor/store"
)

// erased adds the reports in the results of steps to the book, with the names of their nodes.
func erased(b *erasure.Book, st *store.Store) func(ctx context.Context, nodeUUID string, result []byte) error {
	return func(ctx context.Context, nodeUUID string, result []byte) error {
		n, err := st.Node(ctx, nodeUUID)
		if err != nil {
			return err
		}
		return b.Take(ctx, nodeUUID, n.Name, result)
	}
}
