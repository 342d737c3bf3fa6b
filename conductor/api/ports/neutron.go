package ports

import (
	"context"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// eventsSchema is the schema of Neutron's events about its ports.
var eventsSchema = &rest.Schema{
	Types: []string{"object"}, Closed: true, Required: []string{"events"},
	Props: map[string]*rest.Schema{"events": {Types: []string{"array"}, MinLen: 1, Items: &rest.Schema{
		Types: []string{"object"}, Closed: true, Required: []string{"event", "port_id", "mac_address", "status"},
		Props: map[string]*rest.Schema{
			"event": {Types: []string{"string"},
				Enum: []any{"network.bind_port", "network.unbind_port", "network.delete_port"}},
			"port_id": {Types: []string{"string"}}, "mac_address": {Types: []string{"string"}},
			"status": {Types: []string{"string"}}, "device_id": document.OptionalText,
			"binding:host_id": document.OptionalText, "binding:vnic_type": document.OptionalText,
		},
	}}},
}

// postEvents takes events of Neutron. Nothing waits for them, here as in Ironic: they are checked and logged.
func (s *Handlers) postEvents(_ context.Context, c *call.Call) (*call.Reply, error) {
	b, err := c.Checked("evts", eventsSchema)
	if err != nil {
		return nil, err
	}
	for _, e := range b["events"].([]any) {
		event := e.(map[string]any)
		if id := event["port_id"].(string); !document.IsUUID(id) {
			return nil, rest.BadRequest("Schema error for evts: %s is not a 'uuid'", rest.Shown(id))
		}
		if mac := event["mac_address"].(string); mac != "" {
			if _, ok := document.HardwareAddress(mac); !ok {
				return nil, rest.BadRequest("Schema error for evts: %s is not a 'mac-address'", rest.Shown(mac))
			}
		}
		for _, name := range []string{"device_id", "binding:host_id"} {
			if id, ok := event[name].(string); ok && !document.IsUUID(id) {
				return nil, rest.BadRequest("Expected UUID for %s: %s", name, id)
			}
		}
		s.log.Debug("event of the network service", "event", event["event"], "port", event["port_id"], "status",
			event["status"])
	}
	return call.NoContent(), nil
}
