package own

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/proto/rootdevice"
)

// getRootDisk shows which of the disks of the last inspection a deployment would take, and why.
func (s *Handlers) getRootDisk(ctx context.Context, _ *call.Call, n *node.Node) (*call.Reply, error) {
	doc, err := s.store.Inventory(ctx, n.UUID)
	if errors.Is(err, store.ErrNotFound) {
		return nil, rest.NotFound("Node inventory record for node %s could not be found.", n.UUID)
	}
	if err != nil {
		return nil, err
	}
	disks, err := disksIn(doc)
	if err != nil {
		return nil, fmt.Errorf("read stored inventory of node %s: %w", n.UUID, err)
	}
	source, hints, err := rootdevice.HintsOf(n.InstanceInfo, n.Properties)
	if err != nil {
		return nil, rest.BadRequest("root_device in %s: %v", source, err)
	}
	x, err := json.Marshal(rootdevice.Explain(disks, hints))
	if err != nil {
		return nil, err
	}
	out := rest.RootDisk{NodeUUID: n.UUID, HintsFrom: source}
	if err := json.Unmarshal(x, &out); err != nil {
		return nil, err
	}
	return &call.Reply{Status: http.StatusOK, Body: out}, nil
}

// disksIn reads the disks of a stored inventory, which has them beside the data of hooks or by themselves.
func disksIn(doc []byte) ([]rootdevice.Disk, error) {
	type found struct {
		Disks []rootdevice.Disk `json:"disks"`
	}
	var v struct {
		found
		Inventory *found `json:"inventory"`
	}
	if err := json.Unmarshal(doc, &v); err != nil {
		return nil, err
	}
	if v.Inventory != nil {
		return v.Inventory.Disks, nil
	}
	return v.Disks, nil
}
