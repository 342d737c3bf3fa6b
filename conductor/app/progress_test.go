//go:build !race

// The program under test is a process of its own, built without the race detector.

package app_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
	"github.com/ingot-metal/ingot/tools/lab/fleet"
)

// TestProgressOfAllConductors: each of three conductors shows how far the work of all nodes is, those of others
// included, in the stream of events and in the list.
func TestProgressOfAllConductors(t *testing.T) {
	const machines = 9
	_, dbURL := pgserver.New(t).Database(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var boots []string
	var apis []*client.Client
	for _, r := range threeForAFleet(t, dbURL) {
		r.start(t, made.Program(t, "ingotd"))
		c, err := client.New("http://"+r.api, nil)
		if err != nil {
			t.Fatal(err)
		}
		boots, apis = append(boots, r.boot), append(apis, c)
	}
	f, err := fleet.Start(ctx, fleet.Options{Nodes: machines, Network: byte(80 + os.Getpid()%170),
		BootURL: strings.Join(boots, ","), Boot: 300 * time.Millisecond, Write: 12 * time.Second,
		Step: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	d := fleet.NewDriver(apis[0], "available", 0, nil)
	if err := errors.Join(d.Create(ctx, f.Machines), d.Run(ctx)); err != nil {
		t.Fatalf("%v; %s", err, f.Summary(d))
	}
	owners := map[string]int{}
	nodes, err := apis[0].Nodes(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		owners[fmt.Sprint(n.Conductor)]++
	}
	if len(owners) < 2 {
		t.Fatalf("the nodes belong to %v: the test shows nothing", owners)
	}

	seen := make(chan map[string]bool, len(apis)) // names of nodes, one set of each conductor
	for _, c := range apis {
		go func() {
			names := map[string]bool{}
			enough := errors.New("enough")
			err := c.Events(ctx, client.EventQuery{Types: []string{"ingot.node.progress"}, After: -1},
				func(e rest.Event) error {
					if e.Progress != nil && e.Progress.Step != "" {
						names[e.NodeName] = true
					}
					if len(names) == machines {
						return enough
					}
					return nil
				})
			if !errors.Is(err, enough) {
				t.Errorf("follow the events: %v", err)
			}
			seen <- maps.Clone(names)
		}()
	}
	for _, m := range f.Machines {
		if err := apis[1].Provision(ctx, m.Name, client.ProvisionRequest{Target: "active"}); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range apis {
		kit.Eventually(t, time.Minute, fmt.Sprintf("c%d lists the progress of several conductors", i+1), func() bool {
			list, err := c.Running(ctx)
			if err != nil {
				t.Fatal(err)
			}
			by := map[string]bool{}
			for _, p := range list {
				if p.Transfer.Step != "" && p.PlanID != "" {
					by[fmt.Sprint(p.Conductor)] = true
				}
			}
			return len(by) == len(owners)
		})
	}
	for range apis {
		if names := <-seen; len(names) != machines {
			t.Errorf("a stream shows the progress of %d nodes, want %d", len(names), machines)
		}
	}
	d.Target("active")
	if err := d.Run(ctx); err != nil {
		t.Errorf("%v; %s", err, f.Summary(d))
	}
}
