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
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

func showEvent(c *call.Call, h node.HistoryEntry) *rest.History {
	return &rest.History{UUID: h.UUID, CreatedAt: rest.NullTime{Time: h.At}, Severity: h.Severity, Type: h.Type,
		Event: h.Event, Conductor: rest.Null(h.Conductor), User: rest.Null(h.User), Project: rest.Null(h.Project),
		State: rest.Null(h.State), Target: rest.Null(h.Target), Seconds: h.Seconds,
		Links: rest.Links(c.Base, "nodes/"+h.NodeUUID+"/history/"+h.UUID)[:1]}
}

// shortEvent is how long an event is in a list, which is for finding, as in Ironic; one record is for reading.
const shortEvent = 255

func (s *Handlers) listHistory(ctx context.Context, c *call.Call) (*call.Reply, error) {
	detail, err := c.Flag("detail")
	if err != nil {
		return nil, err
	}
	p, perr := c.Page(rest.HistoryFields, call.Marker{})
	if perr != nil {
		return nil, perr
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
	shown := make([]*rest.History, len(events))
	for i, h := range events {
		shown[i] = showEvent(c, h)
	}
	slices.SortStableFunc(shown, func(a, b *rest.History) int { return rest.HistoryFields.Compare(a, b, p.Sort) })
	if p.Desc {
		slices.Reverse(shown)
	}
	if p.Marker != "" {
		i := slices.IndexFunc(shown, func(h *rest.History) bool { return h.UUID == p.Marker })
		if i < 0 {
			return nil, rest.NotFound("Node history record %s could not be found.", p.Marker)
		}
		shown = shown[i+1:]
	}
	more := len(shown) > p.Limit
	shown = shown[:min(len(shown), p.Limit)]
	items := make([]rest.Object, len(shown))
	for i, h := range shown {
		var names []string
		if detail == nil || !*detail {
			names = rest.HistoryListFields
			if len(h.Event) > shortEvent {
				h.Event = strings.ToValidUTF8(h.Event[:shortEvent-4], "") + "..."
			}
		}
		items[i] = rest.HistoryFields.Render(h, c.Version, names)
	}
	next := ""
	if more {
		next = c.Next(p, "nodes/"+n.UUID+"/history", len(shown), shown[len(shown)-1].UUID, nil)
	}
	return call.List("history", items, next), nil
}

func (s *Handlers) getHistory(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if id := c.Path["event"]; !document.IsUUID(id) && !document.IsName(id) {
		return nil, rest.BadRequest("Expected UUID or name for event: %s", id)
	}
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
			return &call.Reply{Status: http.StatusOK, Body: rest.HistoryFields.Render(showEvent(c, h), c.Version, nil)},
				nil
		}
	}
	return nil, rest.NotFound("Node history record %s could not be found.", c.Path["event"])
}

// getInventory shows what the newest inspection found: the inventory proper, and beside it whatever else the agent
// told.
func (s *Handlers) getInventory(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
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
	return &call.Reply{
		Status: http.StatusOK,
		Body:   rest.Object{{Name: "inventory", Value: inventory}, {Name: "plugin_data", Value: found}}}, nil
}
