package own

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/agents/erasure"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// erasureRoutes are where the signed reports of erased disks are fetched, and the key to verify them with.
func (s *Handlers) erasureRoutes() []call.Route {
	return []call.Route{
		{Method: http.MethodGet, Path: "/ingot/v1/nodes/{node}/erasures", Access: call.Read,
			Answers: call.OK(rest.Erasures{}), Handle: s.listErasures},
		{Method: http.MethodGet, Path: "/ingot/v1/nodes/{node}/erasures/{erasure}", Access: call.Read,
			Answers: call.OK(map[string]any{}), Handle: s.getErasure},
		{Method: http.MethodGet, Path: "/ingot/v1/erasure_key", Access: call.Read, Answers: call.OK(rest.ErasureKey{}),
			Handle: s.getErasureKey},
	}
}

func (s *Handlers) erasures(ctx context.Context, c *call.Call) ([]erasure.Kept, error) {
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	return s.store.Erasures(ctx, n.UUID)
}

// listErasures returns the reports in short, newest first.
func (s *Handlers) listErasures(ctx context.Context, c *call.Call) (*call.Reply, error) {
	kept, err := s.erasures(ctx, c)
	if err != nil {
		return nil, err
	}
	out := rest.Erasures{Erasures: []rest.Erasure{}}
	for _, k := range kept {
		v, err := erasure.Verify(k.Document, nil)
		if err != nil {
			return nil, err
		}
		r := v.Report
		out.Erasures = append(out.Erasures,
			rest.Erasure{UUID: k.ID, Received: rest.NullTime{Time: k.At}, Step: r.Step, Disk: r.Disk.Name,
				Serial: r.Disk.Serial, WWN: r.Disk.WWN, Model: r.Disk.Model, Size: r.Disk.Size,
				Method: rest.Null(r.Method), Level: r.Level, Result: r.Result, Error: rest.Null(r.Error)})
	}
	return &call.Reply{Status: http.StatusOK, Body: out}, nil
}

// getErasure returns a report as it was signed.
func (s *Handlers) getErasure(ctx context.Context, c *call.Call) (*call.Reply, error) {
	kept, err := s.erasures(ctx, c)
	if err != nil {
		return nil, err
	}
	for _, k := range kept {
		if k.ID == c.Path["erasure"] {
			return &call.Reply{Status: http.StatusOK, Body: json.RawMessage(k.Document)}, nil
		}
	}
	return nil, rest.NotFound("Erasure %s could not be found.", c.Path["erasure"])
}

func (s *Handlers) getErasureKey(_ context.Context, c *call.Call) (*call.Reply, error) {
	return &call.Reply{Status: http.StatusOK, Body: rest.ErasureKey{PublicKey: s.cfg.ErasureKey}}, nil
}
