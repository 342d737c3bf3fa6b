package record

import (
	"encoding/json"
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
	disks := make([]any, 0, len(r.Config.LogicalDisks))
	for _, d := range r.Config.LogicalDisks {
		disks = append(disks, d)
	}
	n.SetRAID(disks, r.RootDevice, time.Now())
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
