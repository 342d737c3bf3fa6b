package parts

import (
	"context"
	"net/http"
	"strings"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

func (s *Handlers) getConsole(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	info, err := s.hardware.Console(n).Info(ctx, n)
	if isUnsupported(err) || err != nil && n.ConsoleEnabled {
		return nil, err
	}
	shown := any(info)
	if !n.ConsoleEnabled {
		shown = nil
	}
	return &call.Reply{
			Status: http.StatusOK,
			Body: rest.Object{{Name: "console_enabled", Value: n.ConsoleEnabled},
				{Name: "console_info", Value: shown}}},
		nil
}

func (s *Handlers) putConsole(ctx context.Context, c *call.Call) (*call.Reply, error) {
	v, err := c.Argument("enabled")
	if err != nil {
		return nil, err
	}
	on := false
	if v != nil {
		if on, err = document.Argument("enabled", v); err != nil {
			return nil, err
		}
	}
	n, nerr := s.find.Free(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	act, event := s.hardware.Console(n).Stop, "console stopped"
	if on {
		act, event = s.hardware.Console(n).Start, "console started"
	}
	if err := act(ctx, n); err != nil {
		return nil, err
	}
	if on != n.ConsoleEnabled {
		if err := s.keep(ctx, c, n, event, func(n *node.Node) { n.ConsoleEnabled = on }); err != nil {
			return nil, err
		}
	}
	return call.Accepted(c, "states/console"), nil
}

// settled refuses a change of how the machine boots while something is under way that depends on it.
func settled(n *node.Node, what string) error {
	if !n.Provision.IsStable() {
		return rest.Conflict(
			"Node is in %s state. Since node is transitioning, the %s will not be set as this may interfere with ongoing changes and result in erroneous modification. Try again later.", n.Provision, what)
	}
	return nil
}

func (s *Handlers) putBootMode(ctx context.Context, c *call.Call) (*call.Reply, error) {
	v, err := c.Argument("target")
	if err != nil {
		return nil, err
	}
	mode, _ := v.(string)
	if mode != "bios" && mode != "uefi" {
		return nil, rest.BadRequest("Invalid boot mode %s requested for node. Allowed boot modes are: bios, uefi",
			strings.Trim(rest.Shown(v), "'"))
	}
	n, nerr := s.find.Free(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	if err := settled(n, "boot mode"); err != nil {
		return nil, err
	}
	if err := s.hardware.Management(n).SetBootMode(ctx, n, mode); err != nil {
		return nil, err
	}
	nerr = s.keep(ctx, c, n, "boot mode set to "+mode, func(n *node.Node) { n.BootMode = mode })
	return call.Accepted(c, "states"), nerr
}

func (s *Handlers) putSecureBoot(ctx context.Context, c *call.Call) (*call.Reply, error) {
	v, err := c.Argument("target")
	if err != nil {
		return nil, err
	}
	if v == nil {
		return nil, rest.BadRequest(
			"Invalid secure_boot None requested for node. Allowed secure_boot states are: True, False) ")
	}
	on, err := document.Argument("target", v)
	if err != nil {
		return nil, err
	}
	n, nerr := s.find.Free(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	if err := settled(n, "boot mode"); err != nil {
		return nil, err
	}
	if err := s.hardware.Management(n).SetSecureBoot(ctx, n, on); err != nil {
		return nil, err
	}
	event := map[bool]string{true: "Secure Boot turned on", false: "Secure Boot turned off"}[on]
	return call.Accepted(c, "states"), s.keep(ctx, c, n, event, func(n *node.Node) { n.SecureBoot = &on })
}

func (s *Handlers) injectNMI(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if _, err := c.Arguments(); err != nil {
		return nil, err
	}
	n, err := s.find.Free(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := s.hardware.Management(n).InjectNMI(ctx, n); err != nil {
		return nil, err
	}
	return call.NoContent(), s.keep(ctx, c, n, "non-maskable interrupt sent", func(*node.Node) {})
}

// lampName splits "led@system".
func lampName(c *call.Call) (name, component string, err *rest.Error) {
	name, component, ok := strings.Cut(c.Path["indicator"], "@")
	if !ok {
		return "", "", rest.BadRequest("Malformed indicator name %q", c.Path["indicator"])
	}
	return name, component, nil
}

func (s *Handlers) listIndicators(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	lamps, err := s.hardware.Management(n).Indicators(ctx, n, "")
	if err != nil {
		return nil, err
	}
	items := make([]rest.Object, len(lamps))
	for i, l := range lamps {
		name := l.Name + "@" + l.Component
		items[i] = rest.Object{
			{Name: "name", Value: name}, {Name: "component", Value: l.Component}, {Name: "readonly", Value: l.ReadOnly},
			{Name: "states", Value: l.States},
			{Name: "links", Value: rest.Links(c.Base, "nodes/"+c.Path["node"]+"/management/indicators/"+name)},
		}
	}
	return call.List("indicators", items, ""), nil
}

func (s *Handlers) getIndicator(ctx context.Context, c *call.Call) (*call.Reply, error) {
	name, component, err := lampName(c)
	if err != nil {
		return nil, err
	}
	n, nerr := s.find.Node(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	state, nerr := s.hardware.Management(n).Indicator(ctx, n, component, name)
	return &call.Reply{Status: http.StatusOK, Body: rest.Object{{Name: "state", Value: state}}}, nerr
}

func (s *Handlers) putIndicator(ctx context.Context, c *call.Call) (*call.Reply, error) {
	v, err := c.Argument("state")
	if err != nil {
		return nil, err
	}
	state, ok := v.(string)
	if !ok {
		return nil, rest.BadRequest("Expected string for state: %s", rest.Shown(v))
	}
	name, component, err := lampName(c)
	if err != nil {
		return nil, err
	}
	n, nerr := s.find.Free(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	return call.NoContent(), s.hardware.Management(n).SetIndicator(ctx, n, component, name, state)
}
