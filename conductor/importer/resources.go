package importer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/ingot-metal/ingot/conductor/inspect"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
	"github.com/ingot-metal/ingot/conductor/store"
)

// What the API shows of the resources beside nodes and ports, as far as it is taken over.
type (
	shownHead struct {
		UUID  string         `json:"uuid"`
		Name  rest.Null      `json:"name"`
		Node  rest.Null      `json:"node_uuid"`
		Owner rest.Null      `json:"owner"`
		Extra map[string]any `json:"extra"`
	}
	shownChassis struct {
		shownHead
		Description rest.Null `json:"description"`
	}
	shownPortgroup struct {
		shownHead
		Address    rest.Null      `json:"address"`
		Mode       rest.Null      `json:"mode"`
		Properties map[string]any `json:"properties"`
		Standalone bool           `json:"standalone_ports_supported"`
		Network    rest.Null      `json:"physical_network"`
		Category   rest.Null      `json:"category"`
		Dynamic    bool           `json:"dynamic_portgroup"`
		Internal   map[string]any `json:"internal_info"`
	}
	shownPort struct {
		shownHead
		Address     string         `json:"address"`
		Description rest.Null      `json:"description"`
		PXE         *bool          `json:"pxe_enabled"`
		Network     rest.Null      `json:"physical_network"`
		Group       rest.Null      `json:"portgroup_uuid"`
		SmartNIC    bool           `json:"is_smartnic"`
		Link        map[string]any `json:"local_link_connection"`
		Internal    map[string]any `json:"internal_info"`
		Dynamic     *bool          `json:"available_for_dynamic_portgroup"`
	}
	shownConnector struct {
		shownHead
		Type        string `json:"type"`
		ConnectorID string `json:"connector_id"`
	}
	shownTarget struct {
		shownHead
		VolumeType string         `json:"volume_type"`
		VolumeID   string         `json:"volume_id"`
		BootIndex  json.Number    `json:"boot_index"`
		Properties map[string]any `json:"properties"`
	}
	shownAllocation struct {
		shownHead
		State         string    `json:"state"`
		LastError     rest.Null `json:"last_error"`
		ResourceClass rest.Null `json:"resource_class"`
		Traits        []string  `json:"traits"`
		Candidates    []string  `json:"candidate_nodes"`
	}
	shownSteps struct {
		shownHead
		Description rest.Null           `json:"description"`
		Public      bool                `json:"public"`
		NoRamdisk   bool                `json:"disable_ramdisk"`
		Traits      []string            `json:"traits"`
		Steps       []node.TemplateStep `json:"steps"`
	}
	shownRule struct {
		rest.InspectionRule
		Scope rest.Null `json:"scope"`
	}
	shownEvent struct {
		UUID      string        `json:"uuid"`
		At        rest.NullTime `json:"created_at"`
		Type      rest.Null     `json:"event_type"`
		Severity  rest.Null     `json:"severity"`
		Event     rest.Null     `json:"event"`
		Conductor rest.Null     `json:"conductor"`
		User      rest.Null     `json:"user"`
		Project   rest.Null     `json:"project"`
		State     rest.Null     `json:"state"`
		Target    rest.Null     `json:"target_provision_state"`
		Seconds   *int          `json:"duration_seconds"`
	}
)

func (h shownHead) head() node.Head {
	return node.Head{UUID: h.UUID, Name: string(h.Name), NodeUUID: string(h.Node), Owner: string(h.Owner)}
}

func (shownRule) goneWith(map[string]bool) bool { return false }

func (h shownHead) goneWith(nodes map[string]bool) bool { return h.Node != "" && nodes[string(h.Node)] }

func (r *run) chassis(s shownChassis) error {
	v := &node.Chassis{Head: s.head(), Description: string(s.Description), Extra: s.Extra}
	return r.outcome("chassis", "chassis "+s.UUID, r.st.Chassis().Create(r.ctx, v))
}

func (r *run) portgroup(s shownPortgroup) error {
	v := &node.Portgroup{Head: s.head(), Address: strings.ToLower(string(s.Address)), Mode: string(s.Mode),
		StandalonePortsSupported: s.Standalone, PhysicalNetwork: string(s.Network), Category: string(s.Category),
		Properties: s.Properties, Extra: s.Extra, DynamicPortgroup: s.Dynamic, InternalInfo: s.Internal}
	return r.outcome("port groups", "port group "+s.UUID, r.st.Portgroups().Create(r.ctx, v))
}

func (r *run) port(s shownPort) error {
	if _, err := r.st.Port(r.ctx, s.UUID); err == nil {
		r.rep.Kept["ports"]++
		return nil
	} else if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	v := &node.Port{UUID: s.UUID, Name: string(s.Name), NodeUUID: string(s.Node), Address: strings.ToLower(s.Address),
		Description: string(s.Description), PXEEnabled: s.PXE == nil || *s.PXE, PhysicalNetwork: string(s.Network),
		PortgroupUUID: string(s.Group), IsSmartNIC: s.SmartNIC, LocalLinkConnection: s.Link, Extra: s.Extra,
		InternalInfo: s.Internal, NoDynamicPortgroup: s.Dynamic != nil &&
			!*s.Dynamic}
	return r.outcome("ports", "port "+s.UUID, r.st.CreatePort(r.ctx, v))
}

func (r *run) connector(s shownConnector) error {
	v := &node.VolumeConnector{Head: s.head(), Type: s.Type, ConnectorID: s.ConnectorID, Extra: s.Extra}
	return r.outcome("volume connectors", "volume connector "+s.UUID, r.st.VolumeConnectors().Create(r.ctx, v))
}

func (r *run) target(s shownTarget) error {
	index, err := s.BootIndex.Int64()
	if err != nil {
		r.refuse("volume target %s: its boot index is %q", s.UUID, s.BootIndex)
		return nil
	}
	properties, hidden := drop(s.Properties)
	v := &node.VolumeTarget{Head: s.head(), VolumeType: s.VolumeType, VolumeID: s.VolumeID, BootIndex: int(index),
		Properties: properties, Extra: s.Extra}
	made := r.rep.Made["volume targets"]
	if err := r.outcome("volume targets", "volume target "+s.UUID, r.st.VolumeTargets().Create(r.ctx, v)); err != nil {
		return err
	}
	if len(hidden) > 0 && r.rep.Made["volume targets"] > made {
		r.note("volume target %s: the API does not tell %s: set them again", s.UUID, strings.Join(hidden, ", "))
	}
	return nil
}

// allocation takes over those that have a node, and those that ended in an error. One that still looks for a node would
// get one here as well as there.
func (r *run) allocation(s shownAllocation) error {
	if s.State == node.AllocationAllocating {
		r.refuse("allocation %s: it still looks for a node: wait until that is over, then import again", s.UUID)
		return nil
	}
	v := &node.Allocation{Head: s.head(), State: s.State, LastError: string(s.LastError),
		ResourceClass: string(s.ResourceClass), Traits: s.Traits, CandidateNodes: s.Candidates, Extra: s.Extra}
	if err := r.outcome("allocations", "allocation "+s.UUID, r.st.Allocations().Create(r.ctx, v)); err != nil ||
		s.Node == "" {
		return err
	}
	_, err := r.st.UpdateNode(r.ctx, string(s.Node), func(n *node.Node) error {
		if n.AllocationUUID == "" && n.InstanceUUID == s.UUID {
			n.AllocationUUID = s.UUID
		}
		return nil
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("allocation %s: %w", s.UUID, err)
	}
	return nil
}

func (r *run) template(s shownSteps) error {
	v := &node.DeployTemplate{Head: s.head(), Description: string(s.Description), Steps: s.Steps, Extra: s.Extra}
	return r.outcome("deploy templates", "deploy template "+s.UUID, r.st.DeployTemplates().Create(r.ctx, v))
}

func (r *run) runbook(s shownSteps) error {
	v := &node.Runbook{Head: s.head(), Description: string(s.Description), Public: s.Public,
		DisableRamdisk: s.NoRamdisk, Traits: s.Traits, Steps: s.Steps, Extra: s.Extra}
	if v.Traits == nil { // of an Ironic before 1.112: its runbooks run where the trait of their name is
		v.Traits = []string{v.Name}
	}
	return r.outcome("runbooks", "runbook "+s.UUID, r.st.Runbooks().Create(r.ctx, v))
}

// rule takes over an inspection rule that Ingot understands.
func (r *run) rule(s shownRule) error {
	v := &node.InspectionRule{Head: node.Head{UUID: s.UUID}, Description: string(s.Description),
		Phase: cmp.Or(s.Phase, inspect.PhaseMain), Priority: s.Priority, Sensitive: s.Sensitive,
		Conditions: s.Conditions, Actions: s.Actions}
	what := "inspection rule " + s.UUID
	switch {
	case s.Sensitive && s.Actions == nil:
		r.refuse("%s: it is sensitive, and the API does not show what it does: import from the database, or make it again",
			what)
		return nil
	case s.Scope != "":
		r.refuse("%s: it is for scope %q alone, and rules of Ingot are for all nodes", what, s.Scope)
		return nil
	}
	if err := inspect.Validate(v); err != nil {
		r.refuse("%s: %v", what, err)
		return nil
	}
	return r.outcome("inspection rules", what, r.st.InspectionRules().Create(r.ctx, v))
}

// history takes over the past of a node that was made, so that its history has both.
func (r *run) history(nodeUUID string) error {
	lines, err := r.src.history(r.ctx, nodeUUID)
	if err != nil {
		return err
	}
	for _, raw := range lines {
		var s shownEvent
		if err := exact.Unmarshal(raw, &s); err != nil {
			return fmt.Errorf("decode %.200s: %w", raw, err)
		}
		h := node.HistoryEntry{UUID: s.UUID, NodeUUID: nodeUUID, At: s.At.Time, Type: string(s.Type),
			Severity: string(s.Severity), Event: string(s.Event), Conductor: string(s.Conductor), User: string(s.User),
			Project: string(s.Project), State: node.State(s.State), Target: node.State(s.Target), Seconds: s.Seconds,
			Foreign: true}
		if err := r.st.AddHistory(r.ctx, h); err != nil {
			return fmt.Errorf("history of node %s: %w", nodeUUID, err)
		}
		r.rep.Made["lines of history"]++
	}
	return nil
}
