// Package health reads how a machine is at its Redfish service: roll-up, sensors, parts that fail or are going to, and
// the newest entries of the event log.
//
// Older services have sensors in Thermal and Power, newer ones in Sensors, or in ThermalSubsystem and PowerSubsystem.
// Where there are both, the older are read: they take two requests, the others one for each sensor. Texts are cleaned,
// numbers of things and of requests bounded. Values have the units of Redfish: Cel, RPM, %, V, W, A.
package health

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stmcginnis/gofish/schemas"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/node"
)

type link = schemas.Link

// status is that of any resource.
type status struct{ State, Health, HealthRollup string }

func (s status) absent() bool { return s.State == "Absent" }

// known is a health if it is one.
func known(s string) string {
	if slices.Contains([]string{node.HealthOK, node.HealthWarning, node.HealthCritical}, s) {
		return s
	}
	return ""
}

// reader collects a reading.
type reader struct {
	c *controller.Controller
	r *node.Reading
	// pairs of sensor kind and name
	seen map[[2]string]bool
}

// Read reads a machine. What the service does not list is left out.
func Read(ctx context.Context, c *controller.Controller, s *controller.System) (*node.Reading, error) {
	ctx = controller.Bounded(ctx)
	var system struct {
		Status          status
		Memory, Storage link
		LogServices     link
		Links           struct{ Chassis, ManagedBy []link }
	}
	if _, err := c.Read(ctx, s.Path, &system); err != nil {
		return nil, err
	}
	r := &reader{c: c, r: &node.Reading{Health: known(cmp.Or(system.Status.HealthRollup, system.Status.Health))},
		seen: map[[2]string]bool{}}
	if err := r.drives(ctx, string(system.Storage)); err != nil {
		return nil, err
	}
	type module struct {
		Name, DeviceLocator string
		Status              status
	}
	if err := controller.Each(ctx, c, string(system.Memory), func(_ string, m *module) {
		r.part("memory", cmp.Or(m.DeviceLocator, m.Name), m.Status, false)
	}); err != nil {
		return nil, err
	}
	for _, at := range system.Links.Chassis[:min(len(system.Links.Chassis), limit.HealthChassis)] {
		if err := r.chassis(ctx, string(at)); err != nil {
			return nil, err
		}
	}
	logs := []string{string(system.LogServices)}
	for _, m := range system.Links.ManagedBy {
		logs = append(logs, "in "+string(m))
	}
	if err := r.log(ctx, logs); err != nil {
		return nil, err
	}
	return r.r, nil
}

// part notes a part that is not well.
func (r *reader) part(kind, name string, s status, predicted bool) {
	h := known(s.Health)
	if (kind == "drive" || kind == "power supply") && !s.absent() && h != "" &&
		len(r.r.Checked) < limit.HealthParts {
		r.r.Checked = append(r.r.Checked, node.Part{Kind: kind, Name: r.c.Clean(name), Health: h, Predicted: predicted})
	}
	if s.absent() || !predicted && h != node.HealthWarning && h != node.HealthCritical ||
		len(r.r.Parts) >= limit.HealthParts {
		return
	}
	r.r.Parts = append(r.r.Parts, node.Part{Kind: kind, Name: r.c.Clean(name), Health: h,
		Predicted: h != node.HealthCritical})
}

func (r *reader) drives(ctx context.Context, at string) error {
	type storage struct{ Drives []link }
	var drives []string
	if err := controller.Each(ctx, r.c, at, func(_ string, s *storage) {
		for _, d := range s.Drives {
			if !slices.Contains(drives, string(d)) && len(drives) < limit.HealthParts {
				drives = append(drives, string(d))
			}
		}
	}); err != nil {
		return err
	}
	for _, at := range drives {
		var d struct {
			Name             string
			FailurePredicted *bool
			Status           status
		}
		if ok, err := r.c.Try(ctx, at, &d); err != nil {
			return err
		} else if ok {
			r.part("drive", cmp.Or(d.Name, path.Base(at)), d.Status, d.FailurePredicted != nil && *d.FailurePredicted)
		}
	}
	return nil
}

// sensor notes one, once.
func (r *reader) sensor(kind, name, unit string, value, critical *float64, s status) {
	r.sensorIn("", kind, name, unit, value, critical, s)
}

// sensorIn notes one with the place where it measures, in the words of Redfish.
func (r *reader) sensorIn(context, kind, name, unit string, value, critical *float64, s status) {
	name = r.c.Clean(name)
	key := [2]string{kind, name}
	if s.absent() || name == "" || r.seen[key] || len(r.r.Sensors) >= limit.HealthSensors {
		return
	}
	if value == nil && s.Health == "" {
		return // a place for one
	}
	r.seen[key] = true
	r.r.Sensors = append(r.r.Sensors, node.Sensor{Name: name, Kind: kind, Unit: r.c.Clean(unit), Value: finite(value),
		Critical: finite(critical), Health: known(s.Health), Context: r.c.Clean(context)})
}

// finite is a number that JSON has, nil for others.
func finite(v *float64) *float64 {
	if v == nil || math.IsNaN(*v) || math.IsInf(*v, 0) {
		return nil
	}
	return v
}

// supply is a power supply in either tree.
type supply struct {
	Name             string
	MemberId         string //nolint:revive the name in Redfish
	LineInputVoltage *float64
	PowerOutputWatts *float64
	Status           status
}

func (r *reader) supply(at string, p *supply) {
	name := cmp.Or(p.Name, p.MemberId, path.Base(at))
	r.part("power supply", name, p.Status, false)
	r.sensor("voltage", name+" input", "V", p.LineInputVoltage, nil, p.Status)
	if p.PowerOutputWatts != nil {
		r.sensor("power", name, "W", p.PowerOutputWatts, nil, p.Status)
	}
}

func (r *reader) chassis(ctx context.Context, at string) error {
	var doc struct{ Thermal, Power, Sensors, ThermalSubsystem, PowerSubsystem link }
	if ok, err := r.c.Try(ctx, at, &doc); err != nil || !ok {
		return err
	}
	if err := r.thermal(ctx, string(doc.Thermal)); err != nil {
		return err
	}
	if err := r.power(ctx, string(doc.Power)); err != nil {
		return err
	}
	if doc.Power == "" {
		if err := r.supplies(ctx, string(doc.PowerSubsystem)); err != nil {
			return err
		}
	}
	if doc.Thermal != "" && doc.Power != "" {
		return nil
	}
	if doc.Sensors != "" {
		return controller.Each(ctx, r.c, string(doc.Sensors), func(_ string, s *sensor) {
			kind, found := kinds[s.ReadingType]
			if !found {
				kind = "other"
			}
			r.sensorIn(s.PhysicalContext, kind, s.Name, s.ReadingUnits, s.Reading,
				s.Thresholds.UpperCritical.Reading, s.Status)
		})
	}
	if doc.Thermal == "" {
		return r.subsystem(ctx, string(doc.ThermalSubsystem))
	}
	return nil
}

// kinds are those of sensors by their name in Redfish.
var kinds = map[string]string{"Temperature": "temperature", "Rotational": "fan", "Voltage": "voltage", "Power": "power",
	"Current": "current"}

// sensor is a resource of that name.
type sensor struct {
	Name, ReadingType, ReadingUnits, PhysicalContext string
	Reading                                          *float64
	Thresholds                                       struct{ UpperCritical struct{ Reading *float64 } }
	Status                                           status
}

func (r *reader) thermal(ctx context.Context, at string) error {
	var doc struct {
		Temperatures []struct {
			Name, PhysicalContext                  string
			ReadingCelsius, UpperThresholdCritical *float64
			Status                                 status
		}
		Fans []struct {
			Name, FanName, ReadingUnits string
			Reading                     *float64
			Status                      status
		}
	}
	if ok, err := r.c.Try(ctx, at, &doc); err != nil || !ok {
		return err
	}
	for _, t := range doc.Temperatures {
		r.sensorIn(t.PhysicalContext, "temperature", t.Name, "Cel", t.ReadingCelsius,
			positive(t.UpperThresholdCritical), t.Status)
	}
	for _, f := range doc.Fans {
		r.sensor("fan", cmp.Or(f.Name, f.FanName), cmp.Or(strings.Replace(f.ReadingUnits, "Percent", "%", 1), "RPM"),
			f.Reading, nil, f.Status)
	}
	return nil
}

// positive is a bound that is one: services write 0 where there is none.
func positive(v *float64) *float64 {
	if v == nil || *v <= 0 {
		return nil
	}
	return v
}

func (r *reader) power(ctx context.Context, at string) error {
	var doc struct {
		PowerControl []struct {
			Name               string
			PowerConsumedWatts *float64
			Status             status
		}
		Voltages []struct {
			Name                                 string
			ReadingVolts, UpperThresholdCritical *float64
			Status                               status
		}
		PowerSupplies []*supply
	}
	if ok, err := r.c.Try(ctx, at, &doc); err != nil || !ok {
		return err
	}
	for i, p := range doc.PowerControl {
		r.sensor("power", cmp.Or(p.Name, "System Power "+strconv.Itoa(i)), "W", p.PowerConsumedWatts, nil, p.Status)
	}
	for _, v := range doc.Voltages {
		r.sensor("voltage", v.Name, "V", v.ReadingVolts, positive(v.UpperThresholdCritical), v.Status)
	}
	for i, p := range doc.PowerSupplies {
		if p != nil {
			r.supply("PSU "+strconv.Itoa(i+1), p)
		}
	}
	return nil
}

// supplies reads the power supplies of the newer tree.
func (r *reader) supplies(ctx context.Context, at string) error {
	var doc struct{ PowerSupplies link }
	if ok, err := r.c.Try(ctx, at, &doc); err != nil || !ok {
		return err
	}
	return controller.Each(ctx, r.c, string(doc.PowerSupplies), r.supply)
}

// subsystem reads temperatures and fans of the newer tree, of services without Sensors.
func (r *reader) subsystem(ctx context.Context, at string) error {
	var doc struct{ Fans, ThermalMetrics link }
	if ok, err := r.c.Try(ctx, at, &doc); err != nil || !ok {
		return err
	}
	var metrics struct {
		TemperatureReadingsCelsius []struct {
			DeviceName, DataSourceUri, PhysicalContext string //nolint:revive the names in Redfish
			Reading                                    *float64
		}
	}
	if _, err := r.c.Try(ctx, string(doc.ThermalMetrics), &metrics); err != nil {
		return err
	}
	for _, t := range metrics.TemperatureReadingsCelsius {
		r.sensorIn(t.PhysicalContext, "temperature", cmp.Or(t.DeviceName, path.Base(t.DataSourceUri)), "Cel",
			t.Reading, nil, status{})
	}
	type fan struct {
		Name         string
		SpeedPercent struct{ Reading, SpeedRPM *float64 }
		Status       status
	}
	return controller.Each(ctx, r.c, string(doc.Fans), func(_ string, f *fan) {
		if f.SpeedPercent.SpeedRPM != nil {
			r.sensor("fan", f.Name, "RPM", f.SpeedPercent.SpeedRPM, nil, f.Status)
			return
		}
		r.sensor("fan", f.Name, "%", f.SpeedPercent.Reading, nil, f.Status)
	})
}

// logNames are names of logs of the hardware's events, the best first: controllers have others, of audits and of their
// own work, some of which are very long.
var logNames = []string{"sel", "iml", "platformlog", "eventlog", "log1", "systemeventlog", "standardlog"}

// log reads the newest entries of the first log of hardware that is found.
func (r *reader) log(ctx context.Context, homes []string) error {
	for _, home := range homes {
		if at, of := strings.CutPrefix(home, "in "); of {
			var m struct{ LogServices link }
			if _, err := r.c.Try(ctx, at, &m); err != nil {
				return err
			}
			home = string(m.LogServices)
		}
		all, err := r.c.Members(ctx, home)
		if controller.Declined(err) {
			continue
		}
		if err != nil {
			return err
		}
		best, rank := "", len(logNames)
		for _, m := range all {
			if i := slices.Index(logNames, strings.ToLower(path.Base(m.Path))); i >= 0 && i < rank {
				best, rank = m.Path, i
			}
		}
		if best == "" {
			continue
		}
		var log struct{ Entries link }
		if _, err := r.c.Try(ctx, best, &log); err != nil { // one that is empty may have no Entries
			return err
		}
		return r.entries(ctx, string(log.Entries))
	}
	return nil
}

// entry is one of a log.
type entry struct {
	ID                string `json:"Id"`
	Severity, Message string
	Created           string
	EventTimestamp    string
	at                time.Time
	number            int
}

// entries reads the newest ones. A service that lists links only is asked for those with the highest numbers.
func (r *reader) entries(ctx context.Context, at string) error {
	all, err := r.c.Members(ctx, at)
	if controller.Declined(err) {
		return nil
	}
	if err != nil {
		return err
	}
	var found []*entry
	var links []controller.Member
	for _, m := range all {
		e := &entry{}
		if m.Raw != nil && json.Unmarshal(m.Raw, e) == nil {
			found = append(found, e)
		} else {
			links = append(links, m)
		}
	}
	slices.SortStableFunc(links, func(a, b controller.Member) int {
		return cmp.Compare(number(path.Base(b.Path)), number(path.Base(a.Path)))
	})
	for _, m := range links[:min(len(links), max(limit.HealthEntries-len(found), 0))] {
		e := &entry{}
		if ok, err := r.c.Try(ctx, m.Path, e); err != nil {
			return err
		} else if ok {
			found = append(found, e)
		}
	}
	for _, e := range found {
		e.at, e.number = Time(cmp.Or(e.Created, e.EventTimestamp)), number(e.ID)
	}
	// Numbers decide, since clocks of controllers start anew with a dead battery.
	numbered := !slices.ContainsFunc(found, func(e *entry) bool { return e.number == 0 })
	slices.SortStableFunc(found, func(a, b *entry) int {
		if numbered {
			return cmp.Compare(b.number, a.number)
		}
		return b.at.Compare(a.at)
	})
	for _, e := range found[:min(len(found), limit.HealthEntries)] {
		r.r.Log = append(r.r.Log, node.LogEntry{ID: r.c.Clean(e.ID), Severity: known(e.Severity),
			Message: r.c.Clean(e.Message), At: e.at})
	}
	return nil
}

// number is that at the end of a name, 0 without one.
func number(s string) int {
	i := len(s)
	for i > 0 && s[i-1] >= '0' && s[i-1] <= '9' {
		i--
	}
	n, err := strconv.Atoi(s[i:])
	if err != nil {
		return 0
	}
	return n
}

// forms are those of times that controllers write, besides the standard's.
var forms = []string{time.RFC3339, "2006-01-02T15:04:05-0700", "2006-01-02T15:04:05", "2006-01-02 15:04:05"}

// Time reads a time of a controller; zero is one of a clock that was never set.
func Time(s string) time.Time {
	for _, form := range forms {
		if t, err := time.Parse(form, s); err == nil && t.Year() > 1980 {
			return t.UTC()
		}
	}
	return time.Time{}
}
