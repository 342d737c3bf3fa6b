package own

import (
	"context"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// getMachineHealth answers with the last reading. The controller is not asked.
func (s *Handlers) getMachineHealth(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	r, err := s.store.Reading(ctx, n.UUID)
	if err != nil {
		return nil, err
	}
	out := rest.MachineHealth{NodeUUID: n.UUID, Health: rest.Null(r.Health), ReadAt: rest.NullTime{Time: r.At},
		TriedAt: rest.NullTime{Time: r.TriedAt}, Error: rest.Null(r.Error), Parts: []rest.FailingPart{},
		Sensors: []rest.Sensor{}, Log: []rest.SystemEvent{}}
	for _, p := range r.Parts {
		out.Parts = append(out.Parts, rest.FailingPart{Kind: p.Kind, Name: p.Name, Health: rest.Null(p.Health),
			Predicted: p.Predicted})
	}
	for _, x := range r.Sensors {
		out.Sensors = append(out.Sensors, rest.Sensor{Name: x.Name, Kind: x.Kind, Value: x.Value, Unit: x.Unit,
			Critical: x.Critical, Health: rest.Null(x.Health)})
	}
	for _, e := range r.Log {
		out.Log = append(out.Log, rest.SystemEvent{ID: e.ID, Time: rest.NullTime{Time: e.At},
			Severity: rest.Null(e.Severity), Message: e.Message})
	}
	return &call.Reply{Status: http.StatusOK, Body: out}, nil
}
