package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/ingot-metal/ingot/test/bench/against"
)

// against compares ingotd with that of an earlier commit.
func (b *bench) against(c against.Comparison) error {
	bin, err := c.Build(b.ctx)
	if err != nil {
		return err
	}
	base := filepath.Join(bin, "ingotd")
	if err := c.SameGo(base, b.bin); err != nil {
		return err
	}
	return c.Run(b.ctx, b.turn(base), b.turn(b.bin))
}

// turn measures one ingotd on separate data.
func (b *bench) turn(bin string) against.Measure {
	return func(ctx context.Context) (figures []against.Figure, err error) {
		turn := &bench{ctx: ctx, bin: bin, out: io.Discard, short: b.short}
		if turn.dir, err = os.MkdirTemp(b.dir, "turn-"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(turn.dir)
		if err := turn.figures(); err != nil {
			return nil, err
		}
		for _, r := range turn.report.Rows {
			figures = append(figures, against.Figure{Name: r.What, Unit: r.Unit, Value: r.Value, More: r.faster})
		}
		return figures, nil
	}
}

// figures measures what matters most of the API, in some 25 seconds. Every figure is of many requests, or many starts:
// one would vary too much.
func (b *bench) figures() error {
	const few, nodes = 2000, 8000
	fresh := func(i int) string { return fmt.Sprintf("new-%d", i) }
	if err := b.starts("start to first answer, no data yet", fresh); err != nil {
		return err
	}
	s, err := b.fresh("nodes")
	if err != nil {
		return err
	}
	defer func() { s.stop() }()
	if err := b.rate(s, row{What: "create, 1 connection, to 2,000 nodes"}, 1, 0, create(0, few)); err != nil {
		return err
	}
	if err := b.rate(s, row{What: "create, 8 connections, 2,000 to 8,000 nodes"}, 8, 0,
		create(few, nodes)); err != nil {
		return err
	}
	if err := b.reads(s, nodes, ", 8,000 nodes"); err != nil {
		return err
	}
	if err := b.patches(s, nodes, ", 8,000 nodes"); err != nil {
		return err
	}
	if err := b.memory(s, row{What: "memory with 8,000 nodes, after this load"}); err != nil {
		return err
	}
	s.stop()
	if err := b.starts("start to first answer, 8,000 nodes", func(int) string { return "nodes" }); err != nil {
		return err
	}
	return b.cycles(1000)
}

// starts starts ingotd nine times, on the data directories that dir names, and reports the median.
func (b *bench) starts(what string, dir func(i int) string) error {
	var took []float64
	for i := range 9 {
		if err := context.Cause(b.ctx); err != nil {
			return err
		}
		s, err := b.fresh(dir(i))
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		s.stop()
		took = append(took, ms(s.answer))
	}
	b.add(row{What: what, Unit: "ms", Value: against.Median(took)})
	return nil
}
