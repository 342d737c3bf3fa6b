package redfish

import (
	"context"
	"encoding/json"
	"errors"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/stmcginnis/gofish/schemas"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/node"
)

// lamps of a machine are those of the system, its chassis and its drives, as in Ironic; their names are the last part
// of their paths. A service has one of two properties for a lamp: the older has a state, the newer is true or false.
const (
	ledProperty      = "IndicatorLED"
	locationProperty = "LocationIndicatorActive"
)

// ledStates are the states of the older property in Ironic's words.
var ledStates = map[string]string{"Lit": "on", "Off": "off", "Blinking": "blinking"}

// lamp is one as it was read.
type lamp struct {
	hardware.Indicator
	path, etag, property, state string
}

var errNotKept = errors.New("the controller took it, and the indicator is as before")

// lampID bounds a name, which is part of a path of the API.
var lampID = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,80}$`)

// readLamp reads a lamp; nil if there is none at the path.
func (d *Driver) readLamp(ctx context.Context, component, at string) (*lamp, error) {
	var doc map[string]json.RawMessage
	if at == "" || !lampID.MatchString(path.Base(at)) {
		return nil, nil
	}
	etag, err := d.c.Read(ctx, at, &doc)
	if controller.Declined(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	l := &lamp{Indicator: hardware.Indicator{Component: component, Name: path.Base(at), States: []string{"off", "on"}},
		path: at, etag: etag, state: "unknown"}
	var on *bool
	var led string
	switch {
	case json.Unmarshal(doc[locationProperty], &on) == nil && on != nil:
		l.property, l.state = locationProperty, map[bool]string{true: "on", false: "off"}[*on]
	case json.Unmarshal(doc[ledProperty], &led) == nil && led != "":
		l.property, l.States = ledProperty, []string{"blinking", "off", "on"}
		if s := ledStates[led]; s != "" {
			l.state = s
		}
	default:
		return nil, nil
	}
	return l, nil
}

// lamps reads those of a component, or all if that is empty.
func (d *Driver) lamps(ctx context.Context, s *controller.System, component string) ([]*lamp, error) {
	ctx = controller.Bounded(ctx)
	type place struct{ component, path string }
	places := []place{{"system", s.Path}}
	var doc struct {
		Links   struct{ Chassis []schemas.Link }
		Storage schemas.Link
	}
	if _, err := d.c.Read(ctx, s.Path, &doc); err != nil {
		return nil, err
	}
	for _, c := range doc.Links.Chassis {
		places = append(places, place{"chassis", string(c)})
	}
	if component == "" || component == "disk" {
		type storage struct{ Drives []schemas.Link }
		if err := controller.Each(ctx, d.c, string(doc.Storage), func(_ string, s *storage) {
			for _, l := range s.Drives {
				places = append(places, place{"disk", string(l)})
			}
		}); err != nil {
			return nil, err
		}
	}
	var out []*lamp
	for _, p := range places {
		if component != "" && p.component != component {
			continue
		}
		l, err := d.readLamp(ctx, p.component, p.path)
		if err != nil {
			return nil, err
		}
		if l != nil && !slices.ContainsFunc(out, func(o *lamp) bool {
			return o.Component == l.Component && o.Name == l.Name
		}) {
			out = append(out, l)
		}
	}
	return out, nil
}

// withLamps reads a node's lamps and does something with them.
func (m *Management) withLamps(ctx context.Context, n *node.Node, op, component string,
	f func(ctx context.Context, d *Driver, all []*lamp) error) error {
	return m.do(ctx, n, func(ctx context.Context, d *Driver) error {
		return d.on(ctx, op, func(s *controller.System) error {
			all, err := d.lamps(ctx, s, component)
			if err != nil {
				return err
			}
			return f(ctx, d, all)
		})
	})
}

// Indicators lists the lamps of system, chassis and disks.
func (m *Management) Indicators(ctx context.Context, n *node.Node, component string) ([]hardware.Indicator, error) {
	var out []hardware.Indicator
	err := m.withLamps(ctx, n, "list indicators", component, func(_ context.Context, _ *Driver, all []*lamp) error {
		for _, l := range all {
			out = append(out, l.Indicator)
		}
		return nil
	})
	return out, err
}

// oneLamp finds a lamp, and does something with it. Requests that name none that is there are refused.
func (m *Management) oneLamp(ctx context.Context, n *node.Node, op, component, name string,
	f func(ctx context.Context, d *Driver, l *lamp) error) error {
	if !slices.Contains([]string{"system", "chassis", "disk"}, component) {
		return hardware.Invalidf("Invalid component %s specified.", component)
	}
	var wrong error
	err := m.withLamps(ctx, n, op, component, func(ctx context.Context, d *Driver, all []*lamp) error {
		i := slices.IndexFunc(all, func(l *lamp) bool { return l.Name == name })
		if i < 0 {
			wrong = hardware.Invalidf("Invalid indicator %s specified.", name)
			return nil
		}
		return f(ctx, d, all[i])
	})
	if wrong != nil {
		return wrong
	}
	return err
}

// Indicator reads a lamp.
func (m *Management) Indicator(ctx context.Context, n *node.Node, component, name string) (string, error) {
	state := ""
	err := m.oneLamp(ctx, n, "read indicator", component, name, func(_ context.Context, _ *Driver, l *lamp) error {
		state = l.state
		return nil
	})
	return state, err
}

// SetIndicator switches a lamp, and reads it back.
func (m *Management) SetIndicator(ctx context.Context, n *node.Node, component, name, state string) error {
	state = strings.ToLower(state)
	var wrong error
	err := m.oneLamp(ctx, n, "set indicator", component, name, func(ctx context.Context, d *Driver, l *lamp) error {
		if !slices.Contains(l.States, state) {
			wrong = hardware.Invalidf("Invalid state %s specified for indicator %s. Allowed states are: %s", state, name,
				strings.Join(l.States, ", "))
			return nil
		}
		var v any = state == "on"
		if l.property == ledProperty {
			for led, s := range ledStates {
				if s == state {
					v = led
				}
			}
		}
		if err := d.c.Patch(ctx, l.path, l.etag, map[string]any{l.property: v}); err != nil {
			return err
		}
		now, err := d.readLamp(ctx, component, l.path)
		if err == nil && (now == nil || now.state != state) {
			err = &power.Error{Kind: power.Refused, Err: errNotKept, Hint: "reset the controller or update its firmware"}
		}
		return err
	})
	if wrong != nil {
		return wrong
	}
	return err
}
