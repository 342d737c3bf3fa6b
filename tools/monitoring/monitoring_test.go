package monitoring

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"gopkg.in/yaml.v3"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/observe/metrics"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/redfish"
	"github.com/ingot-metal/ingot/test/kit/simulated"
	"github.com/ingot-metal/ingot/tools/lab/fleet"
)

// TestBoards makes the files of the boards, or holds them to the tables of panels.
func TestBoards(t *testing.T) {
	names := map[string]bool{}
	for _, b := range Boards() {
		text, err := b.JSON()
		if err != nil {
			t.Fatal(err)
		}
		kit.Document(t, "grafana/"+b.File, string(text))
		names[b.File] = true
		titles := map[string]bool{}
		for _, p := range b.Panels {
			if titles[p.Title] || len(p.Queries) == 0 || p.Unit == "" {
				t.Errorf("%s: panel %q is there twice, or has no query or unit", b.Title, p.Title)
			}
			titles[p.Title] = true
		}
	}
	files, err := os.ReadDir("grafana")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !names[f.Name()] {
			t.Errorf("grafana/%s is no board of this package", f.Name())
		}
	}
}

// rules are those of the file for Prometheus.
type rules struct {
	Groups []struct {
		Rules []struct {
			Alert, Expr         string
			Labels, Annotations map[string]string
		}
	}
}

func readRules(t *testing.T) (r rules) {
	t.Helper()
	text, err := os.ReadFile("prometheus/ingot.rules.yaml")
	if err == nil {
		err = yaml.Unmarshal(text, &r)
	}
	if err != nil || len(r.Groups) == 0 {
		t.Fatalf("read rules: %v", err)
	}
	return r
}

// TestRules: Prometheus' own tool accepts the rules, and each alert fires where it should, and not where it should not.
func TestRules(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", "ingot.rules.yaml"}, {"test", "rules", "ingot.tests.yaml"}} {
		cmd := exec.CommandContext(t.Context(), "promtool", args...)
		cmd.Dir = "prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v (it is in Debian's package prometheus)\n%s", strings.Join(args, " "), err, out)
		}
	}
	tests, err := os.ReadFile("prometheus/ingot.tests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range readRules(t).Groups {
		for _, r := range g.Rules {
			for _, what := range []string{"fires", "is quiet"} {
				if !strings.Contains(string(tests), "- name: "+r.Alert+" "+what+"\n") {
					t.Errorf("no test says that %s %s", r.Alert, what)
				}
			}
		}
	}
}

// TestRunbook: each alert has its part of the runbook, which says what to do, and the runbook has no others.
func TestRunbook(t *testing.T) {
	text, err := os.ReadFile("../../docs/howto/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]string{}
	for part := range strings.SplitSeq(string(text), "\n## ") {
		name, body, _ := strings.Cut(part, "\n")
		parts[name] = body
	}
	const page = "https://github.com/ingot-metal/ingot/blob/main/docs/howto/runbook.md#"
	alerts := map[string]bool{}
	for _, g := range readRules(t).Groups {
		for _, r := range g.Rules {
			alerts[r.Alert] = true
			if r.Annotations["runbook_url"] != page+strings.ToLower(r.Alert) {
				t.Errorf("%s leads to %q", r.Alert, r.Annotations["runbook_url"])
			}
			body := parts[r.Alert]
			if !strings.Contains(body, "**Do**") || len(strings.Fields(body)) < 15 {
				t.Errorf("the runbook says too little about %s: %q", r.Alert, body)
			}
			if s := r.Labels["severity"]; s != "critical" && s != "warning" || r.Annotations["summary"] == "" ||
				r.Annotations["description"] == "" {
				t.Errorf("%s has severity %q, summary %q", r.Alert, s, r.Annotations["summary"])
			}
		}
	}
	for name := range parts {
		if strings.HasPrefix(name, "Ingot") && !alerts[name] {
			t.Errorf("the runbook has a part for %s, which is no alert", name)
		}
	}
}

var (
	metricName = regexp.MustCompile(`\b(?:ingot|baremetal|process|go)_[a-z0-9_]+`)
	selector   = regexp.MustCompile(`\b((?:ingot|baremetal|process|go)_[a-z0-9_]+)\{([^}]*)\}`)
	labelName  = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!=|!~|=)`)
	grouping   = regexp.MustCompile(`(?:by|without) \(([^)]*)\)`)
	legend     = regexp.MustCompile(`\{\{([^}]*)\}\}`)
)

// ofPrometheus are labels that Prometheus adds.
var ofPrometheus = []string{"instance", "job", "le"}

// known has the labels of each metric.
type known map[string]map[string]bool

// check compares a query, or a legend's labels, with the metrics that there are.
func (k known) check(t *testing.T, where, expr string) {
	t.Helper()
	labels := map[string]bool{}
	found := 0
	for _, name := range metricName.FindAllString(expr, -1) {
		found++
		if k[name] == nil {
			t.Errorf("%s: there is no metric %s", where, name)
		}
		for l := range k[name] {
			labels[l] = true
		}
	}
	if found == 0 && !strings.HasPrefix(expr, "up{") {
		t.Errorf("%s names no metric: %s", where, expr)
	}
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		for _, l := range labelName.FindAllStringSubmatch(m[2], -1) {
			if !k[m[1]][l[1]] && !slices.Contains(ofPrometheus, l[1]) {
				t.Errorf("%s: %s has no label %s", where, m[1], l[1])
			}
		}
	}
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		for l := range strings.SplitSeq(m[1], ",") {
			if l = strings.TrimSpace(l); !labels[l] && !slices.Contains(ofPrometheus, l) {
				t.Errorf("%s: no metric of the query has the label %s", where, l)
			}
		}
	}
}

// rare are metrics that an ingotd shows only once something has gone wrong: they are compared with the descriptions.
var rare = []string{"ingot_metrics_source_errors_total", "ingot_boot_refusals_total", "ingot_nodes_fault"}

// off are metrics of what is off unless it is configured.
var off = []string{"ingot_traces_spans_total"}

// elsewhere are metrics of DHCP and TFTP, which a fleet does not use.
var elsewhere = []string{"ingot_boot_answers_total"}

// TestQueries: each metric and label that a board, a rule or a legend names is one of those that a real ingotd shows
// which has deployed machines of a fleet, and has read the sensors of one; and what it shows is described.
func TestQueries(t *testing.T) {
	shown := scrapeOfAFleet(t)
	described := known{}
	for _, d := range metrics.New(metrics.Config{}).Descriptions() {
		labels := map[string]bool{}
		for _, l := range d.Labels {
			labels[l] = true
		}
		described[d.Name] = labels
		if shown[d.Name] == nil && slices.Contains(slices.Concat(rare, elsewhere, off), d.Name) {
			shown[d.Name] = labels
		}
	}
	for name, labels := range shown {
		if !strings.HasPrefix(name, "ingot_") && !strings.HasPrefix(name, "baremetal_") {
			continue
		}
		base := name
		for _, end := range []string{"_bucket", "_sum", "_count"} {
			if b := strings.TrimSuffix(name, end); described[b] != nil {
				base = b
			}
		}
		for l := range labels {
			if !described[base][l] && l != "le" {
				t.Errorf("ingotd shows %s with label %s, which is not described", name, l)
			}
		}
	}
	for _, b := range Boards() {
		for _, p := range b.Panels {
			for _, q := range p.Queries {
				where := b.Title + ", " + p.Title
				shown.check(t, where, q.Expr)
				for _, l := range legend.FindAllStringSubmatch(q.Legend, -1) {
					if !strings.Contains(q.Expr, l[1]) && l[1] != "instance" {
						t.Errorf("%s: the legend names %s, which the query does not keep", where, l[1])
					}
				}
			}
		}
	}
	for _, g := range readRules(t).Groups {
		for _, r := range g.Rules {
			shown.check(t, r.Alert, r.Expr)
		}
	}
}

// scrapeOfAFleet has a real ingotd deploy machines over IPMI and read the sensors of one with Redfish, and returns what
// it shows meanwhile.
func scrapeOfAFleet(t *testing.T) known {
	r := simulated.New(t, map[string]map[string]any{"fetch": {"allow": []string{"127.0.0.0/8"}},
		"health": {"interval": "300ms"},
		"power":  {"sync_interval": "1s", "call_timeout": "5s", "retries": 1}})
	b := redfish.Start(t, redfish.Personality(t, "lenovo-xcc"))
	if _, err := r.API.CreateNode(t.Context(),
		client.NewNode{Name: "sensors", Driver: "redfish", DriverInfo: b.Info}); err != nil {
		t.Fatal(err)
	}
	if err := r.API.Provision(t.Context(), "sensors", client.ProvisionRequest{Target: "manage"}); err != nil {
		t.Fatal(err)
	}
	f := r.Machines(fleet.Options{Nodes: 3, Seed: 1, Boot: 100 * time.Millisecond, Write: 300 * time.Millisecond,
		Step: 20 * time.Millisecond})
	d := fleet.NewDriver(r.API, "active", 0, nil)
	if err := d.Create(t.Context(), f.Machines); err != nil {
		t.Fatal(err)
	}
	got := known{}
	ended := make(chan error, 1)
	go func() { ended <- d.Run(t.Context()) }()
	var err error
	kit.Eventually(t, 2*time.Minute, "the machines are deployed", func() bool {
		got.add(read(t, r.URL+"/metrics")) // some are shown only while there is work
		select {
		case err = <-ended:
			return true
		default:
			return false
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	// What is asked for at a scrape is a second old at most, and a machine's sensors are read when it is their turn.
	for end := time.Now().Add(20 * time.Second); len(got.lacks()) > 0 && time.Now().Before(end); {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-t.Context().Done():
		}
		got.add(read(t, r.URL+"/metrics"))
	}
	return got
}

// lacks lists the metrics of all boards that are not among these, apart from those that need not be.
func (k known) lacks() (names []string) {
	for _, b := range Boards() {
		for _, p := range b.Panels {
			for _, q := range p.Queries {
				for _, name := range metricName.FindAllString(q.Expr, -1) {
					if k[name] == nil && !slices.Contains(slices.Concat(rare, elsewhere, off), name) {
						names = append(names, name)
					}
				}
			}
		}
	}
	return names
}

// add adds what another scrape has shown.
func (k known) add(more known) {
	for name, labels := range more {
		if k[name] == nil {
			k[name] = map[string]bool{}
		}
		maps.Copy(k[name], labels)
	}
}

// read reads the names and labels of a scrape.
func read(t *testing.T, url string) known {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	out := known{}
	for name, f := range families {
		for _, m := range f.Metric {
			labels := map[string]bool{}
			for _, l := range m.Label {
				labels[l.GetName()] = true
			}
			names := []string{name}
			if f.GetType() == dto.MetricType_HISTOGRAM {
				names = []string{name + "_bucket", name + "_sum", name + "_count"}
			}
			for _, n := range names {
				if out[n] == nil {
					out[n] = map[string]bool{}
				}
				maps.Copy(out[n], labels)
			}
		}
	}
	return out
}

// TestCheckFinds: the comparison of queries reports what is wrong.
func TestCheckFinds(t *testing.T) {
	k := known{"ingot_nodes": {"state": true}}
	for expr, faults := range map[string]int{
		`sum by (state) (ingot_nodes{state="active"})`: 0, `ingot_nodess`: 1, `sum by (stat) (ingot_nodes)`: 1,
		`ingot_nodes{stat=~"x"}`: 1, `vector(1)`: 1, `max by (instance) (ingot_nodes{job="ingot"})`: 0,
	} {
		probe := &testing.T{}
		k.check(probe, "here", expr)
		if probe.Failed() != (faults > 0) {
			t.Errorf("%s: found a fault: %v, want %v", expr, probe.Failed(), faults > 0)
		}
	}
	if fmt.Sprint(metricName.FindAllString("sum(ingot_a) + go_b", -1)) != "[ingot_a go_b]" {
		t.Error("names of metrics are not found")
	}
}
