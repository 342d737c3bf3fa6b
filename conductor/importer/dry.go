package importer

import (
	"context"
	"errors"
	"os"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

// copyOf makes a store in a temporary folder with what imports look at of another one. A run on it finds all that one
// on the other would, and is forgotten.
func copyOf(ctx context.Context, st *store.Store) (copied *store.Store, remove func() error, err error) {
	dir, err := os.MkdirTemp("", "ingot-dry-run-")
	if err != nil {
		return nil, nil, err
	}
	remove = func() error { return os.RemoveAll(dir) }
	defer func() {
		if err != nil {
			err = errors.Join(err, remove())
		}
	}()
	if copied, err = store.Open(ctx, store.Options{Dir: dir, Ephemeral: true}); err != nil {
		return nil, nil, err
	}
	remove = func() error { return errors.Join(copied.Close(), os.RemoveAll(dir)) }
	if err := fill(ctx, st.Chassis(), copied.Chassis()); err != nil {
		return nil, nil, err
	}
	nodes, err := st.Nodes(ctx, store.Query{})
	if err != nil {
		return nil, nil, err
	}
	parents := map[string]string{}
	for _, n := range nodes { // a parent may be later in the list than its child
		parents[n.UUID], n.ParentNode = n.ParentNode, ""
		if err := copied.CreateNode(ctx, n); err != nil {
			return nil, nil, err
		}
	}
	for id, parent := range parents {
		if parent == "" {
			continue
		}
		_, err := copied.UpdateNode(ctx, id, func(n *node.Node) error {
			n.ParentNode = parent
			return nil
		})
		if err != nil {
			return nil, nil, err
		}
	}
	if err := fill(ctx, st.Portgroups(), copied.Portgroups()); err != nil {
		return nil, nil, err
	}
	ports, err := st.Ports(ctx, store.PortQuery{})
	if err != nil {
		return nil, nil, err
	}
	for _, p := range ports {
		if err := copied.CreatePort(ctx, p); err != nil {
			return nil, nil, err
		}
	}
	for _, f := range []func() error{
		func() error { return fill(ctx, st.VolumeConnectors(), copied.VolumeConnectors()) },
		func() error { return fill(ctx, st.VolumeTargets(), copied.VolumeTargets()) },
		func() error { return fill(ctx, st.Allocations(), copied.Allocations()) },
		func() error { return fill(ctx, st.DeployTemplates(), copied.DeployTemplates()) },
		func() error { return fill(ctx, st.Runbooks(), copied.Runbooks()) },
		func() error { return fill(ctx, st.InspectionRules(), copied.InspectionRules()) },
	} {
		if err := f(); err != nil {
			return nil, nil, err
		}
	}
	return copied, remove, nil
}

func fill[T any](ctx context.Context, from, to *store.Table[T]) error {
	all, err := from.List(ctx, "")
	if err != nil {
		return err
	}
	for _, v := range all {
		if err := to.Create(ctx, v); err != nil {
			return err
		}
	}
	return nil
}
