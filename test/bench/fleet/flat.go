package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/tools/lab/fleet"
)

// few is how many machines are deployed while the store has many nodes.
const few = 100

// measureFlat deploys a few machines in a store with n nodes, of which the others do nothing but have their power state
// read. The machines are quick, so that most of the time is that of ingotd.
func measureFlat(ctx context.Context, o *options, dir string, n int) (x flat, err error) {
	s, err := newSite(ctx, o, dir)
	if err != nil {
		return x, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.start(); err != nil {
		return x, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range n - few {
		g.Go(func() error {
			name := fmt.Sprintf("idle-%05d", i)
			if _, err := s.api.CreateNode(gctx, client.NewNode{Name: name, Driver: "fake-hardware"}); err != nil {
				return fmt.Errorf("make node %s: %w", name, err)
			}
			return s.api.Provision(gctx, name, client.ProvisionRequest{Target: "manage"})
		})
	}
	if err := g.Wait(); err != nil {
		return x, err
	}
	f, err := fleet.Start(ctx, fleet.Options{Nodes: few, Seed: 1, BootURL: s.boots(), Boot: time.Second,
		Write: 2 * time.Second, Step: 100 * time.Millisecond})
	if err != nil {
		return x, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	d := fleet.NewDriver(s.api, "available", 0, nil)
	if err := prepare(ctx, f, d); err != nil {
		return x, err
	}
	if err := until(ctx, func() string { return "some nodes are still being verified" }, func() (bool, error) {
		busy, err := s.api.Nodes(ctx, map[string][]string{"provision_state": {"verifying"}})
		return len(busy) == 0, err
	}); err != nil {
		return x, err
	}
	began := time.Now()
	d.Target("active")
	if err := d.Run(ctx); err != nil {
		return x, err
	}
	each := times(d)
	if len(each) != few {
		return x, fmt.Errorf("%d of %d machines were deployed", len(each), few)
	}
	x = flat{Nodes: n, PerMinute: few / time.Since(began).Minutes(), EachP50: percentile(each, 50)}
	fmt.Fprintf(o.out, "%s  %d nodes in the store: %.0f deployments per minute\n", time.Now().Format(time.TimeOnly), n,
		x.PerMinute)
	return x, nil
}
