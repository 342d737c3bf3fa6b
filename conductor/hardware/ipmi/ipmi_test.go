package ipmi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// recorder is a driver that keeps what it was asked for.
type recorder struct {
	power.Driver
	what string
}

func (t *recorder) InjectNMI(context.Context) error { t.what = "nmi"; return nil }

func (t *recorder) ResetController(_ context.Context, warm bool) error {
	t.what = fmt.Sprintf("warm %v", warm)
	return nil
}

func (t *recorder) Raw(_ context.Context, netFn, command byte, data []byte) error {
	t.what = fmt.Sprintf("%02x %02x % x", netFn, command, data)
	return nil
}

// TestArguments: the arguments of the vendor methods in all forms that Ironic takes, and what is refused before
// anything is sent, without repeating it.
func TestArguments(t *testing.T) {
	var d recorder
	var asked power.Driver = &d
	ask := func(ctx context.Context, _ string, f func(context.Context, *node.Node, power.Driver) error) error {
		return f(ctx, &node.Node{Driver: "ipmi"}, asked)
	}
	v, n := NewVendor(ask), &node.Node{}
	long := strings.Repeat(" 1", maxRaw-2)
	for _, tt := range []struct {
		method string
		params map[string]any
		want   string // "" is refused
	}{
		{"bmc_reset", nil, "warm true"},
		{"bmc_reset", map[string]any{"warm": true}, "warm true"},
		{"bmc_reset", map[string]any{"warm": "False"}, "warm false"},
		{"bmc_reset", map[string]any{"warm": false}, "warm false"},
		{"bmc_reset", map[string]any{"warm": "cold"}, ""},
		{"bmc_reset", map[string]any{"warm": 1.0}, ""},
		{"send_raw", map[string]any{"raw_bytes": "0x06 0x01"}, "06 01 "},
		{"send_raw", map[string]any{"raw_bytes": " 0x30  113\t0xFF 010 "}, "30 71 ff 08"},
		{"send_raw", map[string]any{"raw_bytes": "0x2e 1" + long}, "2e 01 " + strings.TrimSpace(strings.Repeat("01 ",
			maxRaw-2))},
		{"send_raw", map[string]any{"raw_bytes": "0x2e 1 1" + long}, ""},
		{"send_raw", nil, ""},
		{"send_raw", map[string]any{"raw_bytes": ""}, ""},
		{"send_raw", map[string]any{"raw_bytes": []any{6.0, 1.0}}, ""},
		{"send_raw", map[string]any{"raw_bytes": "0x06"}, ""},
		{"send_raw", map[string]any{"raw_bytes": "0x07 0x01"}, ""}, // a response
		{"send_raw", map[string]any{"raw_bytes": "0x40 0x01"}, ""},
		{"send_raw", map[string]any{"raw_bytes": "0x06 0x100"}, ""},
		{"send_raw", map[string]any{"raw_bytes": "0x06 -1"}, ""},
		{"send_raw", map[string]any{"raw_bytes": "0x06 0x47 passw0rd"}, ""},
		{"power_cycle", nil, ""},
	} {
		d.what = ""
		_, err := v.Call(t.Context(), n, tt.method, tt.params)
		var invalid *hardware.InvalidError
		switch {
		case d.what != tt.want:
			t.Errorf("%s %v: sent %q, want %q", tt.method, tt.params, d.what, tt.want)
		case tt.want != "" && err != nil:
			t.Errorf("%s %v: %v", tt.method, tt.params, err)
		case tt.want == "" && (!errors.As(err, &invalid) || strings.Contains(err.Error(), "passw0rd")):
			t.Errorf("%s %v: %v", tt.method, tt.params, err)
		}
		if checked := v.Check(n, tt.method, tt.params); (checked == nil) != (err == nil) {
			t.Errorf("%s %v: Check says %v, Call %v", tt.method, tt.params, checked, err)
		}
	}
	if err := NewManagement(ask).InjectNMI(t.Context(), n); err != nil || d.what != "nmi" {
		t.Errorf("NMI: %v, sent %q", err, d.what)
	}
	asked = struct{ power.Driver }{} // of another type
	var not *hardware.UnsupportedError
	if err := NewManagement(ask).InjectNMI(t.Context(), n); !errors.As(err, &not) {
		t.Errorf("NMI of a driver without it: %v", err)
	}
}
