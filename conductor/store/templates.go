package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/ingot-metal/ingot/conductor/node"
)

// TemplatesNamed returns the deploy templates of these names, in the order of the names. Names of which there is none
// are left out.
func (s *Store) TemplatesNamed(ctx context.Context, names []string) ([]*node.DeployTemplate, error) {
	table := s.DeployTemplates()
	var out []*node.DeployTemplate
	for _, name := range names {
		t, err := table.Get(ctx, name)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// traitRunbooks adds to every runbook without traits one that is equal to its name, as an upgrade of Ironic does: nodes
// on which it could run have that trait. It does so once, for a database from before runbooks had traits.
func (s *Store) traitRunbooks(ctx context.Context) error {
	return s.write(ctx, func(tx *txn) error {
		due, err := tx.changed(`DELETE FROM pending WHERE name = 'traits of runbooks'`)
		if err != nil {
			return fmt.Errorf("migrate runbooks: %w", err)
		}
		if !due {
			return nil
		}
		table := s.Runbooks()
		all, err := table.list(ctx, tx, "")
		if err != nil {
			return fmt.Errorf("migrate runbooks: %w", err)
		}
		for _, r := range all {
			if len(r.Traits) > 0 || r.Name == "" {
				continue
			}
			r.Traits = []string{r.Name}
			if err := table.put(tx, r); err != nil {
				return fmt.Errorf("migrate runbook %s: %w", r.UUID, err)
			}
		}
		return nil
	})
}

// Runbook returns the runbook with this UUID or name; ErrNotFound.
func (s *Store) Runbook(ctx context.Context, ident string) (*node.Runbook, error) {
	return s.Runbooks().Get(ctx, ident)
}
