package parts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/api/call"
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
var historyKeys = historyOrder{
	"created_at": func(h node.HistoryEntry) string { return call.Stamp(h.At) },
	"uuid":       func(h node.HistoryEntry) string { return h.UUID },
	"severity":   func(h node.HistoryEntry) string { return h.Severity },
	"event_type": func(h node.HistoryEntry) string { return h.Type },
	"event":      func(h node.HistoryEntry) string { return h.Event },
	"conductor":  func(h node.HistoryEntry) string { return h.Conductor },
	"user":       func(h node.HistoryEntry) string { return h.User },
}

type historyOrder map[string]func(node.HistoryEntry) string

// Since and Sortable make the keys what call.Page sorts by.
func (o historyOrder) Since(name string) (rest.Version, bool) { return 0, o.Sortable(name) }
func (o historyOrder) Sortable(name string) bool              { return o[name] != nil }

func (s *Handlers) listHistory(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if err := c.AllowArgs(); err != nil {
		return nil, err
	}
	detail, err := c.Flag("detail")
	if err != nil {
		return nil, err
	}
	p, err := c.Page(historyKeys, call.Marker{})
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
		next = c.Next(p, "nodes/"+n.UUID+"/history", len(events), events[len(events)-1].UUID, nil)
	}
	return call.List("history", items, next), nil
}

func (s *Handlers) getHistory(ctx context.Context, c *call.Call) (*call.Reply, error) {
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
func (s *Handlers) getInventory(ctx context.Context, c *call.Call) (*call.Reply, error) {
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
