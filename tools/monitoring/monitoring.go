// Package monitoring has Grafana's boards for Ingot, as tables of panels, from which the JSON in grafana/ is made
// (go test ./tools/monitoring -update). The rules for alerts and their tests, for Prometheus, are in prometheus/.
//
// Numbers of nodes are those of the whole database at each conductor, so panels take their maximum over conductors; all
// other numbers are added. A test reads every query and compares its metrics and labels with those of a real ingotd.
package monitoring

import (
	"encoding/json"
	"fmt"
)

// Board is a page of panels.
type Board struct {
	File, Title, Text string
	Panels            []Panel
}

// Panel is one picture. Kind is Grafana's: "timeseries", "stat", "bargauge", "table" or "heatmap".
type Panel struct {
	Title, Kind, Unit string
	Width             int // of 24
	Queries           []Query
}

// Query is an expression of PromQL and the legend of its series, with {{label}} in it.
type Query struct{ Expr, Legend string }

// byConductor is the variable of all boards: conductors by their address, as Prometheus names targets.
const byConductor = `instance=~"$conductor"`

func series(title, unit string, queries ...Query) Panel {
	return Panel{Title: title, Kind: "timeseries", Unit: unit, Width: 12, Queries: queries}
}

func number(title, unit, expr string) Panel {
	return Panel{Title: title, Kind: "stat", Unit: unit, Width: 4, Queries: []Query{{expr, ""}}}
}

// quantiles are the median and the 95th percentile of a histogram, by labels.
func quantiles(metric, by, legend string) []Query {
	var out []Query
	for _, q := range []string{"0.5", "0.95"} {
		out = append(out, Query{fmt.Sprintf("histogram_quantile(%s, sum by (le, %s) (rate(%s_bucket{%s}[$__rate_interval])))",
			q, by, metric, byConductor), legend + " " + q})
	}
	return out
}

// per is how often something was counted in a second, by labels.
func per(metric, by string) string {
	return fmt.Sprintf("sum by (%s) (rate(%s{%s}[$__rate_interval]))", by, metric, byConductor)
}

// Boards lists all of them.
func Boards() []Board {
	return []Board{nodesBoard(), deployments(), controllers(), conductors(), machines()}
}

func nodesBoard() Board {
	return Board{"ingot-fleet.json", "Ingot / Fleet", "Nodes by state, what fails, and what is under way.", []Panel{
		number("Nodes", "none", "sum(max without (instance) (ingot_nodes))"),
		number("Active", "none", `sum(max without (instance) (ingot_nodes{state="active"}))`),
		number("Available", "none", `sum(max without (instance) (ingot_nodes{state="available"}))`),
		number("Failed", "none", `sum(max without (instance) (ingot_nodes{state=~".* failed|error"})) or vector(0)`),
		number("With a fault", "none", "sum(max without (instance) (ingot_nodes_fault)) or vector(0)"),
		number("In maintenance", "none", "max(ingot_nodes_maintenance)"),
		series("Nodes by provision state", "none", Query{"max by (state) (ingot_nodes)", "{{state}}"}),
		series("Nodes by power state", "none", Query{"max by (power) (ingot_nodes_power)", "{{power}}"}),
		series("Faults", "none", Query{"max by (fault) (ingot_nodes_fault)", "{{fault}}"}),
		series("Longest time in a state of work", "s",
			Query{"max by (state) (ingot_node_state_oldest_seconds)", "{{state}}"}),
		series("Jobs that ended", "ops",
			Query{per("ingot_job_seconds_count", "phase, outcome"), "{{phase}} {{outcome}}"}),
		series("Health that controllers report", "none",
			Query{fmt.Sprintf("sum by (health) (ingot_nodes_health{%s})", byConductor), "{{health}}"}),
	}}
}

func deployments() Board {
	return Board{"ingot-deployments.json", "Ingot / Deployments", "How long deployments take, where, and how fast.", []Panel{
		number("Deployed in a day", "none",
			`sum(increase(ingot_job_seconds_count{phase="deploy", outcome="done"}[1d]))`),
		number("Failed in a day", "none",
			`sum(increase(ingot_job_seconds_count{phase="deploy", outcome="failed"}[1d])) or vector(0)`),
		number("Median time", "s",
			`histogram_quantile(0.5, sum by (le) (rate(ingot_job_seconds_bucket{phase="deploy", outcome="done"}[1d])))`),
		number("Written in a day", "bytes", "sum(increase(ingot_step_written_bytes_total[1d]))"),
		number("Agents connected", "none", "sum(ingot_agents_connected)"),
		number("Images sent in a day", "bytes", `sum(increase(ingot_boot_http_bytes_total{kind="image"}[1d]))`),
		series("Time of jobs", "s", quantiles("ingot_job_seconds", "phase", "{{phase}}")...),
		series("Time of steps", "s", quantiles("ingot_step_seconds", "step", "{{step}}")...),
		series("Steps that failed", "ops",
			Query{fmt.Sprintf(`sum by (step) (rate(ingot_step_seconds_count{outcome="failed", %s}[$__rate_interval]))`,
				byConductor), "{{step}}"}),
		series("Speed of writing", "Bps", quantiles("ingot_step_write_bytes_per_second", "step", "{{step}}")...),
		series("Time in provision states", "s", quantiles("ingot_node_state_seconds", "state", "{{state}}")...),
		series("What agents do", "ops",
			Query{per("ingot_agent_events_total", "event, outcome"), "{{event}} {{outcome}}"}),
		series("DHCP and TFTP", "ops", Query{per("ingot_boot_answers_total", "service, kind"), "{{service}} {{kind}}"},
			Query{per("ingot_boot_refusals_total", "service, reason"), "{{service}} refused: {{reason}}"}),
		series("HTTP of the provisioning network", "Bps",
			Query{per("ingot_boot_http_bytes_total", "kind"), "{{kind}}"}),
		series("Its requests", "ops", Query{per("ingot_boot_http_seconds_count", "kind, code"), "{{kind}} {{code}}"}),
		series("Addresses", "none",
			Query{fmt.Sprintf("sum by (state) (ingot_dhcp_leases{%s})", byConductor), "{{state}}"}),
	}}
}

func controllers() Board {
	return Board{"ingot-controllers.json", "Ingot / Controllers", "Calls to machines' controllers (BMCs).", []Panel{
		series("Calls", "ops",
			Query{per("ingot_controller_call_seconds_count", "interface, outcome"), "{{interface}} {{outcome}}"}),
		series("Share of calls that fail, by vendor", "percentunit", Query{fmt.Sprintf(
			`sum by (vendor) (rate(ingot_controller_call_seconds_count{outcome!="ok", %[1]s}[$__rate_interval])) / sum by (vendor) (rate(ingot_controller_call_seconds_count{%[1]s}[$__rate_interval]))`,
			byConductor), "{{vendor}}"}),
		series("Time of calls by vendor", "s", quantiles("ingot_controller_call_seconds", "vendor", "{{vendor}}")...),
		series("Time of calls by call", "s", quantiles("ingot_controller_call_seconds", "call", "{{call}}")...),
		series("Nodes that wait for a controller", "none",
			Query{fmt.Sprintf("sum by (instance) (ingot_engine_waiting_for_controller{%s})", byConductor), "{{instance}}"}),
	}}
}

func conductors() Board {
	here := func(metric string) []Query {
		return []Query{{fmt.Sprintf("%s{%s}", metric, byConductor), "{{instance}}"}}
	}
	return Board{"ingot-conductors.json", "Ingot / Conductors", "The programs themselves: API, work, database.", []Panel{
		number("Up", "none", `max(ingot_conductors{state="up"})`),
		number("Draining", "none", `max(ingot_conductors{state="draining"})`),
		number("Gone", "none", `max(ingot_conductors{state="gone"})`),
		number("Days to the end of a certificate", "none", "min(ingot_certificate_days)"),
		number("Watchers of events", "none", "sum(ingot_event_watchers)"),
		number("Database", "bytes", "max(ingot_store_bytes)"),
		series("Requests", "reqps", Query{per("ingot_api_request_seconds_count", "code"), "{{code}}"}),
		series("Time of requests", "s",
			quantiles("ingot_api_request_seconds", "route, method", "{{method}} {{route}}")...),
		series("Nodes by conductor", "none", here("ingot_nodes_owned")...),
		series("Work", "none", Query{fmt.Sprintf("ingot_engine_working{%s}", byConductor), "{{instance}} working"},
			Query{fmt.Sprintf("ingot_engine_due{%s}", byConductor), "{{instance}} waiting"}),
		series("Statements to the database", "ops", Query{per("ingot_store_statement_seconds_count", "statement"),
			"{{statement}}"}),
		series("Time of statements", "s", quantiles("ingot_store_statement_seconds", "statement", "{{statement}}")...),
		series("Statements that failed", "ops", Query{per("ingot_store_failures_total", "kind"), "{{kind}}"}),
		series("Writes that wait", "none", here("ingot_store_writes_waiting")...),
		series("Writes in one transaction", "none",
			Query{fmt.Sprintf("rate(ingot_store_group_writes_sum{%[1]s}[$__rate_interval]) / rate(ingot_store_group_writes_count{%[1]s}[$__rate_interval])",
				byConductor), "{{instance}}"}),
		series("Events that the slowest watcher lacks", "none", here("ingot_event_lag")...),
		series("Events", "ops", Query{"max(rate(ingot_event_last[$__rate_interval]))", "events"}),
		series("Memory", "bytes", here("process_resident_memory_bytes")...),
		series("Processor", "none", Query{fmt.Sprintf("rate(process_cpu_seconds_total{%s}[$__rate_interval])", byConductor),
			"{{instance}}"}),
		series("Open files", "none", here("process_open_fds")...),
		series("Longest silence of a connected agent", "s", here("ingot_agent_silence_seconds")...),
		series("Audit log", "ops", Query{per("ingot_audit_lines_total", "sink, outcome"), "{{sink}} {{outcome}}"}),
		series("Spans of traces", "ops", Query{per("ingot_traces_spans_total", "outcome"), "{{outcome}}"}),
		series("Time of scrapes", "s", quantiles("ingot_metrics_scrape_seconds", "instance", "{{instance}}")...),
	}}
}

func machines() Board {
	return Board{"ingot-machines.json", "Ingot / Machines", "Sensors of machines with Redfish.", []Panel{
		number("Drives that fail", "none", "sum(max by (node_uuid, sensor_id) (baremetal_drive_status)) or vector(0)"),
		number("Power supplies that fail", "none", "sum(max by (node_uuid, sensor_id) (baremetal_power_status)) or vector(0)"),
		number("Fans that fail", "none", "sum(max by (node_uuid, sensor_id) (baremetal_fan_status)) or vector(0)"),
		number("Power", "watt", "sum(max by (node_uuid, sensor_id) (baremetal_pwr_consumption))"),
		series("Hottest processors", "celsius",
			Query{"topk(10, max by (node_name, sensor_id) (baremetal_temp_cpu_celsius))", "{{node_name}} {{sensor_id}}"}),
		series("Hottest inlets", "celsius",
			Query{"topk(10, max by (node_name, sensor_id) (baremetal_temp_intake_celsius))", "{{node_name}} {{sensor_id}}"}),
		series("Fans", "rotrpm",
			Query{"topk(10, max by (node_name, sensor_id) (baremetal_fan_rpm))", "{{node_name}} {{sensor_id}}"}),
		series("Oldest readings", "s",
			Query{"topk(10, time() - max by (node_name) (baremetal_last_payload_timestamp_seconds))", "{{node_name}}"}),
	}}
}

// JSON is a board as Grafana imports it. The same board has the same text.
func (b Board) JSON() ([]byte, error) {
	type object = map[string]any
	source := object{"type": "prometheus", "uid": "${source}"}
	panels := []object{}
	x, y, height := 0, 0, 0
	for i, p := range b.Panels {
		if x+p.Width > 24 {
			x, y, height = 0, y+height, 0
		}
		h := 8
		if p.Kind == "stat" {
			h = 4
		}
		var targets []object
		for k, q := range p.Queries {
			targets = append(targets, object{"datasource": source, "expr": q.Expr, "legendFormat": q.Legend,
				"refId": string(rune('A' + k))})
		}
		panels = append(panels, object{"id": i + 1, "title": p.Title, "type": p.Kind, "datasource": source,
			"gridPos":     object{"x": x, "y": y, "w": p.Width, "h": h},
			"fieldConfig": object{"defaults": object{"unit": p.Unit}, "overrides": []any{}}, "targets": targets})
		x, height = x+p.Width, max(height, h)
	}
	board := object{"uid": b.File[:len(b.File)-len(".json")], "title": b.Title, "description": b.Text,
		"tags": []string{"ingot"}, "schemaVersion": 39, "refresh": "30s", "editable": true,
		"time": object{"from": "now-6h", "to": "now"}, "panels": panels,
		"templating": object{"list": []object{
			{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
			{"name": "conductor", "label": "Conductor", "type": "query", "datasource": source, "multi": true,
				"includeAll": true, "allValue": ".*", "query": "label_values(ingot_nodes_owned, instance)",
				"current": object{"text": "All", "value": "$__all"}, "refresh": 2},
		}}}
	text, err := json.MarshalIndent(board, "", "  ")
	return append(text, '\n'), err
}
