package main

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/ingot-metal/ingot/test/bench/against"
)

// compared are the contenders that are measured against an earlier commit; comparedForms is the forms that they fetch.
var (
	compared      = []string{"ours, qcow2", "ours, published", "ours, raw.zst"}
	comparedForms = []string{"qcow2", "ingot", "zst"}
)

// against compares ingot-agent write with that of an earlier commit, on a fast device. Each writes the image published
// by ingot of its own commit: the format may have changed in between.
func (b *bench) against(ctx context.Context, c against.Comparison) (err error) {
	bin, err := c.Build(ctx)
	if err != nil {
		return err
	}
	if err := c.SameGo(filepath.Join(bin, "ingot-agent"), filepath.Join(b.bin, "ingot-agent")); err != nil {
		return err
	}
	dir, err := b.folder()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	im, err := b.source(dir)
	if err != nil {
		return err
	}
	if err := im.pack(filepath.Join(b.bin, "ingot"), "image", comparedForms...); err != nil {
		return err
	}
	base, old := *b, *im
	base.bin, old.dir, old.files = bin, filepath.Join(im.dir, "base"), maps.Clone(im.files)
	if err := os.Mkdir(old.dir, 0o755); err != nil {
		return err
	}
	if err := old.pack(filepath.Join(bin, "ingot"), "image", "ingot"); err != nil {
		return err
	}
	published := old.files["ingot"]
	published.name = "base/" + published.name // as it is served
	old.files["ingot"] = published

	s, err := startServer(ctx, im.dir, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	d, err := newDevice(ctx, dir, im.size+64*mib, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	b.say("comparing what each writes with the image")
	for _, check := range []against.Measure{base.turn(&old, s, d, true), b.turn(im, s, d, true)} {
		if _, err := check(ctx); err != nil {
			return err
		}
	}
	return c.Run(ctx, base.turn(&old, s, d, false), b.turn(im, s, d, false))
}

// turn measures the ingot-agent in b.bin once with each form of the image.
func (b *bench) turn(im *image, s *server, d *device, check bool) against.Measure {
	return func(ctx context.Context) (figures []against.Figure, err error) {
		for _, c := range b.contenders() {
			if !slices.Contains(compared, c.name) {
				continue
			}
			t, err := b.once(ctx, c, im, s, d, check)
			if err != nil {
				return nil, err
			}
			figures = append(figures,
				against.Figure{Name: c.name + ", time", Unit: "s", Value: t.wall.Seconds()},
				against.Figure{Name: c.name + ", processors", Unit: "CPU s", Value: t.cpu.Seconds()})
		}
		return figures, nil
	}
}
