package instance

import (
	"encoding/json"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
	"github.com/ingot-metal/ingot/proto/rootdevice"
)

// RootDeviceHints reads the root_device of instance_info or properties as the agent will, and returns it as an object:
// nil when it is empty. It may be stored as the text of a JSON object, as some tools set it.
func RootDeviceHints(v any) (map[string]any, error) {
	if v == nil || v == "" {
		return nil, nil
	}
	if text, ok := v.(string); ok {
		v = json.RawMessage(text)
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, node.Invalidf("root_device is neither an object nor the text of one")
	}
	if _, err := rootdevice.ParseHints(raw); err != nil {
		return nil, node.Invalidf("root_device can't be used: %v", err)
	}
	var m map[string]any
	if err := exact.Unmarshal(raw, &m); err != nil || len(m) == 0 {
		return nil, nil // null
	}
	return m, nil
}

// RootDevice returns the hints that choose a node's root disk: those of instance_info, else those of properties.
func RootDevice(n *node.Node) (map[string]any, error) {
	for _, from := range []map[string]any{n.InstanceInfo, n.Properties} {
		if hints, err := RootDeviceHints(from["root_device"]); hints != nil || err != nil {
			return hints, err
		}
	}
	return nil, nil
}
