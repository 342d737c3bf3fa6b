package node

import (
	"maps"
	"reflect"
	"time"
)

// SetRAID keeps the logical disks that the machine has, in the form of raid_config, and makes the root volume the root
// device; the hint of one that is gone goes, too. root is nil where none is known.
func (n *Node) SetRAID(disks []any, root map[string]any, at time.Time) {
	old := rootHint(n.RAIDConfig)
	n.RAIDConfig = map[string]any{
		"logical_disks": disks, "last_updated": at.UTC().Format("2006-01-02T15:04:05.000000")}
	properties := map[string]any{}
	maps.Copy(properties, n.Properties)
	if old != nil && reflect.DeepEqual(properties["root_device"], old) {
		delete(properties, "root_device")
	}
	if len(root) > 0 {
		properties["root_device"] = root
	}
	n.Properties = properties
}

// rootHint is the hint of the root volume in a raid_config, or nil.
func rootHint(config map[string]any) any {
	disks, _ := config["logical_disks"].([]any)
	for _, v := range disks {
		if d, ok := v.(map[string]any); ok && d["root_device_hint"] != nil {
			return d["root_device_hint"]
		}
	}
	return nil
}
