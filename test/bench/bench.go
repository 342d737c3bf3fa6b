package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/test/bench/against"
)

// bench is one run of everything.
type bench struct {
	rounds           int
	sizeMiB, dataMiB int64
	bin, dir, only   string
	image            string // given; empty: one is made
	ram              string // folder of the device that is rebuilt; empty: below dir
	report, picture  string

	self  string // this program
	spans string // file with the places of the data
	res   results
}

// results is the content of the report.
type results struct {
	Machine   string     `json:"machine"`
	When      time.Time  `json:"when"`
	Image     string     `json:"image"`
	Rounds    int        `json:"rounds"`
	Scenarios []scenario `json:"scenarios"`
	Goals     []goal     `json:"goals"`
}

// scenario is one comparison.
type scenario struct {
	Name  string  `json:"name"`
	Title string  `json:"title"`
	Ideal float64 `json:"ideal_s"` // what arithmetic allows; 0: nothing to compute
	Rows  []row   `json:"rows"`
}

// row is one contender's medians.
type row struct {
	Name   string    `json:"name"`
	Wall   float64   `json:"wall_s"`
	Walls  []float64 `json:"walls_s"`
	CPU    float64   `json:"cpu_s"`
	RSS    int64     `json:"rss_bytes"`
	Landed int64     `json:"landed_bytes"`
	Busy   float64   `json:"busy"` // share of all processors in use, by whomever, while it ran
}

// goal is one figure that is promised.
type goal struct {
	What string  `json:"what"`
	Is   float64 `json:"is"`
	Want float64 `json:"want"`
	Most bool    `json:"most"` // Want is the most that Is may be; else the least
}

func (g goal) met() bool { return g.Most && g.Is <= g.Want || !g.Most && g.Is >= g.Want }

func (b *bench) run(ctx context.Context) (err error) {
	dir, err := b.folder()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	im, err := b.source(dir)
	if err != nil {
		return err
	}
	if err := im.pack(filepath.Join(b.bin, "ingot"), "image"); err != nil {
		return err
	}
	b.spans = filepath.Join(dir, "spans")
	list := make([][2]int64, len(im.spans))
	for i, s := range im.spans {
		list[i] = [2]int64{s.off, s.n}
	}
	raw, err := json.Marshal(list)
	if err != nil {
		return err
	}
	if err := os.WriteFile(b.spans, raw, 0o600); err != nil {
		return err
	}
	b.res = results{Machine: machine(), When: time.Now().UTC().Truncate(time.Second), Rounds: b.rounds,
		Image: fmt.Sprintf("%d MiB, of which %d MiB in blocks that are not zero", im.size/mib, im.data/mib)}
	for _, s := range []struct {
		name string
		run  func(context.Context, string, *image) error
	}{
		{"fast", b.fast}, {"memory", b.memory}, {"nvme", b.nvme}, {"disk", b.disk}, {"link", b.link},
		{"rebuild", b.rebuild}, {"swarm", b.swarm},
	} {
		if b.only != "" && b.only != s.name {
			continue
		}
		sub := filepath.Join(dir, s.name)
		if err := os.Mkdir(sub, 0o755); err != nil {
			return err
		}
		if err := s.run(ctx, sub, im); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if err := b.save(); err != nil { // measurements are kept, even if the rest fails
			return err
		}
	}
	b.print(os.Stdout)
	missed := 0
	for _, g := range b.res.Goals {
		if !g.met() {
			missed++
		}
	}
	if missed > 0 {
		return fmt.Errorf("%d of %d goals are missed", missed, len(b.res.Goals))
	}
	return nil
}

// folder makes the folder of a run.
func (b *bench) folder() (dir string, err error) {
	if b.self, err = os.Executable(); err != nil {
		return "", err
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return "", err
	}
	if dir, err = os.MkdirTemp(b.dir, "run"); err != nil {
		return "", err
	}
	return filepath.Abs(dir)
}

// source is the raw image.
func (b *bench) source(dir string) (*image, error) {
	if b.image != "" {
		return takeImage(dir, "image", b.image)
	}
	b.say("making the image: %d MiB, %d MiB of it files", b.sizeMiB, b.dataMiB)
	return makeImage(dir, "image", b.sizeMiB*mib, b.dataMiB*mib)
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// compare lets contenders take turns.
func (b *bench) compare(ctx context.Context, name, title string, ideal float64, im *image, s *server, d *device,
	cs []contender) (scenario, error) {
	b.say("%s: %d rounds of %d contenders", title, b.rounds, len(cs))
	all := make([][]took, len(cs))
	for round := range b.rounds {
		for k := range cs {
			i := (round + k) % len(cs)
			t, err := b.once(ctx, cs[i], im, s, d, round == 0)
			if err != nil {
				return scenario{}, fmt.Errorf("%s: %w", cs[i].name, err)
			}
			all[i] = append(all[i], t)
			b.say("  round %d  %-16s %6.2f s  %5.2f CPU s", round+1, cs[i].name, t.wall.Seconds(), t.cpu.Seconds())
		}
	}
	sc := scenario{Name: name, Title: title, Ideal: ideal}
	for i, c := range cs {
		sc.Rows = append(sc.Rows, rowOf(c.name, all[i]))
	}
	b.res.Scenarios = append(b.res.Scenarios, sc)
	return sc, nil
}

func rowOf(name string, ts []took) row {
	r := row{Name: name}
	var cpu, busy []float64
	for _, t := range ts {
		busy = append(busy, t.busy)
		r.Walls = append(r.Walls, t.wall.Seconds())
		cpu = append(cpu, t.cpu.Seconds())
		r.RSS = max(r.RSS, t.rss)
		r.Landed = max(r.Landed, t.landed)
	}
	r.Wall, r.CPU, r.Busy = against.Median(r.Walls), against.Median(cpu), against.Median(busy)
	return r
}

func (s scenario) row(name string) row {
	for _, r := range s.Rows {
		if r.Name == name {
			return r
		}
	}
	return row{}
}

// paired is the median of the ratios within rounds.
func (s scenario) paired(a, b string) float64 {
	var v []float64
	x, y := s.row(a), s.row(b)
	for i := range x.Walls {
		v = append(v, x.Walls[i]/y.Walls[i])
	}
	return against.Median(v)
}

func (b *bench) most(want, is float64, format string, args ...any) {
	b.res.Goals = append(b.res.Goals, goal{fmt.Sprintf(format, args...), is, want, true})
}

func (b *bench) least(want, is float64, format string, args ...any) {
	b.res.Goals = append(b.res.Goals, goal{fmt.Sprintf(format, args...), is, want, false})
}

// fast is a device as fast as this machine has it, and a server on the same machine: processors are the limit.
func (b *bench) fast(ctx context.Context, dir string, im *image) error {
	return b.processors(ctx, dir, im, "fast", "fast device", "a fast device, no link: the processors are the limit",
		nil)
}

// memory is a device in memory, where only the processors are waited for. What the stages' waits for each other cost
// shows in the times against the floor, and in how busy the processors are.
func (b *bench) memory(ctx context.Context, dir string, im *image) (err error) {
	s, err := startServer(ctx, im.dir, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	d, err := b.fastDevice(ctx, dir, im.size+64*mib)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	plain := b.ours("plain.qcow2", oursPlain)
	cs := append(without(without(b.contenders(), "dd"), oursLZ4), plain)
	sc, err := b.compare(ctx, "memory", "a device in memory, no link: the processors are the limit", 0, im, s, d, cs)
	if err != nil {
		return err
	}
	b.least(1.67, sc.paired("qemu", "ours, published"), "device in memory, ours, published: times as fast as curl + qemu-img")
	b.least(1.5, sc.paired("qemu", "ours, qcow2"), "device in memory, ours, qcow2: times as fast as curl + qemu-img")
	for _, name := range []string{"ours, qcow2", "ours, published"} {
		b.least(0.85, sc.row(name).Busy, "device in memory, %s: share of the processors in use while it writes", name)
	}
	for _, r := range sc.Rows {
		if r.ours() {
			b.most(48, float64(r.RSS)/mib, "device in memory, %s: MiB of memory", r.Name)
		}
	}
	return nil
}

// nvmeRate is the sustained write rate of a good drive on four lanes of PCIe 3.
const nvmeRate = 2_500_000_000

// nvme is fast, but no faster than a known speed, so that what it shows of the floor can be compared between machines.
func (b *bench) nvme(ctx context.Context, dir string, im *image) (err error) {
	t, err := newThrottle(dir, nvmeRate)
	if err != nil && b.only == "" {
		b.say("left out, a device of a known speed of several GB/s: %v", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close(ctx)) }()
	name := fmt.Sprintf("device of %.1f GB/s", float64(nvmeRate)/1e9)
	return b.processors(ctx, dir, im, "nvme", name, "a "+name+", no link: the processors are the limit, nearly", t)
}

// processors lets all contenders write to a device that seldom keeps anybody waiting. Goals name it by short.
func (b *bench) processors(ctx context.Context, dir string, im *image, name, short, title string,
	t *throttle) (err error) {
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
	d.throttle = t
	sc, err := b.compare(ctx, name, title, 0, im, s, d, b.contenders())
	if err != nil {
		return err
	}
	for _, name := range []string{"ours, qcow2", "ours, published", oursLZ4} {
		b.most(2.5, sc.paired(name, "floor"), "%s, %s: time / floor", short, name)
		b.least(1.3, sc.paired("qemu", name), "%s, %s: times as fast as curl + qemu-img", short, name)
		b.most(0.7, sc.row(name).CPU/sc.row("qemu").CPU, "%s, %s: CPU seconds / those of curl + qemu-img", short, name)
	}
	b.least(1, sc.paired("dd", "ours, raw.zst"), "%s, ours, raw.zst: times as fast as curl | zstd | dd", short)
	for _, r := range sc.Rows {
		if r.ours() {
			b.most(64, float64(r.RSS)/mib, "%s, %s: MiB of memory", short, r.Name)
		}
	}
	return nil
}

// diskRate is that of a good SATA SSD, halved so that two processors have time left.
const diskRate = 250 * mib

// disk is a device that is slower than everything else.
func (b *bench) disk(ctx context.Context, dir string, im *image) (err error) {
	s, err := startServer(ctx, im.dir, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	d, err := newDevice(ctx, dir, im.size+64*mib, diskRate)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	ideal := float64(im.data) / diskRate
	sc, err := b.compare(ctx, "disk", fmt.Sprintf("a device of %d MiB/s: the device is the limit", int64(diskRate/mib)),
		ideal, im, s, d, without(b.contenders(), oursLZ4))
	if err != nil {
		return err
	}
	for _, name := range []string{"ours, qcow2", "ours, published", "ours, raw.zst"} {
		r := sc.row(name)
		if name != "ours, raw.zst" {
			b.most(1.05, r.Wall/ideal, "device of %d MiB/s, %s: time / (data / speed of the device)",
				int64(diskRate/mib), name)
		}
		b.most(1.02, float64(r.Landed)/float64(im.data), "%s: bytes landed / bytes in blocks that are not zero", name)
	}
	return nil
}

// linkRate is the rate of most machines' links.
const linkRate = 1_000_000_000

// link measures a server on a link that is slower than everything else.
func (b *bench) link(ctx context.Context, dir string, im *image) (err error) {
	s, err := startServer(ctx, im.dir, linkRate)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	d, err := newDevice(ctx, dir, im.size+64*mib, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	sc, err := b.compare(ctx, "link", "a link of 1 Gbit/s: the link is the limit", goodput(im.files["qcow2"].bytes), im,
		s, d, without(b.contenders()[1:], oursLZ4))
	if err != nil {
		return err
	}
	stored, err := b.stored(im)
	if err != nil {
		return err
	}
	b.most(1.05, sc.row("ours, qcow2").Wall/goodput(im.files["qcow2"].bytes),
		"link of 1 Gbit/s, ours, qcow2: time / (fetched bytes / speed of the link)")
	b.most(1.05, sc.row("ours, published").Wall/goodput(stored),
		"link of 1 Gbit/s, ours, published: time / (fetched bytes / speed of the link)")
	return nil
}

// without leaves out a contender that is made for another case.
func without(cs []contender, name string) []contender {
	return slices.DeleteFunc(cs, func(c contender) bool { return c.name == name })
}

// goodput is how long so many bytes take over the link: of 1514 bytes of a frame, 1448 are the file's.
func goodput(bytes int64) float64 { return float64(bytes) * 8 / (linkRate * 1448 / 1514.0) }

// stored returns the bytes that an agent fetches of a whole published image.
func (b *bench) stored(im *image) (int64, error) {
	text, err := output(filepath.Join(b.bin, "ingot"), "image", "inspect",
		filepath.Join(im.dir, im.files["ingot"].name), "-o", "json")
	if err != nil {
		return 0, err
	}
	var v struct {
		Published struct {
			Stored int64 `json:"stored_bytes"`
		} `json:"published"`
	}
	if err = json.Unmarshal([]byte(text), &v); err == nil && v.Published.Stored == 0 {
		err = fmt.Errorf("the size of the published image is not in %q", text)
	}
	return v.Published.Stored + im.files["ingot"].bytes, err
}

// rebuild is an image of which a part has changed, on a disk that holds the old one.
func (b *bench) rebuild(ctx context.Context, dir string, im *image) (err error) {
	next, changed, err := im.changed(filepath.Join(dir, "next.raw"), 6)
	if err != nil {
		return err
	}
	if err := next.pack(filepath.Join(b.bin, "ingot"), "next"); err != nil {
		return err
	}
	cs := b.contenders()
	full := cs[slices.IndexFunc(cs, func(c contender) bool { return c.name == "ours, published" })]
	auto := full
	auto.cmd = func(im *image, f file, url, dev string) (string, []string) {
		name, args := full.cmd(im, f, url, dev)
		args[len(args)-1] = "auto"
		return name, args
	}
	for _, where := range []struct {
		name, title string
		bits        int64
		most        float64
	}{
		{"rebuild", "rebuild after 6 % changed, a fast device", 0, 0.7},
		{"rebuild-link", "rebuild after 6 % changed, a link of 1 Gbit/s", linkRate, 0.4},
	} {
		if err := b.rebuildOver(ctx, dir, im, next, full, auto, changed, where.name, where.title, where.bits,
			where.most); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) rebuildOver(ctx context.Context, dir string, old, next *image, full, auto contender, changed int64,
	name, title string, bits int64, most float64) (err error) {
	s, err := startServer(ctx, old.dir, bits)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	d, err := b.fastDevice(ctx, dir, old.size+64*mib)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	b.say("%s: %d rounds", title, b.rounds)
	var fulls, diffs []took
	var written int64
	for range b.rounds {
		for i, c := range []contender{full, auto} {
			if _, err := b.once(ctx, full, old, s, d, false); err != nil {
				return err
			}
			t, err := b.again(ctx, c, next, s, d, true)
			if err != nil {
				return err
			}
			b.say("  %-16s %6.2f s  %5.2f CPU s", []string{"full", "difference"}[i], t.wall.Seconds(), t.cpu.Seconds())
			if i == 0 {
				fulls = append(fulls, t)
				continue
			}
			diffs = append(diffs, t)
			r, err := t.reported()
			if err != nil {
				return err
			}
			written = max(written, r.BytesWritten)
		}
	}
	sc := scenario{Name: name, Title: title, Rows: []row{rowOf("full", fulls), rowOf("difference", diffs)}}
	b.res.Scenarios = append(b.res.Scenarios, sc)
	b.most(most, sc.paired("difference", "full"), "%s: time / that of a full write", title)
	b.most(1.05, float64(written)/float64(changed), "%s: bytes written / bytes in blocks that changed", title)
	return nil
}
