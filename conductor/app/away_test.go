//go:build !race

// The programs under test are processes of their own, built without the race detector.

package app_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
	"github.com/ingot-metal/ingot/tools/lab/fleet"
)

// TestDatabaseAway: while PostgreSQL is away for 30 seconds, for longer than the leases of its three conductors, they
// refuse changes, and agents write their images. When it is back all deployments come to their ends: no conductor has
// ended or lost a node, nothing is done again, and no machine has booted once more.
func TestDatabaseAway(t *testing.T) {
	const machines, away = 12, 30 * time.Second
	cluster := pgserver.New(t)
	_, url := cluster.Database(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var begun, ended atomic.Int64
	all, apis, f := runFleet(ctx, t, url, fleet.Options{Nodes: machines, Write: 24 * time.Second,
		Seen: func(e fleet.Event) {
			if e.Step == "write_image" {
				map[bool]*atomic.Int64{false: &begun, true: &ended}[e.End].Add(1)
			}
		}})
	c := apis[0]
	d := fleet.NewDriver(c, "available", 0, nil)
	if err := errors.Join(d.Create(ctx, f.Machines), d.Run(ctx)); err != nil {
		t.Fatalf("%v; %s", err, f.Summary(d))
	}
	owners := map[string]string{}
	for _, m := range f.Machines {
		if err := c.Provision(ctx, m.Name, client.ProvisionRequest{Target: "active"}); err != nil {
			t.Fatal(err)
		}
	}
	kit.Eventually(t, time.Minute, "all images are being written", func() bool { return begun.Load() == machines })
	owned := map[string]int{}
	for _, m := range f.Machines {
		n, err := c.Node(ctx, m.Name)
		if err != nil {
			t.Fatal(err)
		}
		owners[m.Name] = string(n.Conductor)
		owned[owners[m.Name]]++
	}
	if len(owned) < 2 {
		t.Fatalf("the nodes belong to %v: the test shows too little", owned)
	}

	if err := cluster.Stop(); err != nil {
		t.Fatal(err)
	}
	end, before := time.Now().Add(away), ended.Load()
	for _, r := range all {
		ingotd.Wait(t, r.name+" has noticed", func() bool { // until then, a request may lose its connection
			status, retry, answer := patch(ctx, t, r.api, f.Machines[0].Name)
			if status != 503 || retry == "" {
				t.Errorf("a change at %s without the database: %d, Retry-After %q, %s", r.name, status, retry, answer)
			}
			return strings.Contains(answer, "nothing was changed")
		})
	}
	time.Sleep(time.Until(end))
	if n := ended.Load(); n == before {
		t.Error("no image was written meanwhile: the test shows too little")
	}
	if err := cluster.Start(); err != nil {
		t.Fatal(err)
	}
	for _, m := range f.Machines {
		ingotd.Wait(t, m.Name+" is active", func() bool {
			n, err := c.Node(ctx, m.Name)
			if err == nil && strings.HasSuffix(string(n.ProvisionState), "failed") {
				t.Fatalf("%s is %s: %v", m.Name, n.ProvisionState, n.LastError)
			}
			return err == nil && n.ProvisionState == "active"
		})
		n, err := c.Node(ctx, m.Name)
		if err != nil {
			t.Fatal(err)
		}
		if string(n.Conductor) != owners[m.Name] || n.Extra["x"] != nil {
			t.Errorf("%s belongs to %s, and belonged to %s; a change that was refused: %v", m.Name, n.Conductor,
				owners[m.Name], n.Extra["x"])
		}
		undisturbed(ctx, t, c, m, 1)
	}
	if n := f.Counts(); n.Images != machines || n.Boots != 2*machines || n.Refused > 0 || f.Overlaps() > 0 {
		t.Errorf("%+v, %d overlaps", n, f.Overlaps())
	}
	for _, r := range all {
		if status, _, answer := patch(ctx, t, r.api, f.Machines[0].Name); status != 200 {
			t.Errorf("a change at %s when the database is back: %d, %s", r.name, status, answer)
		}
		if strings.Contains(r.log.String(), "taken for dead") {
			t.Errorf("%s has taken another for dead", r.name)
		}
	}
	t.Logf("%d of %d images were written without the database; nodes by owner: %v", ended.Load()-before, machines, owned)
}

// patch changes a node at a conductor, once.
func patch(ctx context.Context, t *testing.T, api, name string) (status int, retry, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPatch, fmt.Sprintf("http://%s/v1/nodes/%s", api, name),
		strings.NewReader(`[{"op": "add", "path": "/extra/x", "value": "x"}]`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(rest.VersionHeader, "1.82")
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("Retry-After"), string(b)
}
