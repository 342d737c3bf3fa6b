package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/config"
)

// The crowd: 500 clients. Each does so many things one after the other, and fewer with the race detector.
const (
	crowd       = 500
	crowdThings = 25
	crowdRace   = 5
	crowdFull   = 100
	crowdNodes  = 40 // of each of two kinds: those that are allocated, and those whose state is changed
)

// TestCrowd is a whole conductor in this process under 500 clients at once, who read, change nodes, allocate them and
// take them through their states: nothing is answered with 5xx, no change that was answered with 200 is lost, no node
// belongs to two allocations.
func TestCrowd(t *testing.T) {
	c := startCrowd(t)
	var nodes []string
	for i := range crowdNodes {
		for _, class := range []string{"lent", "busy"} {
			name := fmt.Sprint(class, i)
			c.want(201, "POST", "/v1/nodes",
				fmt.Sprintf(`{"name":%q,"driver":"fake-hardware","resource_class":%q}`, name, class))
			nodes = append(nodes, name)
		}
	}
	for _, step := range [][2]string{{"manage", "manageable"}, {"provide", "available"}} {
		for _, name := range nodes {
			c.want(202, "PUT", "/v1/nodes/"+name+"/states/provision", fmt.Sprintf(`{"target":%q}`, step[0]))
		}
		for _, name := range nodes {
			c.reach(name, step[1])
		}
	}
	things := crowdThings
	switch {
	case os.Getenv("INGOT_FULL") != "":
		things = crowdFull
	case raceOn:
		things = crowdRace
	}
	var wg sync.WaitGroup
	acked := make([]int, crowd)
	for i := range crowd {
		wg.Go(func() { acked[i] = c.client(i, things) })
	}
	wg.Wait()
	t.Logf("%d requests: %d reads, %d changes (%d refused), %d allocations (%d without a node), %d changes of state (%d refused)",
		c.requests.Load(), c.reads.Load(), c.changes.Load(), c.refused.Load(), c.lent.Load(), c.none.Load(),
		c.verbs.Load(), c.unfit.Load())
	if c.changes.Load() == 0 || c.lent.Load() == 0 || c.verbs.Load() == 0 || c.reads.Load() == 0 {
		t.Error("the clients did not do all that they should have")
	}
	// What each client was told to be stored last is there.
	lost := 0
	for i, n := range acked {
		var node struct{ Extra map[string]int }
		if err := json.Unmarshal(c.want(200, "GET", "/v1/nodes/"+mine(i)+"?fields=extra", ""), &node); err != nil {
			t.Fatal(err)
		}
		if got := node.Extra[fmt.Sprint("c", i)]; got != n {
			if lost++; lost < 5 {
				t.Errorf("client %d counted to %d, stored is %d", i, n, got)
			}
		}
	}
	// Everything was given back.
	var left struct {
		Allocations []struct {
			State    string
			NodeUUID *string `json:"node_uuid"`
		}
	}
	if err := json.Unmarshal(c.want(200, "GET", "/v1/allocations", ""), &left); err != nil ||
		len(left.Allocations) > 0 {
		t.Errorf("allocations left: %v, %v", left, err)
	}
	if out := c.want(200, "GET", "/v1/nodes?associated=true&resource_class=lent", ""); string(out) != `{"nodes":[]}` {
		t.Errorf("nodes that were not given back: %s", out)
	}
}

// mine is the node in whose extra a client counts; a dozen others count there too, each under a name of its own.
func mine(client int) string {
	return []string{"lent", "busy"}[client%2] + fmt.Sprint(client/2%(crowdNodes/2))
}

type crowded struct {
	t    *testing.T
	url  string
	http *http.Client

	owner sync.Map // node's UUID -> allocation's UUID
	wrong atomic.Int64

	requests, reads, changes, refused, lent, none, verbs, unfit atomic.Int64
}

func startCrowd(t *testing.T) *crowded {
	dir := t.TempDir()
	ready := filepath.Join(dir, "ingotd.yaml")
	if err := os.WriteFile(ready, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	args := []string{"--config", ready, "--data-dir", filepath.Join(dir, "data"), "--listen", addr, "--log-level",
		"error", "--set", "agents.listen=127.0.0.1:0", "--set", "agents.advertise=127.0.0.1:1", "--set",
		"netboot.ramdisk_dir=" + dir}
	cfg, _, err := config.Load(args, nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, cfg, logger(cfg, io.Discard)) }()
	c := &crowded{t: t, url: "http://" + addr,
		http: &http.Client{Timeout: 5 * time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: crowd}}}
	t.Cleanup(func() {
		c.http.CloseIdleConnections()
		stop()
		if err := <-done; err != nil {
			t.Errorf("ingotd: %v", err)
		}
	})
	limit := time.Now().Add(time.Minute)
	for {
		resp, err := c.http.Get(c.url)
		if err == nil {
			resp.Body.Close()
			return c
		}
		select {
		case err := <-done:
			t.Fatalf("ingotd: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(limit) {
			t.Fatalf("ingotd does not answer: %v", err)
		}
	}
}

// ask sends a request. A transport that fails and an answer of 5xx fail the test.
func (c *crowded) ask(method, path, body string) (int, []byte) {
	c.requests.Add(1)
	req, err := http.NewRequest(method, c.url+path, strings.NewReader(body))
	if err != nil {
		panic(err) // the test's own fault
	}
	req.Header.Set("X-OpenStack-Ironic-API-Version", "1.82")
	resp, err := c.http.Do(req)
	if err != nil {
		c.fail("%s %s: %v", method, path, err)
		return 0, nil
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 500 {
		c.fail("%s %s %s = %d %s, %v", method, path, body, resp.StatusCode, out, err)
	}
	return resp.StatusCode, bytes.TrimSpace(out)
}

// fail reports a fault; of many, the first ones.
func (c *crowded) fail(format string, args ...any) {
	if c.wrong.Add(1) <= 10 {
		c.t.Errorf(format, args...)
	} else {
		c.t.Fail()
	}
}

func (c *crowded) want(status int, method, path, body string) []byte {
	c.t.Helper()
	got, out := c.ask(method, path, body)
	if got != status {
		c.t.Fatalf("%s %s %s = %d %s, want %d", method, path, body, got, out, status)
	}
	return out
}

func (c *crowded) reach(name, state string) {
	c.t.Helper()
	limit := time.Now().Add(3 * time.Minute)
	for !bytes.Contains(c.want(200, "GET", "/v1/nodes/"+name+"/states", ""), []byte(`"provision_state":"`+state+`"`)) {
		if time.Now().After(limit) {
			c.t.Fatalf("%s does not become %s", name, state)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// client does one thing after the other, and returns how far it counted.
func (c *crowded) client(id, things int) (counted int) {
	r := rand.New(rand.NewPCG(uint64(id), 1))
	for range things {
		switch n := r.IntN(10); {
		case n < 4:
			c.read(r)
		case n < 8:
			status, out := c.ask("PATCH", "/v1/nodes/"+mine(id),
				fmt.Sprintf(`[{"op":"add","path":"/extra/c%d","value":%d}]`, id, counted+1))
			switch status {
			case 200:
				counted++
				c.changes.Add(1)
			case 409: // something else is under way on the node
				c.refused.Add(1)
			default:
				c.fail("PATCH of %s = %d %s", mine(id), status, out)
			}
		case n < 9:
			c.lend()
		default:
			target := []string{"active", "deleted", "rebuild", "manage", "provide", "inspect"}[r.IntN(6)]
			name := fmt.Sprint("busy", r.IntN(crowdNodes))
			switch status, out := c.ask("PUT", "/v1/nodes/"+name+"/states/provision",
				fmt.Sprintf(`{"target":%q}`, target)); status {
			case 202:
				c.verbs.Add(1)
			case 400, 409: // not in this state; not now
				c.unfit.Add(1)
			default:
				c.fail("%s of %s = %d %s", target, name, status, out)
			}
		}
	}
	return counted
}

func (c *crowded) read(r *rand.Rand) {
	paths := []string{"/v1/nodes?limit=20", "/v1/nodes/detail?limit=5",
		"/v1/nodes?provision_state=available&fields=uuid,name,extra", "/v1/allocations", "/v1/ports",
		fmt.Sprint("/v1/nodes/lent", r.IntN(crowdNodes)), fmt.Sprintf("/v1/nodes/busy%d/states", r.IntN(crowdNodes)),
		fmt.Sprintf("/v1/nodes/busy%d/history", r.IntN(crowdNodes))}
	path := paths[r.IntN(len(paths))]
	if status, out := c.ask("GET", path, ""); status != 200 {
		c.fail("GET %s = %d %s", path, status, out)
	}
	c.reads.Add(1)
}

// lend takes any node, makes sure that no other client has it, and releases it.
func (c *crowded) lend() {
	type allocation struct {
		UUID, State string
		NodeUUID    string `json:"node_uuid"`
	}
	var a allocation
	status, out := c.ask("POST", "/v1/allocations", `{"resource_class":"lent"}`)
	if err := json.Unmarshal(out, &a); err != nil || status != 201 {
		c.fail("an allocation = %d %s, %v", status, out, err)
		return
	}
	for a.State == "allocating" {
		time.Sleep(time.Second) // so that not all requests are those of people who wait
		status, out := c.ask("GET", "/v1/allocations/"+a.UUID, "")
		if err := json.Unmarshal(out, &a); err != nil || status != 200 {
			c.fail("an allocation = %d %s, %v", status, out, err)
			return
		}
	}
	if a.State == "active" {
		c.lent.Add(1)
		if other, taken := c.owner.LoadOrStore(a.NodeUUID, a.UUID); taken {
			c.fail("node %s belongs to the allocations %s and %s", a.NodeUUID, other, a.UUID)
		}
		c.ask("GET", "/v1/nodes/"+a.NodeUUID, "")
		c.owner.Delete(a.NodeUUID)
	} else {
		c.none.Add(1)
	}
	for {
		status, out := c.ask("DELETE", "/v1/allocations/"+a.UUID, "")
		if status == 204 {
			return
		}
		if status != 409 { // somebody changes the node just now
			c.fail("an allocation's end = %d %s", status, out)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}
