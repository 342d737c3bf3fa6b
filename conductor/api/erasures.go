package api

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/erasure"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// erasureRoutes are where the signed reports of erased disks are fetched, and the key to verify them with.
func (s *Server) erasureRoutes() []route {
	return []route{
		{Method: http.MethodGet, Path: "/ingot/v1/nodes/{node}/erasures", Access: Read, handle: s.listErasures},
		{Method: http.MethodGet, Path: "/ingot/v1/nodes/{node}/erasures/{erasure}", Access: Read, handle: s.getErasure},
		{Method: http.MethodGet, Path: "/ingot/v1/erasure_key", Access: Read, handle: s.getErasureKey},
	}
}

func (s *Server) erasures(ctx context.Context, c *call) ([]erasure.Kept, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	n, err := s.node(ctx, c)
	if err != nil {
		return nil, err
	}
	return s.store.Erasures(ctx, n.UUID)
}

// listErasures gives the reports in short, newest first.
func (s *Server) listErasures(ctx context.Context, c *call) (*reply, error) {
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
		out.Erasures = append(out.Erasures, rest.Erasure{UUID: k.ID, Received: rest.NullTime{Time: k.At}, Step: r.Step, Disk: r.Disk.Name, Serial: r.Disk.Serial,
			WWN: r.Disk.WWN, Model: r.Disk.Model, Size: r.Disk.Size, Method: rest.Null(r.Method), Level: r.Level, Result: r.Result, Error: rest.Null(r.Error)})
	}
	return &reply{status: http.StatusOK, body: out}, nil
}

// getErasure gives a report as it was signed.
func (s *Server) getErasure(ctx context.Context, c *call) (*reply, error) {
	kept, err := s.erasures(ctx, c)
	if err != nil {
		return nil, err
	}
	for _, k := range kept {
		if k.ID == c.path["erasure"] {
			return &reply{status: http.StatusOK, body: json.RawMessage(k.Document)}, nil
		}
	}
	return nil, rest.NotFound("Erasure %s could not be found.", c.path["erasure"])
}

func (s *Server) getErasureKey(_ context.Context, c *call) (*reply, error) {
	if err := c.allow(); err != nil {
		return nil, err
	}
	return &reply{status: http.StatusOK, body: rest.ErasureKey{PublicKey: s.cfg.ErasureKey}}, nil
}
