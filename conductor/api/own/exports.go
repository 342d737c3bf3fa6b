package own

import (
	"context"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// exportRoutes are what hosts need that write disks for deploy interface iscsi.
func (s *Handlers) exportRoutes() []call.Route {
	return []call.Route{
		{Method: http.MethodGet, Path: "/ingot/v1/exports", Access: call.Admin, Query: call.Named,
			Args: call.Args{"initiator_name": call.Text}, Answers: call.OK(rest.Exports{}), Handle: s.listExports},
		{Method: http.MethodPost, Path: "/ingot/v1/nodes/{node}/export_failure", Access: call.Admin,
			Takes:   call.Body([]string{"export", "reason"}, call.Args{"export": call.Text, "reason": call.Text}),
			Answers: call.None(http.StatusNoContent), Handle: s.postExportFailure},
	}
}

// listExports lists the disks that machines lend now, with all that their writer needs: those for one initiator, or
// all.
func (s *Handlers) listExports(ctx context.Context, c *call.Call) (*call.Reply, error) {
	nodes, err := s.store.Nodes(ctx,
		store.Query{ProvisionIn: []node.State{node.Deploying, node.DeployWait}})
	if err != nil {
		return nil, err
	}
	out := rest.Exports{Exports: []rest.Export{}}
	for _, n := range nodes {
		x, err := s.engine.ExportOf(n)
		if err != nil { // the others are written
			s.log.Warn("describe the disk that a machine lends", "node", n.UUID, "err", err)
		}
		if name := c.Query.Get("initiator_name"); x == nil || name != "" && name != x.Initiator {
			continue
		}
		out.Exports = append(out.Exports, rest.Export{ID: x.ID, NodeUUID: n.UUID, NodeName: rest.Null(n.Name),
			Portal: x.Portal, Target: steparg.ExportTarget, InitiatorName: x.Initiator, User: x.User,
			Password: x.Password, Image: x.Image})
	}
	return &call.Reply{Status: http.StatusOK, Body: out}, nil
}

// postExportFailure takes a writer's reason for not writing a disk.
func (s *Handlers) postExportFailure(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, aerr := c.Arguments("export", "reason")
	if aerr != nil {
		return nil, aerr
	}
	id, _ := b["export"].(string)
	why, _ := b["reason"].(string)
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	return call.NoContent(), s.engine.ExportFailed(ctx, n.UUID, id, why, c.User)
}
