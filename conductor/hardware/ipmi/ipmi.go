// Package ipmi has the interfaces management and vendor of controllers that speak IPMI, under Ironic's name ipmitool.
// Power and boot devices are in conductor/hardware/power/ipmi, whose driver does what is asked here, too.
package ipmi

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Ask calls the controller of a node, by UUID, when nothing else does, and waits for that.
type Ask func(ctx context.Context, id string, f func(context.Context, *node.Node, power.Driver) error) error

// command calls a driver that takes commands.
func (a Ask) command(ctx context.Context, n *node.Node, feature string,
	f func(context.Context, power.Commander) error) error {
	return a(ctx, n.UUID, func(ctx context.Context, n *node.Node, d power.Driver) error {
		c, ok := power.As[power.Commander](d)
		if !ok { // its hardware type was changed meanwhile
			return &hardware.UnsupportedError{Driver: n.Driver, Feature: feature}
		}
		return f(ctx, c)
	})
}

// Management is the interface management. IPMI has neither indicators nor virtual media, and no setting of the boot
// mode apart from a boot device's.
type Management struct {
	hardware.NoManagement
	ask Ask
}

// NewManagement makes the interface.
func NewManagement(ask Ask) *Management { return &Management{ask: ask} }

// InjectNMI sends a non-maskable interrupt to a machine that is on.
func (m *Management) InjectNMI(ctx context.Context, n *node.Node) error {
	return m.ask.command(ctx, n, "inject_nmi", func(ctx context.Context, c power.Commander) error {
		return c.InjectNMI(ctx)
	})
}

// Vendor is the interface vendor.
type Vendor struct{ ask Ask }

// NewVendor makes the interface.
func NewVendor(ask Ask) *Vendor { return &Vendor{ask} }

// Methods are Ironic's.
func (v *Vendor) Methods(*node.Node) ([]hardware.Method, error) {
	method := func(name, text string) hardware.Method {
		return hardware.Method{Name: name, HTTPMethods: []string{http.MethodPost}, Async: true, Exclusive: true,
			Description: text}
	}
	return []hardware.Method{
		method("bmc_reset",
			"Reset the BMC. Required argument: 'warm' (Boolean) - for warm (True) or cold (False) reset."),
		method("send_raw",
			"Send raw bytes to the BMC. Required argument: 'raw_bytes' - a string of raw bytes (e.g. '0x00 0x01')."),
	}, nil
}

// Check looks at the arguments.
func (v *Vendor) Check(_ *node.Node, method string, params map[string]any) error {
	_, err := request(method, params)
	return err
}

// Call sends the command. Its bytes can hold a password: they are in no error.
func (v *Vendor) Call(ctx context.Context, n *node.Node, method string, params map[string]any) (any, error) {
	send, err := request(method, params)
	if err != nil {
		return nil, err
	}
	return nil, v.ask.command(ctx, n, method, send)
}

// request reads the arguments of a method into what is sent.
func request(method string, params map[string]any) (func(context.Context, power.Commander) error, error) {
	switch method {
	case "bmc_reset":
		warm, err := isWarm(params["warm"])
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, c power.Commander) error { return c.ResetController(ctx, warm) }, nil
	case "send_raw":
		raw, err := rawBytes(params["raw_bytes"])
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, c power.Commander) error { return c.Raw(ctx, raw[0], raw[1], raw[2:]) }, nil
	}
	return nil, hardware.Invalidf("No handler for method %s", method)
}

// isWarm reads a Boolean as Ironic does, which takes it as a text, too, and does without it.
func isWarm(v any) (bool, error) {
	switch v := v.(type) {
	case nil:
		return true, nil
	case bool:
		return v, nil
	case string:
		switch strings.ToLower(strings.TrimSpace(v)) {
		case "true", "t", "yes", "y", "on", "1":
			return true, nil
		case "false", "f", "no", "n", "off", "0":
			return false, nil
		}
	}
	return false, hardware.Invalidf("warm has to be true or false")
}

// maxRaw bounds a command: the network function, the command, and what fits into a packet of the specification's size.
const maxRaw = 2 + 230

// rawBytes reads numbers between 0 and 255 with spaces between, in the ways in which ipmitool takes them: the network
// function, the command, its data.
func rawBytes(v any) ([]byte, error) {
	text, _ := v.(string)
	words := strings.Fields(text)
	if len(words) == 0 {
		return nil, hardware.Invalidf("Parameter raw_bytes (string of bytes) was not specified.")
	}
	if len(words) < 2 || len(words) > maxRaw {
		return nil, hardware.Invalidf(
			"raw_bytes has %d numbers: it is a network function, a command, and up to %d bytes of data", len(words), maxRaw-2)
	}
	var raw []byte
	for i, w := range words {
		b, err := strconv.ParseUint(w, 0, 8)
		if err != nil {
			return nil, hardware.Invalidf("raw_bytes: number %d is not between 0 and 255 (0xff)", i+1)
		}
		raw = append(raw, byte(b))
	}
	if raw[0] > 0x3f || raw[0]%2 != 0 {
		return nil, &hardware.InvalidError{Reason: fmt.Sprintf(
			"raw_bytes: 0x%02x is no network function of a request, which is even and at most 0x3e", raw[0])}
	}
	return raw, nil
}
