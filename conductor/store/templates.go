package store

import (
	"context"
	"errors"

	"github.com/ingot-metal/ingot/conductor/node"
)

// TemplatesNamed returns the deploy templates of these names, in the order of the names. Names of which there is none are left out.
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

// Runbook returns the runbook with this UUID or name; ErrNotFound.
func (s *Store) Runbook(ctx context.Context, ident string) (*node.Runbook, error) {
	return s.Runbooks().Get(ctx, ident)
}
