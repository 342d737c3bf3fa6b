package api

import (
	"context"
	"net/http"
	"strings"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

func (s *Server) chassis() *kind[node.Chassis, rest.Chassis] {
	return &kind[node.Chassis, rest.Chassis]{
		path: "chassis", param: "chassis", list: "chassis", body: "chassis", title: "Chassis", expects: "chassis_uuid",
		detailPath: true, detailSince: rest.VersionDetailQuery, write: Admin,
		table: func() *store.Table[node.Chassis] { return s.store.Chassis() }, fields: rest.ChassisFields, short: rest.ChassisListFields,
		show: func(c *call, v *node.Chassis) rest.Chassis {
			path := "chassis/" + v.UUID
			return rest.Chassis{
				UUID: v.UUID, CreatedAt: rest.NullTime{Time: v.CreatedAt}, UpdatedAt: rest.NullTime{Time: v.UpdatedAt},
				Description: rest.Null(v.Description), Extra: v.Extra, Links: rest.Links(c.base, path),
				Nodes: [][]rest.Link{rest.Links(c.base, path+"/nodes")},
			}
		},
		schema: &rest.Schema{Types: []string{"object"}, Closed: true, Props: map[string]*rest.Schema{
			"uuid": optionalText, "extra": optionalObject, "description": {Types: []string{"string", "null"}, MaxLen: 255},
		}},
		patchable: []string{"description", "extra", "uuid"},
		document: func(v *node.Chassis) map[string]any {
			return map[string]any{"description": textOrNull(v.Description), "extra": rest.Clone(v.Extra)}
		},
		check: func(_ context.Context, _ *call, was *node.Chassis, d map[string]any) error {
			if id := textIn(d, "uuid"); was != nil && id != "" && !strings.EqualFold(id, was.UUID) {
				return rest.BadRequest("Cannot overwrite UUID for an existing Chassis.")
			}
			return nil
		},
		assign: func(_ *call, v *node.Chassis, d map[string]any) *rest.Error {
			v.Description, v.Extra = textIn(d, "description"), objectIn(d, "extra")
			return nil
		},
	}
}

func (s *Server) chassisRoutes() []route {
	k := s.chassis()
	of := func(detail bool) func(context.Context, *call) (*reply, error) {
		return func(ctx context.Context, c *call) (*reply, error) {
			v, err := k.byIdent(ctx, c, c.path["chassis"])
			if err != nil {
				return nil, err
			}
			return s.nodeList(ctx, c, detail, v)
		}
	}
	return append(k.routes(),
		route{Method: http.MethodGet, Path: "/v1/chassis/{chassis}/nodes", Access: Read, handle: of(false)},
		route{Method: http.MethodGet, Path: "/v1/chassis/{chassis}/nodes/detail", Access: Read, handle: of(true)},
	)
}
