package nodes

import (
	"context"
	"net/http"
	"strings"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/api/resource"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

func (s *Handlers) chassis() *resource.Kind[node.Chassis, rest.Chassis] {
	return &resource.Kind[node.Chassis, rest.Chassis]{
		Path: "chassis", Param: "chassis", Member: "chassis", Body: "chassis", Title: "Chassis",
		Expects: "chassis_uuid", DetailPath: true, DetailSince: rest.VersionDetailQuery, Write: call.Admin, Loose: true,
		Table: func() *store.Table[node.Chassis] { return s.store.Chassis() }, Fields: rest.ChassisFields,
		Short: rest.ChassisListFields, Show: func(c *call.Call, v *node.Chassis) rest.Chassis {
			path := "chassis/" + v.UUID
			return rest.Chassis{
				UUID: v.UUID, CreatedAt: rest.NullTime{Time: v.CreatedAt}, UpdatedAt: rest.NullTime{Time: v.UpdatedAt},
				Description: rest.Text(v.Description, "description", v.Blank), Extra: v.Extra,
				Links: rest.Links(c.Base, path), Nodes: [][]rest.Link{rest.Links(c.Base, path+"/nodes")},
			}
		},
		Schema: &rest.Schema{Types: []string{"object"}, Closed: true, Props: map[string]*rest.Schema{
			"uuid": document.OptionalText, "extra": document.OptionalObject,
			"description": {Types: []string{"string", "null"}, MaxLen: 255},
		}},
		Patchable: []string{"description", "extra", "uuid"},
		Document: func(v *node.Chassis) map[string]any {
			return map[string]any{"uuid": v.UUID, "description": document.Kept(v.Description, "description", v.Blank),
				"extra": rest.Clone(v.Extra)}
		},
		Check: func(_ context.Context, _ *call.Call, was *node.Chassis, d map[string]any) error {
			if was != nil && !strings.EqualFold(document.Text(d, "uuid"), was.UUID) {
				return rest.BadRequest("Cannot overwrite UUID for an existing Chassis.")
			}
			return nil
		},
		Assign: func(_ *call.Call, v *node.Chassis, d map[string]any) *rest.Error {
			v.Description, v.Extra = document.Text(d, "description"), document.Object(d, "extra")
			v.Blank = document.Blank(d, "description")
			return nil
		},
	}
}

func (s *Handlers) chassisRoutes() []call.Route {
	k := s.chassis()
	of := func(detail bool) func(context.Context, *call.Call) (*call.Reply, error) {
		return func(ctx context.Context, c *call.Call) (*call.Reply, error) {
			v, err := k.ByIdent(ctx, c, c.Path["chassis"])
			if err != nil {
				return nil, err
			}
			return s.list(ctx, c, detail, v)
		}
	}
	return append(k.Routes(),
		call.Route{Method: http.MethodGet, Path: "/v1/chassis/{chassis}/nodes", Access: call.Read, Query: call.Named,
			Args: s.listArgs(false), Answers: listAnswers(), Handle: of(false)},
		call.Route{Method: http.MethodGet, Path: "/v1/chassis/{chassis}/nodes/detail", Access: call.Read,
			Query: call.Named, Args: s.listArgs(true), Answers: listAnswers(), Handle: of(true)},
	)
}
