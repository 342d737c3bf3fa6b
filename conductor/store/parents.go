package store

import (
	"fmt"

	"github.com/ingot-metal/ingot/conductor/node"
)

// ParentError says that a node can't be the child of another one, because that does not exist, or is itself below the
// node.
type ParentError struct{ NodeUUID, Parent, Why string }

func (e *ParentError) Error() string {
	return fmt.Sprintf("node %s can't have node %s as its parent: %s", e.NodeUUID, e.Parent, e.Why)
}

// ChildrenError says that a node can't be deleted because others are its children.
type ChildrenError struct {
	NodeUUID, Child string // one of them
}

func (e *ChildrenError) Error() string {
	return fmt.Sprintf("node %s has children, among them node %s: delete them or give them another parent first",
		e.NodeUUID, e.Child)
}

// parentOf makes sure that a node's parent exists and that no node becomes its own ancestor.
func parentOf(tx *txn, n *node.Node) error {
	for at := n.ParentNode; at != ""; {
		if at == n.UUID {
			return &ParentError{n.UUID, n.ParentNode, "that would be a circle"}
		}
		found, err := tx.find([]any{&at}, `SELECT parent_node FROM nodes WHERE uuid = ?`, at)
		if err != nil {
			return fmt.Errorf("find the parent of node %s: %w", n.UUID, err)
		}
		if !found {
			return &ParentError{n.UUID, n.ParentNode, "it could not be found"}
		}
	}
	return nil
}

// childless refuses to delete a node that has children.
func childless(tx *txn, id string) error {
	var child string
	found, err := tx.find([]any{&child}, `SELECT uuid FROM nodes WHERE parent_node = ? AND parent_node <> '' LIMIT 1`, id)
	if err != nil {
		return fmt.Errorf("find children of node %s: %w", id, err)
	}
	if found {
		return &ChildrenError{id, child}
	}
	return nil
}
