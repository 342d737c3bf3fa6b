package parts

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/finder"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

func (s *Handlers) driverExists(name string) bool {
	_, ok := s.drivers.ByName(name)
	return ok
}

func unknownDriver(name string) *rest.Error {
	return rest.NotFound("The driver '%s' is unknown.", name)
}

func (s *Handlers) listVendorMethods(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	methods, err := s.hardware.Vendor(n).Methods(n)
	if err != nil {
		return nil, err
	}
	o := rest.Object{}
	for _, m := range methods {
		o = append(o, rest.Member{Name: m.Name, Value: rest.Object{
			{Name: "http_methods", Value: m.HTTPMethods}, {Name: "async", Value: m.Async},
			{Name: "description", Value: m.Description}, {Name: "attach", Value: m.Attach},
			{Name: "require_exclusive_lock", Value: m.Exclusive},
		}})
	}
	return &call.Reply{Status: http.StatusOK, Body: o}, nil
}

// listDriverMethods: there are vendors' methods of nodes only.
func (s *Handlers) listDriverMethods(_ context.Context, c *call.Call) (*call.Reply, error) {
	if !s.driverExists(c.Path["driver"]) {
		return nil, unknownDriver(c.Path["driver"])
	}
	return &call.Reply{Status: http.StatusOK, Body: rest.Object{}}, nil
}

func (s *Handlers) callDriver(_ context.Context, c *call.Call) (*call.Reply, error) {
	if !s.driverExists(c.Path["driver"]) {
		return nil, unknownDriver(c.Path["driver"])
	}
	method, err := vendorMethod(c)
	if err != nil {
		return nil, err
	}
	return nil, noHandler(method)
}

// vendorMethod is the method that is named in the address or in the query.
func vendorMethod(c *call.Call) (string, *rest.Error) {
	if m := c.Path["method"]; m != "" {
		return m, nil
	}
	m := c.Text("method")
	if m == nil {
		return "", rest.BadRequest("Missing mandatory parameter: method")
	}
	return *m, nil
}

func noHandler(method string) *rest.Error { return rest.BadRequest("No handler for method %s", method) }

// callVendor calls a vendor's method. One that is asynchronous is answered before it is done; one that is exclusive
// holds the node's lock meanwhile.
func (s *Handlers) callVendor(ctx context.Context, c *call.Call) (*call.Reply, error) {
	name, err := vendorMethod(c)
	if err != nil {
		return nil, err
	}
	params, err := c.Object("data")
	if err != nil {
		return nil, err
	}
	n, nerr := s.find.Node(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	vendor := s.hardware.Vendor(n)
	methods, nerr := vendor.Methods(n)
	if nerr != nil {
		return nil, nerr
	}
	i := slices.IndexFunc(methods, func(m hardware.Method) bool { return m.Name == name })
	if i < 0 {
		return nil, noHandler(name)
	}
	m := methods[i]
	if !slices.Contains(m.HTTPMethods, c.Request.Method) {
		return nil, rest.BadRequest("The method %s does not support HTTP %s", name, c.Request.Method)
	}
	if err := vendor.Check(n, name, params); err != nil {
		return nil, err
	}
	release := func(context.Context) {}
	if m.Exclusive {
		if release, nerr = s.lock(ctx, n); nerr != nil {
			return nil, nerr
		}
	}
	if m.Async {
		// The client does not wait; errors are in the node's history.
		bg, cancel := context.WithTimeout(context.WithoutCancel(ctx), vendorTime)
		s.background.Go(func() {
			defer cancel()
			defer release(bg)
			if _, err := vendor.Call(bg, n, name, params); err != nil {
				s.log.Warn("a vendor's method failed", "node", n.UUID, "method", name, "err", err)
				s.complain(bg, c, n, "vendor method "+name+" failed: "+err.Error())
			}
		})
		return &call.Reply{Status: http.StatusAccepted}, nil
	}
	result, nerr := vendor.Call(ctx, n, name, params)
	release(context.WithoutCancel(ctx))
	if nerr != nil {
		return nil, nerr
	}
	if result == nil {
		result = json.RawMessage("null") // no body at all would mean that it is not done yet
	}
	return &call.Reply{Status: http.StatusOK, Body: result}, nil
}

// lock takes a node's lock, as the engine does while it works on the node. If the conductor dies before release is
// called, the engine frees the lock at its next start.
func (s *Handlers) lock(ctx context.Context, n *node.Node) (release func(context.Context), err error) {
	var since time.Time
	_, err = s.store.UpdateNode(ctx, n.UUID, func(n *node.Node) error {
		if n.Reservation != "" {
			return finder.LockedBy(n)
		}
		since = time.Now().UTC()
		n.Reservation, n.ReservedAt = s.hostname, since
		return nil
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		_, err := s.store.UpdateNode(ctx, n.UUID, func(n *node.Node) error {
			if n.Reservation == s.hostname && n.ReservedAt.Equal(since) && n.Job == nil {
				n.Reservation, n.ReservedAt = "", time.Time{}
			}
			return nil
		})
		if err != nil {
			s.log.Error("a node's lock was not freed", "node", n.UUID, "err", err)
		}
	}, nil
}

// complain puts an error into a node's record and history.
func (s *Handlers) complain(ctx context.Context, c *call.Call, n *node.Node, text string) {
	_, err := s.store.Change(ctx, n.UUID, func(n *node.Node, effects *node.SideEffects) error {
		n.SetLastError(text, "")
		effects.History = append(effects.History,
			node.HistoryEntry{Type: "management", Severity: "ERROR", Event: text, Conductor: s.hostname, User: c.User})
		return nil
	})
	if err != nil {
		s.log.Error("a node's error was not recorded", "node", n.UUID, "err", err)
	}
}

// Wait returns when all work that goes on after its answer has ended.
func (s *Handlers) Wait() { s.background.Wait() }
