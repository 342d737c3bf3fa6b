package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/ingot-metal/ingot/conductor/agents/erasure"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store/postgres"
)

const day = 24 * time.Hour

// site is a store that ages: its nodes live through days, each of which takes a moment.
type site struct {
	t       testing.TB
	s       *Store
	clock   atomic.Int64 // microseconds; moves on with each reading, as time does between writes
	living  []string     // UUIDs of the nodes on which something happens
	reports atomic.Int64 // lines written
	marks   atomic.Int64
	made    int
	asked   sync.Map // statements, once asking is true
	asking  atomic.Bool
}

// Statement, StatementFailed and Group make the site the store's meter.
func (y *site) Statement(text string, _ time.Duration) {
	if y.asking.Load() {
		y.asked.Store(text, true)
	}
}
func (y *site) StatementFailed(string) {}
func (y *site) Group(int)              {}

// newSite ages the store of a database: of its options only the place is used.
func newSite(t testing.TB, o Options, k Keep) *site {
	y := &site{t: t}
	y.clock.Store(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
	now := func() time.Time { return time.UnixMicro(y.clock.Add(1)) }
	var err error
	o.Now, o.Keep, o.Alone, o.Meter = now, k, true, y
	if y.s, err = Open(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { y.must(y.s.Close()) })
	return y
}

func (y *site) must(err error) {
	if err != nil {
		y.t.Helper()
		y.t.Fatal(err)
	}
}

// each runs f for several numbers at once: the store writes for all of them in one transaction.
func (y *site) each(n int, f func(i int) error) {
	y.t.Helper()
	errs := make([]error, n)
	const atOnce = 64
	for first := 0; first < n; first += atOnce {
		var wg sync.WaitGroup
		for i := first; i < min(n, first+atOnce); i++ {
			wg.Go(func() { errs[i] = f(i) })
		}
		wg.Wait()
	}
	for _, err := range errs {
		y.must(err)
	}
}

// enrol makes a node as large as an inspected one with two ports.
func (y *site) enrol(ctx context.Context, name string) (string, error) {
	n := &node.Node{Name: name, Driver: "redfish", Provision: node.Available, Power: "power off",
		ResourceClass: "baremetal", SystemGUIDs: []string{uuid.NewString()},
		DriverInfo: map[string]any{"redfish_address": "https://192.0.2.1", "redfish_username": "admin",
			"redfish_password": "x"},
		Properties: map[string]any{"cpus": 64, "memory_mb": 524288, "local_gb": 960, "cpu_arch": "x86_64"}}
	if err := y.s.CreateNode(ctx, n); err != nil {
		return "", err
	}
	for k := range 2 {
		b := [16]byte(uuid.New())
		p := &node.Port{NodeUUID: n.UUID,
			Address: fmt.Sprintf("02:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], k)}
		if err := y.s.CreatePort(ctx, p); err != nil {
			return "", err
		}
	}
	_, err := y.s.Change(ctx, n.UUID, func(_ *node.Node, effects *node.SideEffects) error {
		effects.Inventory = fmt.Appendf(nil, `{"inventory": %q}`, strings.Repeat("disk", 4<<10))
		return nil
	})
	return n.UUID, err
}

// step is a part of a job: a state, and what machine, agent and conductor report meanwhile.
func (y *site) step(ctx context.Context, id, job string, to node.State, lines, marks int) error {
	_, err := y.s.Change(ctx, id, func(n *node.Node, effects *node.SideEffects) error {
		n.Provision, n.ProvisionUpdatedAt = to, y.s.now()
		if n.Power = "power on"; to == node.Available {
			n.Power = "power off"
		}
		if n.Job = nil; !to.IsStable() {
			n.Job = &node.Job{ID: job, Detail: "waiting for the agent"}
		}
		for i := range lines {
			effects.History = append(effects.History, node.HistoryEntry{Type: "provisioning", Conductor: "conductor-1",
				Event: fmt.Sprintf("step %d of the job: the agent reports that the disk sda has been written", i)})
		}
		for i := range marks {
			effects.Marks = append(effects.Marks,
				node.Mark{JobID: job, Name: fmt.Sprintf("step write_image phase %d", i), Detail: "198 MB/s"})
		}
		return nil
	})
	y.reports.Add(int64(lines))
	y.marks.Add(int64(marks))
	return err
}

// live is a node's day: every third one brings a deployment, and two days later the machine is cleaned; health, power
// and addresses are every day's.
func (y *site) live(ctx context.Context, i, number int) error {
	id, s := y.living[i], y.s
	user := node.WithRequester(ctx, node.Requester{User: "ann", Project: "web"})
	job := uuid.NewString()
	mac, ip := fmt.Sprintf("02:00:00:00:00:%02x", i), fmt.Sprintf("192.0.2.%d", i+1)
	states := map[int][]node.State{
		0: {node.Deploying, node.DeployWait, node.Deploying, node.Active},
		2: {node.Deleting, node.CleanWait, node.Cleaning, node.Available},
	}[(number+i)%3]
	if states != nil {
		if err := s.AddHistory(user, node.HistoryEntry{NodeUUID: id, Type: "provisioning", User: "ann",
			Event: "provision state requested through the API"}); err != nil {
			return err
		}
	}
	for _, to := range states {
		if err := y.step(ctx, id, job, to, 4, 12); err != nil {
			return err
		}
		if to != node.CleanWait {
			continue
		}
		for disk := range 2 {
			doc := fmt.Appendf(nil, `{"disk": %d, "report": %q}`, disk, strings.Repeat("proof", 300))
			if err := s.KeepErasure(ctx,
				erasure.Kept{ID: uuid.NewString(), NodeUUID: id, At: s.now(), Document: doc}); err != nil {
				return err
			}
		}
		if _, err := s.Change(ctx, id, func(_ *node.Node, effects *node.SideEffects) error {
			doc := json.RawMessage(`"` + strings.Repeat("r", 4<<10) + `"`)
			effects.Results = []node.LargeResult{{Ref: uuid.NewString(), Doc: doc}}
			return nil
		}); err != nil {
			return err
		}
	}
	value := float64(number)
	if err := s.KeepReading(ctx, node.Reading{NodeUUID: id, At: s.now(), Health: "OK",
		Sensors: slices.Repeat([]node.Sensor{{Name: "CPU 1", Kind: "temperature", Value: &value}}, 30)}); err != nil {
		return err
	}
	if err := s.PutLease(ctx,
		node.Lease{MAC: mac, IP: ip, NodeUUID: id, ExpiresAt: s.now().Add(time.Hour)}); err != nil {
		return err
	}
	y.reports.Add(1)
	return s.AddHistory(ctx, node.HistoryEntry{NodeUUID: id, Type: "power", Severity: "WARNING",
		Conductor: "conductor-1", Event: "the controller did not answer for 20 s: it is asked again"})
}

// pass is a day of the site: of its nodes; a request for a machine that there is none of; once a month a machine is
// replaced by another.
func (y *site) pass(ctx context.Context, number int) {
	y.t.Helper()
	y.each(len(y.living), func(i int) error { return y.live(ctx, i, number) })
	for range 4 {
		a := &node.Allocation{ResourceClass: "gpu"}
		a.State = node.AllocationAllocating
		y.must(y.s.Allocations().Create(ctx, a))
		_, err := y.s.Allocate(ctx, a.UUID,
			func(*node.Allocation, []Candidate) (string, string) {
				return "", "no available node has resource class gpu"
			})
		y.must(err)
	}
	if number%30 == 15 {
		i := number / 30 % len(y.living)
		y.must(y.s.DeleteNode(ctx, y.living[i]))
		y.made++
		var err error
		y.living[i], err = y.enrol(ctx, fmt.Sprintf("replacement-%d", y.made))
		y.must(err)
	}
	if y.s.server != nil && number%3 == 0 { // the server does so by itself when a fifth of a table's rows is dead
		_, err := y.s.w.ExecContext(ctx, `VACUUM history, marks, events, erasures, results, resources`)
		y.must(err)
	}
	y.clock.Add(day.Microseconds())
}

// rows counts the rows of every table; pages have the whole database, free ones too.
func (y *site) rows() (rows map[string]int, size int64) {
	y.t.Helper()
	names := `SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'`
	bytes := `SELECT page_count * page_size FROM pragma_page_count, pragma_page_size`
	if y.s.server != nil {
		names = `SELECT tablename FROM pg_tables WHERE schemaname = 'public'`
		bytes = `SELECT SUM(pg_total_relation_size(oid))::bigint FROM pg_class
			WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace`
	}
	tables, err := list(y.t.Context(), y.s.r, "list tables", into(text), names)
	y.must(err)
	rows = map[string]int{}
	for _, table := range tables {
		var n int
		y.must(y.s.r.QueryRow(`SELECT COUNT(*) FROM ` + table).Scan(&n))
		rows[table] = n
	}
	y.must(y.s.r.QueryRow(bytes).Scan(&size))
	return rows, size
}

// TestAYearOfAThousandNodes ages a store by a year. A site of 1,000 nodes writes some ten million rows in a year,
// which takes a quarter of an hour, so something happens on 8 of them only, and bounds on lines of all nodes are
// 8/1000 of the defaults. All bounds are a twelfth of that besides: the first month reaches what otherwise a year
// does, and the other eleven months, in which nothing may grow any more, are as good as eleven years. The result does
// not depend on the numbers: the statements that remove rows are the same, and the plans of those that read them say
// that each uses an index, or reads in order up to its limit. The race detector sees two months of fewer nodes.
func TestAYearOfAThousandNodes(t *testing.T) { Engines(t, testAYearOfAThousandNodes) }

func testAYearOfAThousandNodes(t *testing.T, o Options) {
	const nodes, living, shrink = 1000, 8, 12
	share := func(of int) int { return of * living / nodes / shrink }
	y := newSite(t, o, Keep{
		Requests: Kept{PerNode: 2000 / shrink, Total: share(500_000), Age: 730 * day / shrink},
		Reports:  Kept{PerNode: 1000 / shrink, Total: share(500_000), Age: 180 * day / shrink},
		Erasures: Kept{PerNode: limit.KeptErasures / shrink, Age: 20 * day}}) // of ten years, which no test reaches
	s, ctx := y.s, t.Context()
	s.room.marks, s.room.allocations = limit.KeptMarks/shrink, 20
	s.room.events, s.room.every = int64(share(limit.KeptEvents)), 4

	made, days := nodes, 365
	if raceOn {
		made, days = 3*living, 60
	}
	ids := make([]string, made)
	y.each(made, func(i int) (err error) {
		ids[i], err = y.enrol(ctx, fmt.Sprintf("node-%d", i))
		return err
	})
	y.living = ids[:living]

	type age struct {
		rows map[string]int
		size int64 // since the nodes were made
	}
	_, empty := y.rows()
	var month age
	for number := 1; number <= days; number++ {
		y.pass(ctx, number)
		// A server gives no room back either, but its tables fill up with the rows between two clearings.
		if number == 30 || s.server != nil && (number == 60 || number == 90) {
			rows, size := y.rows()
			month = age{rows, max(month.size, size-empty)}
		}
	}
	year := age{}
	year.rows, year.size = y.rows()
	year.size -= empty
	t.Logf("%d reports and %d marks were written. In the beginning +%d KiB: %v. After a year +%d KiB: %v", y.reports.Load(),
		y.marks.Load(), month.size>>10, month.rows, year.size>>10, year.rows)

	if year.size > month.size*3/2 {
		t.Errorf("the database grew by %d bytes in a year, and by %d in the beginning", year.size, month.size)
	}
	program := map[string]int{"goose_db_version": 100, "key_check": 1, "installation": 1, "shared": 1, "duties": 10,
		"pending": 10}
	if s.server != nil {
		program["conductors"] = 1
	} else if journal, err := os.Stat(filepath.Join(filepath.Dir(s.fault.file), DatabaseFile+"-wal")); err != nil ||
		journal.Size() > 2*journalSize {
		t.Errorf("the journal has %d bytes, want %d: %v", journal.Size(), journalSize, err)
	}
	// Rows beyond a bound stay until somebody looks, which is at one write of 64, or at some events.
	const late = 64 * 5
	bounds := map[string]int{
		"nodes": nodes, "node_guids": nodes, "inventories": nodes, "ports": 2 * nodes,
		"ended_sessions": 0,
		"config_drives":  0, "readings": living, "leases": living, "pool_members": 0, "promises": 0, "resource_keys": 0,
		"results":   living * keptResults,
		"history":   2*share(500_000) + 64*3*int(s.room.every), // lines of so many events come before they are counted
		"marks":     living * (s.room.marks + late),
		"events":    int(s.room.events) + late,
		"erasures":  20*living*2 + late,
		"resources": s.room.allocations + late,
	}
	maps.Copy(bounds, program)
	for table, bound := range bounds {
		if got, ok := year.rows[table]; !ok || got > bound {
			t.Errorf("table %s has %d rows (it exists: %v) after a year, want %d at most", table, got, ok, bound)
		}
		delete(year.rows, table)
	}
	if len(year.rows) > 0 {
		t.Errorf("what bounds these tables? %v", slices.Sorted(maps.Keys(year.rows)))
	}
	if got := y.marks.Load(); !raceOn && got < 10*living*int64(s.room.marks)/2 {
		t.Errorf("%d marks were written, too few to show a bound", got)
	}
	y.readsByIndex()
}

// readsByIndex reads as the API does, and looks at the plans of the statements that this took.
func (y *site) readsByIndex() {
	t, s, ctx, id := y.t, y.s, y.t.Context(), y.living[0]
	t.Helper()
	y.asking.Store(true)
	s.cache = newCache(-1, false)
	read := func(what string, n int, err error) {
		t.Helper()
		if err != nil || n == 0 {
			t.Errorf("%s: %d, %v", what, n, err)
		}
	}
	n, err := s.Node(ctx, id)
	read("node", 1, err)
	page, err := s.Nodes(ctx, Query{Limit: 100, Marker: n.UUID})
	read("nodes", len(page), err)
	idle, err := s.Idle(ctx)
	read("idle nodes", len(idle), err)
	history, err := s.History(ctx, id, 100)
	read("history", len(history), err)
	newest, err := s.Marks(ctx, id, "")
	read("marks", len(newest), err)
	marks, err := s.Marks(ctx, id, newest[len(newest)-1].JobID)
	read("marks of a job", len(marks), err)
	lines, err := s.Log(ctx, node.LogQuery{Limit: 100})
	read("log", len(lines), err)
	lines, err = s.Log(ctx, node.LogQuery{Limit: 100, Marker: lines[10].UUID})
	read("next page of the log", len(lines), err)
	lines, err = s.Log(ctx, node.LogQuery{Limit: 100, NodeUUID: id})
	read("log of a node", len(lines), err)
	lines, err = s.Log(ctx, node.LogQuery{Limit: 100, User: "ann"})
	read("log of a user", len(lines), err)
	lines, err = s.Log(ctx, node.LogQuery{Limit: 100, Since: s.now().Add(-10 * day)})
	read("log since", len(lines), err)
	events, err := s.Events(ctx, s.LastEvent()-50, 100)
	read("events", len(events), err)
	erasures, err := s.Erasures(ctx, id)
	read("erasures", len(erasures), err)
	results, err := s.Results(ctx, id)
	read("results", len(results), err)
	_, err = s.Inventory(ctx, id)
	read("inventory", 1, err)
	_, err = s.Reading(ctx, id)
	read("health", 1, err)
	_, err = s.Allocating(ctx)
	read("allocating", 1, err)
	at, err := s.Newest(ctx)
	read("newest", int(at.Unix()), err)

	y.asking.Store(false)
	conn, err := s.r.Conn(ctx)
	y.must(err)
	defer conn.Close()
	seen := map[string]bool{}
	y.asked.Range(func(text, _ any) bool {
		q := text.(string)
		for _, table := range []string{"history", "events", "marks", "erasures", "results", "resources",
			"inventories"} {
			if strings.Contains(q, "COUNT(*)") || !strings.Contains(q, "FROM "+table) {
				continue
			}
			seen[table] = true
			// These two are read from their ends, up to a limit.
			ends := slices.ContainsFunc([]string{"FROM history ORDER BY seq DESC LIMIT ?",
				"FROM events ORDER BY id DESC LIMIT 1)"}, func(end string) bool { return strings.HasSuffix(q, end) })
			whole := y.wholeTables
			if s.server != nil {
				whole = y.wholeTablesOfServer
			}
			for _, line := range whole(conn, q) {
				if !ends {
					t.Errorf("a read goes through all of table %s (%s): %s", table, line, q)
				}
			}
		}
		return true
	})
	if len(seen) < 7 {
		t.Errorf("of the tables that grow, reads of %v only were looked at", slices.Sorted(maps.Keys(seen)))
	}
}

// wholeTables returns the parts of SQLite's plan for a query that read a whole table.
func (y *site) wholeTables(conn *sql.Conn, query string) []string {
	y.t.Helper()
	lines, err := plan(y.t.Context(), conn, query)
	y.must(err)
	return slices.DeleteFunc(lines, func(line string) bool { return !strings.HasPrefix(line, "SCAN ") })
}

// serverPlan is a part of PostgreSQL's plan.
type serverPlan struct {
	Type     string       `json:"Node Type"`
	Relation string       `json:"Relation Name"`
	Index    string       `json:"Index Name"`
	Cond     string       `json:"Index Cond"`
	Plans    []serverPlan `json:"Plans"`
}

// wholeTablesOfServer is wholeTables of PostgreSQL: what it can't find by an index whatever is asked for. With few rows
// it may prefer to read them in order, up to a limit, so the order is left out.
func (y *site) wholeTablesOfServer(conn *sql.Conn, query string) (found []string) {
	y.t.Helper()
	ctx := y.t.Context()
	y.must(conn.Raw(func(c any) error {
		pg := c.(*postgres.Conn).PGX()
		if _, err := pg.Exec(ctx, `SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan`,
			pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		text := query
		if at := strings.LastIndex(query, "ORDER BY"); at > 0 && !strings.Contains(query[at:], ")") {
			text = query[:at]
		}
		args := strings.Count(text, "?") // there are none in quotes
		for i := range args {
			text = strings.Replace(text, "?", fmt.Sprintf("$%d", i+1), 1)
		}
		nulls := ""
		if args > 0 {
			nulls = "(NULL" + strings.Repeat(", NULL", args-1) + ")"
		}
		res, err := pg.PgConn().Exec(ctx, `PREPARE looked AS `+text+`; EXPLAIN (FORMAT JSON) EXECUTE looked`+nulls+
			`; DEALLOCATE looked`).ReadAll()
		if err != nil {
			return err
		}
		var plans []struct{ Plan serverPlan }
		if err := json.Unmarshal(res[1].Rows[0][0], &plans); err != nil {
			return err
		}
		all := []serverPlan{plans[0].Plan}
		for len(all) > 0 {
			p := all[0]
			all = append(all[1:], p.Plans...)
			if p.Type == "Seq Scan" || p.Index != "" && p.Cond == "" {
				found = append(found, strings.TrimSpace(p.Type+" "+p.Relation+" "+p.Index))
			}
		}
		return nil
	}))
	return found
}

// BenchmarkSizeOfANode measures what nodes take on disk, in bytes: one that was inspected, and then each row of what
// grows with time. docs/reference/limits.md has the numbers.
func BenchmarkSizeOfANode(b *testing.B) {
	for b.Loop() {
		y := newSite(b, Options{Dir: b.TempDir()}, Keep{})
		ctx := b.Context()
		size := func() float64 {
			_, size := y.rows()
			return float64(size)
		}
		before := size()
		per := func(what string, rows int) {
			after := size()
			b.ReportMetric((after-before)/float64(rows), "B/"+what)
			before = after
		}
		y.living = make([]string, 40)
		y.each(len(y.living), func(i int) (err error) {
			y.living[i], err = y.enrol(ctx, fmt.Sprintf("node-%d", i))
			return err
		})
		per("node", len(y.living))
		step := func(lines, marks int) {
			y.each(len(y.living), func(i int) error {
				return y.step(ctx, y.living[i], uuid.NewString(), node.Available, lines, marks)
			})
		}
		step(0, 0) // and its event
		before = size()
		step(1000, 0)
		per("line", 1000*len(y.living))
		step(0, 5000)
		per("mark", 5000*len(y.living))
		y.each(100*len(y.living), func(i int) error {
			return y.s.KeepErasure(ctx, erasure.Kept{ID: uuid.NewString(), NodeUUID: y.living[i%len(y.living)],
				At: y.s.now(), Document: []byte(strings.Repeat("x", 1500))})
		})
		per("erasure", 100*len(y.living))
		last := y.s.LastEvent()
		for range 100 {
			y.each(len(y.living), func(i int) error {
				_, err := y.s.UpdateNode(ctx, y.living[i], func(n *node.Node) error {
					n.Power = map[string]string{"power on": "power off", "power off": "power on"}[n.Power]
					return nil
				})
				return err
			})
		}
		per("event", int(y.s.LastEvent()-last))
	}
}
