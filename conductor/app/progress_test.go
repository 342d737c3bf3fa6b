//go:build !race

// The program under test is a process of its own, built without the race detector.

package app_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/test/kit"
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
	_, apis, f := runFleet(ctx, t, dbURL, fleet.Options{Nodes: machines, Write: 12 * time.Second})
	d := fleet.NewDriver(apis[0], "available", 0, nil)
	if err := errors.Join(d.Create(ctx, f.Machines), d.Run(ctx)); err != nil {
		t.Fatalf("%v; %s", err, f.Summary(d))
	}
	owners := ownersOf(ctx, t, apis[0])

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
