package redfish

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/node"
)

// clockSlack is how far the clock may be from the time that it was set to when it is read back: controllers count whole
// seconds, and answer late.
const clockSlack = 30 * time.Second

// timeForms are the forms of times: the standard's, and those of some controllers.
var timeForms = []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999-0700", "2006-01-02T15:04:05.999999999"}

func parseTime(s string) (at time.Time, err error) {
	for _, form := range timeForms {
		if at, err = time.Parse(form, s); err == nil {
			return at, nil
		}
	}
	return at, fmt.Errorf("%q is no time in ISO 8601, such as 2026-12-31T23:59:59+00:00", s)
}

// offsets are the forms of differences from UTC.
var offsets = regexp.MustCompile(`^[+-](0\d|1[0-4]):[0-5]\d$`)

// clockStep sets the controller's clock.
func (m *Management) clockStep() hardware.Step {
	text := func(c map[string]any, name string) string { s, _ := c[name].(string); return s }
	return hardware.Step{Interface: "management", Name: "set_bmc_clock", Limit: 2 * m.limit,
		Description: "sets the controller's clock, and reads it back",
		Priority:    map[node.Phase]int{node.PhaseClean: 0},
		Args: []hardware.Arg{
			{Name: "target_datetime", Type: "string",
				Description: "The datetime to set in ISO8601 format. If omitted, the current conductor UTC time is used."},
			{Name: "datetime_local_offset", Type: "string", Description: "The local time offset from UTC"}},
		Check: func(_ *node.Node, args map[string]any) error {
			if s := text(args, "target_datetime"); s != "" {
				if _, err := parseTime(s); err != nil {
					return hardware.Invalidf("target_datetime: %v", err)
				}
			}
			if s := text(args, "datetime_local_offset"); s != "" && !offsets.MatchString(s) {
				return hardware.Invalidf("datetime_local_offset: %q is no difference from UTC, such as +01:00", s)
			}
			return nil
		},
		Run: func(ctx context.Context, c hardware.Call) (hardware.Outcome, error) {
			want := time.Now().UTC()
			if s := text(c.Args, "target_datetime"); s != "" {
				var err error
				if want, err = parseTime(s); err != nil {
					return hardware.Outcome{}, err
				}
			}
			return hardware.Outcome{}, m.do(ctx, c.Node, func(ctx context.Context, d *Driver) error {
				return d.setClock(ctx, want, text(c.Args, "datetime_local_offset"))
			})
		}}
}

// setClock sets the clock of the machine's controller, with the difference from UTC that it shows times with; "" leaves
// that.
func (d *Driver) setClock(ctx context.Context, want time.Time, offset string) error {
	return d.on(ctx, "set the controller's clock", func(s *controller.System) error {
		all, err := d.managers(ctx, s)
		if err != nil {
			return err
		}
		var now struct{ DateTime string }
		if len(all) == 0 {
			return &power.Error{Kind: power.Unsupported, Err: errors.New("the service shows no manager of the machine")}
		}
		etag, err := d.c.Read(ctx, string(all[0]), &now)
		if err != nil {
			return err
		}
		if now.DateTime == "" {
			return &power.Error{Kind: power.Unsupported, Err: errors.New("the controller does not show its clock")}
		}
		change := map[string]string{"DateTime": want.Format("2006-01-02T15:04:05-07:00")}
		if offset != "" {
			change["DateTimeLocalOffset"] = offset
		}
		if err := d.c.Patch(ctx, string(all[0]), etag, change); err != nil {
			return err
		}
		if _, err := d.c.Read(ctx, string(all[0]), &now); err != nil {
			return err
		}
		got, err := parseTime(now.DateTime)
		if err != nil || got.Sub(want).Abs() > clockSlack {
			return &power.Error{Kind: power.Refused,
				Err:  fmt.Errorf("the controller took it, but its clock reads %s", d.c.Clean(now.DateTime)),
				Hint: "it may take its time from NTP servers: switch that off, or correct them"}
		}
		return nil
	})
}
