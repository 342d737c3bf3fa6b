package pool

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

const powerOff = "power off"

// FactOf describes a node for a pool. m is the pool's record of it.
func FactOf(n *node.Node, p *node.Pool, m node.PoolMember) Fact {
	f := Fact{UUID: n.UUID, Name: n.Name, Member: m, Watts: Watts(n, p), Staged: stagedFor(n, p.Image)}
	if w := n.Warmth; w != nil {
		f.Failure, f.FailedAt = w.Failure, w.At
	}
	kept := n.Boot != nil && n.Boot.Kept && !n.Boot.Ended
	switch {
	case n.Provision != node.Available:
		f.Standing = Out
	case n.Job != nil && n.Job.Phase == node.PhaseCool:
		f.Standing, f.CooledBy = Cooling, n.Job.Requester
	case n.Job != nil && n.Job.Phase == node.PhaseWarm && (kept || stages(n.Job)):
		f.Standing = Staging
	case n.Job != nil && n.Job.Phase == node.PhaseWarm:
		f.Standing = Warming
	case n.Job != nil || n.TargetPower != "":
		f.Standing = Busy
	case n.IsWarm():
		f.Standing = Warm
	case kept:
		f.Standing = Lost
	default:
		f.Standing = Cold
	}
	switch f.Standing {
	case Out:
	case Cold:
		f.On = n.Power != powerOff && n.Power != ""
	case Busy:
		f.On = kept || n.Power != powerOff && n.Power != "" || n.TargetPower != "" && n.TargetPower != powerOff
	default:
		f.On = true
	}
	f.Excluded = excluded(n)
	f.Retired = n.Retired && n.Provision == node.Available && n.InstanceUUID == "" && n.AllocationUUID == "" &&
		!n.Maintenance && !n.DisablePowerOff
	return f
}

// stages reports whether a job is about an image that is written ahead.
func stages(j *node.Job) bool {
	return slices.ContainsFunc(j.Steps, func(s node.JobStep) bool { return s.InBand })
}

// excluded says why a pool has to leave a node alone.
func excluded(n *node.Node) string {
	quarantine := cmp.Or(n.Quarantine, &node.Quarantine{})
	for _, c := range []struct {
		is        bool
		what, why string
	}{
		{n.Provision != node.Available, "it is " + string(n.Provision), ""},
		{n.InstanceUUID != "" || n.AllocationUUID != "", "it is taken by an instance", ""},
		{n.Maintenance, "it is in maintenance", n.MaintenanceReason},
		{n.Fault != "", "it has a fault", n.Fault},
		{n.Quarantine != nil, "it is in quarantine", quarantine.Reason},
		{n.Retired, "it is retired", n.RetiredReason},
		{n.DisablePowerOff, "its power must not be turned off (disable_power_off)", ""},
	} {
		if c.is && c.why != "" {
			return c.what + ": " + c.why
		}
		if c.is {
			return c.what
		}
	}
	return ""
}

// Watts returns the power of a node: from its properties, else from the pool. Zero means unknown.
func Watts(n *node.Node, p *node.Pool) int {
	var w float64
	switch v := n.Properties["watts"].(type) {
	case float64:
		w = v
	case int:
		w = float64(v)
	case json.Number:
		w, _ = v.Float64()
	case string:
		w, _ = strconv.ParseFloat(strings.TrimSpace(v), 64)
	}
	if w >= 1 && w <= MaxWatts {
		return int(w + 0.999)
	}
	return p.WattsPerNode
}

// Digest is the digest in an image's instance_info, in the form of node.Staged; empty when it has none.
func Digest(image map[string]any) string {
	text := func(key string) string { s, _ := image[key].(string); return strings.ToLower(strings.TrimSpace(s)) }
	if algo, value := text("image_os_hash_algo"), text("image_os_hash_value"); algo != "" && value != "" {
		return algo + ":" + value
	}
	return text("image_checksum")
}

// stagedFor reports whether the image that was written ahead to a node is this one.
func stagedFor(n *node.Node, image map[string]any) bool {
	if !n.IsWarm() || n.Boot.Staged == nil || image == nil {
		return false
	}
	if d := Digest(image); d != "" {
		return node.SameDigest(n.Boot.Staged.Digest, d)
	}
	return n.Boot.Staged.Source == image["image_source"]
}

// Observe returns the record of a machine after an observation: whether it became warm, and how it stopped.
func Observe(f *Fact, now time.Time, pace Pace) node.PoolMember {
	pace, now = pace.filled(), now.UTC()
	m := f.Member
	m.NodeUUID = f.UUID
	failed := func(reason string) {
		m.Failures, m.FailedAt, m.Reason = m.Failures+1, now, reason
		m.Asked, m.Since, m.Left, m.Parting = time.Time{}, time.Time{}, f.On, ""
	}
	switch f.Standing {
	case Out: // it is in use, or was taken out of service; its earlier record no longer counts
		m.Asked, m.Since, m.Left, m.Staging, m.Parting = time.Time{}, time.Time{}, false, time.Time{}, ""
	case Lost:
		if !m.Asked.IsZero() {
			m.Parting = "its agent was lost"
		}
	case Cooling:
		if !m.Asked.IsZero() { // not at the request of the pool
			m.Parting = "its agent was lost"
			if f.CooledBy != "" {
				m.Parting = "it was turned off by " + f.CooledBy
			}
		}
	case Warm:
		m.Parting = ""
		if m.Since.IsZero() {
			m.Since = now
		}
		m.Left = false
		if m.Failures > 0 && now.Sub(m.Since) >= pace.Steady {
			m.Failures, m.FailedAt, m.Reason = 0, time.Time{}, ""
		}
		switch {
		case f.Staged:
			m.Staging, m.StageFailures, m.StageFailedAt, m.StageReason = time.Time{}, 0, time.Time{}, ""
		case !m.Staging.IsZero():
			reason := "the image was not written"
			if f.Failure != "" && !f.FailedAt.Before(m.Staging) {
				reason = f.Failure
			}
			m.Staging, m.StageFailures, m.StageFailedAt, m.StageReason = time.Time{}, m.StageFailures+1, now, reason
		}
	case Cold:
		m.Staging = time.Time{}
		switch {
		case m.Asked.IsZero():
			m.Since = time.Time{}
			m.Left = m.Left && f.On
		case f.Failure != "" && !f.FailedAt.Before(m.Asked):
			failed(f.Failure)
		case m.Parting != "":
			failed(m.Parting)
		case m.Since.IsZero(): // it was requested and did not begin: ingotd was killed in between
			m.Asked, m.Left = time.Time{}, f.On
		case f.On:
			failed("its agent was lost")
		default:
			failed("it was turned off")
		}
		if m.Asked.IsZero() && !f.On {
			m.Cooled = time.Time{}
		}
	}
	return m
}

// Validate returns the fault of a policy, as a sentence; empty if it has none.
func Validate(p *node.Pool) string {
	source, _ := p.Image["image_source"].(string)
	for _, c := range []struct {
		wrong bool
		why   string
	}{
		{p.Count < 0 || p.Count > MaxMachines, fmt.Sprintf("count is %d: it must be from 0 to %d", p.Count, MaxMachines)},
		{p.Percent < 0 || p.Percent > 100, fmt.Sprintf("percent is %d: it must be from 0 to 100", p.Percent)},
		{p.Count > 0 && p.Percent > 0, "both count and percent are set: give one of them"},
		{p.MaxOn < 0 || p.MaxOn > MaxMachines,
			fmt.Sprintf("max_on is %d: it must be from 0 (no limit) to %d", p.MaxOn, MaxMachines)},
		{p.MaxWatts < 0 || p.MaxWatts > MaxWatts,
			fmt.Sprintf("max_watts is %d: it must be from 0 (no limit) to %d", p.MaxWatts, MaxWatts)},
		{p.WattsPerNode < 0 || p.WattsPerNode > MaxWatts,
			fmt.Sprintf("watts_per_node is %d: it must be from 0 to %d", p.WattsPerNode, MaxWatts)},
		{p.MaxWatts > 0 && p.WattsPerNode == 0,
			"max_watts needs watts_per_node: what a machine takes whose properties don't tell its watts"},
		{p.MaxWatts > 0 && p.WattsPerNode > p.MaxWatts, fmt.Sprintf(
			"watts_per_node is %d and max_watts %d: not one machine could be on", p.WattsPerNode, p.MaxWatts)},
		{p.Image != nil && source == "", "image has no image_source: what is to be written ahead"},
		{p.Image != nil && Digest(p.Image) == "",
			"image has neither image_os_hash_algo and image_os_hash_value nor image_checksum: an image that is written ahead is verified"},
		{strings.Contains(Digest(p.Image), "//"),
			"image_checksum is an address: give the digest itself, so that it is known which machines have the image"},
	} {
		if c.wrong {
			return c.why
		}
	}
	for k, v := range p.Image {
		if !imageKeys[k] {
			return fmt.Sprintf("image has %q, which is not about an image", k)
		}
		if _, ok := v.(string); !ok {
			return fmt.Sprintf("image's %s is not a text", k)
		}
	}
	return ""
}

// Limits of a policy.
const (
	MaxMachines = 1_000_000
	MaxWatts    = 1_000_000_000
)

// imageKeys are what instance_info says of an image.
var imageKeys = map[string]bool{"image_source": true, "image_os_hash_algo": true, "image_os_hash_value": true,
	"image_checksum": true, "image_disk_format": true, "image_container_format": true, "image_type": true}
