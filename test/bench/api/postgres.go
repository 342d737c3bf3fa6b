package main

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/ingot-metal/ingot/test/conformance/ironic"
	"github.com/ingot-metal/ingot/tools/lab/pg"
)

// postgres measures ingotd and a real Ironic, each with a database of its own on the same PostgreSQL with its default
// durability, in turn. One connection has no goal: it waits for the disk.
func (b *bench) postgres() (err error) {
	dir := filepath.Join(b.dir, "postgresql")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(b.dir, 0o755); err != nil { // the server has no rights
		return err
	}
	db, err := pg.Create(dir, 0, "shared_buffers=256MB")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Stop()) }()
	pair, err := ironic.Start(b.ctx, ironic.Options{Dir: filepath.Join(b.dir, "pair"), Binary: b.bin, Server: db})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pair.Stop()) }()
	var sides [2]*server
	for i, at := range []string{pair.Ironic, pair.Ingot} {
		u, err := url.Parse(at)
		if err != nil {
			return err
		}
		sides[i] = &server{addr: u.Host}
	}
	const nodes = 1000
	var ids [2][]string
	both := func(r row, conns int, work func(side int) func(c *client, i int) (bool, error)) error {
		var got [2]outcome
		for side, s := range sides {
			limit := b.short
			if r.Unit == "" { // all of it
				limit = 0
			}
			var err error
			if got[side], err = b.load(s, conns, limit, work(side)); err != nil {
				return fmt.Errorf("%s, %s: %w", r.What, []string{"Ironic", "ingotd"}[side], err)
			}
		}
		r.What += " (PostgreSQL)"
		r.P50, r.P99 = got[1].p50, got[1].p99
		if r.Unit == "ms" {
			r.Value, r.Ironic = got[1].p50, got[0].p50
		} else {
			r.Unit, r.Value, r.Ironic, r.faster = "a second", got[1].rate, got[0].rate, true
		}
		b.add(r)
		return nil
	}
	get := func(side int) func(c *client, i int) (bool, error) {
		return func(c *client, i int) (bool, error) {
			_, err := c.want(200, "GET", "/v1/nodes/"+ids[side][i*7919%nodes], nil)
			return true, err
		}
	}
	patch := func(side int) func(c *client, i int) (bool, error) {
		return func(c *client, i int) (bool, error) {
			_, err := c.want(200, "PATCH", "/v1/nodes/"+ids[side][i*7919%nodes],
				fmt.Appendf(nil, `[{"op":"add","path":"/extra/n","value":"%d"}]`, i))
			return true, err
		}
	}
	if err := both(row{What: "create, 8 connections, to 1,000 nodes", Goal: 15}, 8,
		func(int) func(c *client, i int) (bool, error) { return create(0, nodes) }); err != nil {
		return err
	}
	for side, s := range sides {
		if ids[side], err = uuids(s, nodes); err != nil {
			return err
		}
	}
	for _, l := range []struct {
		what  string
		conns int
		goal  float64
		work  func(side int) func(c *client, i int) (bool, error)
	}{{"GET one node", 1, 0, get}, {"GET one node", 8, 20, get}, {"PATCH /extra", 1, 0, patch},
		{"PATCH /extra", 8, 20, patch}} {
		what := fmt.Sprintf("%s, %d connections", l.what, l.conns)
		if err := both(row{What: what, Unit: "a second", Goal: l.goal}, l.conns, l.work); err != nil {
			return err
		}
	}
	return both(row{What: "list, 1,000 nodes a page", Unit: "ms", Goal: 5}, 1,
		func(int) func(c *client, i int) (bool, error) {
			return func(c *client, _ int) (bool, error) {
				_, err := c.want(200, "GET", "/v1/nodes?limit=1000", nil)
				return true, err
			}
		})
}
