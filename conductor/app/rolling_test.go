//go:build !race

// The programs under test are processes of their own, built without the race detector.

package app_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/initramfs/build"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
	"github.com/ingot-metal/ingot/tools/lab/fleet"
)

// balancer stands between a client and several conductors: it sends each request to the next one, and one that could
// not be delivered to another. It counts what its client sees.
type balancer struct {
	addrs   []string
	restart *atomic.Int32 // number of the restart that is under way, or was last
	name    string

	mu          sync.Mutex
	next        int
	requests    int
	elsewhere   int           // requests that were sent again
	unavailable map[int32]int // 503 with Retry-After, by restart
	bad         []string      // what no client is to see
}

// RoundTrip sends a request.
func (b *balancer) RoundTrip(req *http.Request) (*http.Response, error) {
	b.mu.Lock()
	b.next++
	first := b.next
	b.requests++
	b.mu.Unlock()
	var resp *http.Response
	var err error
	for try := range 2 {
		again := req.Clone(req.Context())
		again.URL.Host, again.Host = b.addrs[(first+try)%len(b.addrs)], ""
		if req.GetBody != nil {
			if again.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
		}
		if resp, err = http.DefaultTransport.RoundTrip(again); err == nil || req.Context().Err() != nil {
			break
		}
		if try == 0 {
			b.mu.Lock()
			b.elsewhere++
			b.mu.Unlock()
		}
	}
	if req.Context().Err() != nil {
		return resp, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case err != nil:
		b.bad = append(b.bad, fmt.Sprintf("%s %s: %v", req.Method, req.URL.Path, err))
	case resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != "":
		b.unavailable[b.restart.Load()]++
	case resp.StatusCode >= 400:
		text, _ := io.ReadAll(resp.Body)
		b.bad = append(b.bad, fmt.Sprintf("%s %s: %s %s", req.Method, req.URL.Path, resp.Status, text))
		resp.Body.Close()
		resp.Body = io.NopCloser(strings.NewReader(string(text)))
	}
	return resp, err
}

// check reports what the client should not have seen.
func (b *balancer) check(t *testing.T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, what := range b.bad {
		t.Errorf("%s saw %s", b.name, what)
	}
	for restart, n := range b.unavailable {
		if n > 1 {
			t.Errorf("%s saw %d times 503 in restart %d, want one at most", b.name, n, restart)
		}
	}
}

// rolled is a conductor that is restarted with another program.
type rolled struct {
	name, config, api, boot string
	cmd                     *exec.Cmd
	log                     *ingotd.Output
}

// start starts a program as the conductor and returns when it answers.
func (r *rolled) start(t *testing.T, program string) {
	t.Helper()
	r.cmd = exec.Command(program, "--config", r.config, "--set", "hostname="+r.name)
	r.cmd.Stdout, r.cmd.Stderr = r.log, r.log
	ingotd.Run(t, r.cmd, r.log)
	ingotd.Wait(t, r.name+" answers", func() bool {
		resp, err := http.Get("http://" + r.api + "/ingot/v1/health")
		if err != nil {
			if syscall.Kill(r.cmd.Process.Pid, 0) != nil {
				t.Fatalf("%s has ended", r.name)
			}
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == 200
	})
}

// ended waits for the end of the process.
func (r *rolled) ended(t *testing.T) {
	t.Helper()
	ingotd.Wait(t, r.name+" has ended", func() bool { return syscall.Kill(r.cmd.Process.Pid, 0) != nil })
}

// laterIngotd builds the ingotd of a later version, whose database has one migration more.
func laterIngotd(t *testing.T) string {
	t.Helper()
	source, err := build.FindSource()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	migration, overlay := filepath.Join(dir, "later.sql"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(migration, []byte("-- +goose Up\nALTER TABLE nodes ADD COLUMN later TEXT NOT NULL DEFAULT 'x';\n"+
		"CREATE TABLE later (id INTEGER PRIMARY KEY);\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{
		filepath.Join(source, "conductor/store/migrations/postgres/99999_later.sql"): migration}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, text, 0o644); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "ingotd")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-overlay", overlay, "-o",
		program, "./conductor/cmd/ingotd")
	cmd.Dir, cmd.Env = source, append(os.Environ(), "CGO_ENABLED=0", "GOGC=400")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build a later ingotd: %v\n%s", err, out)
	}
	return program
}

// threeForAFleet makes three conductors with what a fleet needs on one database.
func threeForAFleet(t *testing.T, dbURL string) (all []*rolled) {
	t.Helper()
	for _, name := range []string{"c1", "c2", "c3"} {
		dir, boot := t.TempDir(), kit.FreeAddr(t)
		secret := filepath.Join(dir, "password")
		if err := os.WriteFile(secret, []byte(pgserver.Password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, text, err := net.SplitHostPort(boot)
		if err != nil {
			t.Fatal(err)
		}
		port, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		r := &rolled{name: name, api: kit.FreeAddr(t), boot: "http://" + boot, log: &ingotd.Output{}}
		if r.config, err = (fleet.Site{Dir: dir, API: r.api, Agents: kit.FreeAddr(t), Boot: port,
			Settings: map[string]map[string]any{
				"store": {"url": dbURL, "password_file": secret,
					"key": base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))},
				"hardware": {"enabled_types": []string{"ipmi", "fake-hardware"}},
				"deploy":   {"fast_track": true},
				"power":    {"sync_interval": "2s"},
				"peer":     {"listen": "127.0.0.1:0"},
				"swarm":    {"enabled": true},
			}}).Write(); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// runFleet starts three conductors on a database, and machines for them with the options that are given; both end with
// the test.
func runFleet(ctx context.Context, t *testing.T, dbURL string, o fleet.Options) (all []*rolled, apis []*client.Client,
	f *fleet.Fleet) {
	t.Helper()
	all = threeForAFleet(t, dbURL)
	var boots []string
	for _, r := range all {
		r.start(t, made.Program(t, "ingotd"))
		c, err := client.New("http://"+r.api, nil)
		if err != nil {
			t.Fatal(err)
		}
		boots, apis = append(boots, r.boot), append(apis, c)
	}
	o.Network, o.BootURL = byte(80+os.Getpid()%170), strings.Join(boots, ",")
	o.Boot, o.Step = 300*time.Millisecond, 100*time.Millisecond
	f, err := fleet.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return all, apis, f
}

// ownersOf returns how many nodes each conductor owns, of which there have to be two.
func ownersOf(ctx context.Context, t *testing.T, c *client.Client) map[string]int {
	t.Helper()
	owners := map[string]int{}
	nodes, err := c.Nodes(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		owners[fmt.Sprint(n.Conductor)]++
	}
	if len(owners) < 2 {
		t.Fatalf("the nodes belong to %v: the test shows nothing", owners)
	}
	return owners
}

// TestRollingUpgrade: three conductors are replaced one after the other by those of a later version, while machines are
// deployed and clients work. No deployment is begun again or fails, no client sees more than one 503 for each restart,
// no event and no node of a list is missed, and in the end each agent is connected and each node belongs to a conductor
// that lives.
func TestRollingUpgrade(t *testing.T) {
	machines, warm, crowd := 14, 4, 4
	if os.Getenv("INGOT_FULL") != "" {
		machines, warm, crowd = 220, 20, 40
	}
	later := laterIngotd(t)
	_, dbURL := pgserver.New(t).Database(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	// Machines whose agents are kept, most of which are then deployed. Their images take longer to write than the
	// restarts do when a controller is slow to answer, which holds up a drain by some seconds.
	all, straight, f := runFleet(ctx, t, dbURL, fleet.Options{Nodes: machines, Write: 16 * time.Second})
	var apis []string
	for _, r := range all {
		apis = append(apis, r.api)
	}
	var restart atomic.Int32
	var balancers []*balancer
	connect := func(name string) *client.Client {
		b := &balancer{addrs: apis, restart: &restart, name: name, unavailable: map[int32]int{}}
		balancers = append(balancers, b)
		c, err := client.New("http://conductors", &http.Client{Transport: b, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		c.Poll = 50 * time.Millisecond
		return c
	}
	d := fleet.NewDriver(straight[0], "available", 0, nil)
	if err := errors.Join(d.Create(ctx, f.Machines), d.Run(ctx)); err != nil {
		t.Fatalf("%v; %s", err, f.Summary(d))
	}
	kit.Eventually(t, time.Minute, "all agents are kept", func() bool { return f.Counts().Sessions == machines })
	before, operator := f.Counts(), connect("the operator")

	stop := make(chan struct{})
	var work sync.WaitGroup
	var turns atomic.Int64
	for i := range crowd {
		c := connect(fmt.Sprint("client ", i))
		work.Go(func() {
			for k := 0; ; k++ {
				if err := turnOf(ctx, c, fmt.Sprintf("c%d-%d", i, k)); err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
				turns.Add(1)
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	reader := connect("the reader")
	work.Go(func() { readLists(ctx, t, reader, f.Machines, stop) })
	follower := connect("the follower")
	var active, last atomic.Int64
	following, unfollow := context.WithCancel(ctx)
	defer unfollow()
	done := make(chan error, 1)
	go func() {
		done <- follower.Events(following, client.EventQuery{Types: []string{"baremetal.node", "ingot.gap"}, After: -1},
			func(e rest.Event) error {
				if int64(e.ID) <= last.Swap(int64(e.ID)) {
					t.Errorf("event %d came late", e.ID)
				}
				if e.Type == "ingot.gap" {
					t.Error("events were missed")
				}
				if c, ok := e.Changed["provision_state"]; ok && fmt.Sprint(c.To) == "active" {
					active.Add(1)
				}
				return nil
			})
	}()
	kit.Eventually(t, time.Minute, "events come", func() bool { return last.Load() > 0 })
	missed := turns.Load() // turns whose events may have come before
	deployed := f.Machines[:machines-warm]
	for _, m := range deployed {
		if err := operator.Provision(ctx, m.Name, client.ProvisionRequest{Target: "active"}); err != nil {
			t.Fatal(err)
		}
	}

	for i, r := range all {
		restart.Store(int32(i + 1))
		begun, so := time.Now(), turns.Load()
		ways := []string{"drain, then stop", "stop", "drain --stop"}
		if i != 1 {
			args := []string{"drain", "--config", r.config, "--timeout", "1m"}
			if i == 2 {
				args = append(args, "--stop")
			}
			out, err := exec.CommandContext(ctx, made.Program(t, "ingotd"), args...).CombinedOutput()
			if err != nil {
				t.Fatalf("drain %s: %v\n%s", r.name, err, out)
			}
		}
		if i != 2 {
			if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
		r.ended(t)
		down := time.Now()
		r.start(t, later)
		t.Logf("%s (%s) had ended after %s, and answered again after %s; %d images are written; %d turns of clients", r.name,
			ways[i], down.Sub(begun).Round(time.Millisecond), time.Since(begun).Round(time.Millisecond),
			f.Counts().Images, turns.Load())
		kit.Eventually(t, time.Minute, "clients get on", func() bool { return turns.Load() >= so+2*int64(crowd) })
	}
	if n := f.Counts().Images; n == len(deployed) {
		t.Error("all images were written before the last restart: the test shows too little")
	}
	for _, m := range deployed {
		if n, err := waitFor(ctx, operator, m.Name, "active", time.Minute); err != nil {
			t.Errorf("%v: %s", err, n)
		}
	}
	close(stop)
	work.Wait()

	for _, m := range f.Machines {
		n, err := operator.Node(ctx, m.Name)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(all, func(r *rolled) bool { return r.name == fmt.Sprint(n.Conductor) }) {
			t.Errorf("%s belongs to %v", m.Name, n.Conductor)
		}
		images := 0
		if slices.Contains(deployed, m) {
			images = 1
		}
		undisturbed(ctx, t, operator, m, images)
	}
	after := f.Counts()
	if after.Images != len(deployed) || after.Refused > 0 || after.Boots-before.Boots != len(deployed) {
		t.Errorf("%d images were written and %d machines booted, want %d of both; %d agents were refused", after.Images,
			after.Boots-before.Boots, len(deployed), after.Refused)
	}
	kit.Eventually(t, time.Minute, "the agents of machines that were not deployed are connected", func() bool {
		n := f.Counts()
		return n.Agents == warm && n.Sessions == warm
	})
	kit.Eventually(t, 30*time.Second, "all events have come", func() bool {
		n := active.Load() - int64(len(deployed))
		return n <= turns.Load() && n >= turns.Load()-missed-int64(crowd)
	})
	unfollow()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the follower ended with %v", err)
	}
	if turns.Load() < int64(crowd) {
		t.Errorf("%d clients did %d turns", crowd, turns.Load())
	}
	for _, r := range all {
		var bad []string
		sent := 0
		for line := range strings.Lines(r.log.String()) {
			if strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN") &&
				!strings.Contains(line, "from=agent") {
				bad = append(bad, line)
			}
			if strings.Contains(line, `msg="agent redirected"`) {
				sent++
			}
		}
		if len(bad) > 0 || sent == 0 {
			t.Errorf("%s sent %d agents elsewhere, and complains %d times: %s", r.name, sent, len(bad),
				bad[:min(len(bad), 5)])
		}
	}
	requests, elsewhere, unavailable := 0, 0, 0
	for _, b := range balancers {
		b.check(t)
		requests, elsewhere = requests+b.requests, elsewhere+b.elsewhere
		for _, n := range b.unavailable {
			unavailable += n
		}
	}
	t.Logf("%d requests, %d of them sent to another conductor, %d answered with 503; %d turns of clients", requests,
		elsewhere, unavailable, turns.Load())
	if elsewhere == 0 {
		t.Error("no request met a conductor that was stopped: the test shows too little")
	}
}

// undisturbed checks by a machine's time line and history that its image was written so often, and that nothing of what
// has happened to its conductor can be seen.
func undisturbed(ctx context.Context, t *testing.T, c *client.Client, m *fleet.Machine, images int) {
	t.Helper()
	line, err := c.Timeline(ctx, m.Name, "")
	if err != nil {
		t.Fatal(err)
	}
	marks := map[string]int{}
	for _, mark := range line.Marks {
		marks[mark.Name]++
		if mark.Name == node.MarkStepBegan && strings.Contains(fmt.Sprint(mark.Detail), "write_image") {
			marks["write_image"]++
		}
	}
	if marks["write_image"] != images || marks[node.MarkStepFailed]+marks[node.MarkBootAgain] > 0 {
		t.Errorf("the time line of %s has %v", m.Name, marks)
	}
	history, err := c.History(ctx, m.Name)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range history {
		for _, bad := range []string{"run again", "took the node over", "failed", "booted anew", "out of reach"} {
			if strings.Contains(h.Event, bad) {
				t.Errorf("the history of %s has %q", m.Name, h.Event)
			}
		}
	}
}

// turnOf takes a node of a client's own from its creation through a deployment to its end.
func turnOf(ctx context.Context, c *client.Client, name string) error {
	if _, err := c.CreateNode(ctx, client.NewNode{Name: name, Driver: "fake-hardware"}); err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	for _, step := range [][2]string{{"manage", "manageable"}, {"provide", "available"}, {"active", "active"},
		{"deleted", "available"}} {
		// What asks the machine goes to the node's owner, through any conductor.
		if err := c.SetBootDevice(ctx, name, "pxe", false); err != nil {
			return fmt.Errorf("set the boot device of %s: %w", name, err)
		}
		value := any(step[0])
		if _, err := c.UpdateNode(ctx, name,
			[]rest.Operation{{Op: "add", Path: "/extra/step", Value: &value}}); err != nil {
			return fmt.Errorf("set a field of %s: %w", name, err)
		}
		n, err := c.Node(ctx, name)
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if got := fmt.Sprint(n.Extra); !strings.Contains(got, step[0]) {
			return fmt.Errorf("%s was set to %s, and shows %s", name, step[0], got)
		}
		if err := c.Provision(ctx, name, client.ProvisionRequest{Target: step[0]}); err != nil {
			return fmt.Errorf("%s %s: %w", step[0], name, err)
		}
		// Work whose wake-up was lost would be found after a minute.
		if _, err := waitFor(ctx, c, name, step[1], 30*time.Second); err != nil {
			return err
		}
	}
	if err := c.DeleteNode(ctx, name); err != nil {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return nil
}

// waitFor waits until a node has come into a state, and into none of failure.
func waitFor(ctx context.Context, c *client.Client, name, state string, limit time.Duration) (string, error) {
	end := time.Now().Add(limit)
	for {
		n, err := c.Node(ctx, name)
		if err != nil {
			return "", fmt.Errorf("read %s: %w", name, err)
		}
		switch now := string(n.ProvisionState); {
		case now == state:
			return "", nil
		case strings.HasSuffix(now, "failed") || time.Now().After(end):
			return fmt.Sprintf("%v, %v", n.LastError, n.Conductor),
				fmt.Errorf("%s is %s, want %s within %s", name, now, state, limit)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// readLists reads all nodes, a page from each conductor, and looks for the machines of a fleet.
func readLists(ctx context.Context, t *testing.T, c *client.Client, machines []*fleet.Machine, stop <-chan struct{}) {
	for {
		nodes, err := c.Nodes(ctx, url.Values{"limit": {"3"}, "driver": {"ipmi"}})
		if err != nil {
			t.Errorf("list nodes: %v", err)
			return
		}
		seen := map[string]int{}
		for _, n := range nodes {
			seen[fmt.Sprint(n.Name)]++
		}
		for _, m := range machines {
			if seen[m.Name] != 1 {
				t.Errorf("a list has %s %d times: %v", m.Name, seen[m.Name], seen)
			}
		}
		select {
		case <-stop:
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}
