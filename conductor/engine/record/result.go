package record

import (
	"encoding/json"
	"maps"
	"reflect"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// MakesArrays reports whether a step of the agent returns the present arrays as its result.
func MakesArrays(s *node.JobStep) bool { return s.Interface == "raid" && raidSteps[s.Name] }

var raidSteps = map[string]bool{"create_configuration": true, "apply_configuration": true, "delete_configuration": true}

// UseRAID keeps what arrays a node has, and makes the root volume its root device; the hint of an array that is gone
// goes, too.
func UseRAID(n *node.Node, s *node.JobStep) error {
	var r struct {
		Config struct {
			LogicalDisks []map[string]any `json:"logical_disks"`
		} `json:"raid_config"`
		RootDevice map[string]any `json:"root_device"`
	}
	if err := exact.Unmarshal(s.Result, &r); err != nil {
		return err
	}
	old := rootHint(n.RAIDConfig)
	disks := make([]any, 0, len(r.Config.LogicalDisks))
	for _, d := range r.Config.LogicalDisks {
		disks = append(disks, d)
	}
	n.RAIDConfig = map[string]any{
		"logical_disks": disks, "last_updated": time.Now().UTC().Format("2006-01-02T15:04:05.000000")}
	properties := map[string]any{}
	maps.Copy(properties, n.Properties)
	if old != nil && reflect.DeepEqual(properties["root_device"], old) {
		delete(properties, "root_device")
	}
	if len(r.RootDevice) > 0 {
		properties["root_device"] = r.RootDevice
	}
	n.Properties = properties
	return nil
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

// Staged returns the image that a step wrote ahead.
func Staged(s node.JobStep) *node.Staged {
	var args struct {
		Source string `json:"image_source"`
	}
	var r struct {
		Disk struct {
			Name string `json:"name"`
		} `json:"disk"`
		Digest string `json:"digest"`
	}
	// What can't be read is shown empty: the agent alone decides whether an image is the one that it wrote.
	_ = json.Unmarshal(s.Args, &args)
	_ = json.Unmarshal(s.Result, &r)
	return &node.Staged{Source: redact.URL(args.Source), Digest: r.Digest, Disk: r.Disk.Name, At: time.Now().UTC()}
}
