package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/api/finder"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

func showEvent(c *call.Call, h node.HistoryEntry, detail bool) rest.Object {
	o := rest.Object{
		{Name: "uuid", Value: h.UUID},
		{Name: "created_at", Value: rest.NullTime{Time: h.At}},
		{Name: "severity", Value: h.Severity},
	}
	if detail {
		o = append(o, rest.Member{Name: "event_type", Value: h.Type})
	}
	event := h.Event
	if !detail && len(event) > 255 { // as Ironic: a list is for finding, one record for reading
		event = strings.ToValidUTF8(event[:251], "") + "..."
	}
	o = append(o, rest.Member{Name: "event", Value: event})
	if detail {
		o = append(o, rest.Member{Name: "conductor", Value: rest.Null(h.Conductor)}, rest.Member{Name: "user", Value: rest.Null(h.User)})
	}
	self := rest.Links(c.Base, "nodes/"+h.NodeUUID+"/history/"+h.UUID)[:1]
	return append(o, rest.Member{Name: "links", Value: self})
}

// historyKeys are what a history can be sorted by; times are in the order of events already.
var historyKeys = map[string]func(node.HistoryEntry) string{
	"created_at": func(h node.HistoryEntry) string { return call.Stamp(h.At) },
	"uuid":       func(h node.HistoryEntry) string { return h.UUID },
	"severity":   func(h node.HistoryEntry) string { return h.Severity },
	"event_type": func(h node.HistoryEntry) string { return h.Type },
	"event":      func(h node.HistoryEntry) string { return h.Event },
	"conductor":  func(h node.HistoryEntry) string { return h.Conductor },
	"user":       func(h node.HistoryEntry) string { return h.User },
}

func (s *Server) listHistory(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if err := c.Allow("detail", "limit", "marker", "sort_key", "sort_dir"); err != nil {
		return nil, err
	}
	detail, err := c.Flag("detail")
	if err != nil {
		return nil, err
	}
	sortable := func(k string) bool { return historyKeys[k] != nil }
	p, err := c.Page(sortable, sortable)
	if err != nil {
		return nil, err
	}
	n, nerr := s.find.Node(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	events, nerr := s.store.History(ctx, n.UUID, 0)
	if nerr != nil {
		return nil, nerr
	}
	slices.Reverse(events) // the API shows the oldest first
	if key := historyKeys[p.Sort]; key != nil {
		slices.SortStableFunc(events, func(a, b node.HistoryEntry) int { return strings.Compare(key(a), key(b)) })
	}
	if p.Desc {
		slices.Reverse(events)
	}
	if p.Marker != "" {
		i := slices.IndexFunc(events, func(h node.HistoryEntry) bool { return h.UUID == p.Marker })
		if i < 0 {
			return nil, rest.NotFound("Node history record %s could not be found.", p.Marker)
		}
		events = events[i+1:]
	}
	more := len(events) > p.Limit
	events = events[:min(len(events), p.Limit)]
	items := make([]rest.Object, len(events))
	for i, h := range events {
		items[i] = showEvent(c, h, detail != nil && *detail)
	}
	next := ""
	if more {
		next = c.Next(p, "nodes/"+n.UUID+"/history", len(events), events[len(events)-1].UUID)
	}
	return call.List("history", items, next), nil
}

func (s *Server) getHistory(ctx context.Context, c *call.Call) (*call.Reply, error) {
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	events, err := s.store.History(ctx, n.UUID, 0)
	if err != nil {
		return nil, err
	}
	for _, h := range events {
		if h.UUID == c.Path["event"] {
			return &call.Reply{Status: http.StatusOK, Body: showEvent(c, h, true)}, nil
		}
	}
	return nil, rest.NotFound("Node history record %s could not be found.", c.Path["event"])
}

// getInventory shows what the newest inspection found: the inventory proper, and beside it whatever else the agent told.
func (s *Server) getInventory(ctx context.Context, c *call.Call) (*call.Reply, error) {
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	doc, err := s.store.Inventory(ctx, n.UUID)
	if errors.Is(err, store.ErrNotFound) {
		return nil, rest.NotFound("Node inventory record for node %s could not be found.", n.UUID)
	}
	if err != nil {
		return nil, err
	}
	var found map[string]json.RawMessage
	if err := json.Unmarshal(doc, &found); err != nil {
		return nil, fmt.Errorf("read stored inventory of node %s: %w", n.UUID, err)
	}
	inventory, ok := found["inventory"]
	if !ok {
		inventory, found = doc, map[string]json.RawMessage{}
	}
	delete(found, "inventory")
	return &call.Reply{Status: http.StatusOK, Body: rest.Object{{Name: "inventory", Value: inventory}, {Name: "plugin_data", Value: found}}}, nil
}

const maxTraits = 50

func (s *Server) listTraits(ctx context.Context, c *call.Call) (*call.Reply, error) {
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	traits := n.Traits
	if traits == nil {
		traits = []string{}
	}
	return &call.Reply{Status: http.StatusOK, Body: rest.Object{{Name: "traits", Value: traits}}}, nil
}

var traitsSchema = &rest.Schema{Types: []string{"object"}, Closed: true, Props: map[string]*rest.Schema{
	"traits": {Types: []string{"array"}, Items: &rest.Schema{Types: []string{"string"}}},
}}

func (s *Server) setTraits(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, err := c.Object("body")
	if err != nil {
		return nil, err
	}
	if fault := traitsSchema.Check(b); fault != "" {
		return nil, rest.BadRequest("Schema error for body: %s", fault)
	}
	v, ok := b["traits"]
	if !ok {
		return nil, rest.BadRequest("A single node trait may be added via PUT /v1/nodes/<node identifier>/traits/<trait> with no body, or all node traits may be replaced via PUT /v1/nodes/<node identifier>/traits with the list of traits specified in the request body.")
	}
	var traits []string
	for _, t := range v.([]any) {
		name := t.(string)
		if err := document.CheckTrait(name); err != nil {
			return nil, err
		}
		if !slices.Contains(traits, name) {
			traits = append(traits, name)
		}
	}
	return s.changeTraits(ctx, c, func(*node.Node) ([]string, error) { return traits, nil })
}

func (s *Server) clearTraits(ctx context.Context, c *call.Call) (*call.Reply, error) {
	return s.changeTraits(ctx, c, func(*node.Node) ([]string, error) { return nil, nil })
}

func (s *Server) addTrait(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if _, err := c.Object("body"); err != nil {
		return nil, err
	}
	if fault := (&rest.Schema{Closed: true}).Check(c.Body); fault != "" {
		return nil, rest.BadRequest("Schema error for body: %s", fault)
	}
	t := c.Path["trait"]
	if err := document.CheckTrait(t); err != nil {
		return nil, err
	}
	rep, cerr := s.changeTraits(ctx, c, func(n *node.Node) ([]string, error) {
		if slices.Contains(n.Traits, t) {
			return n.Traits, nil
		}
		return append(slices.Clone(n.Traits), t), nil
	})
	if cerr != nil {
		return nil, cerr
	}
	rep.Location = c.Base + "/v1/nodes/" + c.Path["node"] + "/traits/" + t
	return rep, nil
}

func (s *Server) removeTrait(ctx context.Context, c *call.Call) (*call.Reply, error) {
	t := c.Path["trait"]
	return s.changeTraits(ctx, c, func(n *node.Node) ([]string, error) {
		i := slices.Index(n.Traits, t)
		if i < 0 {
			return nil, rest.NotFound("Node %s doesn't have a trait '%s'", n.UUID, t)
		}
		return slices.Delete(slices.Clone(n.Traits), i, i+1), nil
	})
}

func (s *Server) changeTraits(ctx context.Context, c *call.Call, change func(*node.Node) ([]string, error)) (*call.Reply, error) {
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	_, err = s.store.UpdateNode(ctx, n.UUID, func(n *node.Node) error {
		if n.Reservation != "" {
			return finder.LockedBy(n)
		}
		traits, err := change(n)
		if err != nil {
			return err
		}
		if len(traits) > maxTraits {
			return rest.BadRequest("Could not modify traits for node %s as it would exceed the maximum number of traits per node (%d vs. %d)", n.UUID, len(traits), maxTraits)
		}
		slices.Sort(traits)
		n.Traits = traits
		return nil
	})
	if err != nil {
		return nil, err
	}
	return call.NoContent(), nil
}
