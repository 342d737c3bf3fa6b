package parts

import (
	"fmt"
	"strings"

	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/odata"
)

// readings is where a controller has its sensors and logs.
type readings struct {
	old  bool   // Thermal and Power of the chassis, instead of Sensors
	log  string // path of the log below the system or, with manager, the controller
	ofBM bool   // the log is the controller's
	// Of the log's entries:
	times  func(i int) string
	linked bool // the collection has links only
	// Of the chassis:
	metrics bool // temperatures and fans in ThermalSubsystem, and no Sensors
	// noEmpty leaves out the link to Entries when there are none.
	noEmpty bool
}

// plainTimes are those of the standard.
func plainTimes(i int) string { return fmt.Sprintf("2026-11-%02dT10:00:00Z", i%28+1) }

// oddTimes are those that controllers write whose clock was never set, or that write zones without a colon.
func oddTimes(i int) string {
	return []string{"0000-00-00T00:00:00Z", "2026-11-03T10:00:00-0600", "00:00:00Z", "2026-11-05T10:00:00-06:00"}[i%4]
}

// theReadings is the table by personality; "" is of those that are not in it.
var theReadings = map[string]readings{
	"":              {log: "SEL", times: plainTimes},
	"dell-idrac9":   {old: true, log: "Sel", ofBM: true, times: oddTimes},
	"dell-idrac9-5": {old: true, log: "Sel", ofBM: true, times: oddTimes},
	"dell-idrac10":  {log: "Sel", ofBM: true, times: oddTimes, metrics: true},
	"hpe-gen9":      {old: true, log: "IML", times: plainTimes, linked: true},
	"hpe-ilo5":      {old: true, log: "IML", times: plainTimes},
	"hpe-ilo6":      {old: true, log: "IML", times: plainTimes},
	"lenovo-xcc":    {log: "PlatformLog", times: plainTimes, noEmpty: true},
	"supermicro":    {old: true, log: "Log1", times: plainTimes},
	"ami":           {old: true, log: "SEL", ofBM: true, times: plainTimes},
	"openbmc":       {log: "EventLog", times: plainTimes},
}

// State of a part that is not well.
type State string

// States of parts.
const (
	Predicted State = "predicted" // it works, and is going to fail
	Broken    State = "broken"
)

// SetFailing makes a part fail, by the end of its path: "Drives/1", "Memory/2", "PowerSupplies/1"; "" mends it.
func (m *Machine) SetFailing(part string, state State) {
	path := m.system + "/Storage/1/" + part
	switch {
	case strings.HasPrefix(part, "Memory/"):
		path = m.system + "/" + part
	case strings.HasPrefix(part, "PowerSupplies/"):
		path = m.chassis + "/PowerSubsystem/" + part
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.failing, path)
	if state != "" {
		m.failing[path] = state
	}
}

// statusOf is the status of a part.
func (m *Machine) statusOf(path string) object {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := fine()
	o["Health"] = map[State]string{"": "OK", Predicted: "Warning", Broken: "Critical"}[m.failing[path]]
	return o
}

// rollUp is the health of the system with all its parts.
func (m *Machine) rollUp(o object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	worst := "OK"
	for _, state := range m.failing {
		if worst = "Warning"; state == Broken {
			worst = "Critical"
			break
		}
	}
	o["Status"] = object{"State": "Enabled", "Health": worst, "HealthRollup": worst}
}

// addReadings adds links to the readings of the chassis.
func (m *Machine) addReadings(o object) {
	if m.old {
		o["Thermal"], o["Power"] = odata.Link(m.chassis+"/Thermal"), odata.Link(m.chassis+"/Power")
		return
	}
	o["PowerSubsystem"] = odata.Link(m.chassis + "/PowerSubsystem")
	if m.metrics {
		o["ThermalSubsystem"] = odata.Link(m.chassis + "/ThermalSubsystem")
		return
	}
	o["Sensors"] = odata.Link(m.chassis + "/Sensors")
}

// addLogs adds the link to logs where the controller has its log.
func (m *Machine) addLogs(path string, o object) {
	if (path == m.manager) == m.ofBM {
		o["LogServices"] = odata.Link(path + "/LogServices")
	}
}

// sensors of the chassis: name, kind, unit, place, value and the bound above which it is critical.
var sensors = []struct {
	name, kind, unit, place string
	value, most             float64
}{
	{"Inlet Temp", "Temperature", "Cel", "Intake", 23, 47}, {"CPU1 Temp", "Temperature", "Cel", "CPU", 51.5, 95},
	{"Fan1", "Rotational", "RPM", "Fan", 5400, 0}, {"PS1 Voltage", "Voltage", "V", "PowerSupply", 230, 0},
	{"System Power", "Power", "W", "Chassis", 312, 0},
}

// reading is a log, or in the chassis a sensor or power supply; or a collection of them.
func (m *Machine) reading(path string) object {
	if o := m.logged(path); o != nil {
		return o
	}
	if m.old {
		switch path {
		case m.chassis + "/Thermal":
			return m.thermal(path)
		case m.chassis + "/Power":
			return m.power(path)
		}
		return nil
	}
	if m.metrics {
		if o := m.thermalSubsystem(path); o != nil || strings.HasPrefix(path, m.chassis+"/Sensors") {
			return o
		}
	}
	subsystem := m.chassis + "/PowerSubsystem"
	supplies := subsystem + "/PowerSupplies"
	switch path {
	case m.chassis + "/Sensors":
		return odata.Numbered(path, "SensorCollection", "Sensors", len(sensors))
	case subsystem:
		return object{"@odata.id": path, "@odata.type": "#PowerSubsystem.v1_1_2.PowerSubsystem", "Id": "PowerSubsystem",
			"Name": "Power", "PowerSupplies": odata.Link(supplies), "Status": fine()}
	case supplies:
		return odata.Numbered(path, "PowerSupplyCollection", "Power supplies", 2)
	}
	if i, ok := odata.Number(path, m.chassis+"/Sensors", len(sensors)); ok {
		x := sensors[i-1]
		o := object{"@odata.id": path, "@odata.type": "#Sensor.v1_9_0.Sensor", "Id": fmt.Sprint(i), "Name": x.name,
			"ReadingType": x.kind, "ReadingUnits": x.unit, "Reading": x.value,
			"PhysicalContext": x.place, "Status": fine()}
		if x.most > 0 {
			o["Thresholds"] = object{"UpperCritical": object{"Reading": x.most}}
		}
		return o
	}
	if i, ok := odata.Number(path, supplies, 2); ok {
		return object{"@odata.id": path, "@odata.type": "#PowerSupply.v1_6_0.PowerSupply", "Id": fmt.Sprint(i),
			"Name": fmt.Sprint("PSU", i), "SerialNumber": fmt.Sprint("CANARY-SERIAL-P", i), "Status": m.statusOf(path)}
	}
	return nil
}

// thermalSubsystem is the newer form of Thermal, with its fan and temperatures.
func (m *Machine) thermalSubsystem(path string) object {
	home := m.chassis + "/ThermalSubsystem"
	switch path {
	case home:
		return object{"@odata.id": path, "@odata.type": "#ThermalSubsystem.v1_3_3.ThermalSubsystem",
			"Id": "ThermalSubsystem", "Name": "Thermal", "Fans": odata.Link(home + "/Fans"),
			"ThermalMetrics": odata.Link(home + "/ThermalMetrics"), "Status": fine()}
	case home + "/Fans":
		return odata.Numbered(path, "FanCollection", "Fans", 1)
	case home + "/Fans/1":
		return object{"@odata.id": path, "@odata.type": "#Fan.v1_5_2.Fan", "Id": "1", "Name": "Fan1", "Status": fine(),
			"SpeedPercent": object{"Reading": 31, "SpeedRPM": 5400}}
	case home + "/ThermalMetrics":
		readings := []object{}
		for _, x := range sensors {
			if x.kind == "Temperature" {
				readings = append(readings, object{"DeviceName": x.name, "Reading": x.value,
					"PhysicalContext": x.place})
			}
		}
		return object{"@odata.id": path, "@odata.type": "#ThermalMetrics.v1_3_2.ThermalMetrics", "Id": "ThermalMetrics",
			"Name": "Temperatures", "TemperatureReadingsCelsius": readings}
	}
	return nil
}

// logEntries is how many the log has.
const logEntries = 6

// ClearLog empties the log.
func (m *Machine) ClearLog() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cleared = true
}

// length is how many entries the log has.
func (m *Machine) length() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cleared {
		return 0
	}
	return logEntries
}

// logged is the log, its entries, or one of them.
func (m *Machine) logged(path string) object {
	logs := map[bool]string{false: m.system, true: m.manager}[m.ofBM] + "/LogServices"
	entries := logs + "/" + m.log + "/Entries"
	switch path {
	case logs:
		return odata.Collection(path, "LogServiceCollection", "Logs", m.log)
	case logs + "/" + m.log:
		o := object{"@odata.id": path, "@odata.type": "#LogService.v1_8_0.LogService", "Id": m.log, "Name": m.log,
			"ServiceEnabled": true, "LogEntryType": "SEL", "Entries": odata.Link(entries), "Status": fine()}
		if m.noEmpty && m.length() == 0 {
			delete(o, "Entries")
		}
		return o
	case entries:
		c := odata.Numbered(path, "LogEntryCollection", "Entries", m.length())
		if !m.linked {
			list := c["Members"].([]object)
			for i := range list {
				list[i] = m.entry(entries, i+1)
			}
		}
		return c
	}
	if i, ok := odata.Number(path, entries, m.length()); ok {
		return m.entry(entries, i)
	}
	return nil
}

// entry is one of the log, whose newest has the highest number.
func (m *Machine) entry(entries string, i int) object {
	text := fmt.Sprintf("Event %d of the lab", i)
	severity := "OK"
	if i == 5 {
		text, severity = "Correctable memory error rate exceeded for DIMM_A1, serial CANARY-SERIAL-D1", "Warning"
	}
	return object{"@odata.id": fmt.Sprint(entries, "/", i), "@odata.type": "#LogEntry.v1_16_0.LogEntry",
		"Id": fmt.Sprint(i), "Name": fmt.Sprint("Log entry ", i), "EntryType": "SEL", "Severity": severity,
		"Created": m.times(i), "Message": text, "MessageId": ""}
}

func (m *Machine) thermal(path string) object {
	var temperatures, fans []object
	for i, x := range sensors {
		o := object{"@odata.id": fmt.Sprintf("%s#/Temperatures/%d", path, i), "MemberId": fmt.Sprint(i), "Name": x.name,
			"PhysicalContext": x.place, "Status": fine()}
		switch x.kind {
		case "Temperature":
			o["ReadingCelsius"], o["UpperThresholdCritical"] = x.value, x.most
			temperatures = append(temperatures, o)
		case "Rotational":
			o["Reading"], o["ReadingUnits"] = x.value, x.unit
			fans = append(fans, o)
		}
	}
	return object{"@odata.id": path, "@odata.type": "#Thermal.v1_7_3.Thermal", "Id": "Thermal", "Name": "Thermal",
		"Temperatures": temperatures, "Fans": fans}
}

func (m *Machine) power(path string) object {
	supplies := []object{}
	for i := range 2 {
		supplies = append(supplies, object{"@odata.id": fmt.Sprintf("%s#/PowerSupplies/%d", path, i),
			"MemberId": fmt.Sprint(i), "Name": fmt.Sprint("PSU", i+1), "LineInputVoltage": 230,
			"SerialNumber": fmt.Sprint("CANARY-SERIAL-P", i+1),
			"Status":       m.statusOf(fmt.Sprint(m.chassis, "/PowerSubsystem/PowerSupplies/", i+1))})
	}
	return object{"@odata.id": path, "@odata.type": "#Power.v1_7_3.Power", "Id": "Power", "Name": "Power",
		"PowerControl": []object{{"@odata.id": path + "#/PowerControl/0", "MemberId": "0", "Name": "System Power",
			"PowerConsumedWatts": 312, "PowerCapacityWatts": 750}},
		"Voltages": []object{{"@odata.id": path + "#/Voltages/0", "MemberId": "0", "Name": "PS1 Voltage",
			"ReadingVolts": 230, "Status": fine()}},
		"PowerSupplies": supplies}
}
