package metrics

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// TestJobs: a job that is over counts with its phase and outcome, its steps with their time, bytes and rate.
func TestJobs(t *testing.T) {
	s := New(Config{Now: func() time.Time { return now }})
	begun := now.Add(-100 * time.Second)
	step := func(name string, status node.StepStatus, seconds int, result string) node.JobStep {
		return node.JobStep{Interface: "deploy", Name: name, Status: status, StartedAt: begun,
			EndedAt: begun.Add(time.Duration(seconds) * time.Second), Result: json.RawMessage(result)}
	}
	s.JobEnded(nil, &node.Job{Phase: node.PhaseDeploy, StartedAt: begun, Steps: []node.JobStep{
		step("write_image", node.StepDone, 20, `{"bytes_written":1000000000,"took_ms":10000}`),
		step("prepare_instance_boot", node.StepDone, 1, `"fine"`), {Interface: "deploy", Name: "boot_instance"}}})
	s.JobEnded(nil, &node.Job{Phase: node.PhaseDeploy, StartedAt: begun, Failure: "no disk", Steps: []node.JobStep{
		step("write_image", node.StepFailed, 20, `{"bytes_written":5}`)}})
	s.JobEnded(nil, &node.Job{Phase: node.PhaseClean, StartedAt: begun, Failure: "by request", Abort: true})
	s.JobEnded(nil, &node.Job{Phase: node.PhaseDeploy, StartedAt: begun, Failure: "the host", Abort: true,
		Why: "the host"})
	s.StateLeft(node.Deploying, time.Minute)
	got := scrape(t, s)
	want(t, got, "ingot_job", map[string]float64{
		`ingot_job_seconds{outcome="aborted",phase="deploy"}`: 0,
		`ingot_job_seconds{outcome="done",phase="deploy"}`:    1,
		`ingot_job_seconds{outcome="failed",phase="deploy"}`:  2, `ingot_job_seconds{outcome="aborted",phase="clean"}`: 1})
	want(t, got, "ingot_step", map[string]float64{
		`ingot_step_seconds{outcome="done",phase="deploy",step="deploy.write_image"}`:           1,
		`ingot_step_seconds{outcome="failed",phase="deploy",step="deploy.write_image"}`:         1,
		`ingot_step_seconds{outcome="done",phase="deploy",step="deploy.prepare_instance_boot"}`: 1,
		`ingot_step_written_bytes_total{step="deploy.write_image"}`:                             1e9,
		`ingot_step_write_bytes_per_second{step="deploy.write_image"}`:                          1})
	want(t, got, "ingot_node_state_seconds", map[string]float64{`ingot_node_state_seconds{state="deploying"}`: 1})
	var b strings.Builder
	if err := s.Write(&b); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{`ingot_job_seconds_sum{outcome="done",phase="deploy"} 100`,
		`ingot_step_write_bytes_per_second_sum{step="deploy.write_image"} 1e+08`} {
		if !strings.Contains(b.String(), line+"\n") {
			t.Errorf("there is no line %s", line)
		}
	}
}

// TestCallsAndMachines: what is counted of controllers, booting machines and agents.
func TestCallsAndMachines(t *testing.T) {
	s := New(Config{})
	s.Called("redfish", "Dell Inc.", "read power", "", time.Second)
	s.Called("ipmitool", "", "set power", "unreachable", time.Second)
	for i := range 100 { // of nodes whose vendors somebody makes up
		s.Called("ipmitool", fmt.Sprint("v", i), "read power", "", time.Second)
	}
	s.Answered("dhcp", "offer")
	s.Refused("dhcp", "not admitted")
	s.Fetched("image", 206, 1000, time.Second)
	s.Fetched("", 404, 10, time.Second)
	s.Agent("session", "opened")
	got := scrape(t, s)
	calls := 0
	for k := range got {
		if strings.HasPrefix(k, "ingot_controller_call") {
			calls++
		}
	}
	if calls > 20 || got[`ingot_controller_call_seconds{call="read power",interface="ipmitool",outcome="ok",vendor="other"}`] < 80 {
		t.Errorf("%d series of calls; many vendors must become one", calls)
	}
	want(t, got, `ingot_controller_call_seconds{call="set power"`, map[string]float64{
		`ingot_controller_call_seconds{call="set power",interface="ipmitool",outcome="unreachable",vendor="none"}`: 1})
	want(t, got, "ingot_boot", map[string]float64{
		`ingot_boot_answers_total{kind="offer",service="dhcp"}`:           1,
		`ingot_boot_refusals_total{reason="not admitted",service="dhcp"}`: 1,
		`ingot_boot_http_seconds{code="206",kind="image"}`:                1,
		`ingot_boot_http_seconds{code="404",kind="other"}`:                1,
		`ingot_boot_http_bytes_total{kind="image"}`:                       1000, `ingot_boot_http_bytes_total{kind="other"}`: 10})
	want(t, got, "ingot_agent_events", map[string]float64{`ingot_agent_events_total{event="session",outcome="opened"}`: 1})
}

func reading(at time.Time) node.Reading {
	return node.Reading{At: at, Health: node.HealthWarning, Sensors: []node.Sensor{
		{Name: "CPU1 Temp", Kind: "temperature", Unit: "Cel", Context: "CPU", Value: new(41.5), Health: "OK"},
		{Name: "Inlet", Kind: "temperature", Unit: "Cel", Context: "Intake", Value: new(20.0), Health: "Critical"},
		{Name: "Somewhere", Kind: "temperature", Unit: "Cel", Context: "Under the desk", Value: new(1.0)},
		{Name: "Fan1", Kind: "fan", Unit: "RPM", Value: new(4200.0), Health: "OK"},
		{Name: "Fan2", Kind: "fan", Unit: "%", Value: new(40.0), Health: "Warning"},
		{Name: "Fan3", Kind: "fan", Unit: "RPM"},
		{Name: "PSU 1 input", Kind: "voltage", Unit: "V", Value: new(230.0)},
		{Name: "System", Kind: "power", Unit: "W", Value: new(180.0)},
	}, Checked: []node.Part{{Kind: "drive", Name: "Disk 0", Health: "OK"},
		{Kind: "drive", Name: "Disk 1", Health: "OK", Predicted: true},
		{Kind: "power supply", Name: "PSU 1", Health: "Critical"}}}
}

// TestSensors: names and labels are those of ironic-prometheus-exporter.
func TestSensors(t *testing.T) {
	s := New(Config{NodeSeries: 100, Now: func() time.Time { return now }})
	s.Reading(&node.Node{UUID: "u-1", Name: "n1", InstanceUUID: "i-1"}, reading(now.Add(-time.Minute)))
	const of = `{node_name="n1",node_uuid="u-1",instance_uuid="i-1"`
	want(t, scrape(t, s), "baremetal_", map[string]float64{
		`baremetal_last_payload_timestamp_seconds` + of + `}`:                                      float64(now.Unix() - 60),
		`baremetal_temp_cpu_celsius` + of + `,entity_id="CPU",sensor_id="CPU1 Temp"}`:              41.5,
		`baremetal_temp_intake_celsius` + of + `,entity_id="Intake",sensor_id="Inlet"}`:            20,
		`baremetal_temp_other_celsius` + of + `,entity_id="Under the desk",sensor_id="Somewhere"}`: 1,
		`baremetal_temperature_status` + of + `,entity_id="CPU",sensor_id="CPU1 Temp"}`:            0,
		`baremetal_temperature_status` + of + `,entity_id="Intake",sensor_id="Inlet"}`:             1,
		`baremetal_fan_status` + of + `,entity_id="fan",sensor_id="Fan1"}`:                         0,
		`baremetal_fan_status` + of + `,entity_id="fan",sensor_id="Fan2"}`:                         1,
		`baremetal_fan_rpm` + of + `,entity_id="fan",sensor_id="Fan1"}`:                            4200,
		`baremetal_voltage_volts` + of + `,entity_id="voltage",sensor_id="PSU 1 input"}`:           230,
		`baremetal_pwr_consumption` + of + `,entity_id="power",sensor_id="System"}`:                180,
		`baremetal_drive_status` + of + `,entity_id="HDD",sensor_id="Disk 0"}`:                     0,
		`baremetal_drive_status` + of + `,entity_id="HDD",sensor_id="Disk 1"}`:                     1,
		`baremetal_power_status` + of + `,entity_id="PSU",sensor_id="PSU 1"}`:                      1,
	})
	want(t, scrape(t, s), "ingot_nodes_health", map[string]float64{`ingot_nodes_health{health="Warning"}`: 1})
	s.Forget("u-1")
	want(t, scrape(t, s), "baremetal_", map[string]float64{})
}

// TestHostileNames: a text of a machine or a tenant is one label's value, whatever is in it, and never a line or a name
// of its own.
func TestHostileNames(t *testing.T) {
	s := New(Config{NodeSeries: 1000})
	hostile := []string{`a"} 1` + "\n" + `ingot_store_fault 1`, "\xff\xfe", `\`, `\"`, `{`, "\n\n", "a\r\nb", `"`,
		strings.Repeat("long", 100), "node_uuid", "\x00", "é\u202e"}
	for i, name := range hostile {
		r := reading(now)
		for k := range r.Sensors {
			r.Sensors[k].Name += name
			r.Sensors[k].Context = name
		}
		r.Checked[0].Name = name
		r.Health = name
		s.Reading(&node.Node{UUID: fmt.Sprint(i), Name: name, InstanceUUID: name}, r)
		s.Called(name, name, "read power", "", time.Second)
		s.JobEnded(nil, &node.Job{Phase: node.PhaseDeploy, Steps: []node.JobStep{{Interface: name, Name: name,
			Status: node.StepDone, StartedAt: now, EndedAt: now}}})
	}
	known := map[string]bool{}
	for _, d := range s.Descriptions() {
		known[d.Name] = true
	}
	nodes := map[string]bool{}
	for key, v := range scrape(t, s) {
		name, labels, _ := strings.Cut(key, "{")
		if !known[name] && !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			t.Errorf("a metric that there is not: %s %v", key, v)
		}
		if name == "baremetal_pwr_consumption" {
			nodes[labels] = true
		}
		if name == "ingot_store_fault" {
			t.Errorf("%s %v was made up", key, v)
		}
	}
	if len(nodes) != len(hostile) {
		t.Errorf("%d nodes are shown, want %d", len(nodes), len(hostile))
	}
}

// TestNodeSeriesAreBounded: whole nodes are left out, and it is said how many series that were; old readings go.
func TestNodeSeriesAreBounded(t *testing.T) {
	at := now
	s := New(Config{NodeSeries: 50, Fresh: time.Hour, Now: func() time.Time { return at }})
	for i := range 10 {
		s.Reading(&node.Node{UUID: fmt.Sprintf("%02d", i), Name: fmt.Sprint("n", i)}, reading(now))
	}
	each := 14.0
	got := scrape(t, s)
	want(t, got, "ingot_metrics_node", map[string]float64{`ingot_metrics_node_series{what="shown"}`: 3 * each,
		`ingot_metrics_node_series{what="left out"}`: 7 * each})
	want(t, got, "baremetal_fan_rpm", map[string]float64{
		`baremetal_fan_rpm{node_name="n0",node_uuid="00",instance_uuid="",entity_id="fan",sensor_id="Fan1"}`: 4200,
		`baremetal_fan_rpm{node_name="n1",node_uuid="01",instance_uuid="",entity_id="fan",sensor_id="Fan1"}`: 4200,
		`baremetal_fan_rpm{node_name="n2",node_uuid="02",instance_uuid="",entity_id="fan",sensor_id="Fan1"}`: 4200})
	at = at.Add(time.Hour + time.Second)
	want(t, scrape(t, s), "baremetal_", map[string]float64{})
	off := New(Config{})
	off.Reading(&node.Node{UUID: "1"}, reading(now))
	want(t, scrape(t, off), "baremetal_", map[string]float64{})
}

// TestLabelValuesAreBounded by their setting: what comes after is counted together.
func TestLabelValuesAreBounded(t *testing.T) {
	for most, vendors := range map[int]int{3: 3, 0: 16, 1000: 16} {
		s := New(Config{LabelValues: most})
		for i := range 500 {
			name := fmt.Sprint("x", i)
			s.Called(name, name, "read power", "", time.Second)
			s.JobEnded(nil, &node.Job{Phase: node.PhaseDeploy, Steps: []node.JobStep{{Interface: "deploy", Name: name,
				Status: node.StepDone, StartedAt: now, EndedAt: now}}})
		}
		values := map[string]map[string]bool{"ingot_step_seconds": {}, "ingot_controller_call_seconds": {}}
		for key := range scrape(t, s) {
			for name, label := range map[string]string{"ingot_step_seconds": "step", "ingot_controller_call_seconds": "vendor"} {
				if _, after, ok := strings.Cut(key, label+`="`); ok && strings.HasPrefix(key, name+"{") {
					value, _, _ := strings.Cut(after, `"`)
					values[name][value] = true
				}
			}
		}
		steps := len(values["ingot_step_seconds"])
		if want := min(500, cmp.Or(most, 200)+1); steps != want {
			t.Errorf("with %d there are %d steps, want %d", most, steps, want)
		}
		if got := len(values["ingot_controller_call_seconds"]); got != vendors+1 {
			t.Errorf("with %d there are %d vendors, want %d", most, got, vendors+1)
		}
		if !values["ingot_controller_call_seconds"]["other"] {
			t.Error("those beyond the bound are not counted")
		}
	}
}
