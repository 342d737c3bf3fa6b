package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// row is the figures of one number of nodes.
type row struct {
	Nodes      int    `json:"nodes"`
	Engine     string `json:"engine"`
	Conductors int    `json:"conductors"`
	// Of idle agents: resident memory in MiB and processor seconds per second, over all ingotd; then of each process,
	// PostgreSQL included, and PostgreSQL's connections.
	MemoryMiB   float64 `json:"memory_mib"`
	IdleCPU     float64 `json:"idle_cpu"`
	Each        []usage `json:"each"`
	Connections int64   `json:"connections,omitempty"`
	// Of the return of all agents after a restart of all conductors: seconds, agents that were refused, and one node of
	// the API meanwhile, in ms.
	Back       float64 `json:"back_s"`
	Refused    int     `json:"refused"`
	BackAPIP50 float64 `json:"back_api_p50_ms"`
	BackAPIP99 float64 `json:"back_api_p99_ms"`
	// Of the end of one of several conductors: its nodes, and seconds from the end of its lease until each has another
	// owner, and until each agent has a session.
	Taken         int     `json:"taken,omitempty"`
	TakenOwners   float64 `json:"taken_owners_s,omitempty"`
	TakenSessions float64 `json:"taken_sessions_s,omitempty"`
	// Of deployments of all nodes at once: seconds until all are active, deployments per minute, and seconds from a
	// node's request until it is active, of which its machine spends 11 to 33.
	Deploy    float64 `json:"deploy_s"`
	PerMinute float64 `json:"per_minute"`
	EachP50   float64 `json:"each_p50_s"`
	EachP99   float64 `json:"each_p99_s"`
	// Queue is how long a node's deployment waited for a conductor, in seconds.
	QueueP50 float64 `json:"queue_p50_s"`
	QueueP99 float64 `json:"queue_p99_s"`
	QueueMax float64 `json:"queue_max_s"`
	// Of the API while all nodes are deployed: one node, in ms.
	APIP50 float64 `json:"api_p50_ms"`
	APIP99 float64 `json:"api_p99_ms"`
	// Of readers of the stream of events meanwhile: the events of each, those that some missed or got in another order,
	// and ms from an event's time to its arrival.
	Watchers int     `json:"watchers"`
	Events   int     `json:"events"`
	Missed   int     `json:"missed"`
	Disorder int     `json:"disorder"`
	DelayP50 float64 `json:"delay_p50_ms"`
	DelayP99 float64 `json:"delay_p99_ms"`
	// Of pages of 1000 nodes afterwards: how many, ms of one, and of all.
	Pages   int     `json:"pages"`
	PageP50 float64 `json:"page_p50_ms"`
	PageMax float64 `json:"page_max_ms"`
	List    float64 `json:"list_ms"`
	// NodeKiB is how much the database grew with each node until it was available, DeployKiB with its deployment.
	NodeKiB   float64 `json:"node_kib"`
	DeployKiB float64 `json:"deploy_kib"`
	// Overlaps is how often a controller was asked while another request waited there.
	Overlaps int64 `json:"overlaps"`
	Failed   int   `json:"failed"`
}

// flat is how fast the same machines are deployed with so many nodes in the store.
type flat struct {
	Nodes     int     `json:"nodes"`
	PerMinute float64 `json:"per_minute"`
	EachP50   float64 `json:"each_p50_s"`
}

type report struct {
	At      time.Time `json:"at"`
	Machine string    `json:"machine"`
	Rows    []row     `json:"rows"`
	Flat    []flat    `json:"flat"`
	Goals   []goal    `json:"goals"`
}

// goal is one figure that is promised.
type goal struct {
	What string  `json:"what"`
	Is   float64 `json:"is"`
	Want float64 `json:"want"`
	Most bool    `json:"most"` // Want is the most that Is may be; else the least
}

func (g goal) met() bool { return g.Most && g.Is <= g.Want || !g.Most && g.Is >= g.Want }

// promised is the number of nodes of which memory and processor time are promised; fewer need less anyway.
const promised = 10_000

// slack is how many seconds the longest queue time may be more than twice the median, which it is where all come at
// once and each has its turn.
const slack = 1

// goals holds the figures against what is promised.
func (r *report) goals() (all []goal) {
	for _, x := range r.Rows {
		most := func(is, want float64, format string, args ...any) {
			all = append(all, goal{fmt.Sprintf("%d nodes, %d ingotd, %s: ", x.Nodes, x.Conductors, x.Engine) +
				fmt.Sprintf(format, args...), is, want, true})
		}
		if x.Nodes >= promised {
			most(x.MemoryMiB, 1536, "MiB for idle agents")
			most(x.IdleCPU, 0.6, "cores for idle agents")
		}
		most(x.Back, 60, "s until all agents are back after a restart")
		most(float64(x.Refused), 0, "agents that were refused")
		if x.Taken > 0 {
			most(max(x.TakenOwners, x.TakenSessions), 30, "s after the lease until %d nodes were taken over", x.Taken)
		}
		most(x.QueueMax, 2*x.QueueP50+slack, "s of the longest queue time: twice the median and a second")
		most(float64(x.Overlaps), 0, "controllers that were asked twice at once")
		most(float64(x.Failed), 0, "deployments that failed")
		if x.Watchers > 0 {
			most(float64(x.Missed+x.Disorder), 0, "events that %d watchers missed or got in another order", x.Watchers)
		}
	}
	if len(r.Flat) > 1 {
		first, last := r.Flat[0], r.Flat[len(r.Flat)-1]
		all = append(all, goal{fmt.Sprintf("deployments per minute with %d nodes in the store, to those with %d", last.Nodes,
			first.Nodes), last.PerMinute / first.PerMinute, 0.8, false})
	}
	return all
}

// missed counts goals that are not met.
func (r *report) missed() (n int) {
	for _, g := range r.Goals {
		if !g.met() {
			n++
		}
	}
	return n
}

// percentile sorts a list; it is zero for an empty one.
func percentile(all []float64, p int) float64 {
	if len(all) == 0 {
		return 0
	}
	slices.SortFunc(all, cmp.Compare[float64])
	return all[(len(all)-1)*p/100]
}

// columns are what the tables show of a row, in three tables: one would be too wide to read.
var columns = [][]struct {
	head string
	cell func(row) string
}{
	{
		{"memory MiB", func(x row) string { return fmt.Sprintf("%.0f", x.MemoryMiB) }},
		{"idle CPU cores", func(x row) string { return fmt.Sprintf("%.3f", x.IdleCPU) }},
		{"of each: MiB, cores", func(x row) string {
			var all []string
			for _, u := range x.Each {
				all = append(all, fmt.Sprintf("%s %.0f, %.3f", u.Name, u.MemoryMiB, u.CPU))
			}
			return strings.Join(all, "; ")
		}},
		{"connections", func(x row) string { return fmt.Sprint(x.Connections) }},
		{"KiB per node / deployment", func(x row) string { return fmt.Sprintf("%.0f / %.0f", x.NodeKiB, x.DeployKiB) }},
		{"all back s", func(x row) string { return fmt.Sprintf("%.1f", x.Back) }},
		{"GET p50 / p99 ms meanwhile", func(x row) string {
			return fmt.Sprintf("%.1f / %.1f", x.BackAPIP50, x.BackAPIP99)
		}},
		{"refused", func(x row) string { return fmt.Sprint(x.Refused) }},
		{"taken over: nodes", func(x row) string { return fmt.Sprint(x.Taken) }},
		{"owners / agents s", func(x row) string { return fmt.Sprintf("%.1f / %.1f", x.TakenOwners, x.TakenSessions) }},
	},
	{
		{"all active s", func(x row) string { return fmt.Sprintf("%.1f", x.Deploy) }},
		{"per minute", func(x row) string { return fmt.Sprintf("%.0f", x.PerMinute) }},
		{"each p50 / p99 s", func(x row) string { return fmt.Sprintf("%.1f / %.1f", x.EachP50, x.EachP99) }},
		{"queue p50 / p99 / max s", func(x row) string {
			return fmt.Sprintf("%.2f / %.2f / %.2f", x.QueueP50, x.QueueP99, x.QueueMax)
		}},
		{"GET p50 / p99 ms", func(x row) string { return fmt.Sprintf("%.1f / %.1f", x.APIP50, x.APIP99) }},
		{"overlaps", func(x row) string { return fmt.Sprint(x.Overlaps) }},
		{"failed", func(x row) string { return fmt.Sprint(x.Failed) }},
	},
	{
		{"watchers", func(x row) string { return fmt.Sprint(x.Watchers) }},
		{"events", func(x row) string { return fmt.Sprint(x.Events) }},
		{"missed", func(x row) string { return fmt.Sprint(x.Missed) }},
		{"disorder", func(x row) string { return fmt.Sprint(x.Disorder) }},
		{"delay p50 / p99 ms", func(x row) string { return fmt.Sprintf("%.0f / %.0f", x.DelayP50, x.DelayP99) }},
		{"pages", func(x row) string { return fmt.Sprint(x.Pages) }},
		{"page p50 / max ms", func(x row) string { return fmt.Sprintf("%.0f / %.0f", x.PageP50, x.PageMax) }},
		{"all pages ms", func(x row) string { return fmt.Sprintf("%.0f", x.List) }},
	},
}

// table is the figures as Markdown.
func (r *report) table() string {
	var b strings.Builder
	for _, cols := range columns {
		if len(r.Rows) == 0 {
			break
		}
		line := []string{"nodes", "ingotd", "database"}
		for _, c := range cols {
			line = append(line, c.head)
		}
		fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(line, " | "), strings.Repeat("---|", len(line)))
		for _, x := range r.Rows {
			line = []string{fmt.Sprint(x.Nodes), fmt.Sprint(x.Conductors), x.Engine}
			for _, c := range cols {
				line = append(line, c.cell(x))
			}
			fmt.Fprintf(&b, "| %s |\n", strings.Join(line, " | "))
		}
		b.WriteString("\n")
	}
	if len(r.Flat) > 0 {
		b.WriteString("| nodes in the store | deployments per minute | each p50 s |\n|---|---|---|\n")
		for _, x := range r.Flat {
			fmt.Fprintf(&b, "| %d | %.0f | %.1f |\n", x.Nodes, x.PerMinute, x.EachP50)
		}
	}
	return b.String()
}

// print prints the tables and the goals.
func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "\n%s\nGoals\n\n", r.table())
	t := tabwriter.NewWriter(w, 0, 8, 1, ' ', 0)
	for _, g := range r.Goals {
		how, verdict := "≥", "met"
		if g.Most {
			how = "≤"
		}
		if !g.met() {
			verdict = "MISSED"
		}
		fmt.Fprintf(t, "%s\t%.2f\t%s %.2f\t%s\n", g.What, g.Is, how, g.Want, verdict)
	}
	t.Flush()
}

// write puts the report into dir as bench-fleet.json and bench-fleet.md.
func (r *report) write(dir string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "bench-fleet.json"), append(text, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, "bench-fleet.md"), []byte(r.table()), 0o644))
}
