package redfish

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/health"
	"github.com/ingot-metal/ingot/conductor/node"
	kit "github.com/ingot-metal/ingot/test/kit/redfish"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/parts"
)

// values are the sensors of a reading by kind: name, value and unit.
func values(r *node.Reading) map[string]string {
	out := map[string]string{}
	for _, s := range r.Sensors {
		v := "none"
		if s.Value != nil {
			v = fmt.Sprint(*s.Value)
		}
		out[s.Kind+" "+s.Name] = v + " " + s.Unit
	}
	return out
}

// The sensors, failing parts and log of every personality are read, in each of the trees that services have.
func TestHealthOfEveryPersonality(t *testing.T) {
	for _, name := range service.Personalities() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, kit.Personality(t, name))
			m, n, lab := b.management(), b.node(), b.Service.Parts()
			read := func() *node.Reading {
				t.Helper()
				r, err := m.Health(t.Context(), n)
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			r := read()
			got := values(r)
			want := map[string]string{"temperature Inlet Temp": "23 Cel", "temperature CPU1 Temp": "51.5 Cel",
				"fan Fan1": "5400 RPM"}
			if name != "dell-idrac10" { // which has these two nowhere
				want["voltage PS1 Voltage"], want["power System Power"] = "230 V", "312 W"
			}
			for sensor, value := range want {
				if got[sensor] != value {
					t.Errorf("%s = %q, want %q; there are %v", sensor, got[sensor], value, got)
				}
			}
			places := map[string]string{}
			for _, s := range r.Sensors {
				if s.Kind == "temperature" {
					places[s.Name] = s.Context
				}
			}
			if places["CPU1 Temp"] != "CPU" || places["Inlet Temp"] != "Intake" {
				t.Errorf("temperatures are measured at %v", places)
			}
			kinds := map[string]int{}
			for _, p := range r.Checked {
				if kinds[p.Kind]++; p.Health != node.HealthOK || p.Predicted || p.Name == "" {
					t.Errorf("a good part is %+v", p)
				}
			}
			if kinds["drive"] == 0 || kinds["power supply"] != 2 || len(kinds) != 2 {
				t.Errorf("parts that were asked: %v", kinds)
			}
			if r.Health != node.HealthOK || len(r.Parts) > 0 {
				t.Errorf("health %q, failing %+v", r.Health, r.Parts)
			}
			if len(r.Log) != 6 || r.Log[0].ID != "6" || r.Log[0].Message != "Event 6 of the lab" ||
				r.Log[1].Severity != node.HealthWarning {
				t.Errorf("log %+v", r.Log)
			}
			odd := strings.HasPrefix(name, "dell")
			want3 := map[bool]string{false: "2026-11-04T10:00:00Z", true: "2026-11-05T16:00:00Z"}[odd]
			if at := r.Log[3].At.Format(time.RFC3339); at != want3 || r.Log[2].At.IsZero() != odd {
				t.Errorf("times %+v", r.Log)
			}
			for _, tt := range []struct {
				at    string
				state parts.State
				part  node.Part
			}{
				{"Drives/1", parts.Predicted,
					node.Part{Kind: "drive", Name: "Drive 1", Health: "Warning", Predicted: true}},
				{"Memory/2", parts.Predicted,
					node.Part{Kind: "memory", Name: "DIMM 2", Health: "Warning", Predicted: true}},
				{"PowerSupplies/2", parts.Broken, node.Part{Kind: "power supply", Name: "PSU2", Health: "Critical"}},
			} {
				lab.SetFailing(tt.at, tt.state)
				if r := read(); len(r.Parts) != 1 || r.Parts[0] != tt.part || r.Health != tt.part.Health {
					t.Errorf("with %s: health %q, failing %+v", tt.at, r.Health, r.Parts)
				}
				lab.SetFailing(tt.at, "")
			}
			lab.ClearLog()
			if r := read(); len(r.Log) > 0 || r.Health != node.HealthOK || len(r.Parts) > 0 {
				t.Errorf("health %q, failing %+v, log %+v", r.Health, r.Parts, r.Log)
			}
			if b.Service.MostAtOnce() > 1 || b.Service.Sessions() > 1 {
				t.Errorf("%d requests at once, %d sessions", b.Service.MostAtOnce(), b.Service.Sessions())
			}
		})
	}
}

// A hostile controller delays no reading for ever, and what is kept of it is small and clean.
func TestHostileHealth(t *testing.T) {
	for _, behaviour := range hostile {
		t.Run(string(behaviour), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, kit.Personality(t, "generic", behaviour),
				func(c *service.Config) { c.Elsewhere = "127.0.0.1:1" })
			begun := time.Now()
			r, err := b.management().Health(t.Context(), b.node())
			mild := behaviour == service.LinksInLoops || behaviour == service.EscapesInNames
			if mild && err != nil || !mild && power.KindOf(err) != power.Refused && power.KindOf(err) != power.Config {
				t.Errorf("health: %v", err)
			}
			shown, jerr := json.Marshal(r)
			if said := string(shown) + errorText(err); jerr != nil || len(said) > 256<<10 ||
				strings.ContainsAny(said, "\x1b\u202e") || strings.Contains(said, `\u001b`) {
				t.Errorf("it says %.300q", said)
			}
			if n, took := b.Service.Requests(), time.Since(begun); n > 500 || took > time.Minute {
				t.Errorf("%d requests in %s", n, took)
			}
		})
	}
}

func TestTimesOfControllers(t *testing.T) {
	for s, want := range map[string]string{
		"2026-11-03T10:00:00Z": "2026-11-03T10:00:00Z", "2026-11-03T10:00:00-0600": "2026-11-03T16:00:00Z",
		"2026-11-03T10:00:00-06:00": "2026-11-03T16:00:00Z", "2026-11-03T10:00:00": "2026-11-03T10:00:00Z",
		"0000-00-00T00:00:00Z": "", "00:00:00Z": "", "": "", "1970-01-01T00:00:05Z": "", "yesterday": "",
	} {
		got := ""
		if at := health.Time(s); !at.IsZero() {
			got = at.Format(time.RFC3339)
		}
		if got != want {
			t.Errorf("Time(%q) = %q, want %q", s, got, want)
		}
	}
}
